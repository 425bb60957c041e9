"""Runs the pytest plugin in other processes and in xdist's workers."""

import importlib.metadata
import sys

import pytest

import gpuheap

# pytester forgets modules that are first imported inside it. Import these modules here, so that
# they are not loaded twice.
import gpuheap._meter
import gpuheap._scopes

pytest_plugins = ["pytester"]

# The wheel's entry point loads the plugin. In a checkout, the option `-p` names it.
IS_INSTALLED = any(
    found.value == "gpuheap.pytest_plugin"
    for found in importlib.metadata.entry_points(group="pytest11")
)
PLUGIN = [] if IS_INSTALLED else ["-p", "gpuheap.pytest_plugin"]

HEADER = """
import pytest
import gpuheap

MIB = 1 << 20
"""

# A stand-in for PyTorch. Its functions report the memory of PyTorch's own allocator to the plugin.
TORCH = """
import sys, types

class Cuda:
    live = peak = 0
    plugged = False
    def is_initialized(self): return True
    def device_count(self): return 1
    def memory_allocated(self, device):
        if self.plugged:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")
        return self.live
    def max_memory_allocated(self, device): return self.peak
    def reset_peak_memory_stats(self, device): self.peak = self.live
    def take(self, nbytes):
        self.live += nbytes
        self.peak = max(self.peak, self.live)

torch = types.ModuleType("torch")
torch.cuda = Cuda()
sys.modules["torch"] = torch
"""


@pytest.fixture
def run(pytester):
    def run(tests, *arguments, subprocess=False):
        pytester.makepyfile(HEADER + tests)
        runner = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        return runner(
            "-p", "no:cacheprovider", *PLUGIN, "--gpuheap-device", "emulated:1GiB", *arguments
        )

    before = gpuheap.set_default_heap(None)
    yield run
    gpuheap.set_default_heap(before)
    sys.modules.pop("torch", None)


def test_over_limit_test_fails(run):
    result = run("""
@pytest.mark.gpu_limit("2 MiB")
def test_more(gpu_heap):
    gpu_heap.alloc(MIB).free()
    gpu_heap.alloc(3 * MIB).free()

@pytest.mark.gpu_limit("3 MiB")
def test_within(gpu_heap):
    gpu_heap.alloc(3 * MIB).free()

@pytest.mark.gpu_limit(3 * 1024 * 1024)
def test_bytes(gpu_heap):
    gpu_heap.alloc(3 * MIB).free()
""")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpu_limit: 3 MiB of GPU memory live at once, 1 MiB above 2 MiB",
            "*- GPU memory -*",
            "peak 3 MiB, kept 0",
        ]
    )


def test_leaking_test_names_the_line(run):
    result = run("""
KEPT = []

@pytest.mark.gpu_limit_leaks("1 MiB")
def test_keeps(gpu_heap):
    KEPT.append(gpu_heap.alloc(3 * MIB))

@pytest.mark.gpu_limit_leaks(0)
def test_cycle(gpu_heap):
    cycle = [gpu_heap.alloc(3 * MIB)]
    cycle.append(cycle)

@pytest.mark.gpu_limit_leaks(0)
def test_next(gpu_heap):
    assert KEPT[0].freed and gpu_heap.stats()["live"] == 0
""")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpu_limit_leaks: 3 MiB of GPU memory left behind, 2 MiB above 1 MiB",
            "peak 3 MiB, kept 3 MiB",
            "  3 MiB in 1 allocation, *.py:10 (test_keeps), thread MainThread",
        ]
    )


def test_fixture_memory_is_not_counted(run):
    result = run("""
@pytest.fixture
def model(gpu_heap):
    return gpu_heap.alloc(8 * MIB)

@pytest.mark.gpu_limit("2 MiB")
@pytest.mark.gpu_limit_leaks(0)
def test_step(gpu_heap, model):
    gpu_heap.alloc(MIB).free()
""")
    result.assert_outcomes(passed=1)


