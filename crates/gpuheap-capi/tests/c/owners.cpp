// Uses the C++ classes that own memory, on an emulated device. main.rs compares the printed lines.
#include <gpuheap.hpp>

#include <cstdio>
#include <thread>
#include <type_traits>
#include <vector>

static_assert(!std::is_copy_constructible<gpuheap::buffer<int>>::value, "one owner");
static_assert(std::is_nothrow_move_constructible<gpuheap::buffer<int>>::value,
              "fits in containers");

static unsigned long long live(const gpuheap::heap &heap) { return (*heap.try_statistics()).live; }

static int run() {
  gpuheap_options options{};
  options.size = sizeof options;
  options.hard_limit = 64 << 20;
  options.tracking = "counts";
  auto opened = gpuheap::heap::open("emulated:1GiB", &options);
  if (!opened) return std::printf("%s\n", opened.why().text().c_str()), 1;
  gpuheap::heap heap = std::move(*opened);

  {
    auto made = heap.try_allocate_zeroed<float>(1000);
    gpuheap::buffer<float> moved = std::move(*made);
    std::printf("%zu elements, %zu bytes, live %llu\n", moved.size(), moved.size_bytes(),
                live(heap));
    std::vector<gpuheap::buffer<float>> several;
    several.push_back(std::move(moved));
    several.push_back(*heap.try_allocate<float>(10));
    std::printf("moved from: %d, live %llu\n", moved.data() == nullptr, live(heap));
    std::printf("used on: %d\n", several[0].try_used_on(nullptr).has_value());
  }
  std::printf("after the end: %llu\n", live(heap));

  auto empty = heap.try_allocate<int>(0);
  std::printf("no elements: %d\n",
              empty->empty() && empty->data() == nullptr && bool(empty->try_fill(1, nullptr)));
  auto large = heap.try_allocate<char>(100 << 20);
  std::printf("too large: %d, %d\n", large.has_value(), large.why().out_of_memory());
  auto huge = heap.try_allocate<double>(std::size_t(-1) / 2);
  std::printf("overflow: %s\n", huge.why().text().c_str());
  std::printf("fits: %d %d\n", *heap.try_would_fit(1 << 20), *heap.try_would_fit(65 << 20));

  auto before = heap.try_take_snapshot();
  auto leaked = heap.try_allocate<char>(1000);
  auto after = heap.try_take_snapshot();
  auto grown = after->try_since(*before, GPUHEAP_FORMAT_JSON);
  std::printf("grown: %d\n", grown->find("\"bytes\":1000") != std::string::npos);
  std::printf("leaks: %d\n", heap.try_leaks()->find("1000 bytes") != std::string::npos ||
                                 heap.try_leaks()->find("1000 B") != std::string::npos);
  std::printf("status: %d\n", (*heap.try_status(GPUHEAP_FORMAT_JSON))[0] == '{');

  {
    auto scope = heap.try_open_scope("a scope");
    auto freed = heap.try_allocate<char>(10)->release();
    auto kept = heap.try_allocate<char>(20);
    (void)freed;
    (void)kept->try_keep();
    std::thread other(
        [&] { std::printf("on another thread: %d\n", scope->try_close().has_value()); });
    other.join();
    auto report = scope->try_close();
    std::printf("scope: %llu of %llu freed\n", (unsigned long long)report->freed_at_end,
                (unsigned long long)report->allocations);
    std::printf("closed twice: %d\n", scope->try_close().has_value());
  }
  (void)leaked->try_free();
  auto flushed = heap.try_flush();
  std::printf("flushed: live %llu, wait %d\n", (unsigned long long)flushed->live,
              bool(heap.try_wait()));

#ifndef GPUHEAP_NO_EXCEPTIONS
  try {
    heap.allocate<char>(100 << 20);
  } catch (const gpuheap::error &why) {
    std::printf("thrown: %d\n", why.out_of_memory());
  }
  heap.set_limits(0, 0);
  heap.allocate<char>(100 << 20).free();
  {
    auto scope = heap.open_scope();
  }
#else
  std::printf("thrown: 1\n");
#endif
  return 0;
}

int main() { return run(); }
