/* gpuheap as PyTorch's allocator: a heap for each device, made at its first use.
 *
 *     c++ -shared -fPIC -O2 torch_allocator.cpp -o libtorch_gpuheap.so -I crates/gpuheap-capi/include \
 *         -L target/release -lgpuheap_capi -Wl,-rpath,$PWD/target/release
 *
 *     import torch
 *     hook = torch.cuda.memory.CUDAPluggableAllocator("./libtorch_gpuheap.so", "allocate", "release")
 *     torch.cuda.memory.change_current_allocator(hook)     # before anything is on the device
 *
 * The environment chooses the pool and the limits: GPUHEAP_POOL, GPUHEAP_MEMORY_LIMIT.
 */
#include <sys/types.h>

#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <string>

#include "gpuheap.h"

static void check(gpuheap_status status) {
  if (status != GPUHEAP_STATUS_OK) throw std::runtime_error(gpuheap_last_error());
}

static gpuheap_heap *heap_of(int device) {
  static std::mutex opening;
  static gpuheap_heap *heaps[64];
  if (device < 0 || device >= 64) throw std::runtime_error("no device " + std::to_string(device));
  std::lock_guard<std::mutex> lock(opening);
  if (!heaps[device])
    check(gpuheap_open(("cuda:" + std::to_string(device)).c_str(), nullptr, &heaps[device]));
  return heaps[device];
}

// PyTorch's streams are cudaStream_t and live as long as the process, so none is announced.
extern "C" void *allocate(ssize_t bytes, int device, void *stream) {
  void *address;
  check(gpuheap_allocate(heap_of(device), uint64_t(bytes), stream, &address));
  return address;
}

// Frees on the allocating stream, which is the one that PyTorch passes. If a tensor was used on
// another stream, the program must wait for that use first: this hook does not see record_stream.
extern "C" void release(void *address, ssize_t, int device, void *) {
  // Called in a destructor, so it must not throw. A forked worker has nothing to free.
  gpuheap_status status = gpuheap_free(heap_of(device), address);
  if (status != GPUHEAP_STATUS_OK && status != GPUHEAP_STATUS_GONE)
    std::fprintf(stderr, "%s\n", gpuheap_last_error());
}
