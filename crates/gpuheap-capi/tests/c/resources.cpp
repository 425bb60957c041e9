// Uses the allocators and resources for Thrust and CCCL, without the headers of these libraries.
// The test compares the printed lines.
#include <gpuheap.hpp>

#include <cstdio>

// Stand-in for cuda::stream_ref.
struct stream_ref {
  void *handle;
  void *get() const { return handle; }
};

static unsigned long long live(const gpuheap::heap &heap) { return heap.statistics().live; }

int main() {
  gpuheap::heap heap("emulated:64MiB"), other("emulated:64MiB");
  gpuheap::stream_allocator<int> numbers(heap);
  gpuheap::stream_allocator<char> bytes(numbers);
  int *some = numbers.allocate(1000);
  char *more = bytes.allocate(1);
  std::printf("allocated: %llu\n", live(heap));
  numbers.deallocate(some, 1000);
  bytes.deallocate(more, 1);
  std::printf("freed: %llu\n", live(heap));
  std::printf("equal: %d %d\n", numbers == bytes, numbers != gpuheap::stream_allocator<int>(other));
  for (std::size_t size : {std::size_t(1) << 40, std::size_t(-1)}) {
    try {
      (void)numbers.allocate(size);
    } catch (const std::bad_alloc &why) {
      std::printf("thrown: %d\n", std::string(why.what()).empty());
    }
  }

  gpuheap::device_resource resource(heap);
  stream_ref stream{nullptr};
  void *both[] = {resource.allocate(stream, 100), resource.allocate_async(100, 256, stream),
                  resource.allocate_sync(100), resource.allocate(100, 512)};
  std::printf("resource: %llu\n", live(heap));
  resource.deallocate(stream, both[0], 100);
  resource.deallocate_async(both[1], 100, 256, stream);
  resource.deallocate_sync(both[2], 100);
  resource.deallocate(both[3], 100, 512);
  std::printf("freed: %llu\n", live(heap));
  std::printf("equal: %d %d\n", resource == gpuheap::device_resource(heap),
              resource != gpuheap::device_resource(other));
  try {
    (void)resource.allocate(100, 4096);
  } catch (const gpuheap::bad_allocation &why) {
    std::printf("%s\n", why.what());
  }
}
