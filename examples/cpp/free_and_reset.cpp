// Which call gives the memory back: the free, the synchronisation, or the reset?
//
// cudaFree gives the memory back, and waits. cudaFreeAsync leaves the memory in the driver's pool
// until the next synchronisation. cudaDeviceReset destroys all that the process has on the device.
// Pointers to device memory become invalid. A heap keeps freed memory until a flush or a reset. The
// flush reports the bytes given back.
//
//     plain                                   with gpuheap
//     cudaFree(p);                            // at the end of p: the heap keeps the memory
//     cudaDeviceSynchronize();                heap.flush();   // given back, with a report
//     cudaDeviceReset();                      heap.reset_device();
//
// Needs a GPU, or the emulated driver and runtime (docs/cpp.md, "Without a toolkit, without a
// GPU").
#include <gpuheap.hpp>

#include "runtime.hpp"

constexpr std::size_t BYTES = 64 << 20;

static void plain() {
  void *memory, *ordered;
  std::size_t before = device_free();
  CHECK(cudaMalloc(&memory, BYTES));
  CHECK(cudaMallocAsync(&ordered, BYTES, nullptr));
  std::printf("plain:   allocated    %4lld MiB taken\n", taken_since(before));
  CHECK(cudaFree(memory));
  std::printf("plain:   freed one    %4lld MiB taken\n", taken_since(before));
  CHECK(cudaFreeAsync(ordered, nullptr));
  CHECK(cudaDeviceSynchronize());
  std::printf("plain:   synchronised %4lld MiB taken\n", taken_since(before));
  CHECK(cudaDeviceReset());
}

static void with_gpuheap() {
  std::size_t before = device_free();
  gpuheap::heap heap("cuda:0");
  {
    auto memory = heap.allocate<char>(BYTES);
    auto more = heap.allocate<char>(BYTES);
    std::printf("gpuheap: allocated    %4lld MiB taken\n", taken_since(before));
  }
  std::printf("gpuheap: freed        %4lld MiB taken\n", taken_since(before));
  gpuheap_flushed flushed = heap.flush();
  std::printf("gpuheap: flushed      %4lld MiB taken, %llu MiB given back\n", taken_since(before),
              (unsigned long long)flushed.given_back >> 20);
  // After the reset, no library of the process may use objects that it made on the device before.
  heap.reset_device();
  std::printf("gpuheap: reset        %4lld MiB taken\n", taken_since(before));
}

int main() try {
  plain();
  with_gpuheap();
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
