// Uses standard containers in memory of a heap. The test compares the printed lines.
#include <gpuheap.hpp>

#include <cstdio>
#include <string>
#include <vector>

int main() {
  gpuheap::heap heap("emulated:1GiB");
  gpuheap::memory_resource pinned(heap), unified(heap, GPUHEAP_KIND_UNIFIED);
  {
    std::pmr::vector<int> numbers(&pinned);
    for (int at = 0; at < 10000; at++) numbers.push_back(at);
    pinned.used_on(numbers.data(), nullptr);
    std::pmr::vector<std::pmr::string> texts(&unified);
    texts.emplace_back("long enough to be outside of the string itself");
    texts.resize(100, texts[0]);
    std::printf("%d %zu %s\n", numbers[9999], texts.size(), texts[99].c_str());
    gpuheap_statistics now{};
    now.size = sizeof now;
    gpuheap_get_kind_statistics(heap.get(), GPUHEAP_KIND_PINNED, &now);
    std::printf("pinned: %d, device: %llu\n", now.live >= 40000,
                (unsigned long long)heap.statistics().live);
  }
  std::printf("equal: %d %d\n", pinned.is_equal(unified),
              pinned.is_equal(*std::pmr::new_delete_resource()));
  try {
    pinned.deallocate(pinned.allocate(0, 512), 0, 512);
    (void)pinned.allocate(1, 1024);
  } catch (const std::bad_alloc &why) {
    std::printf("%s\n", why.what());
  }
  try {
    (void)unified.allocate(std::size_t(1) << 62);
  } catch (const gpuheap::bad_allocation &why) {
    std::printf("out of memory: %d\n", why.why().out_of_memory());
  }
  try {
    gpuheap::memory_resource device(heap, GPUHEAP_KIND_DEVICE);
  } catch (const gpuheap::error &why) {
    std::printf("refused: %d\n", why.status() == GPUHEAP_STATUS_REFUSED);
  }
  auto both = heap.allocate_kind<float>(GPUHEAP_KIND_UNIFIED, 100);
  heap.wait_for(nullptr);
  both.data()[99] = 2.0f;
  std::printf("both: %g\n", both.data()[99]);
  both.free();
  heap.reset_device();
  try {
    (void)pinned.allocate(1);
  } catch (const gpuheap::bad_allocation &why) {
    std::printf("after the reset: %d\n", why.why().status() == GPUHEAP_STATUS_GONE);
  }
}
