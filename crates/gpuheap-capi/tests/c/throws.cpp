// Makes a callback throw. The argument selects the callback. The process ends with a text, and
// nothing is printed after the call.
#include <gpuheap.hpp>

#include <cstdio>
#include <cstring>
#include <thread>

int main(int, char **arguments) {
  gpuheap_options options{};
  options.size = sizeof options;
  options.tracking = "counts";
  gpuheap::heap heap("emulated:64MiB", &options);
  if (std::strcmp(arguments[1], "shortage") == 0) {
    gpuheap_on_shortage(
        heap.get(), [](uint64_t, void *) -> uint64_t { throw std::runtime_error("mine"); },
        nullptr);
    auto most = heap.allocate<char>(40 << 20);
    try {
      (void)heap.try_allocate<char>(40 << 20);
    } catch (const std::runtime_error &) {
    }
  } else {
    gpuheap_on_thread_end(
        heap.get(), [](const gpuheap_thread_end *, void *) { throw std::runtime_error("mine"); },
        nullptr);
    std::thread([&] { (void)heap.allocate<char>(1000).release(); }).join();
  }
  std::printf("went on\n");
}
