"""Runs NVIDIA's cuda-bindings on the emulated libcuda.so.1, and prints a line for each passed step.

Started by `run` in this folder. The first failed assertion ends the program with a traceback and
exit code 1.
"""

import ctypes
import importlib.metadata
import sys

from cuda.bindings import driver

MIB = 1 << 20


def call(function, *arguments, expect="CUDA_SUCCESS"):
    """Calls `function`. Asserts that it returns the code `expect`. Returns the other values."""
    code, *rest = function(*arguments)
    assert code.name == expect, f"{function.__name__}{arguments}: {code.name}, not {expect}"
    return rest[0] if len(rest) == 1 else tuple(rest) if rest else None


def free_bytes():
    return call(driver.cuMemGetInfo)[0]


def pool_bytes(pool, attribute):
    return int(call(driver.cuMemPoolGetAttribute, pool, attribute))


USED = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
RESERVED = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
THRESHOLD = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


def errors_have_names(_device):
    assert call(driver.cuGetErrorName, driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY) == (
        b"CUDA_ERROR_OUT_OF_MEMORY"
    )
    assert call(driver.cuGetErrorString, driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY) == (
        b"out of memory"
    )


def device_says_what_it_is(device):
    name = call(driver.cuDeviceGetName, 100, device).split(b"\0")[0].decode()
    assert "emulated" in name, name
    attribute = driver.CUdevice_attribute
    for supported in (
        attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
    ):
        assert call(driver.cuDeviceGetAttribute, supported, device) == 1
    free, total = call(driver.cuMemGetInfo)
    assert 0 < free <= total == call(driver.cuDeviceTotalMem, device)


def plain_memory_goes_up_and_down(_device):
    before = free_bytes()
    up = bytes(range(256)) * 4096
    pointer = call(driver.cuMemAlloc, 4 * MIB)
    assert free_bytes() == before - 4 * MIB
    call(driver.cuMemcpyHtoD, pointer, up, len(up))
    down = bytearray(len(up))
    call(driver.cuMemcpyDtoH, down, pointer, len(down))
    assert down == up

    attribute = driver.CUpointer_attribute
    assert call(
        driver.cuPointerGetAttribute, attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer
    ) == driver.CUmemorytype(2)
    inside = driver.CUdeviceptr(int(pointer) + 1000)
    base, size = call(driver.cuMemGetAddressRange, inside)
    assert (int(base), size) == (int(pointer), 4 * MIB)

    call(driver.cuMemFree, pointer)
    assert free_bytes() == before


def streams_and_events_order_work(_device):
    non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    writer = call(driver.cuStreamCreate, non_blocking)
    reader = call(driver.cuStreamCreate, non_blocking)
    written = call(driver.cuEventCreate, 0)
    done = call(driver.cuEventCreate, 0)
    host = call(driver.cuMemHostAlloc, MIB, 0)
    for value in range(10):
        block = call(driver.cuMemAllocAsync, MIB, writer)
        call(driver.cuMemsetD8Async, block, value, MIB, writer)
        call(driver.cuEventRecord, written, writer)
        call(driver.cuStreamWaitEvent, reader, written, 0)
        call(driver.cuMemcpyDtoHAsync, host, block, MIB, reader)
        call(driver.cuMemFreeAsync, block, reader)
        call(driver.cuEventRecord, done, reader)
        call(driver.cuEventSynchronize, done)
        assert ctypes.string_at(int(host), MIB) == bytes([value]) * MIB
    assert call(driver.cuEventElapsedTime, written, done) >= 0.0
    call(driver.cuEventQuery, done)
    call(driver.cuStreamQuery, reader)
    assert int(call(driver.cuStreamGetId, writer)) != int(call(driver.cuStreamGetId, reader))
    call(driver.cuMemFreeHost, host)
    for event in (written, done):
        call(driver.cuEventDestroy, event)
    for stream in (writer, reader):
        call(driver.cuStreamSynchronize, stream)
        call(driver.cuStreamDestroy, stream)


def host_functions_run_in_stream_order(_device):
    seen = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
    function = driver.CUhostFn(_ptr=ctypes.addressof(callback))
    stream = call(driver.cuStreamCreate, 0)
    for number in (1, 2, 3):
        call(driver.cuLaunchHostFunc, stream, function, number)
    call(driver.cuStreamSynchronize, stream)
    assert seen == [1, 2, 3], seen
    call(driver.cuStreamDestroy, stream)


