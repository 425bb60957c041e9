// Which thread leaks GPU memory, and how do I get it back?
//
// The driver counts memory per process, so with cudaMalloc the thread is unknown. A scope frees the
// memory that its thread left, and reports the bytes.
//
//     plain                                   with gpuheap
//     void work() {                           void work(gpuheap::heap &heap) {
//       cudaMalloc(&p, n);                      auto scope = heap.open_scope("work");
//       if (failed) return;   // p is lost      gpuheap_allocate(heap.get(), n, 0, &p);
//       cudaFree(p);                            if (failed) return;   // the scope frees p
//     }                                       }
//
// Runs on the device that GPUHEAP_DEVICE names; emulated:1GiB needs no GPU. Built WITH_RUNTIME, it
// runs the plain form too. It then needs a GPU, or the emulated driver and runtime.
#include <gpuheap.hpp>

#include <cstdio>
#include <thread>

#ifdef WITH_RUNTIME
#include "runtime.hpp"

static void plain_load(bool fails) {
  void *memory;
  CHECK(cudaMalloc(&memory, 8 << 20));
  if (fails) return;
  CHECK(cudaFree(memory));
}

static void plain() {
  std::size_t before = device_free();
  for (bool fails : {false, true}) {
    std::thread([&] { plain_load(fails); }).join();
  }
  std::printf("plain: the device has %lld MiB less, and nothing says why\n", taken_since(before));
}
#else
static void plain() {}
#endif

// A common mistake: an early return forgets the memory.
static void load(gpuheap::heap &heap, bool fails) {
  auto scope = heap.open_scope("load");
  char *raw = heap.allocate<char>(8 << 20).release();
  if (!fails) {
    gpuheap_free(heap.get(), raw);
  }
  gpuheap_scope_report report = scope.close();
  std::printf("load: %llu allocations, %llu of them left, %llu MiB freed for it\n",
              (unsigned long long)report.allocations, (unsigned long long)report.freed_at_end,
              (unsigned long long)report.freed_at_end_bytes >> 20);
}

int main() try {
  plain();
  gpuheap::heap heap;
  for (bool fails : {false, true}) {
    std::thread([&] { load(heap, fails); }).join();
  }
  std::printf("live at the end: %llu bytes\n", (unsigned long long)heap.statistics().live);
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
