// Uses several devices, and memory of the program that one device uses in place. The test compares
// the printed lines.
#include <gpuheap.hpp>

#include <cstdio>
#include <numeric>
#include <vector>

static unsigned long long registered_bytes(const gpuheap::heap &heap) {
  gpuheap_statistics now{};
  now.size = sizeof now;
  gpuheap_get_kind_statistics(heap.get(), GPUHEAP_KIND_REGISTERED, &now);
  return now.live;
}

int main() {
  std::vector<gpuheap::heap> heaps;
  for (const gpuheap_device &device : gpuheap::devices()) {
    if (!device.is_emulated) heaps.emplace_back(device.name);
  }
  std::vector<gpuheap::buffer<int>> buffers;
  for (gpuheap::heap &heap : heaps) buffers.push_back(heap.allocate<int>(250));
  for (gpuheap::heap &heap : heaps) {
    gpuheap_device device = heap.device();
    std::printf("%s: %llu MiB, live %llu\n", device.name,
                (unsigned long long)device.total_memory >> 20,
                (unsigned long long)heap.statistics().live);
  }
  try {
    gpuheap::heap third("cuda:2");
  } catch (const gpuheap::error &why) {
    std::printf("a third: %d\n", why.status());
  }

  gpuheap::heap &heap = heaps[1];
  std::vector<int> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 0);
  {
    gpuheap::registered<int> locked = heap.register_memory(numbers.data(), numbers.size());
    std::printf("registered: %zu elements, %llu bytes, %d\n", locked.size(), registered_bytes(heap),
                locked.data() == numbers.data() && locked.device_data() != nullptr);
    auto again = heap.try_register_memory(numbers.data(), numbers.size());
    std::printf("again: %d\n", again.has_value());
    gpuheap::registered<int> moved = std::move(locked);
    std::printf("moved from: %d, %llu bytes\n", locked.empty(), registered_bytes(heap));
    locked = std::move(moved);
    std::printf("moved back: %d, %llu bytes\n", moved.empty(), registered_bytes(heap));
  }
  std::printf("after the end: %llu bytes, %d\n", registered_bytes(heap), numbers[999]);
  auto unlocked = heap.register_memory(numbers.data(), 10);
  unlocked.unregister();
  std::printf("unregistered: %llu bytes\n", registered_bytes(heap));
  auto none = heap.try_register_memory(static_cast<int *>(nullptr), 10);
  auto nothing = heap.try_register_memory(numbers.data(), 0);
  auto huge = heap.try_register_memory(numbers.data(), std::size_t(-1) / 2);
  std::printf("refused: %d %d %d\n", none.why().status(), nothing.why().status(),
              huge.why().status());
}
