"""Tests the import of the package, its command, and its emulated driver."""

import os
import subprocess
import sys

import pytest

import gpuheap
from gpuheap import emulate


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_import_opens_no_device():
    program = """
import sys
before = set(sys.modules)
import gpuheap
new = {name.split(".")[0] for name in set(sys.modules) - before}
assert not new & {"torch", "cupy", "numba", "rmm", "cuda", "pycuda", "jax", "numpy", "pytest", "IPython"}, new
assert "libcuda" not in open("/proc/self/maps").read()
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def test_command_returns_exit_codes():
    done = python("-m", "gpuheap", "--version")
    assert (done.returncode, done.stdout) == (0, f"gpuheap {gpuheap.__version__}\n")
    done = python("-m", "gpuheap", "nosuch")
    assert done.returncode == 2 and "no command 'nosuch'" in done.stderr


def test_dry_run_finds_the_emulated_libraries():
    program = "import gpuheap; print(gpuheap.Device('cuda:0').total_memory)"
    done = python(
        "-m", "gpuheap", "dry-run", "--memory", "16GiB", "--", sys.executable, "-c", program
    )
    assert (done.returncode, done.stdout) == (0, f"{16 << 30}\n"), done.stderr
    assert "It fits on H200 141GB." in done.stderr


@pytest.mark.parametrize(
    "program, code",
    [
        ("allocate(20)", 0),
        ("attempt(60)", 1),
        ("attempt(60); allocate(20)", 1),
        ("any(attempt(gib) for gib in (64, 32, 16))", 0),
    ],
)
def test_heap_refusal_counts_in_dry_run(tmp_path, program, code):
    path = tmp_path / "program.py"
    path.write_text(
        "import gpuheap\n"
        "heap, kept = gpuheap.Heap('cuda:0'), []\n"
        "def allocate(gib): kept.append(heap.alloc(gib << 30))\n"
        "def attempt(gib):\n"
        "    try: kept.append(heap.alloc(gib << 30)); return True\n"
        "    except gpuheap.OutOfMemory: return False\n"
        f"{program}\n"
    )
    done = python("-m", "gpuheap", "dry-run", "--card", "RTX 4090", "--", sys.executable, path)
    assert done.returncode == code, done.stderr
    said = "gpuheap's allocation of 60 GiB was refused at program.py:5 in attempt"
    if code == 1:
        assert said in " ".join(done.stderr.split()), done.stderr


def test_wheel_has_dry_run_libraries():
    names = {path.name for path in emulate.library().parent.iterdir()}
    assert {
        "libcuda.so.1",
        "libgpuheap_emu_cudart.so",
        "libgpuheap_emu_libraries.so",
        "libnvidia-ml.so.1",
    } <= names


def test_emulate_runs_a_program():
    program = "import gpuheap; print(gpuheap.Device('cuda:0').total_memory)"
    done = python(
        "-m", "gpuheap", "emulate", "--device", "16GiB", "--", sys.executable, "-c", program
    )
    assert (done.returncode, done.stdout) == (0, f"{16 << 30}\n"), done.stderr


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        ([], 2, "no program was given"),
        (["--", "/nosuch/program"], 3, "/nosuch/program cannot be run"),
        (["--nosuch"], 2, "--nosuch"),
    ],
)
def test_emulate_reports_wrong_arguments(arguments, code, text):
    done = python("-m", "gpuheap", "emulate", *arguments)
    assert done.returncode == code and text in done.stderr


def test_forked_child_frees_nothing():
    program = """
import os, gpuheap
heap = gpuheap.Heap("emulated:1GiB")
buffer = heap.alloc(1000)
child = os.fork()
if not child:
    for use in (lambda: heap.alloc(10), heap.flush, heap.stats):
        try:
            use()
        except gpuheap.Gone as error:
            assert "fork" in str(error)
        else:
            os._exit(1)
    del buffer, heap
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert heap.stats()["live"] == 1000
"""
    done = python("-W", "ignore", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_subinterpreter_is_refused():
    program = """
try:
    import _interpreters
    run = _interpreters.exec
except ImportError:
    import _xxsubinterpreters as _interpreters
    run = _interpreters.run_string
inside = _interpreters.create()
failed = run(inside, '''
try:
    import gpuheap
    gpuheap.Heap
except ImportError as error:
    assert "main interpreter" in str(error), error
else:
    raise AssertionError("no error")
''')
assert failed is None, failed
_interpreters.destroy(inside)
import gpuheap
heap = gpuheap.Heap("emulated:1GiB")
try:
    heap.alloc(1 << 40)
except gpuheap.OutOfMemory:
    pass
"""
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_exits_with_live_memory_are_clean():
    program = """
import gpuheap, threading
heap = gpuheap.Heap("emulated:1GiB", track="lines")
kept = [heap.alloc(1000, heap.stream()) for _ in range(10)] + [heap.pinned(10)]
kept.append(kept)
capsule = heap.alloc(5).__dlpack__()
threading.Thread(target=lambda: [heap.alloc(10) for _ in range(100000)], daemon=True).start()
"""
    for _ in range(20):
        done = python("-c", program)
        assert (done.returncode, done.stderr) == (0, "")
