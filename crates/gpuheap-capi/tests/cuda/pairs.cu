// Measures how many nanoseconds an allocation and its free take. Compares the CUDA runtime with a
// gpuheap heap, used from C and from C++. tests/cuda/run compiles this program. benches/pairs.rs
// measures the same pairs from Rust. GPUHEAP_DEVICE names the device.
#include <gpuheap.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#else
using cudaStream_t = void *;
extern "C" {
int cudaFree(void *);
int cudaMalloc(void **, std::size_t);
int cudaMallocAsync(void **, std::size_t, cudaStream_t);
int cudaFreeAsync(void *, cudaStream_t);
int cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
int cudaStreamDestroy(cudaStream_t);
int cudaDeviceSynchronize();
}
#endif

static double now() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

static void check(bool is_good, const char *what) {
  if (is_good) return;
  std::fprintf(stderr, "%s failed: %s\n", what, gpuheap_last_error());
  std::exit(1);
}

// Prints the best of several rounds, because other load on the machine only makes a round slower.
template <class Pair>
static void show(const char *name, std::size_t bytes, Pair pair) {
  double best = 1e18;
  int pairs = 16;
  for (int round = 0; round < 12; round++) {
    check(static_cast<int>(cudaDeviceSynchronize()) == 0, "cudaDeviceSynchronize");
    double since = now();
    for (int at = 0; at < pairs; at++) pair();
    double each = (now() - since) / pairs;
    if (each < best) best = each;
    // The next round takes about 20 ms.
    pairs = static_cast<int>(2e7 / best) + 1;
  }
  std::printf("%-28s %10zu bytes %12.1f ns\n", name, bytes, best);
}

int main() try {
  check(static_cast<int>(cudaFree(nullptr)) == 0, "cudaFree");
  double opened = now();
  gpuheap::heap heap;
  double first = now();
  heap.allocate<char>(1 << 10);
  double second = now();
  heap.allocate<char>(1 << 10);
  std::printf("open %.0f us, first pair %.0f us, second pair %.1f us\n", (first - opened) / 1e3,
              (second - first) / 1e3, (now() - second) / 1e3);

  cudaStream_t stream;
  check(static_cast<int>(cudaStreamCreateWithFlags(&stream, 1)) == 0, "cudaStreamCreateWithFlags");
  for (std::size_t bytes : {std::size_t(1) << 10, std::size_t(1) << 20, std::size_t(64) << 20}) {
    void *memory;
    show("cudaMalloc, cudaFree", bytes, [&] {
      check(static_cast<int>(cudaMalloc(&memory, bytes)) == 0, "cudaMalloc");
      check(static_cast<int>(cudaFree(memory)) == 0, "cudaFree");
    });
    show("cudaMallocAsync, FreeAsync", bytes, [&] {
      check(static_cast<int>(cudaMallocAsync(&memory, bytes, stream)) == 0, "cudaMallocAsync");
      check(static_cast<int>(cudaFreeAsync(memory, stream)) == 0, "cudaFreeAsync");
    });
    show("C", bytes, [&] {
      check(gpuheap_allocate(heap.get(), bytes, stream, &memory) == GPUHEAP_STATUS_OK,
            "gpuheap_allocate");
      check(gpuheap_free(heap.get(), memory) == GPUHEAP_STATUS_OK, "gpuheap_free");
    });
    show("C, gpuheap_free_on", bytes, [&] {
      check(gpuheap_allocate(heap.get(), bytes, stream, &memory) == GPUHEAP_STATUS_OK,
            "gpuheap_allocate");
      check(gpuheap_free_on(heap.get(), memory, stream) == GPUHEAP_STATUS_OK, "gpuheap_free_on");
    });
    show("C++, buffer", bytes, [&] { heap.allocate<char>(bytes, stream); });
    show("C++, buffer or result", bytes,
         [&] { check(heap.try_allocate<char>(bytes, stream).has_value(), "try_allocate"); });
  }
  heap.stream_ended(stream);
  cudaStreamDestroy(stream);
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
