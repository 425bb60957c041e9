"""Passes streams of other libraries as owning objects, as views of a stream, and as numbers."""

import gc
import threading
import weakref

import pytest

import gpuheap
from support import in_threads

driver = pytest.importorskip("cuda.bindings.driver")


def check(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) > 1 else None


class View:
    """A stream object like the result of torch.cuda.current_stream(). The object does not own its
    stream."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


@pytest.fixture
def make(driver_heap):
    """Makes streams with the driver's own functions. Destroys the remaining streams at the test's
    end."""
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
    made = []

    def make():
        made.append(int(check(driver.cuStreamCreate(1))))
        return made[-1]

    def end(handle):
        made.remove(handle)
        check(driver.cuStreamDestroy(handle))

    make.end = end
    yield make
    gc.collect()
    driver_heap.flush()
    for handle in list(made):
        end(handle)
    check(driver.cuDevicePrimaryCtxRelease(0))


def test_busy_view_memory_is_not_reused(driver_heap, make):
    # If memory were reused too early, the emulated driver's checks would report the race.
    handle = make()
    buffer = driver_heap.alloc(1 << 20, View(handle))
    address = buffer.ptr
    for _ in range(12):
        driver_heap.alloc(100, View(make())).free()
    check(driver.cuMemsetD8Async(address, 7, 1 << 20, handle))
    buffer.free()
    other = View(make())
    taken = driver_heap.alloc(1 << 20, other)
    check(driver.cuMemsetD8Async(taken.ptr, 8, 1 << 20, other.handle))
    taken.free()


def test_views_arrays_survive_many_streams(driver_heap, make):
    array = driver_heap.array([1, 2, 3], stream=View(make()))
    for _ in range(12):
        driver_heap.alloc(100, View(make())).free()
    assert (array + 1).to_list() == [2, 3, 4]


def test_stream_object_lives_with_memory(driver_heap, make):
    class Owner(View):
        def __del__(self):
            make.end(self.handle)

    owner = Owner(make())
    gone = weakref.ref(owner)
    buffer = driver_heap.alloc(1000, owner)
    del owner
    for _ in range(12):
        driver_heap.alloc(100, View(make())).free()
    assert gone() is not None
    buffer.free()
    driver_heap.flush()
    assert gone() is None


class Owner(View):
    """A stream object like torch.cuda.Stream(). The object owns its stream."""

    def __init__(self, make):
        super().__init__(make())
        self.end = make.end

    def __del__(self):
        self.end(self.handle)


@pytest.mark.parametrize(
    "before", (lambda owner: View(owner.handle), lambda owner: owner.handle), ids=("view", "number")
)
def test_owner_of_known_stream_is_held(driver_heap, make, before):
    owner = Owner(make)
    gone = weakref.ref(owner)
    first = driver_heap.alloc(1000, before(owner))
    buffer = driver_heap.alloc(1000, owner)
    first.free()
    del owner
    for _ in range(12):
        driver_heap.alloc(100, View(make())).free()
    assert gone() is not None
    buffer.free()
    driver_heap.flush()
    assert gone() is None


def test_unneeded_stream_objects_are_released(driver_heap, make):
    # Acts like a loop that calls `torch.cuda.current_stream()` while one buffer stays live.
    handle, seen = make(), []
    stays = driver_heap.alloc(1000, View(handle))
    for _ in range(100):
        view = View(handle)
        seen.append(weakref.ref(view))
        driver_heap.alloc(1000, view).free()
        del view
    assert sum(gone() is not None for gone in seen) < 20
    stays.free()


@pytest.mark.parametrize("kind", ("alloc", "zeros"))
def test_consumer_stream_ends_before_tensor(driver_heap, make, kind):
    memory, handle = getattr(driver_heap, kind)(1000), make()
    capsule = memory.__dlpack__(stream=handle)
    make.end(handle)
    del capsule
    memory.free()
    assert driver_heap.stats()["live"] == 0


def test_threads_see_ended_stream(driver_heap, make):
    # Allocating on an ended stream raises an exception, and making the exception runs Python code.
    # When that code ran under the lock of the heap's table of streams, the threads below hung.
    handle = make()
    driver_heap.alloc(10, handle).free()
    make.end(handle)

    def work():
        for _ in range(500):
            with pytest.raises(gpuheap.Error):
                driver_heap.alloc(10, handle)

    in_threads(*[work] * 3)


def test_stream_holding_heap_is_collected(driver_heap, make):
    heap = gpuheap.Heap("cuda:0")
    view = View(make())
    view.heap = heap
    heap.alloc(100, view).free()
    gone = weakref.ref(view)
    del view, heap
    gc.collect()
    assert gone() is None


def test_per_thread_stream_differs_by_thread(driver_heap):
    buffers = []

    def work():
        buffers.append(driver_heap.alloc(1 << 20, 2))
        buffers[-1].fill(1)

    for _ in range(3):
        in_threads(work)
    driver_heap.alloc(1 << 20, 2).free()
    while buffers:
        buffers.pop().free()
    assert driver_heap.stats()["live"] == 0


def on_a_thread(work):
    """Runs work on a new thread that has the device's context. Waits until the thread has
    ended."""

    def run():
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
        answer = work()
        check(driver.cuDevicePrimaryCtxRelease(0))
        return answer

    return in_threads(run)[0]


# CU_STREAM_PER_THREAD: the handle names a different stream on each thread.
OWN = 2


@pytest.mark.parametrize("own", (OWN, View(OWN)), ids=("number", "object"))
def test_per_thread_stream_serves_its_thread(driver_heap, make, own):
    def fill(value):
        buffer = driver_heap.alloc(1 << 20, own)
        check(driver.cuMemsetD8Async(buffer.ptr, value, 1 << 20, OWN))
        return buffer

    # The first buffer is freed here, after its thread's end. The next thread and another stream
    # then reuse the memory. If memory were reused too early, the emulated driver's checks would
    # report the race.
    for value in range(4):
        on_a_thread(lambda: fill(value)).free()
        on_a_thread(lambda: fill(value).free())
        other = make()
        taken = driver_heap.alloc(1 << 20, View(other))
        check(driver.cuMemsetD8Async(taken.ptr, 8, 1 << 20, other))
        taken.free()
    assert driver_heap.stats()["live"] == 0


def test_threads_free_each_others_memory(driver_heap, make):
    places = [[], []]
    barrier = threading.Barrier(2, timeout=60)

    def work(mine):
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
        for round in range(8):
            buffer = driver_heap.alloc(1 << 20, OWN)
            check(driver.cuMemsetD8Async(buffer.ptr, round, 1 << 20, OWN))
            places[mine].append(buffer)
            del buffer
            barrier.wait()
            places[1 - mine].pop().free()
            barrier.wait()
        check(driver.cuDevicePrimaryCtxRelease(0))

    def run(mine):
        try:
            work(mine)
        except BaseException:
            barrier.abort()
            raise

    in_threads(lambda: run(0), lambda: run(1))
    assert driver_heap.stats()["live"] == 0


def test_driver_pool_refuses_per_thread_stream(make):
    heap = gpuheap.Heap("cuda:0", pool="driver", limit="512MiB")
    with pytest.raises(gpuheap.Error, match="use a stream of your own, or another pool"):
        heap.alloc(1000, OWN)
    # A DLPack consumer's stream may also be the per-thread default stream.
    capsule = heap.alloc(1000).__dlpack__(stream=OWN)
    del capsule
    gc.collect()
    assert heap.stats()["live"] == 0


@pytest.mark.parametrize("as_number", [False, True])
def test_unknown_stream_allocates_in_capture(driver_heap, make, as_number):
    handle = make()
    given = handle if as_number else View(handle)
    check(
        driver.cuStreamBeginCapture(
            handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        )
    )
    kept = driver_heap.alloc(1 << 20, given)
    freed = driver_heap.alloc(5 << 20, given)
    check(driver.cuMemsetD8Async(kept.ptr, 7, 1 << 20, handle))
    address = freed.ptr
    del freed
    again = driver_heap.alloc(5 << 20, given)
    assert again.ptr == address, "it goes round in the capture"
    del again
    graph = check(driver.cuStreamEndCapture(handle))
    assert driver_heap.alloc(5 << 20, given).ptr != address, "it is the graph's"
    executable = check(driver.cuGraphInstantiate(graph, 0))
    check(driver.cuGraphLaunch(executable, handle))
    check(driver.cuStreamSynchronize(handle))
    check(driver.cuGraphExecDestroy(executable))
    check(driver.cuGraphDestroy(graph))
    del kept
    driver_heap.flush()
    assert driver_heap.stats()["reserved"] == 0
