"""Exchanges arrays with other libraries in both directions, through DLPack and the CUDA array
interface."""

import ctypes
import gc
import os
import subprocess
import sys

import pytest

import gpuheap
from support import KINDS, needs_driver


class Theirs:
    """An object of another library. Its `__dlpack__` returns a given capsule."""

    def __init__(self, capsule, device=(12, 0)):
        self.capsule, self.device, self.asked = capsule, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        return self.capsule


class Old(Theirs):
    """An object of a library that implements DLPack before version 1.0."""

    def __dlpack__(self, stream=None):
        return self.capsule


class Interface:
    def __init__(self, array, **changes):
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": "<i8",
            "data": (array.ptr, False),
            "strides": None,
            **changes,
        }


def name_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule)


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def inside(capsule):
    """Returns the managed tensor of a capsule, so that a test can change it."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Versioned.from_address(get(capsule, b"dltensor_versioned"))


def test_arrays_survive_exchange(heap):
    for kind in KINDS:
        for shape in ((), (0,), (3,), (2, 3)):
            a = heap.full(shape, 1, kind)
            b = gpuheap.from_dlpack(a)
            assert (b.shape, b.dtype, b.to_list()) == (shape, kind, a.to_list())
    a = heap.array([1, 2, 3])
    b = gpuheap.from_dlpack(a[1:], heap, heap.stream())
    b += 10
    assert a.to_list() == [1, 12, 13] and (a[1:] + b).to_list() == [24, 26]
    buffer = heap.alloc(4)
    buffer.fill(7)
    assert gpuheap.from_dlpack(buffer).to_list() == [7, 7, 7, 7]


def test_memory_lives_until_both_release(heap):
    a = heap.zeros(100)
    b = gpuheap.from_dlpack(a)
    a.free()
    assert a.freed and not b.freed and heap.stats()["live"] > 0
    assert b.sum() == 0.0
    b.free()
    assert heap.stats()["live"] == 0
    capsules = [heap.zeros(10).__dlpack__(max_version=(1, 0)), heap.zeros(10).__dlpack__()]
    assert [name_of(capsule) for capsule in capsules] == [b"dltensor_versioned", b"dltensor"]
    assert heap.stats()["live"] > 0
    del capsules
    assert heap.stats()["live"] == 0


def test_both_layouts_are_consumed_once(heap):
    for make, used in ((Theirs, b"used_dltensor_versioned"), (Old, b"used_dltensor")):
        a = heap.array([1, 2])
        theirs = make(a.__dlpack__(max_version=(1, 3)) if make is Theirs else a.__dlpack__())
        b = gpuheap.from_dlpack(theirs, heap)
        assert name_of(theirs.capsule) == used and b.to_list() == [1, 2]
        with pytest.raises(TypeError, match="consumed"):
            gpuheap.from_dlpack(theirs, heap)
        del a
        assert heap.stats()["live"] > 0
        del b
        assert heap.stats()["live"] == 0
        del theirs
    assert Theirs(None).asked == []


def refused(heap, change, text, error=BufferError):
    a = heap.array([[1, 2], [3, 4]])
    theirs = Theirs(a.__dlpack__(max_version=(1, 0)))
    change(inside(theirs.capsule))
    with pytest.raises(error, match=text):
        gpuheap.from_dlpack(theirs, heap)
    # The capsule was not consumed, so the capsule's end frees the memory.
    assert name_of(theirs.capsule) == b"dltensor_versioned"
    del a
    assert heap.stats()["live"] > 0
    del theirs
    gc.collect()
    assert heap.stats()["live"] == 0


def test_refused_capsule_stays_unconsumed(heap):
    def lanes(managed):
        managed.tensor.lanes = 2

    def code(managed):
        managed.tensor.code = 5

    def bits(managed):
        managed.tensor.bits = 16
        managed.tensor.code = 2

    def major(managed):
        managed.major = 2

    def negative(managed):
        managed.tensor.shape[0] = -1

    def huge(managed):
        managed.tensor.shape[0] = managed.tensor.shape[1] = 2**62

    columns = (ctypes.c_int64 * 2)(1, 2)

    def strided(managed):
        managed.tensor.strides = ctypes.cast(columns, ctypes.POINTER(ctypes.c_int64))

    def offset(managed):
        managed.tensor.byte_offset = 2**64 - 1

    def odd(managed):
        managed.tensor.byte_offset = 3

    def elsewhere(managed):
        managed.tensor.data = 4096

    def too_long(managed):
        managed.tensor.shape[0] = 1 << 30

    def no_shape(managed):
        managed.tensor.shape = None

    def axes(count):
        return lambda managed: setattr(managed.tensor, "ndim", count)

    def empty(managed):
        managed.tensor.lanes = 0

    def no_bits(managed):
        managed.tensor.bits = 0

    def part_of_a_byte(managed):
        managed.tensor.bits = 4

    def wide_bool(managed):
        managed.tensor.code = 6

    def old(managed):
        managed.major = 0

    def nothing(managed):
        managed.tensor.data = 0

    def negative_stride(managed):
        managed.tensor.strides = ctypes.cast(backwards, ctypes.POINTER(ctypes.c_int64))

    backwards = (ctypes.c_int64 * 2)(2, -1)

    def another_device(managed):
        managed.tensor.device[1] = 1

    def of_the_host(managed):
        managed.tensor.device[0] = 1

    def no_device(managed):
        managed.tensor.device[0] = -1

    for change, text in (
        (lanes, "2 lanes"),
        (code, "type code 5"),
        (bits, "16 bits"),
        (major, "version 2"),
        (negative, "negative"),
        (huge, "larger than any memory"),
        (strided, "strides"),
        (offset, "past every address"),
        (odd, "no address"),
        (no_shape, "shape is NULL"),
        (axes(-1), "-1 axes"),
        (axes(-(2**31)), "axes"),
        (axes(65), "65 axes"),
        (axes(2**31 - 1), "axes"),
        (empty, "0 lanes"),
        (no_bits, "0 bits"),
        (part_of_a_byte, "4 bits"),
        (wide_bool, "type code 6, 64 bits"),
        (old, "version 0"),
        (negative_stride, "strides"),
        (another_device, "DLPack device"),
        (of_the_host, "heap.array"),
        (no_device, "DLPack device"),
    ):
        refused(heap, change, text)
    for change in (elsewhere, too_long, nothing):
        refused(heap, change, "cannot be wrapped", gpuheap.BadInput)


def test_hostile_plain_capsules_are_refused(heap):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    for name, value in (
        ("ndim", -1),
        ("ndim", 65),
        ("shape", None),
        ("lanes", 2),
        ("data", 0),
        ("byte_offset", 2**64 - 8),
    ):
        theirs = Old(heap.array([1, 2]).__dlpack__())
        tensor = Tensor.from_address(get(theirs.capsule, b"dltensor"))
        before = bytes(tensor)
        setattr(tensor, name, value)
        with pytest.raises((BufferError, gpuheap.BadInput)):
            gpuheap.from_dlpack(theirs, heap)
        assert name_of(theirs.capsule) == b"dltensor"
        ctypes.memmove(ctypes.addressof(tensor), before, len(before))
        assert gpuheap.from_dlpack(theirs, heap).to_list() == [1, 2]


def test_unaligned_tensor_rows_are_read(heap):
    theirs = Theirs(heap.array([[1, 2, 3]]).__dlpack__(max_version=(1, 0)))
    tensor = inside(theirs.capsule).tensor
    rows = ctypes.create_string_buffer(40)
    begin = ctypes.addressof(rows) + 1 + (-ctypes.addressof(rows)) % 8
    ctypes.memmove(begin, (ctypes.c_int64 * 2)(1, 3), 16)
    ctypes.memmove(begin + 16, (ctypes.c_int64 * 2)(3, 1), 16)
    tensor.shape = ctypes.cast(begin, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(begin + 16, ctypes.POINTER(ctypes.c_int64))
    assert gpuheap.from_dlpack(theirs, heap).to_list() == [[1, 2, 3]]
    # For a tensor without axes, `shape` and `strides` are not read.
    theirs = Theirs(heap.array(5).__dlpack__(max_version=(1, 0)))
    tensor = inside(theirs.capsule).tensor
    tensor.shape = tensor.strides = None
    assert gpuheap.from_dlpack(theirs, heap).to_list() == 5


def test_plain_strides_and_readonly_memory(heap):
    a = heap.array([[1, 2, 3]])
    theirs = Theirs(a.__dlpack__(max_version=(1, 0)))
    managed = inside(theirs.capsule)
    strides = (ctypes.c_int64 * 2)(77, 1)  # an axis of length 1 may have any stride
    managed.tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.flags = 1
    b = gpuheap.from_dlpack(theirs, heap)
    assert b.readonly and b[0].readonly and not (b + 1).readonly and not b.copy().readonly
    for write in (
        lambda: b.fill(1),
        lambda: b.__iadd__(1),
        lambda: b.__setitem__(0, 1),
        lambda: b[0].__isub__(1),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    with pytest.raises(BufferError, match="read-only"):
        b.__dlpack__()
    assert gpuheap.from_dlpack(b).readonly


def test_other_devices_and_objects_are_refused(heap):
    np = pytest.importorskip("numpy")
    with pytest.raises(BufferError, match="heap.array"):
        gpuheap.from_dlpack(np.arange(3), heap)
    with pytest.raises(BufferError, match="DLPack device"):
        gpuheap.from_dlpack(Theirs(None, (2, 0)), heap)
    for wrong in (3, "x", None, [1]):
        with pytest.raises(TypeError, match="__dlpack__"):
            gpuheap.from_dlpack(wrong, heap)
    with pytest.raises(TypeError, match="capsule"):
        gpuheap.from_dlpack(Theirs(object()), heap)
    elsewhere = gpuheap.Heap("emulated:2GiB")
    with pytest.raises(gpuheap.Error):
        gpuheap.from_dlpack(heap.zeros(3), elsewhere)


def test_producer_gets_version_and_stream(heap):
    theirs = Theirs(heap.zeros(3).__dlpack__(max_version=(1, 0)))
    stream = heap.stream()
    a = gpuheap.from_dlpack(theirs, heap, stream)
    assert (
        theirs.asked == [{"stream": stream.handle, "max_version": (1, 3)}]
        and a.stream == stream.handle
    )


def test_cuda_array_interface_is_consumed(heap):
    a = heap.array([[1, 2], [3, 4]])
    theirs = Interface(a)
    b = gpuheap.from_dlpack(theirs, heap)
    b += 1
    assert a.to_list() == [[2, 3], [4, 5]]
    assert (
        gpuheap.from_dlpack(Interface(a, strides=(16, 8), stream=1), heap).to_list() == a.to_list()
    )
    assert gpuheap.from_dlpack(Interface(a, data=(a.ptr, True)), heap).readonly
    for changes, text in (
        ({"strides": (8, 16)}, "strides"),
        ({"typestr": "<c8"}, "<c8"),
        ({"typestr": ">i8"}, ">i8"),
        ({"mask": a}, "mask"),
        ({"data": None}, "data"),
        ({"shape": (2**62, 2**62)}, "larger"),
        ({"data": (a.ptr + 1, False)}, "no address"),
    ):
        with pytest.raises(BufferError, match=text):
            gpuheap.from_dlpack(Interface(a, **changes), heap)
    with pytest.raises(gpuheap.BadInput, match="cannot be wrapped"):
        gpuheap.from_dlpack(Interface(a, data=(64, False)), heap)
    import weakref

    gone = weakref.ref(theirs)
    del theirs
    assert gone() is not None
    b.free()
    assert gone() is None


def test_capsules_own_device_counts(heap, driver_heap):
    # The object names the heap's device, but the capsule's tensor is on another device.
    theirs = Theirs(heap.array([7, 8, 9]).__dlpack__(), device=(2, 0))
    with pytest.raises(BufferError, match=r"\(12, 0\)"):
        gpuheap.from_dlpack(theirs, driver_heap)
    theirs.capsule = None


def test_reported_sequence_length_is_ignored(heap):
    class Long:
        def __len__(self):
            return 2**62

        def __getitem__(self, at):
            return 1

    array = heap.zeros(4)
    for shape in (range(10**15), range(2**62), Long()):
        with pytest.raises(ValueError, match="64"):
            array.reshape(shape)
        with pytest.raises(ValueError, match="64"):
            gpuheap.from_dlpack(Interface(heap.zeros(1, "int64"), shape=shape), heap)


def test_huge_empty_array_lists_nothing(heap):
    assert heap.zeros((0, 2**62)).to_list() == []
    assert heap.zeros((2, 0, 2**60)).to_list() == [[], []]


class Pinned(Theirs):
    """Page-locked memory of a library that, like PyTorch, has no streams for such memory."""

    def __dlpack__(self, *, stream=None, max_version=None):
        if stream is not None:
            raise BufferError(f"stream={stream} is of no use for memory of the host")
        return self.capsule


def test_page_locked_capsule_gets_no_stream(driver_heap):
    lines, host = driver_heap.zeros(4, "uint8"), driver_heap.pinned(4)
    memoryview(host)[:] = b"abcd"
    for stream in (None, driver_heap.stream()):
        theirs = Pinned(lines.__dlpack__(max_version=(1, 0)), (3, 0))
        inside(theirs.capsule).tensor.data = host.ptr
        array = gpuheap.from_dlpack(theirs, driver_heap, stream)
        assert array.to_bytes() == b"abcd"
        array.free()


def python(script, **environment):
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout.split(), done.stderr


GATE = """
import ctypes, faulthandler, threading, time

