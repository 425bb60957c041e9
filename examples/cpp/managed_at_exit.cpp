// Does managed memory stay taken if the program ends without freeing it?
//
// No. When the process ends, the driver takes back managed memory like all other memory. But the
// program gets no report of forgotten memory. A destructor of a static object must not free managed
// memory: the runtime may have shut down by then, and the free fails. A heap counts managed memory
// like other memory, and reports bytes that are live at the end. Buffers of the function that
// opened the heap are freed before the heap closes.
//
//     plain                             with gpuheap
//     cudaMallocManaged(&p, n);         auto kind = GPUHEAP_KIND_UNIFIED;
//                                       auto p = heap.allocate_kind<float>(kind, n);
//     cudaDeviceSynchronize();          heap.wait_for(nullptr);
//     p[0] = 1;                         p.data()[0] = 1;
//     return 0;   // forgotten          gpuheap_get_kind_statistics(...)   // says so
//
// Needs a GPU, or the emulated driver and runtime (docs/cpp.md, "Without a toolkit, without a
// GPU").
#include <gpuheap.hpp>

#include "runtime.hpp"

constexpr std::size_t COUNT = 1 << 20;

static void plain() {
  void *memory;
  CHECK(cudaMallocManaged(&memory, COUNT * sizeof(float), cudaMemAttachGlobal));
  CHECK(cudaDeviceSynchronize());
  static_cast<float *>(memory)[COUNT - 1] = 1;
  std::printf("plain:   wrote %g, and the memory is left to the end of the process\n",
              static_cast<float *>(memory)[COUNT - 1]);
}

static unsigned long long live(const gpuheap::heap &heap) {
  gpuheap_statistics now{};
  now.size = sizeof now;
  return gpuheap_get_kind_statistics(heap.get(), GPUHEAP_KIND_UNIFIED, &now) == GPUHEAP_STATUS_OK
             ? now.live
             : 0;
}

static void with_gpuheap() {
  gpuheap_options options{};
  options.size = sizeof options;
  options.tracking = "counts";
  gpuheap::heap heap("cuda:0", &options);
  {
    auto memory = heap.allocate_kind<float>(GPUHEAP_KIND_UNIFIED, COUNT);
    heap.wait_for(nullptr);
    memory.data()[COUNT - 1] = 1;
    std::printf("gpuheap: wrote %g, live %llu MiB of managed memory\n", memory.data()[COUNT - 1],
                live(heap) >> 20);
  }
  std::printf("gpuheap: live %llu MiB after the end of the buffer\n", live(heap) >> 20);
  (void)heap.allocate_kind<float>(GPUHEAP_KIND_UNIFIED, COUNT).release();
  std::string leaks = heap.leaks();
  std::printf("gpuheap: forgotten: %s\n", leaks.substr(0, leaks.find('\n')).c_str());
}

int main() try {
  plain();
  with_gpuheap();
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
