// Makes the calls of attack.c through the C++ header. Failures are thrown with a text, and
// destructors throw nothing. The test compares the printed lines.
#include <gpuheap.hpp>

#include <cstdio>
#include <memory>
#include <optional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

// This buffer ends after every heap. Its destructor ignores the failure of its free.
static std::optional<gpuheap::buffer<char>> outlives;

template <class Call>
static void fails(const char *what, Call call) {
  try {
    call();
    std::printf("%s: nothing\n", what);
  } catch (const gpuheap::error &why) {
    std::printf("%s: %d, %s\n", what, why.status(), why.what()[0] ? "a text" : "no text");
  } catch (const gpuheap::bad_allocation &why) {
    std::printf("%s: %d, %s, as bad_alloc\n", what, why.why().status(),
                why.what()[0] ? "a text" : "no text");
  }
}

static void closed_heap() {
  gpuheap::heap heap("emulated:64MiB");
  auto memory = heap.allocate<int>(10);
  auto scope = heap.open_scope();
  gpuheap::memory_resource resource(heap);
  void *held = resource.allocate(100);
  gpuheap_close(heap.get());
  fails("allocate", [&] { heap.allocate<int>(1); });
  fails("flush", [&] { heap.flush(); });
  fails("device", [&] { heap.device(); });
  fails("free", [&] { memory.free(); });
  fails("close scope", [&] { scope.close(); });
  fails("container", [&] { (void)resource.allocate(1); });
  resource.deallocate(held, 100);
}

static void moved_from() {
  gpuheap::heap heap("emulated:64MiB");
  gpuheap::heap moved = std::move(heap);
  fails("moved heap", [&] { heap.allocate<int>(1); });
  fails("statistics", [&] { heap.statistics(); });
  gpuheap::buffer<int> none;
  none.free();
  none.used_on(nullptr);
  none.keep();
  auto memory = moved.allocate<int>(10);
  gpuheap::buffer<int> &same = memory;
  memory = std::move(same);
  std::printf("moved to itself: %zu\n", memory.size());
  int *raw = memory.release();
  int once = gpuheap_free(moved.get(), raw);
  std::printf("once: %d, twice: %d\n", once, gpuheap_free(moved.get(), raw));
  fails("untracked", [&] { moved.leaks(); });
  fails("limits", [&] { moved.set_limits(2, 1); });
}

static void other_thread() {
  gpuheap::heap heap("emulated:64MiB");
  auto scope = std::make_unique<gpuheap::scope>(heap.open_scope("of main"));
  auto memory = heap.allocate<char>(1000);
  std::thread([&] {
    fails("scope of another thread", [&] { scope->close(); });
    gpuheap::buffer<char> taken = std::move(memory);
  }).join();
  std::printf("freed there: %llu\n", (unsigned long long)heap.statistics().live);
}

static int in_child(gpuheap::heap &heap, gpuheap::buffer<int> &memory) {
  fails("in a child", [&] { heap.allocate<int>(1); });
  fails("free in a child", [&] { memory.free(); });
  std::fflush(stdout);
  return 0;
}

int main() {
  closed_heap();
  moved_from();
  other_thread();
  {
    gpuheap::heap heap("emulated:64MiB");
    auto memory = heap.allocate<int>(10);
    std::fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      int code = in_child(heap, memory);
      // Destructors must work in the child too.
      {
        gpuheap::heap ended = std::move(heap);
      }
      _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::printf("child: %d\n", status);
    outlives = heap.allocate<char>(1000);
  }
  fails("no device", [] { gpuheap::heap heap("cuda:99"); });
  fails("no name", [] { gpuheap::heap heap("\xff"); });
}
