// The CUDA runtime for the examples. If no toolkit is installed, declares the functions that the
// examples call. Programs then link any shared runtime, such as the emulated runtime (docs/cpp.md).
#ifndef RUNTIME_HPP
#define RUNTIME_HPP

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#else
using cudaStream_t = void *;
using cudaEvent_t = void *;
enum { cudaMemcpyDeviceToHost = 2, cudaStreamNonBlocking = 1, cudaMemAttachGlobal = 1 };
enum { cudaDevAttrConcurrentManagedAccess = 89 };
extern "C" {
int cudaMalloc(void **, std::size_t);
int cudaMallocManaged(void **, std::size_t, unsigned);
int cudaHostAlloc(void **, std::size_t, unsigned);
int cudaFreeHost(void *);
int cudaDeviceGetAttribute(int *, int, int);
int cudaGetLastError();
int cudaFree(void *);
int cudaMallocAsync(void **, std::size_t, cudaStream_t);
int cudaFreeAsync(void *, cudaStream_t);
int cudaMemGetInfo(std::size_t *, std::size_t *);
int cudaMemset(void *, int, std::size_t);
int cudaMemsetAsync(void *, int, std::size_t, cudaStream_t);
int cudaMemcpy(void *, const void *, std::size_t, int);
int cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
int cudaStreamSynchronize(cudaStream_t);
int cudaStreamDestroy(cudaStream_t);
int cudaEventCreate(cudaEvent_t *);
int cudaEventRecord(cudaEvent_t, cudaStream_t);
int cudaEventDestroy(cudaEvent_t);
int cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
int cudaDeviceSynchronize();
int cudaDeviceReset();
}
#endif

// Returns the remedy for the codes of a missing GPU.
inline const char *remedy(int code) {
  bool has_none = code == 35 || code == 100;
  return has_none ? "\n  no driver or no device was found; without a GPU, set LD_LIBRARY_PATH to "
                    "gpuheap's folder\n"
                    "  lib/emulated, as docs/cpp.md says"
                  : "";
}

// Ends the program if a call of the runtime fails.
#define CHECK(call)                                                            \
  do {                                                                         \
    int code_ = static_cast<int>(call);                                        \
    if (code_ != 0) {                                                          \
      std::fprintf(stderr, "%s returned %d%s\n", #call, code_, remedy(code_)); \
      std::exit(1);                                                            \
    }                                                                          \
  } while (false)

// Returns the bytes of the device's memory that no process uses.
inline std::size_t device_free() {
  std::size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

// Returns by how many MiB the device's free memory has shrunk since it was `before` bytes.
inline long long taken_since(std::size_t before) {
  return (static_cast<long long>(before) - static_cast<long long>(device_free())) >> 20;
}

#endif  // RUNTIME_HPP