def test_failing_test_keeps_its_reason(run):
    result = run("""
@pytest.mark.gpu_limit("1 MiB")
@pytest.mark.gpu_limit_leaks(0)
def test_step(gpu_heap):
    kept = gpu_heap.alloc(3 * MIB)
    assert kept is None
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert*is None", "peak 3 MiB, kept 3 MiB"])
    result.stdout.no_fnmatch_line("*gpu_limit_leaks: *")


def test_out_of_memory_failure_is_explained(run):
    result = run(
        """
def test_cupy():
    class OutOfMemoryError(MemoryError):
        __module__ = "cupy.cuda.memory"
    raise OutOfMemoryError("Out of memory allocating 1,024,000 bytes (allocated so far: 512 bytes).")

def test_other():
    assert False
""",
        "--gpuheap",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*- GPU memory -*", "*- Out of GPU memory -*", "CuPy: *", "*_ test_other _*"]
    )
    assert str(result.stdout).count("Out of GPU memory") == 1


def test_summary_has_peaks(run):
    tests = """
@pytest.mark.parametrize("mib", [1, 3, 2])
def test_step(gpu_heap, mib):
    gpu_heap.alloc(mib * MIB).free()

def test_nothing(): pass
"""
    result = run(tests, "--gpuheap")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "*= GPU memory =*",
            "peak       3 MiB  *::test_step?3?",
            "peak       2 MiB  *::test_step?2?",
            "peak       1 MiB  *::test_step?1?",
            "1 tests with none",
        ]
    )
    run(tests).stdout.no_fnmatch_line("*GPU memory*")


def test_default_heap_is_restored(run):
    mine = gpuheap.Heap("emulated:1GiB")
    gpuheap.set_default_heap(mine)
    run("""
def test_step(gpu_heap):
    assert gpuheap.default_heap() is gpu_heap
""").assert_outcomes(passed=1)
    assert gpuheap.default_heap() is mine


def test_pytorchs_own_allocator_counts(run):
    result = run(
        TORCH
        + """
@pytest.mark.gpu_limit("2 MiB")
def test_more():
    torch.cuda.take(3 * MIB)
    torch.cuda.take(-3 * MIB)

@pytest.mark.gpu_limit("2 MiB")
def test_less():
    torch.cuda.take(MIB)

@pytest.mark.gpu_limit_leaks(0)
def test_keeps():
    torch.cuda.take(MIB)

@pytest.mark.gpu_limit("4 MiB")
def test_both(gpu_heap):
    torch.cuda.take(3 * MIB)
    gpu_heap.alloc(2 * MIB).free()
"""
    )
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "gpu_limit: 3 MiB*",
            "gpu_limit_leaks: 1 MiB*",
            "gpu_limit: 5 MiB of GPU memory*",
        ]
    )


def test_replaced_pytorch_allocator_counts_once(run):
    result = run(
        TORCH
        + """
@pytest.mark.gpu_limit("2 MiB")
def test_more(gpu_heap):
    torch.cuda.plugged = True
    gpu_heap.alloc(3 * MIB).free()
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gpu_limit: 3 MiB*"])


def test_heap_set_by_test_counts(run):
    result = run("""
@pytest.mark.gpu_limit("2 MiB")
def test_more():
    gpuheap.set_default_heap(gpuheap.Heap("emulated:1GiB"))
    gpuheap.default_heap().alloc(3 * MIB).free()
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gpu_limit: 3 MiB*"])


@pytest.mark.parametrize(
    "arguments, text", [('"12XB"', "12XB"), ("", "takes one size"), ('"50%"', "share")]
)
def test_wrong_marks_are_refused(run, arguments, text):
    result = run(f"""
@pytest.mark.gpu_limit({arguments})
def test_step(): pass
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{text}*"])


def test_marks_are_registered(run):
    run(
        """
@pytest.mark.gpu_limit("1 MiB")
def test_step(): pass
""",
        "--strict-markers",
    ).assert_outcomes(passed=1)


def test_xdist_workers_report_results(run):
    pytest.importorskip("xdist")
    result = run(
        """
@pytest.mark.gpu_limit("2 MiB")
@pytest.mark.parametrize("mib", [1, 2, 3, 4])
def test_step(gpu_heap, mib):
    gpu_heap.alloc(mib * MIB).free()
""",
        "--gpuheap",
        "-n",
        "2",
        subprocess=True,
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*- GPU memory -*",
            "*= GPU memory =*",
            "peak       4 MiB  *",
            "peak       3 MiB  *",
            "peak       2 MiB  *",
            "peak       1 MiB  *",
        ]
    )


def test_unused_plugin_loads_nothing(pytester):
    pytester.makepyfile("""
import sys

def test_step():
    assert "gpuheap.pytest_plugin" in sys.modules
    assert "gpuheap._gpuheap" not in sys.modules and "gpuheap._heap" not in sys.modules
""")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *PLUGIN)
    result.assert_outcomes(passed=1)
