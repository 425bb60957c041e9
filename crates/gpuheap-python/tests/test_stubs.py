"""Stubs of the extension module, compared with the module that runs."""

import subprocess
import sys
from pathlib import Path

import pytest

import gpuheap

# The buffer protocol has a method in Python from 3.12 on; type checkers know it for all versions.
ALLOWED = "" if sys.version_info >= (3, 12) else r"gpuheap\._gpuheap\.HostBuffer\.__buffer__"
PACKAGE = Path(gpuheap.__file__).parent


@pytest.fixture
def mypy(tmp_path):
    """Runs a module of mypy where the package stands alone: mypy refuses a folder of installed packages."""
    pytest.importorskip("mypy")
    (tmp_path / "gpuheap").symlink_to(PACKAGE)
    (tmp_path / "mypy.ini").write_text("[mypy]\nignore_missing_imports = True\n")

    def run(module, *arguments):
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)

    return run


def test_stubs_are_those_of_the_module(mypy, tmp_path):
    allowed = tmp_path / "allowed"
    allowed.write_text(ALLOWED)
    done = mypy("mypy.stubtest", "gpuheap._gpuheap", "--allowlist", str(allowed), "--mypy-config-file", "mypy.ini")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "line, shown",
    [
        ("gpuheap.Heap('emulated').alloc(10)", "gpuheap._gpuheap.Buffer"),
        ("gpuheap.Heap('emulated').scope('load')", "gpuheap._scopes.Scope"),
        ("gpuheap.explain('text')", "gpuheap._explain.Explanation | None"),
        ("gpuheap.flush().given_back", "int"),
    ],
)
def test_names_of_the_package_have_types(mypy, line, shown):
    done = mypy("mypy", "--cache-dir=/dev/null", "-c", f"import gpuheap; reveal_type({line})")
    assert f'Revealed type is "{shown}"'.replace("builtins.", "") in done.stdout.replace("builtins.", "")


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
        done = mypy("mypy", "--cache-dir=/dev/null", "--python-version", version, "-c", program + more)
        assert done.returncode == 0, done.stdout
