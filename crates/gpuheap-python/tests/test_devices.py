"""Tests of `gpuheap.install(devices=...)` with emulated drivers that have two or eight devices.
Each program runs in a new process, because the driver reads its devices once."""

import pytest

from support import needs_driver, run_program


def run(program, count=2, device="1GiB"):
    needs_driver()
    devices = ",".join([device] * count)
    run_program(f"COUNT = {count}\n{program}", GPUHEAP_EMULATED_DEVICE=devices)


@pytest.mark.parametrize("count", [2, 8])
def test_each_device_gets_a_heap(count):
    run(
        """
installed = gpuheap.install("64MiB", [], devices="all", track="lines")
heaps = list(installed.heaps.values())
assert list(installed.heaps) == [f"cuda:{at}" for at in range(COUNT)], installed
assert installed.heap is heaps[0] is gpuheap.default_heap()
assert all(heap.limits == (64 << 20, None) for heap in heaps)
assert str(installed).count("limit 64 MiB") == COUNT, installed
meter = gpuheap.meter()
buffers = [heap.alloc(1000 * (at + 1)) for at, heap in enumerate(heaps)]
status = gpuheap.status()
assert [figures["allocated"] for figures in status.devices.values()] == [
    (1000 * (at + 1) + 511) // 512 * 512 for at in range(COUNT)
], status
assert str(status).count("Memory limit: hard = 64 MiB") == COUNT
reading = meter.read()
assert reading.peak == reading.kept == sum(buffer.nbytes for buffer in buffers)
assert reading.devices["cuda:1"] == (2000, 2000)
assert reading.lines[0].allocations == COUNT
assert "cuda:1: peak 1.95 KiB, kept 1.95 KiB" in str(reading), reading
assert [held.bytes for heap in heaps for held in heap.held()] == [
    buffer.nbytes for buffer in buffers
]
try:
    heaps[1].alloc(65 << 20)
except MemoryError:
    heaps[0].alloc(60 << 20).free()
else:
    raise AssertionError("the limit of cuda:1 does not hold")
del buffers
report = gpuheap.flush()
assert report.given_back >= COUNT * (2 << 20), report
assert set(report.devices) == set(installed.heaps)
assert all(heap.stats()["reserved"] == 0 for heap in heaps)
assert installed.undo() == {}
assert gpuheap._heap.known_heaps() == []
""",
        count,
    )


def test_limits_differ_by_device():
    run("""
assert "no limit for cuda:1" in refused(lambda: gpuheap.install({0: "1MiB"}, [], devices="all"))
assert "'cuda:7'" in refused(lambda: gpuheap.install({"cuda:7": 1, 0: 1, 1: 1}, [], devices="all"))
assert "twice" in refused(lambda: gpuheap.install(devices=[0, "cuda:0"], libraries=[]))
assert "no device" in refused(lambda: gpuheap.install(devices=[], libraries=[]))
assert "devices= for several" in refused(lambda: gpuheap.install(device="cuda:0", devices=[1]))
installed = gpuheap.install({1: "50%", 0: None}, [], devices=[1, 0])
assert [heap.limits[0] for heap in installed.heaps.values()] == [512 << 20, None]
assert gpuheap.install({1: "50%", 0: None}, [], devices=[1, 0]) is installed
assert "other arguments" in refused(lambda: gpuheap.install({1: "50%", 0: None}, [], devices="all"))
""")


@pytest.mark.parametrize("count", [2, 8])
def test_total_limit_bounds_all_devices(count):
    run(
        """
import threading
installed = gpuheap.install(None, [], devices="all", total_limit="96MiB")
assert str(installed).count("no limit, total limit 96 MiB") == COUNT, installed
heaps = list(installed.heaps.values())
for heap in heaps * 2:
    heap.alloc(80 << 20).free()
live = []
def fill(heap):
    try:
        while True:
            live.append(heap.alloc(4 << 20))
    except gpuheap.OutOfMemory:
        pass
threads = [threading.Thread(target=fill, args=(heap,)) for heap in heaps]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(live) == 24, len(live)
try:
    heaps[1].alloc(4 << 20)
except gpuheap.OutOfMemory as error:
    assert (error.cause, error.total_short_by) == ("total_limit", 4 << 20), error.figures
    assert (error.total_limit, error.device_name) == (96 << 20, "cuda:1"), error.figures
    assert sum(bytes for _, bytes in error.devices) == 96 << 20, error.devices
    assert "; cuda:1: " in str(error) and " on cuda:0, " in str(error), error
    found = gpuheap.explain(error)
    assert "total limit is reached" in str(found), found
    assert f"total_limit={100 << 20}" in str(found), found
else:
    raise AssertionError("the total limit does not hold")
del live
for _ in range(50):
    barrier, served = threading.Barrier(2), []
    def take(heap):
        heap.alloc(24 << 20).free()
        barrier.wait()
        try:
            kept = heap.alloc(72 << 20)
            served.append(heap)
        except gpuheap.OutOfMemory:
            pass
        barrier.wait()
    threads = [threading.Thread(target=take, args=(heap,)) for heap in heaps[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served) == 1
installed.undo()
installed = gpuheap.install(None, [], devices="all", total_limit="50%")
assert installed.heap.total_limit == COUNT << 29
installed.undo()
make = lambda **given: gpuheap.install(None, [], devices="all", **given)
assert "the driver pool cannot be under" in refused(lambda: make(total_limit="64MiB", pool="driver"))
assert "the total limit of 1 MiB is below the 2 MiB" in refused(lambda: make(total_limit="1MiB"))
""",
        count,
    )


