# distutils: language = c++
# cython: language_level=3
"""RMM's memory resource over a heap. `gpuheap.rmm.build` compiles it against the installed RMM."""

from cython.operator cimport dereference
from libcpp.memory cimport unique_ptr

from rmm.librmm.memory_resource cimport (
    callback_memory_resource,
    make_device_async_resource_ref,
)
from rmm.pylibrmm.memory_resource._memory_resource cimport DeviceMemoryResource


cdef extern from * nogil:
    """
    #include <memory>
    #include <stdexcept>
    #include <rmm/error.hpp>
    #include <rmm/mr/callback_memory_resource.hpp>
    #include <rmm/process_is_exiting.hpp>

    static rmm::mr::callback_memory_resource* gpuheap_resource(
        std::size_t allocate, std::size_t deallocate, std::size_t end, std::size_t heap)
    {
      using allocate_t = void* (*)(void*, std::size_t, void*, char*, std::size_t, bool*);
      using deallocate_t = void (*)(void*, void*, void*);
      auto request = reinterpret_cast<allocate_t>(allocate);
      auto release = reinterpret_cast<deallocate_t>(deallocate);
      auto drop = reinterpret_cast<void (*)(void*)>(end);
      // Buffers of C++ copy the resource, and may outlive Python's object. Copies that exist when
      // the process ends keep the heap: CUDA may have ended before them.
      std::shared_ptr<void> of(reinterpret_cast<void*>(heap), [drop](void* heap) {
        if (!rmm::process_is_exiting()) { drop(heap); }
      });
      return new rmm::mr::callback_memory_resource(
          [request, of](std::size_t bytes, cuda::stream_ref stream, void*) -> void* {
            if (bytes == 0) { return nullptr; }
            char text[1024];
            bool is_full = false;
            void* address = request(of.get(), bytes, stream.get(), text, sizeof text, &is_full);
            if (address != nullptr) { return address; }
            if (is_full) { throw rmm::out_of_memory(text); }
            throw std::runtime_error(text);
          },
          [release, of](void* address, std::size_t, cuda::stream_ref stream, void*) {
            if (address != nullptr) { release(of.get(), address, stream.get()); }
          });
    }
    """
    callback_memory_resource* gpuheap_resource(size_t, size_t, size_t, size_t) except +


cdef class Resource(DeviceMemoryResource):
    """A memory resource of RMM whose calls run no Python."""

    cdef unique_ptr[callback_memory_resource] c_obj

    def __init__(self, heap):
        allocate, deallocate, release, address = heap.share()
        self.c_obj.reset(gpuheap_resource(allocate, deallocate, release, address))
        self.c_ref = make_device_async_resource_ref(dereference(self.c_obj))
