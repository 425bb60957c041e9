"""Runs strict type checkers on the extension module's type stubs, and on programs that use them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpuheap

# The method `__buffer__` exists from Python 3.12 on, but type checkers assume it in all versions.
# Allow that difference in earlier versions.
ALLOWED = "" if sys.version_info >= (3, 12) else r"gpuheap\._gpuheap\.HostBuffer\.__buffer__"
PACKAGE = Path(gpuheap.__file__).parent


@pytest.fixture
def mypy(tmp_path):
    """Runs a module of mypy in a folder that contains only a link to the package, because mypy
    refuses a folder of installed packages."""
    pytest.importorskip("mypy")
    (tmp_path / "gpuheap").symlink_to(PACKAGE)
    (tmp_path / "mypy.ini").write_text("[mypy]\nignore_missing_imports = True\n")

    def run(module, *arguments):
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)

    return run


def test_stubs_equal_the_module(mypy, tmp_path):
    allowed = tmp_path / "allowed"
    allowed.write_text(ALLOWED)
    done = mypy(
        "mypy.stubtest",
        "gpuheap._gpuheap",
        "--allowlist",
        str(allowed),
        "--mypy-config-file",
        "mypy.ini",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_of_the_package_have_types(mypy):
    shown = {
        "gpuheap.Heap('emulated').alloc(10)": "gpuheap._gpuheap.Buffer",
        "gpuheap.Heap('emulated')": "gpuheap._heap.Heap",
        "gpuheap.Heap('emulated').scope('load')": "gpuheap._scopes.Scope",
        "gpuheap.explain('text')": "gpuheap._explain.Explanation | None",
        "gpuheap.flush().given_back": "int",
    }
    # One run, because most of its time is the reading of the package.
    program = "\n".join(["import gpuheap", *(f"reveal_type({line})" for line in shown)])
    done = mypy("mypy", "--cache-dir=/dev/null", "-c", program)
    found = re.findall('Revealed type is "(?:builtins[.])?(.*)"', done.stdout)
    assert found == list(shown.values()), done.stdout


def test_numpy_takes_host_memory(mypy):
    pytest.importorskip("numpy")
    program = """
import gpuheap, numpy
heap = gpuheap.Heap("emulated")
numpy.frombuffer(memoryview(heap.pinned(8)), "f8")
heap.alloc(8).copy_from(numpy.ones(1))
heap.alloc(8).copy_from(heap.pinned(8))
"""
    for version, more in (("3.11", ""), ("3.12", "numpy.frombuffer(heap.pinned(8), 'f8')")):
        done = mypy(
            "mypy", "--cache-dir=/dev/null", "--python-version", version, "-c", program + more
        )
        assert done.returncode == 0, done.stdout


TYPED = """
import gpuheap

class Own(gpuheap.Heap):
    pass

own: Own = Own("emulated")
heap = gpuheap.Heap("emulated", track="lines")
report: gpuheap.FlushReport = heap.flush()
status: gpuheap.Status = heap.status()
leaks: gpuheap.Leaks = heap.leaks()
meter: gpuheap.Meter = heap.meter()
lines: list[gpuheap.Line] = gpuheap.meter().read().lines
held: list[gpuheap.Held] = heap.held()
holders: list[gpuheap.Holder] = gpuheap.holders(heap)
installed: gpuheap.Installed | None = gpuheap.installed()
adapted = heap.adapt({"a": [1.0]})

with heap.scope("load", limit="1 MiB") as scope:
    again: gpuheap.Scope = gpuheap.current_scope()
    array: gpuheap.Array = scope.keep(heap.zeros(10))
    leaked: list[gpuheap.Leak] = scope.leaked

@heap.scope("step")
def step(count: int, *, name: str = "") -> str:
    return name * count

@gpuheap.scope("step")
async def step_async(count: int) -> float:
    return count / 2

@gpuheap.thread_scope
def worker(count: int) -> None:
    pass

@gpuheap.thread_scope(limit="1 GiB", heap=heap)
def limited(count: int) -> int:
    return count

async def main() -> None:
    half: float = await step_async(1)
    print(half)

text: str = step(2, name="a")
number: int = limited(1)
worker(1)
"""
WRONG = ("step('two')", "step(2, nam='a')", "worker()", "limited(1).upper()", "heap.leak()")


UNTYPED = ("from distributed", "import ray", "import pandas")


def strict_programs():
    from test_pages import PROGRAMS

    found = {"typed": TYPED}
    for name, blocks in PROGRAMS.items():
        plain = [block.code for block in blocks if not block.mark]
        # Strict checkers refuse programs with libraries that have no types, or no strict types.
        is_typed = not any(library in "".join(plain) for library in UNTYPED)
        if plain and plain[0] == blocks[0].code and is_typed:
            found[name.replace("/", "_").replace(":", "_").replace(".", "_")] = "\n".join(plain)
    return found


@pytest.fixture
def programs(tmp_path):
    """Returns a function that writes programs to files, and returns the files."""

    def write(codes):
        for name, code in codes.items():
            (tmp_path / f"{name}.py").write_text(code)
        return [f"{name}.py" for name in codes]

    return write


@pytest.fixture
def pyright(mypy, tmp_path):
    """Returns a function that runs pyright in strict mode. The function returns the errors, each as
    file, line and message."""
    pytest.importorskip("pyright")
    # Pages of docs contain expressions and variables that no code uses.
    settings = {
        "typeCheckingMode": "strict",
        "reportUnusedExpression": False,
        "reportUnusedVariable": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))

    def run(files):
        done = subprocess.run(
            [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *files],
            capture_output=True, text=True, timeout=300, cwd=tmp_path,
            env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stdout + done.stderr
        found = json.loads(done.stdout)["generalDiagnostics"]
        return [
            (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
            for one in found
            if one["severity"] == "error"
        ]

    return run


def test_programs_pass_strict_pyright(pyright, programs):
    assert pyright(programs(strict_programs())) == []


def test_programs_pass_strict_mypy(mypy, programs):
    done = mypy(
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir=/dev/null",
        *programs(strict_programs()),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_calls_fail_in_pyright(pyright, programs):
    (file,) = programs({"wrong": TYPED + "\n".join(WRONG) + "\n"})
    first = TYPED.count("\n") + 1
    assert {line - first for _, line, _ in pyright([file])} == set(range(len(WRONG)))
