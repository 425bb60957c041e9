"""Tests `gpuheap.install` and JAX's share of the device. Each program runs in a new process,
because a library's allocator can be set only once."""

import importlib.util

import pytest

import gpuheap
from support import needs_driver, run_program


def test_cuda_core_is_served_and_restored():
    needs_driver("cuda.core")
    run_program("""
from cuda.core import Device
device = Device(0)
device.set_current()
before, default = device.memory_resource, gpuheap.default_heap()
installed = gpuheap.install("64MiB", ["cuda.core"], track="lines")
assert installed.libraries["cuda.core"].done, installed
assert gpuheap.default_heap() is installed.heap and installed.heap.limits[0] == 64 << 20
assert str(installed).splitlines()[0] == "<gpuheap.Heap stitched on cuda:0>, limit 64 MiB", installed
buffer = device.allocate(1000, stream=device.create_stream())
assert installed.heap.stats()["live"] == 1000
assert installed.heap.leaks()[0].file == "<string>", installed.heap.leaks()
assert installed.undo() == {} == installed.undo()
assert device.memory_resource is before and gpuheap.default_heap() is default
buffer.close()
assert installed.heap.stats()["live"] == 0
""")


@pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed"
)
def test_two_libraries_share_the_limit():
    needs_driver("cuda.core")
    run_program("""
from cuda.core import Device
from numba import cuda
installed = gpuheap.install("64MiB", ["numba", "cuda.core"])
assert all(outcome.done for outcome in installed.libraries.values()), installed
array = cuda.device_array(40 << 20, "u1")
device = Device(0)
try:
    device.allocate(40 << 20, stream=device.create_stream())
except gpuheap.OutOfMemory as error:
    assert error.live == 40 << 20
else:
    raise AssertionError("no error")
del array
gc.collect()
device.allocate(40 << 20, stream=device.create_stream()).close()
kept = installed.undo()
assert "until the process ends" in kept["numba"] and len(kept) == 1, kept
""")


def test_failing_library_leaves_the_others():
    run_program("""
broken = types.ModuleType("cupy")
sys.modules["cupy"] = broken
sys.modules["pycuda"] = types.ModuleType("pycuda")
names = iter(["cupy", "pycuda", "jax"])
installed = gpuheap.install("512MiB", names, device="emulated:1GiB")
done = {name: outcome.done for name, outcome in installed.libraries.items()}
assert done == {"cupy": False, "pycuda": False, "jax": True}, installed
assert "gpuheap.pycuda.allocator()" in str(installed)
""")


def test_named_library_that_fails_warns():
    run_program("""
import warnings
from gpuheap import _gpuheap
sys.modules["torch"] = types.ModuleType("torch")
# A build without its C++ functions.
_gpuheap._torch_functions = dict
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    gpuheap.install("512MiB", "torch", device="emulated:1GiB")
[warning] = caught
start = "torch takes no memory from gpuheap's heap: this build of gpuheap lacks the entrance"
assert str(warning.message).startswith(start), warning
assert warning.filename == "<string>", warning
""")


def test_auto_takes_installed_libraries():
    run_program("""
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None
installed = gpuheap.install("512MiB", device="emulated:1GiB")
assert set(installed.libraries) == {"torch", "rmm", "cupy", "numba", "cuda.core", "pycuda", "jax"}
assert "torch: not installed: torch is not there" in str(installed), installed
""")


def test_interrupted_install_changes_nothing(monkeypatch):
    def interrupted(heap):
        raise KeyboardInterrupt

    from gpuheap import _install

    monkeypatch.setitem(_install._LIBRARIES, "cuda.core", ("gpuheap", interrupted))
    with pytest.raises(KeyboardInterrupt):
        gpuheap.install("64MiB", libraries=["cuda.core"], device="emulated:1GiB")
    gpuheap.install("64MiB", libraries=[], device="emulated:1GiB").undo()


def test_wrong_arguments_change_nothing():
    run_program("""
before = gpuheap._heap.peek_default_heap() if hasattr(gpuheap, "_heap") else None
assert "'cudf'" in refused(lambda: gpuheap.install("512MiB", ["cudf"], device="emulated:1GiB"))
try:
    gpuheap.install("much", [], device="emulated:1GiB")
except ValueError:
    pass
heap = gpuheap.Heap("emulated:1GiB")
assert "for a new heap" in refused(lambda: gpuheap.install("1GiB", [], heap=heap))
from gpuheap._heap import peek_default_heap
assert peek_default_heap() is None
first = gpuheap.install(libraries=[], heap=heap)
assert "installed().undo()" in refused(lambda: gpuheap.install("1GiB", libraries=[]))
first.undo()
gpuheap.install(libraries=[], heap=heap)
""")


def test_second_install_returns_the_first():
    run_program("""
assert gpuheap.installed() is None
arguments = dict(limit="512MiB", libraries=[], device="emulated:1GiB", track="lines")
first = gpuheap.install(**arguments)
assert gpuheap.install(**arguments) is first is gpuheap.installed()
for other in ({"limit": "1GiB"}, {"libraries": ["jax"]}, {"device": "emulated:2GiB"}, {"track": "off"}):
    assert "other arguments" in refused(lambda: gpuheap.install(**{**arguments, **other}))
first.undo()
assert gpuheap.installed() is None
assert gpuheap.install(**arguments) is not first
""")


def test_jax_gets_the_remaining_share():
    run_program("""
import os, gpuheap.jax
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.9"
os.environ.pop("XLA_CLIENT_MEM_FRACTION", None)
undo = gpuheap.jax.configure(0.125)
assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.1250"
assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
undo()
assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.9" and "XLA_CLIENT_MEM_FRACTION" not in os.environ
for wrong in (0, -1, 1.5):
    assert "no share" in refused(lambda: gpuheap.jax.configure(wrong))
assert "fraction=" in refused(lambda: gpuheap.jax.configure(heap=gpuheap.Heap("emulated:1GiB")))
bridge = types.ModuleType("jax._src.xla_bridge")
bridge._backends = {"cuda": object()}
sys.modules["jax._src.xla_bridge"] = bridge
assert "already" in refused(lambda: gpuheap.jax.configure(0.5))
assert "XLA_CLIENT_MEM_FRACTION" not in os.environ
""")