import gpuheap

faulthandler.dump_traceback_later(20, exit=True)
heap = gpuheap.Heap("cuda:0", limit="64MiB")
stream, cuda, c = heap.stream(), ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
cuda.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0


def foreign():
    return gpuheap.from_dlpack(heap.zeros(10), heap, stream)


def used_on_an_ended_stream():
    buffer, other = heap.alloc(10), ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(other), 1) == 0
    buffer.used_on(other.value)
    assert cuda.cuStreamDestroy_v2(other) == 0
    return buffer


def free(memory):
    memory.free()


def collect(memory):
    pass


for make, end in [(make, end) for make in (foreign, used_on_an_ended_stream) for end in (free, collect)]:
    memory = make()
    gate = ctypes.create_string_buffer(64)
    c.sem_init(gate, 0, 0)
    # The stream waits here until another Python thread has run.
    wait = ctypes.cast(c.sem_wait, ctypes.c_void_p)
    assert cuda.cuLaunchHostFunc(stream.handle, wait, ctypes.addressof(gate)) == 0
    opener = threading.Thread(target=lambda: (time.sleep(0.1), c.sem_post(gate)))
    opener.start()
    end(memory)
    del memory
    opener.join()
    print("ended")
"""


def test_waiting_end_releases_the_lock(driver_heap):
    # An emulated stream with this schedule does its work only when the host waits for it.
    code, said, errors = python(
        GATE, GPUHEAP_EMULATED_SCHEDULE="on-demand", GPUHEAP_EMULATED_CHECKS="0"
    )
    assert (code, said) == (0, ["ended"] * 4), errors


ORDER = """
import gpuheap

