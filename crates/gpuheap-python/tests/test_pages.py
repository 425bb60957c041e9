"""Runs the Python blocks of docs/python.md, docs/dask.md and the READMEs on the emulated device.

The blocks between two headings form one program, `program.py`. A text block directly after a Python
block is the expected output. In the expected output, `...` matches anything, and line breaks may
differ. A comment before a block changes how it is tested:

* `<!-- not run: why -->`: not run. The test only checks that the names of gpuheap in it exist.
* `<!-- needs numba_cuda -->`: run only if the module is installed.
* `<!-- pytest -->`: run as a file of tests.
"""

import ast
import doctest
import functools
import importlib
import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

import gpuheap
from gpuheap import emulate

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / name
    for name in (
        "docs/python.md",
        "docs/tables.md",
        "docs/groups.md",
        "docs/dask.md",
        "docs/commands.md",
        "README.md",
        "crates/gpuheap-python/README.md",
    )
]

pytestmark = pytest.mark.skipif(not PAGES[0].is_file(), reason="the pages are not beside the tests")

# Runs a page's code blocks one after the other, as one file. After each block, prints a line with
# the character U+0001, at which the test splits the output.
RUNNER = """
import sys
for code in sys.argv[1:]:
    exec(compile(code, "program.py", "exec"), globals())
    print("\\n\\1", flush=True)
"""


class Block(NamedTuple):
    code: str
    mark: str
    printed: str | None
    line: int


def programs(page):
    """Returns the blocks of each section of a page. The key is `page:line` of the section's first
    block."""
    sections, last = [[]], None
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    mark = ""
    for number, line in lines:
        if fence := re.match(r" *```(\w*)$", line):
            body = []
            for _, inside in lines:
                if inside.strip() == "```":
                    break
                body.append(inside)
            text = textwrap.dedent("\n".join(body) + "\n")
            if fence[1] == "python":
                sections[-1].append(Block(text, mark, None, number))
            if fence[1] == "text" and last == "python":
                sections[-1][-1] = sections[-1][-1]._replace(printed=text)
            last, mark = fence[1], ""
        elif line.strip():
            if re.match(r"#+ ", line):
                sections.append([])
            comment = re.match(r"<!-- (.*) -->$", line)
            last, mark = None, comment[1] if comment else ""
    return {f"{page.relative_to(ROOT)}:{blocks[0].line}": blocks for blocks in sections if blocks}


PROGRAMS = {
    name: blocks for page in PAGES if page.is_file() for name, blocks in programs(page).items()
}


def is_run(block):
    kind, _, rest = block.mark.partition(" ")
    assert kind in ("", "not", "needs", "pytest"), f"<!-- {block.mark} --> is unknown"
    if kind == "needs":
        return all(importlib.util.find_spec(name) is not None for name in rest.split(", "))
    return kind != "not"


@functools.cache
def environment():
    try:
        made = emulate.environment("1GiB", checks=True)
    except gpuheap.DriverError as error:
        pytest.skip(str(error))
    made["PYTHONPATH"] = str(Path(gpuheap.__file__).parents[1])
    made["PYTHONDONTWRITEBYTECODE"] = "1"
    return made


def run(*arguments, folder):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, timeout=300, env=environment(), cwd=folder,
    )  # fmt: skip


def compare(block, printed):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    if block.printed is not None and not doctest.OutputChecker().check_output(
        block.printed, printed, flags
    ):
        pytest.fail(
            f"the block of line {block.line} prints\n{printed}\nand not\n{block.printed}",
            pytrace=False,
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_blocks_run(name, tmp_path):
    blocks = [block for block in PROGRAMS[name] if is_run(block)]
    if not blocks:
        pytest.skip("; ".join(block.mark for block in PROGRAMS[name]))
    if blocks[0].mark == "pytest":
        (block,) = blocks
        (tmp_path / "test_step.py").write_text(block.code)
        options = [*plugin(), "-p", "no:cacheprovider", "--gpuheap", "test_step.py"]
        compare(block, run("-m", "pytest", *options, folder=tmp_path).stdout)
        return
    # Code blocks write files to this folder, and read the repository's examples from it.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    parts, lines = [], 0
    for block in blocks:
        # Adds empty lines, so that each block keeps its line numbers within the file.
        parts.append("\n" * lines + block.code)
        lines += block.code.count("\n") + 1
    done = run("-c", RUNNER, *parts, folder=tmp_path)
    # Findings of the emulated device's checks, and warnings about leaks, would be on stderr.
    assert done.returncode == 0 and not done.stderr, done.stdout.replace("\1", "") + done.stderr
    for block, printed in zip(blocks, done.stdout.split("\n\1\n")):
        compare(block, printed)


def plugin():
    from importlib.metadata import entry_points

    is_installed = any(found.name == "gpuheap" for found in entry_points(group="pytest11"))
    return [] if is_installed else ["-p", "gpuheap.pytest_plugin"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_names_exist(name):
    for block in PROGRAMS[name]:
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("gpuheap."):
                look_up(ast.unparse(node), block.line)


def look_up(name, line):
    """Looks up a name such as `gpuheap.torch.pool`. Stops at a module whose library is not
    installed."""
    found = gpuheap
    for part in name.split(".")[1:]:
        if not re.fullmatch(r"\w+", part):
            return
        try:
            found = (
                getattr(found, part)
                if hasattr(found, part)
                else importlib.import_module(f"gpuheap.{part}")
            )
        except ModuleNotFoundError as error:
            assert error.name is not None and not error.name.startswith("gpuheap"), (
                f"line {line}: {name} is unknown"
            )
            return
        if not isinstance(found, type(gpuheap)):
            return