def pool_keeps_what_its_threshold_allows(device):
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(device)
    pool = call(driver.cuMemPoolCreate, properties)
    stream = call(driver.cuStreamCreate, 0)
    before = free_bytes()

    for threshold, kept in ((0, False), (2**64 - 1, True)):
        call(driver.cuMemPoolSetAttribute, pool, THRESHOLD, driver.cuuint64_t(threshold))
        assert pool_bytes(pool, THRESHOLD) == threshold
        block = call(driver.cuMemAllocFromPoolAsync, 5 * MIB, pool, stream)
        assert pool_bytes(pool, USED) >= 5 * MIB
        assert pool_bytes(pool, RESERVED) >= pool_bytes(pool, USED)
        assert free_bytes() <= before - 5 * MIB
        call(driver.cuMemFreeAsync, block, stream)
        call(driver.cuStreamSynchronize, stream)
        assert pool_bytes(pool, USED) == 0
        assert (pool_bytes(pool, RESERVED) > 0) == kept

    call(driver.cuMemPoolTrimTo, pool, 0)
    assert pool_bytes(pool, RESERVED) == 0
    assert free_bytes() == before
    call(driver.cuMemPoolDestroy, pool)
    call(driver.cuStreamDestroy, stream)


def default_pool_gives_back(device):
    pool = call(driver.cuDeviceGetDefaultMemPool, device)
    assert int(pool) == int(call(driver.cuDeviceGetMemPool, device))
    block = call(driver.cuMemAllocAsync, 100 * MIB, driver.CUstream(0))
    assert pool_bytes(pool, USED) >= 100 * MIB
    call(driver.cuMemFreeAsync, block, driver.CUstream(0))
    call(driver.cuCtxSynchronize)
    call(driver.cuMemPoolTrimTo, pool, 0)
    assert pool_bytes(pool, RESERVED) == 0


def out_of_memory_is_a_value(device):
    _, total = call(driver.cuMemGetInfo)
    call(driver.cuMemAlloc, total + MIB, expect="CUDA_ERROR_OUT_OF_MEMORY")
    stream = driver.CUstream(0)
    call(driver.cuMemAllocAsync, total + MIB, stream, expect="CUDA_ERROR_OUT_OF_MEMORY")

    # Fill the device with large blocks, and free all of them.
    before, blocks = free_bytes(), []
    while True:
        code, block = driver.cuMemAlloc(1024 * MIB)
        if code != driver.CUresult.CUDA_SUCCESS:
            break
        blocks.append(block)
    assert code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, code
    assert len(blocks) == before // (1024 * MIB)
    for block in blocks:
        call(driver.cuMemFree, block)
    assert free_bytes() == before
    call(driver.cuCtxSynchronize)


def virtual_memory_round_trip(device):
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(device)
    option = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granule = call(driver.cuMemGetAllocationGranularity, properties, option)
    assert granule == 2 * MIB
    call(driver.cuMemCreate, granule + 1, properties, 0, expect="CUDA_ERROR_INVALID_VALUE")

    before = free_bytes()
    pages = [call(driver.cuMemCreate, granule, properties, 0) for _ in range(2)]
    assert free_bytes() == before - 2 * granule
    start = call(driver.cuMemAddressReserve, 2 * granule, 0, driver.CUdeviceptr(0), 0)
    for at, page in enumerate(pages):
        call(driver.cuMemMap, int(start) + at * granule, granule, 0, page, 0)
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    call(driver.cuMemSetAccess, start, 2 * granule, [access], 1)

    # Copy across the boundary between the two pages.
    up = bytes(range(250)) * 16
    seam = int(start) + granule - 2000
    call(driver.cuMemcpyHtoD, seam, up, len(up))
    down = bytearray(len(up))
    call(driver.cuMemcpyDtoH, down, seam, len(down))
    assert down == up

    call(driver.cuMemUnmap, start, 2 * granule)
    call(driver.cuMemAddressFree, start, 2 * granule)
    for page in pages:
        call(driver.cuMemRelease, page)
    assert free_bytes() == before


def main():
    major = int(importlib.metadata.version("cuda-bindings").split(".")[0])
    call(driver.cuInit, 0)
    version = call(driver.cuDriverGetVersion)
    device = call(driver.cuDeviceGet, 0)
    context = call(driver.cuDevicePrimaryCtxRetain, device)
    call(driver.cuCtxSetCurrent, context)
    before = free_bytes()
    print(
        f"cuda-bindings {importlib.metadata.version('cuda-bindings')},"
        f" driver {version // 1000}.{version % 1000 // 10}"
    )
    for step in (
        errors_have_names,
        device_says_what_it_is,
        plain_memory_goes_up_and_down,
        streams_and_events_order_work,
        host_functions_run_in_stream_order,
        pool_keeps_what_its_threshold_allows,
        default_pool_gives_back,
        out_of_memory_is_a_value,
        virtual_memory_round_trip,
    ):
        step(device)
        print(f"  {step.__name__.replace('_', ' ')}")
    assert free_bytes() == before, "memory is missing at the end"

    # The signature of cuCtxCreate changed in cuda-bindings 13.
    own = (
        call(driver.cuCtxCreate, None, 0, device)
        if major >= 13
        else call(driver.cuCtxCreate, 0, device)
    )
    assert free_bytes() <= before
    call(driver.cuMemFree, call(driver.cuMemAlloc, MIB))
    call(driver.cuCtxDestroy, own)
    call(driver.cuCtxSetCurrent, context)
    assert free_bytes() == before, "a context's end gives back what it took"
    print("  a context of its own comes and goes")
    call(driver.cuDevicePrimaryCtxRelease, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