heap = gpuheap.Heap("cuda:0", limit="64MiB")


class Back:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **arguments):
        return self.capsule


class Interface:
    def __init__(self, array, **changes):
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


def stale(show):
    wrong = 0
    for turn in range(20):
        array = heap.zeros(1000, "int64", stream=heap.stream())
        shown = show(array)
        array += turn
        back = gpuheap.from_dlpack(shown, heap, heap.stream())
        wrong += back.sum() != 1000 * turn
        back += 1
        wrong += array.sum() != 1000 * (turn + 1)
    return wrong


def stale_buffers():
    wrong = 0
    for turn in range(20):
        buffer = heap.alloc(1000, heap.stream())
        shown = Back(buffer.__dlpack__(max_version=(1, 0)))
        buffer.fill(turn)
        wrong += gpuheap.from_dlpack(shown, heap, heap.stream()).sum() != 1000 * turn
    return wrong


class Bare:
    def __init__(self, buffer):
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": (buffer.size,),
            "typestr": "|u1",
            "data": (int(buffer.handle), False),
        }


def stale_of_cuda_core(show):
    from cuda import core

    import gpuheap.cuda_core

    device, wrong = core.Device(0), 0
    device.set_current()
    for resource in (device.memory_resource, gpuheap.cuda_core.resource(heap)):
        for turn in range(20):
            stream = device.create_stream()
            buffer = resource.allocate(1000, stream=stream)
            buffer.fill(turn, stream=stream)
            array = gpuheap.from_dlpack(show(buffer), heap, heap.stream() if turn % 2 else None)
            wrong += array.sum() != 1000 * turn
            array.free()
            buffer.close(stream)
    return wrong
