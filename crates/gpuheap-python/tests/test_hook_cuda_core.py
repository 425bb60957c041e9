"""cuda.core, unmodified, with memory of gpuheap, on the emulated driver."""

import pytest
from hooks import needs, run


@pytest.fixture(autouse=True)
def library():
    needs("cuda-core")


SETUP = """
from cuda.core import Device
import gpuheap.cuda_core
device = Device(0)
device.set_current()
heap = gpuheap.Heap("cuda:0", limit="64MiB", track="lines")
stream, other = device.create_stream(), device.create_stream()
"""


@pytest.mark.parametrize("schedule", ["immediate", "on-demand", "seeded:1", "seeded:2"])
def test_a_buffer_lives_and_goes_back(schedule):
    program = SETUP + """
resource = gpuheap.cuda_core.resource(heap)
assert (resource.device_id, resource.is_device_accessible, resource.is_host_accessible) == (0, True, False)
device.memory_resource = resource
live = lambda: heap.stats()["live"]
a = device.allocate(1 << 20, stream=stream)
assert a.size == live() == 1 << 20 and a.memory_resource is resource
b = resource.allocate(1 << 20, stream=stream)
b.copy_from(a, stream=stream)
assert "<string>" in heap.leaks()[0].file
a.close(stream)
b.close(other)
assert live() == 0
c = resource.allocate(100, stream=stream)
c.set_deallocation_stream(other)
del c
d = resource.allocate(100, stream=stream)
del d
gc.collect()
assert live() == 0, heap.leaks()
e = resource.allocate(0, stream=stream)
e.close(stream)
stream.sync()
other.sync()
"""
    run(program, GPUHEAP_EMULATED_SCHEDULE=schedule)


def test_a_thread_may_end_with_its_buffers():
    program = SETUP + """
resource = gpuheap.cuda_core.resource(heap)
def work():
    device.set_current()
    kept = [resource.allocate(1 << 20, stream=stream) for _ in range(8)]
for thread in [threading.Thread(target=work) for _ in range(4)]:
    thread.start()
    thread.join()
gc.collect()
assert heap.stats()["live"] == 0, heap.leaks()
"""
    run(program)


def test_install_is_undone_and_refused_twice():
    program = SETUP + """
before = device.memory_resource
undo = gpuheap.cuda_core.install(heap)
assert device.memory_resource is not before
assert "already" in refused(gpuheap.BadInput, lambda: gpuheap.cuda_core.install(heap))
kept = device.allocate(100, stream=stream)
undo()
undo()
assert device.memory_resource is before
kept.close(stream)
assert heap.stats()["live"] == 0
"""
    run(program)


def test_errors_are_those_of_gpuheap():
    program = SETUP + """
resource = gpuheap.cuda_core.resource(heap)
try:
    resource.allocate(1 << 27, stream=stream)
except MemoryError as error:
    assert isinstance(error, gpuheap.OutOfMemory) and error.limit == 64 << 20
else:
    raise AssertionError
assert "emulated" in refused(gpuheap.BadInput, lambda: gpuheap.cuda_core.resource(gpuheap.Heap("emulated:1GiB")))
with heap.scope("load", limit="1 MiB", on_leak="ignore"):
    assert "load" in refused(gpuheap.OutOfMemory, lambda: resource.allocate(2 << 20, stream=stream))
    kept = resource.allocate(1000, stream=stream)
assert heap.stats()["live"] == 1000
kept.close(stream)
"""
    run(program)
