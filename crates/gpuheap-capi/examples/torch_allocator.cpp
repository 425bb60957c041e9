/* Makes gpuheap PyTorch's allocator. Opens a heap for each device at the device's first use.
 *
 *     c++ -shared -fPIC -O2 torch_allocator.cpp -o libtorch_gpuheap.so \
 *         -I crates/gpuheap-capi/include -L target/release -lgpuheap_capi \
 *         -Wl,-rpath,$PWD/target/release
 *
 *     import ctypes, torch
 *     library = "./libtorch_gpuheap.so"
 *     hook = torch.cuda.memory.CUDAPluggableAllocator(library, "allocate", "release")
 *     used = ctypes.cast(ctypes.CDLL(library).used_on, ctypes.c_void_p).value
 *     hook._allocator.set_record_stream_fn(used)           # Tensor.record_stream
 *     torch.cuda.memory.change_current_allocator(hook)     # before anything is on the device
 *
 * The environment chooses the pool and the limits: GPUHEAP_POOL, GPUHEAP_MEMORY_LIMIT.
 */
#include <sys/types.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <string>

#include "gpuheap.h"

static void check(gpuheap_status status) {
  if (status != GPUHEAP_STATUS_OK) throw std::runtime_error(gpuheap_last_error());
}

static std::mutex opening;
static std::atomic<gpuheap_heap *> heaps[64];

static gpuheap_heap *heap_of(int device) {
  if (device < 0 || device >= 64) throw std::runtime_error("no device " + std::to_string(device));
  if (gpuheap_heap *heap = heaps[device].load(std::memory_order_acquire)) return heap;
  std::lock_guard<std::mutex> lock(opening);
  gpuheap_heap *heap = heaps[device].load(std::memory_order_relaxed);
  if (!heap) check(gpuheap_open(("cuda:" + std::to_string(device)).c_str(), nullptr, &heap));
  heaps[device].store(heap, std::memory_order_release);
  return heap;
}

// PyTorch's streams are cudaStream_t and live as long as the process, so no end is announced.
extern "C" void *allocate(ssize_t bytes, int device, void *stream) {
  void *address;
  check(gpuheap_allocate(heap_of(device), uint64_t(bytes), stream, &address));
  return address;
}

// Frees memory, to be reused after the work on the streams passed to `allocate` and `used_on`.
extern "C" void release(void *address, ssize_t, int device, void *) {
  // Destructors call this function, so it must not throw. In a forked worker, the call returns
  // GPUHEAP_STATUS_GONE. That is no error, because the worker has no memory to free.
  gpuheap_status status = gpuheap_free(heap_of(device), address);
  if (status != GPUHEAP_STATUS_OK && status != GPUHEAP_STATUS_GONE)
    std::fprintf(stderr, "%s\n", gpuheap_last_error());
}

// Implements Tensor.record_stream. PyTorch passes no device, so all heaps are searched.
extern "C" void used_on(void *address, void *stream) {
  for (auto &each : heaps) {
    gpuheap_heap *heap = each.load(std::memory_order_acquire);
    if (heap && gpuheap_used_on(heap, address, stream) == GPUHEAP_STATUS_OK) return;
  }
  throw std::runtime_error("no heap has memory that was used on another stream");
}

// Returns the peak of the live bytes on a device, as PyTorch requested them, without rounding.
extern "C" uint64_t live_peak(int device) {
  gpuheap_statistics statistics = {};
  statistics.size = sizeof statistics;
  check(gpuheap_get_statistics(heap_of(device), &statistics));
  return statistics.live_peak;
}