"""

ORDERED = {
    "stale(lambda array: Back(array.__dlpack__(max_version=(1, 0))))": (),
    "stale(lambda array: Interface(array, stream=None))": (),
    "stale_buffers()": (),
    "stale_of_cuda_core(lambda buffer: buffer)": ("cuda.core",),
    "stale_of_cuda_core(Bare)": ("cuda.core",),
}


@pytest.mark.parametrize("count", ORDERED)
def test_memory_of_another_library_is_ordered(driver_heap, count):
    needs_driver(*ORDERED[count])
    program = f"{ORDER}\nprint({count})"
    code, said, errors = python(
        program, GPUHEAP_EMULATED_SCHEDULE="on-demand", GPUHEAP_EMULATED_CHECKS="0"
    )
    assert (code, said) == (0, ["0"]), errors


NO_MEMORY = """
import _testcapi, ctypes, gc, gpuheap

heap = gpuheap.Heap("emulated:1GiB")
array = heap.array([1, 2, 3])


class Theirs:
    def __init__(self):
        self.capsule = array.__dlpack__(max_version=(1, 0))

    def __dlpack_device__(self):
        return 12, 0

    def __dlpack__(self, **arguments):
        return self.capsule


def take(theirs, fails_at):
    try:
        _testcapi.set_nomemory(fails_at, fails_at + 1)
        return gpuheap.from_dlpack(theirs, heap)
    except BaseException as error:
        # PyO3 panics if there is no memory for some of its own objects.
        assert type(error).__name__ in ("MemoryError", "PanicException"), error
        return None
    finally:
        _testcapi.remove_mem_hooks()


take(Theirs(), 10**6)
failed = 0
for fails_at in range(1, 100):
    theirs = Theirs()
    taken = take(theirs, fails_at)
    failed += taken is None
    assert taken is None or taken.to_list() == [1, 2, 3]
    del theirs, taken
assert failed, "no request failed"
assert array.to_list() == [1, 2, 3]
array.free()
assert heap.stats()["live"] == 0, heap.stats()
print("whole")
"""


def test_tensor_ends_once_despite_shortage(heap):
    pytest.importorskip("_testcapi")
    code, said, errors = python(NO_MEMORY)
    assert (code, said) == (0, ["whole"]), errors
