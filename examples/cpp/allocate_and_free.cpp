// How do I free GPU memory, so that the device has it again?
//
// With cudaMalloc and cudaFree, each call goes to the driver. The device has the memory back
// immediately, but the two calls take 50 to 100 microseconds and wait for the device. A heap keeps
// freed memory for the next request. A flush gives the memory back, with a report.
//
//     plain                                   with gpuheap
//     cudaMalloc(&p, n * sizeof(float));      auto p = heap.allocate<float>(n, stream);
//     kernel<<<g, b>>>(p, n);                 kernel<<<g, b, 0, stream>>>(p.data(), p.size());
//     cudaFree(p);   // waits for the device  // at the end of p: nothing waits
//                                             heap.flush();   // the device has it again
//
// Runs on the device that GPUHEAP_DEVICE names; emulated:1GiB needs no GPU. Built WITH_RUNTIME, it
// runs the plain form too and prints the device's own figure. It then needs a GPU, or the emulated
// driver and runtime.
#include <gpuheap.hpp>

#include <cstdio>

#ifdef WITH_RUNTIME
#include "runtime.hpp"

static void plain() {
  void *numbers;
  std::size_t before = device_free();
  CHECK(cudaMalloc(&numbers, 64 << 20));
  std::printf("plain:         the device has %lld MiB less\n", taken_since(before));
  CHECK(cudaFree(numbers));
  std::printf("plain, freed:  the device has %lld MiB less\n", taken_since(before));
}
#else
static void plain() {}
#endif

static void show(const gpuheap::heap &heap, const char *when) {
  gpuheap_statistics now = heap.statistics();
  std::printf("%-14s live %3llu MiB, cached %3llu MiB, taken from the device %3llu MiB\n", when,
              (unsigned long long)now.live >> 20, (unsigned long long)now.cached >> 20,
              (unsigned long long)now.reserved >> 20);
}

int main() try {
  plain();
  gpuheap::heap heap;
  show(heap, "at the start");
  {
    auto numbers = heap.allocate<float>(16 << 20);
    auto zeros = heap.allocate_zeroed<float>(4 << 20);
    show(heap, "allocated");
  }
  show(heap, "freed");
  gpuheap_flushed flushed = heap.flush();
  std::printf("flushed        %llu MiB went back\n", (unsigned long long)flushed.given_back >> 20);
  show(heap, "flushed");
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
