// Does freed GPU memory keep my data, and how do I clear it first?
//
// It may: a later allocation gets the memory with its old content. With the runtime, the program
// has to clear each whole allocation before its free, in stream order. A forgotten call leaves the
// data. A heap with zero_on_free clears all freed memory, in the order of the free's stream.
// Nothing waits.
//
//     plain                                   with gpuheap
//     cudaMalloc(&key, n);                    options.zero_on_free = 1;   // once
//     ...                                     auto key = heap.allocate<char>(n, stream);
//     cudaMemset(key, 0, n);                  ...
//     cudaFree(key);                          // at the end of key: cleared
//
// Needs a GPU, or the emulated driver and runtime (docs/cpp.md, "Without a toolkit, without a
// GPU").
#include <gpuheap.hpp>

#include "runtime.hpp"

#include <vector>

constexpr std::size_t BYTES = 1 << 20;

static std::size_t left_of_the_key(const void *memory) {
  std::vector<unsigned char> read(BYTES);
  CHECK(cudaMemcpy(read.data(), memory, BYTES, cudaMemcpyDeviceToHost));
  std::size_t found = 0;
  for (unsigned char byte : read) found += byte == 0x5e;
  return found;
}

static void plain() {
  void *key;
  CHECK(cudaMalloc(&key, BYTES));
  CHECK(cudaMemset(key, 0x5e, BYTES));
  CHECK(cudaMemset(key, 0, BYTES));
  CHECK(cudaFree(key));
  std::printf("plain:   cleared by a call of its own before the free\n");
}

static void with_gpuheap(bool zero_on_free) {
  gpuheap_options options{};
  options.size = sizeof options;
  options.zero_on_free = zero_on_free ? 1 : -1;
  gpuheap::heap heap("cuda:0", &options);
  void *where;
  {
    auto key = heap.allocate<char>(BYTES);
    key.fill(0x5e, nullptr);
    where = key.data();
  }
  auto later = heap.allocate<char>(BYTES);
  std::printf(
      "gpuheap: zero_on_free %s: the next allocation %s the memory, and reads %zu bytes of the "
      "key\n",
      zero_on_free ? "on" : "off", later.data() == where ? "gets" : "does not get",
      left_of_the_key(later.data()));
}

int main() try {
  plain();
  with_gpuheap(false);
  with_gpuheap(true);
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
