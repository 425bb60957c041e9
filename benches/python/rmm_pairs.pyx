# cython: language_level=3
"""Pairs of an allocation and a free of a resource of RMM, without Python between them."""

from libc.stdint cimport uintptr_t

from rmm.librmm.cuda_stream_ref cimport stream_ref
from rmm.librmm.memory_resource cimport device_async_resource_ref
from rmm.pylibrmm.memory_resource._memory_resource cimport DeviceMemoryResource


def pairs(DeviceMemoryResource resource, size_t nbytes, size_t count):
    """Allocates and frees `nbytes`, `count` times, on the default stream."""
    cdef device_async_resource_ref of = resource.get_mr()
    cdef stream_ref stream
    cdef size_t at
    with nogil:
        for at in range(count):
            of.deallocate(stream, of.allocate(stream, nbytes), nbytes)
