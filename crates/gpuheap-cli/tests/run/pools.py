"""Takes memory of the driver as pools do, and hands out blocks as PyTorch, CuPy and RMM do."""

import ctypes
import os
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int8), ("index", ctypes.c_int8)]


report = ctypes.PyDLL(None)._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
report.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, Device]
report.restype = None


def check(code):
    assert code == 0, code


def segment(size):
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    return address.value


def tensor(address, size):
    report(address, size, 0, 0, Device(1, 0))


def array(address, size):
    from cupy.cuda import memory_hook

    for hook in memory_hook.get_memory_hooks().values():
        hook.malloc_postprocess(device_id=0, size=1, mem_size=size, mem_ptr=address, pmem_id=1)


def free_array(address):
    from cupy.cuda import memory_hook

    for hook in memory_hook.get_memory_hooks().values():
        hook.free_preprocess(device_id=0, mem_size=1, mem_ptr=address, pmem_id=1)


def buffer(size):
    from rmm.mr import _resources
    from rmm.pylibrmm.stream import Stream

    return _resources[0].allocate(size, Stream())


def buffers():
    import rmm

    third = segment(2 << 20)
    freed = []
    rmm.rmm._initialize()
    resource = rmm.mr.CallbackMemoryResource(lambda *_: third, lambda *block: freed.append(block))
    rmm.mr.set_current_device_resource(resource)
    assert rmm.mr.get_current_device_resource() is resource
    buffer(8192)
    rmm.mr._resources[0].deallocate(third, 8192, rmm.stream.Stream())
    assert freed[0][:2] == (third, 8192), freed
    buffer(100)


def main():
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    first = segment(2 << 20)
    tensor(first, 1024)
    report(4096, 99, 0, 0, Device(0, 0))
    tensor(first + 1024, 512)
    report(first, -1024, 0, 0, Device(1, 0))
    segment(1 << 20)
    second = segment(4 << 20)
    array(second, 2048)
    # A new thread has no current context, and needs none for these calls.
    thread = threading.Thread(target=array, args=(second + 2048, 4096))
    thread.start()
    thread.join()
    free_array(second)
    if sys.argv[1] == "rmm":
        buffers()
    sys.stdout.flush()
    os._exit(0)


main()
