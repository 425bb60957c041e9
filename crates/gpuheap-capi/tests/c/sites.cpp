// Lists the places in this program that allocated memory. A test compares the printed lines.
#include <gpuheap.hpp>

#include <cstdio>
#include <cstring>
#include <thread>

constexpr unsigned LINE = __LINE__ + 2;
static char *forgets(gpuheap::heap &heap, std::size_t bytes) {
  return heap.allocate<char>(bytes).release();
}

static void show(const gpuheap_site &site) {
  const char *end = std::strrchr(site.file, '/');
  std::printf("%lld bytes in %lld, kind %u, at %s, %d, by %s\n", (long long)site.bytes,
              (long long)site.allocations, site.kind, end == nullptr ? site.file : end + 1,
              site.line == LINE,
              site.thread[0] == 0   ? "none"
              : site.thread_id != 0 ? "a thread"
                                    : "?");
}

int main() {
  gpuheap_options options{};
  options.size = sizeof options;
  options.tracking = "backtraces";
  gpuheap::heap heap("emulated:64MiB", &options);
  // Registers an empty callback. Without a callback, gpuheap reports the thread's end on stderr.
  gpuheap_on_thread_end(heap.get(), [](const gpuheap_thread_end *, void *) {}, nullptr);
  std::printf("none: %zu\n", heap.list_leaks().size());
  char *first = forgets(heap, 1000);
  gpuheap::snapshot before = heap.take_snapshot();
  std::thread([&] { forgets(heap, 50000); }).join();
  auto pinned = heap.allocate_kind<char>(GPUHEAP_KIND_PINNED, 10);
  // Lists the places of all allocations, including the place of the pinned allocation.
  std::vector<gpuheap_site> leaks = heap.list_leaks();
  std::printf("places: %zu\n", leaks.size());
  for (const gpuheap_site &site : leaks) {
    if (site.bytes > 10) show(site);
  }
  std::printf("named: %d\n", std::strstr(leaks[0].function, "forgets") != nullptr);
  gpuheap_free(heap.get(), first);
  std::vector<gpuheap_site> growth = heap.take_snapshot().growth_since(before);
  std::printf("changes: %zu\n", growth.size());
  show(growth.front());
  show(growth.back());

  // The list has three places, but the array passed here has room for two structures. Each
  // structure has one more field than gpuheap_site, as in a later version of the header.
  struct {
    gpuheap_site known;
    unsigned long long later;
  } two[2] = {};
  two[0].known.size = sizeof two[0];
  two[0].later = two[1].later = 7;
  std::size_t count = 0;
  int status = gpuheap_list_leaks(heap.get(), &two[0].known, 2, &count);
  std::printf("later: %d, %zu, %lld %lld, %llu %llu\n", status, count,
              (long long)two[0].known.bytes, (long long)two[1].known.bytes, two[0].later,
              two[1].later);
  two[0].known.size = 8;
  std::printf("too small: %d\n", gpuheap_list_leaks(heap.get(), &two[0].known, 1, &count));
  std::printf("nowhere: %d, %d\n", gpuheap_list_leaks(heap.get(), nullptr, 1, &count),
              gpuheap_list_growth(nullptr, nullptr, nullptr, 0, nullptr));
}