def test_scope_governs_all_devices():
    run("""
installed = gpuheap.install("64MiB", [], devices="all", track="lines")
first, second = installed.heaps.values()
with gpuheap.scope("step", limit="1MiB", on_leak="ignore") as scope:
    kept = scope.keep(first.alloc(1000))
    gone = second.alloc(2000)
    assert scope.live == 3000
    try:
        second.alloc(1 << 20)
    except gpuheap.OutOfMemory as error:
        assert error.figures["live"] == 3000, error.figures
    else:
        raise AssertionError("the limit counts one device alone")
    second._allocate_address(500)
    first._allocate_address(400)
assert gone.freed and not kept.freed
assert scope.leaked_bytes == 900
assert [(leak.bytes, leak.device) for leak in scope.leaked] == [(500, "cuda:1"), (400, "cuda:0")]
assert scope.report().splitlines()[1].endswith(", on cuda:1"), scope.report()
""")


def test_array_is_copied_between_heaps():
    run("""
installed = gpuheap.install("64MiB", [], devices="all")
first, second = installed.heaps.values()
source = first.array(list(range(1000)), "int32")
copy = second.array(source)
del source
first.full(1000, 7, "int32")
assert copy.sum() == 499500
assert second.stats()["live"] == 4000
""")


def test_other_device_uses_the_memory():
    run("""
import ctypes
installed = gpuheap.install("64MiB", [], devices="all")
first, second = installed.heaps.values()
assert first.pool == "stitched"
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
for heap, ordinal in ((first, 1), (second, 0)):
    buffer = heap.alloc(1000)
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    address, length = ctypes.c_uint64(buffer.ptr), ctypes.c_size_t(1000)
    assert driver.cuMemsetD8_v2(address, ctypes.c_ubyte(7), length) == 0
""")


def test_devices_without_access_get_plain_memory():
    run(
        """
installed = gpuheap.install("64MiB", [], devices="all")
assert [heap.pool for heap in installed.heaps.values()] == ["split", "split"]
installed.undo()
installed = gpuheap.install("64MiB", [], devices="all", pool="binned")
assert installed.heap.pool == "binned"
""",
        device="wsl2-rtx4060",
    )


def test_cupy_allocates_on_current_device():
    run("""
import sys, types
sys.path.insert(0, "fakes")
import cupy
current = [0]
sys.modules["cupy.cuda.device"].get_device_id = lambda: current[0]
installed = gpuheap.install("64MiB", ["cupy"], devices="all")
assert installed.libraries["cupy"].done, installed
arrays = []
for current[0] in (0, 1, 1):
    arrays.append(cupy.empty(1024, "u1"))
assert [heap.stats()["live"] for heap in installed.heaps.values()] == [1024, 2048]
assert [array.data.mem.device_id for array in arrays] == [0, 1, 1]
current[0] = 2
assert 'gpuheap.install(devices="all")' in refused(lambda: cupy.empty(1024, "u1"))
installed.undo()
""")


def test_cuda_core_serves_each_device():
    needs_driver("cuda.core")
    run("""
from cuda.core import Device
installed = gpuheap.install("64MiB", ["cuda.core"], devices="all")
assert installed.libraries["cuda.core"].text == "memory resource of 2 devices", installed
assert Device().device_id == 0
buffers = []
for at in range(2):
    device = Device(at)
    device.set_current()
    buffers.append(device.allocate(1000 * (at + 1), stream=device.create_stream()))
assert [heap.stats()["live"] for heap in installed.heaps.values()] == [1000, 2000]
for buffer in buffers:
    buffer.close()
assert installed.undo() == {}
""")


def test_rmm_serves_each_device():
    needs_driver("rmm")
    run("""
import rmm, gpuheap.rmm
gpuheap.rmm._check_runs = lambda _: None
installed = gpuheap.install("64MiB", ["rmm"], devices="all")
assert installed.libraries["rmm"].text == "resource of 2 devices, by callback", installed
made = [rmm.mr.get_per_device_resource(at) for at in range(2)]
address = made[1].allocate(1000)
assert [heap.stats()["live"] for heap in installed.heaps.values()] == [0, 1000]
made[1].deallocate(address, 1000)
assert installed.undo() == {}
assert all(rmm.mr.get_per_device_resource(at) is not made[at] for at in range(2))
""")


def test_jax_gets_the_smallest_share():
    run("""
import os
installed = gpuheap.install({0: "50%", 1: "75%"}, ["jax"], devices="all")
assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.2500", installed
""")


def test_device_limit_fails_a_test(tmp_path):
    (tmp_path / "test_it.py").write_text("""
import gpuheap, pytest
gpuheap.install("64MiB", [], devices="all")
first, second = gpuheap.installed().heaps.values()
@pytest.mark.gpu_limit("10 KiB")
@pytest.mark.gpu_limit("1 KiB", device="cuda:1")
@pytest.mark.parametrize("sizes", [(4000, 1000), (1000, 4000), (9000, 2000)])
def test_step(sizes):
    first.alloc(sizes[0]).free()
    second.alloc(sizes[1]).free()
""")
    run(f"""
import pytest, subprocess, sys
from importlib.metadata import entry_points
named = [] if any(each.name == "gpuheap" for each in entry_points(group="pytest11")) else ["-p", "gpuheap.pytest_plugin"]
done = subprocess.run(
    [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *named, {str(tmp_path)!r}],
    capture_output=True, text=True,
)
assert "2 failed, 1 passed" in done.stdout, done.stdout
assert "gpu_limit: 3.91 KiB of GPU memory live at once on cuda:1" in done.stdout, done.stdout
""")
