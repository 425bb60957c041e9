// How do I free memory that several streams use?
//
// cudaFree waits for the whole device. cudaFreeAsync does not wait, but only the work of one stream
// comes before the free. The program has to make that stream wait for the others, by events.
// Otherwise the next allocation gets the memory while another stream still uses it. With a heap,
// the program names each stream that uses the memory. The free comes after the work of all of them.
//
//     plain                                         with gpuheap
//     cudaMallocAsync(&p, n, one);                  auto p = heap.allocate<char>(n, one);
//     use<<<..., two>>>(p);                         use<<<..., two>>>(p.data());
//     cudaEventRecord(done, two);                   p.used_on(two);
//     cudaStreamWaitEvent(one, done, 0);            // at the end of p: after both
//     cudaFreeAsync(p, one);
//
// Needs a GPU, or the emulated driver and runtime (docs/cpp.md, "Without a toolkit, without a
// GPU").
#include <gpuheap.hpp>

#include "runtime.hpp"

constexpr std::size_t BYTES = 8 << 20;

static void plain(cudaStream_t one, cudaStream_t two) {
  void *memory;
  cudaEvent_t ready, done;
  CHECK(cudaEventCreate(&ready));
  CHECK(cudaEventCreate(&done));
  CHECK(cudaMallocAsync(&memory, BYTES, one));
  CHECK(cudaMemsetAsync(memory, 1, BYTES, one));
  CHECK(cudaEventRecord(ready, one));
  CHECK(cudaStreamWaitEvent(two, ready, 0));
  CHECK(cudaMemsetAsync(memory, 2, BYTES, two));
  CHECK(cudaEventRecord(done, two));
  CHECK(cudaStreamWaitEvent(one, done, 0));
  CHECK(cudaFreeAsync(memory, one));
  CHECK(cudaEventDestroy(ready));
  CHECK(cudaEventDestroy(done));
  CHECK(cudaStreamSynchronize(one));
  std::printf("plain:   freed behind both streams, by two events and two waits\n");
}

static void with_gpuheap(cudaStream_t one, cudaStream_t two) {
  gpuheap::heap heap("cuda:0");
  cudaEvent_t ready;
  CHECK(cudaEventCreate(&ready));
  {
    auto memory = heap.allocate<char>(BYTES, one);
    memory.fill(1, one);
    // The program still orders the work itself.
    CHECK(cudaEventRecord(ready, one));
    CHECK(cudaStreamWaitEvent(two, ready, 0));
    memory.fill(2, two);
    memory.used_on(two);
  }
  CHECK(cudaEventDestroy(ready));
  // This allocation reuses the memory after the work of both streams.
  heap.allocate<char>(BYTES, one).fill(3, one);
  std::printf("gpuheap: freed behind both streams, live %llu bytes\n",
              (unsigned long long)heap.statistics().live);
  // Call this before a stream ends.
  heap.stream_ended(one);
  heap.stream_ended(two);
}

int main() try {
  cudaStream_t one, two;
  CHECK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
  plain(one, two);
  with_gpuheap(one, two);
  CHECK(cudaStreamDestroy(one));
  CHECK(cudaStreamDestroy(two));
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
