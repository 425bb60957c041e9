// Calls every method of owners that were freed, released or moved from, whose heap was closed, or
// whose device was reset. The test compares the printed lines.
#include <gpuheap.hpp>

#include <cstdio>
#include <optional>
#include <vector>

template <class Call>
static void fails(const char *what, Call call) {
  try {
    call();
    std::printf("%s: nothing\n", what);
  } catch (const gpuheap::error &why) {
    std::printf("%s: %d, %s\n", what, why.status(), why.what());
  } catch (const gpuheap::bad_allocation &why) {
    std::printf("%s: %d, %s\n", what, why.why().status(), why.what());
  }
}

static void each_of_buffer(gpuheap::buffer<int> &buffer) {
  std::printf("data: %d, size: %zu\n", buffer.data() != nullptr,
              buffer.size() + buffer.size_bytes());
  fails("fill", [&] { buffer.fill(1, nullptr); });
  fails("used_on", [&] { buffer.used_on(nullptr); });
  fails("keep", [&] { buffer.keep(); });
  fails("free", [&] { buffer.free(); });
  std::printf("release: %d\n", buffer.release() != nullptr);
}

static void each_of_heap(gpuheap::heap &heap) {
  int numbers[10];
  fails("allocate", [&] { heap.allocate<int>(1); });
  fails("allocate_kind", [&] { heap.allocate_kind<int>(GPUHEAP_KIND_PINNED, 1); });
  fails("allocate_zeroed", [&] { heap.allocate_zeroed<int>(1); });
  fails("register_memory", [&] { heap.register_memory(numbers, 10); });
  fails("device", [&] { heap.device(); });
  fails("flush", [&] { heap.flush(); });
  fails("statistics", [&] { heap.statistics(); });
  fails("would_fit", [&] { heap.would_fit(1); });
  fails("status", [&] { heap.status(); });
  fails("leaks", [&] { heap.leaks(); });
  fails("list_leaks", [&] { heap.list_leaks(); });
  fails("take_snapshot", [&] { heap.take_snapshot(); });
  fails("open_scope", [&] { heap.open_scope(); });
  fails("wait", [&] { heap.wait(); });
  fails("wait_for", [&] { heap.wait_for(nullptr); });
  fails("stream_ended", [&] { heap.stream_ended(nullptr); });
  fails("set_limits", [&] { heap.set_limits(0, 0); });
  fails("reset_device", [&] { heap.reset_device(); });
}

static void buffers(gpuheap::heap &heap) {
  std::printf("- no elements\n");
  gpuheap::buffer<int> none, zero = heap.allocate<int>(0);
  each_of_buffer(none);
  each_of_buffer(zero);
  std::printf("- freed\n");
  auto buffer = heap.allocate<int>(10);
  buffer.free();
  each_of_buffer(buffer);
  std::printf("- freed, then moved\n");
  gpuheap::buffer<int> moved = std::move(buffer);
  fails("fill", [&] { moved.fill(1, nullptr); });
  fails("fill", [&] { buffer.fill(1, nullptr); });
  std::printf("- released\n");
  auto released = heap.allocate<int>(10);
  int *raw = released.release();
  each_of_buffer(released);
  gpuheap_free(heap.get(), raw);
  std::printf("- moved from\n");
  auto first = heap.allocate<int>(10);
  gpuheap::buffer<int> second = std::move(first);
  each_of_buffer(first);
  first = heap.allocate<int>(10);
  first.fill(1, nullptr);
  std::swap(first, second);
  second.free();
  fails("fill", [&] { second.fill(1, nullptr); });
  first.fill(2, nullptr);
}

static void others(gpuheap::heap &heap) {
  std::printf("- registered\n");
  int numbers[10];
  gpuheap::registered<int> none;
  none.unregister();
  auto locked = heap.register_memory(numbers, 10);
  gpuheap::registered<int> moved = std::move(locked);
  std::printf("data: %d, %d, size: %zu\n", locked.data() != nullptr,
              locked.device_data() != nullptr, locked.size());
  fails("unregister", [&] { locked.unregister(); });
  moved.unregister();
  fails("unregister", [&] { moved.unregister(); });

  std::printf("- scopes and snapshots\n");
  auto scope = heap.open_scope("a scope");
  scope.close();
  fails("close", [&] { scope.close(); });
  auto snapshot = heap.take_snapshot();
  gpuheap::snapshot taken = std::move(snapshot);
  fails("since", [&] { snapshot.since(taken); });
  fails("growth_since", [&] { taken.growth_since(snapshot); });

  std::printf("- a heap that was moved from\n");
  gpuheap::heap other("emulated:64MiB"), target = std::move(other);
  each_of_heap(other);
  fails("memory_resource", [&] { (void)gpuheap::memory_resource(other).allocate(1); });
  fails("stream_allocator", [&] { (void)gpuheap::stream_allocator<int>(other).allocate(1); });
  fails("device_resource", [&] { (void)gpuheap::device_resource(other).allocate_sync(1); });
}

static void reset() {
  gpuheap_options options{};
  options.size = sizeof options;
  options.tracking = "counts";
  gpuheap::heap heap("emulated:64MiB", &options);
  gpuheap::memory_resource resource(heap);
  gpuheap::stream_allocator<int> allocator(heap);
  gpuheap::device_resource device(heap);
  int numbers[10];
  auto buffer = heap.allocate<int>(10);
  auto locked = heap.register_memory(numbers, 10);
  auto scope = heap.open_scope();
  auto before = heap.take_snapshot(), after = heap.take_snapshot();
  void *held = resource.allocate(100);
  heap.reset_device();
  std::printf("- a heap whose device was reset\n");
  each_of_heap(heap);
  std::printf("- what was of it\n");
  fails("fill", [&] { buffer.fill(1, nullptr); });
  fails("used_on", [&] { buffer.used_on(nullptr); });
  fails("keep", [&] { buffer.keep(); });
  fails("free", [&] { buffer.free(); });
  fails("free again", [&] { buffer.free(); });
  fails("unregister", [&] { locked.unregister(); });
  fails("close scope", [&] { scope.close(); });
  fails("container", [&] { (void)resource.allocate(1); });
  fails("container used_on", [&] { resource.used_on(held, nullptr); });
  resource.deallocate(held, 100);
  fails("allocator", [&] { (void)allocator.allocate(1); });
  fails("resource", [&] { (void)device.allocate_sync(1); });
  fails("since", [&] { after.since(before); });
  heap = gpuheap::heap("emulated:64MiB");
  std::printf("opened again: %zu\n", heap.allocate<int>(10).size());
}

static void closed() {
  std::optional<gpuheap::buffer<int>> buffer;
  {
    gpuheap::heap heap("emulated:64MiB");
    buffer = heap.allocate<int>(10);
  }
  std::printf("- of a heap that ended\n");
  fails("fill", [&] { buffer->fill(1, nullptr); });
  fails("free", [&] { buffer->free(); });
}

int main() {
  gpuheap_options options{};
  options.size = sizeof options;
  options.tracking = "counts";
  {
    gpuheap::heap heap("emulated:64MiB", &options);
    buffers(heap);
    others(heap);
    std::printf("live: %llu\n", (unsigned long long)heap.statistics().live);
  }
  reset();
  closed();
}
