// Uses Thrust and CCCL with a heap, on a GPU. tests/cuda/run compiles this program. Each line
// printed is an assertion.
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#include <gpuheap.hpp>

#include <cstdio>

#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#ifndef GPUHEAP_HAS_THRUST
#error "Thrust is not found"
#endif
#ifndef GPUHEAP_HAS_CCCL
#error "CCCL is not found"
#endif

template <class T>
using vector = thrust::device_vector<T, gpuheap::thrust_allocator<T>>;

#if CCCL_VERSION >= 3001000
static_assert(cuda::mr::synchronous_resource<gpuheap::device_resource>, "");
static_assert(cuda::mr::resource<gpuheap::device_resource>, "");
static_assert(cuda::mr::resource_with<gpuheap::device_resource, cuda::mr::device_accessible>, "");
#else
static_assert(cuda::mr::resource<gpuheap::device_resource>, "");
static_assert(cuda::mr::async_resource<gpuheap::device_resource>, "");
static_assert(cuda::mr::async_resource_with<gpuheap::device_resource, cuda::mr::device_accessible>,
              "");
#endif

int main() {
  cudaStream_t stream;
  if (cudaStreamCreate(&stream) != cudaSuccess) return 2;
  gpuheap::heap heap("cuda:0");
  {
    gpuheap::thrust_allocator<int> allocator(heap, stream);
    auto policy = thrust::cuda::par(gpuheap::stream_allocator<char>(heap, stream)).on(stream);
    vector<int> numbers(1 << 20, 0, allocator);
    thrust::sequence(policy, numbers.rbegin(), numbers.rend());
    thrust::sort(policy, numbers.begin(), numbers.end());
    vector<int> copy = numbers;
    copy.resize(2 << 20, 7);
    std::printf("sorted: %d %d %d\n", int(numbers[0]), int(numbers[1000]), int(copy.back()));
    gpuheap_statistics now = heap.statistics();
    std::printf("live: %d, allocations: %d\n", now.live >= (12u << 20), now.allocations >= 4);
    try {
      vector<int> huge(std::size_t(1) << 45, 0, allocator);
    } catch (const std::bad_alloc &why) {
      std::printf("too large: %d\n",
                  std::string(why.what()).find("out of GPU memory") != std::string::npos);
    }
  }
  gpuheap::device_resource resource(heap);
#if CCCL_VERSION >= 3001000
  void *memory = resource.allocate(cuda::stream_ref{stream}, 1000, 256);
  resource.deallocate(cuda::stream_ref{stream}, memory, 1000, 256);
#else
  cuda::mr::async_resource_ref<cuda::mr::device_accessible> any(resource);
  void *memory = any.allocate_async(1000, 256, cuda::stream_ref{stream});
  any.deallocate_async(memory, 1000, 256, cuda::stream_ref{stream});
#endif
  std::printf("at the end: %llu\n", (unsigned long long)heap.statistics().live);
  heap.stream_ended(stream);
  cudaStreamDestroy(stream);
}
