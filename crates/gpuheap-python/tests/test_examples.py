"""Runs each program of examples/python on an emulated device."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpuheap
from support import needs_driver

EXAMPLES = Path(__file__).parents[3] / "examples/python"
PACKAGE = Path(gpuheap.__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not EXAMPLES.is_dir(), reason="the examples are not beside the tests"
)


def run(*arguments, path=PACKAGE):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def lines(text, *expected):
    """Checks that the text contains the expected lines in this order."""
    found = iter(text.splitlines())
    for line in expected:
        assert any(line in one for one in found), f"{line!r} is missing or out of order:\n{text}"


def printed(name, *expected, arguments=(), options=(), path=PACKAGE):
    """Runs an example and returns its output. Checks that the example succeeds, and that its output
    has the expected lines in this order."""
    done = run(*options, EXAMPLES / name, *arguments, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines(done.stdout, *expected)
    return done.stdout


def test_flush_after_exception():
    printed(
        "flush_after_exception.py",
        "ValueError: batch 7 has a wrong shape",
        "300 MiB of line 3:",
        "sys.last_",
        "given back: 0 MiB; live: 300 MiB",
        "300 MiB: sys.last_",
        "In [2]: weights",
        "done",
        "live: 300 MiB",
    )


def test_pytest_budget():
    is_installed = any(
        found.name == "gpuheap" for found in importlib.metadata.entry_points(group="pytest11")
    )
    plugin = [] if is_installed else ["-p", "gpuheap.pytest_plugin"]
    options = ["--gpuheap", "--gpuheap-device", "emulated:1GiB", "-p", "no:cacheprovider"]
    done = run("-m", "pytest", *plugin, *options, EXAMPLES / "pytest_budget")
    assert done.returncode == 1, done.stdout + done.stderr
    lines(
        done.stdout,
        "gpu_limit: 34 MiB of GPU memory live at once, 14 MiB above 20 MiB",
        "gpu_limit_leaks: 2 MiB of GPU memory left behind, 1 MiB above 1 MiB",
        "(step)",
        "= GPU memory =",
        "peak      34 MiB",
        "peak      18 MiB",
        "peak       6 MiB, kept 2 MiB",
        "2 failed, 1 passed",
    )


def test_arrays_by_themselves():
    printed(
        "arrays_by_themselves.py",
        "[[-3.0, -3.0, -3.0], [3.0, 3.0, 3.0]] sum of positive: 3",
        "0 bytes live",
        "sum: 1000.0 by <gpuheap.Array float32 [1000] on emulated:1GiB>",
        "Freed: the array was freed before this use",
        "['float32', 'float32'] 0.1 8,000 bytes live",
        "8000 bytes by line",
        f"sum: {sum(range(256)) << 20} in batches of",
        "0 bytes live",
    )


def test_group_sums():
    printed("group_sums.py", "18 MiB in ", "group 0:", "group 4:", "the same on the host: True")


def test_thread_memory():
    printed(
        "thread_memory.py",
        "the thread ended; live: 64 MiB",
        "64 MiB of line",
        "held by: __main__.cache[0]",
        "live: 0 MiB, kept for the next request: 96 MiB",
        "after heap.flush(): 0 MiB",
        "the thread ended; live: 0 MiB",
        "the list has a freed buffer: True",
    )


def test_rapids_on_wsl2_fails_until_cured():
    text = printed(
        "rapids_on_wsl2.py",
        "the driver calls 4.13 GiB free",
        "the pool's first piece, half of the card: 3.91 GiB",
        "MemoryError, with memory left:",
        "gpuheap: the driver refuses it, though it calls that much free",
        "guide: crates/gpuheap/src/guide/wsl2.md",
        "RMM: Windows refused the request.",
        "it grew to 3.25 GiB, and nothing was refused",
        "initial_pool_size=1073741824, maximum_pool_size=3489660928",
    )
    program = text.partition("in your program")[2]
    compile(program.partition("\n")[2].partition("-- in the shell")[0], "printed", "exec")


def test_tables_on_wsl2_fail_until_cured():
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    text = printed("tables_on_wsl2.py")
    pairs = (
        ("large_frame_at_once", "large_frame_in_batches"),
        ("csv_through_pandas", "csv_in_batches"),
        ("direct_read", "direct_read_of_one_column"),
        ("groups_of_kept_chunks", "groups_in_batches"),
        ("unlimited_growth", "growth_on_the_host"),
    )
    for fails, cures in pairs:
        lines(
            text,
            f"-- {fails}",
            "MemoryError: out of GPU memory",
            f"{cures}: 130,910,400, as pandas",
        )
    lines(text, "at most 16 MiB of the card, for 24 MiB of columns")


def test_capped_csv_fails_in_pandas_alone():
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    text = printed(
        "csv_larger_than_memory.py",
        "MiB of text;",
        "-- by_pandas",
        "-- by_batches",
        "peak of the host: ",
        "peak of the device: ",
        "the sum is right: True",
        arguments=["128"],
    )
    assert text.count("the sum is right") == 1


def test_thread_memory_pycuda_as_printed():
    needs_driver("pycuda.driver")
    text = printed(
        "thread_memory_pycuda_as_printed.py",
        "-- as_printed",
        "LogicError: cuMemAlloc failed: invalid device context",
        "PyCUDA: the thread has no current context",
        "fix: pycuda.autoinit.context.push()",
        "left on the device: 0 MiB",
        "-- with_the_context_pushed",
        "has no attribute 'mem_free'",
        "PyCUDA: there is no mem_free",
        "fix: memory.free()",
        "-- without_mem_free",
        "UserWarning: device_allocation in out-of-thread context could not be cleaned up",
        "PyCUDA: an object was freed on a thread",
        "fix: del the arrays before context.pop()",
        "left on the device: 64 MiB",
        "-- whole",
        "left on the device: 0 MiB",
    )
    assert "None" not in text
    whole = text.partition("-- whole")[2]
    assert "PyCUDA" not in whole and "Warning" not in whole


def test_thread_memory_pycuda():
    needs_driver("pycuda.driver")
    text = printed(
        "thread_memory_pycuda.py",
        "before",
        "PyCUDA warns: device_allocation in out-of-thread context",
        "result 4.0, left on the device: 64 MiB",
        "after",
        "inside: 64 MiB of thread loader",
        "result 4.0, left on the device: 0 MiB",
        "live in the heap: 0 bytes",
    )
    assert "warns" not in text.partition("after")[2]


def test_thread_memory_numba():
    needs_driver("numba.cuda")
    printed(
        "thread_memory_numba.py",
        "before",
        "left on the device: 64 MiB",
        "after",
        "live in the heap: 0 bytes",
        "left on the device: 0 MiB",
        options=["-W", "ignore"],
    )


def test_thread_memory_cupy_with_fake():
    needs_driver("gpuheap")
    fakes = Path(__file__).parent / "fakes"
    printed(
        "thread_memory_cupy.py",
        "kept by the pool: 64 MiB",
        "after free_all_blocks(): 0 MiB",
        "kept by the pool: 0 MiB; live in the heap: 0 bytes",
        "kept by the heap: 64 MiB",
        "after flush(): 0 MiB",
        "gpuheap: the request is larger than the limit",
        path=os.pathsep.join(map(str, (fakes, PACKAGE))),
    )
