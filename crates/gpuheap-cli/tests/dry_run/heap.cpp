// Takes memory through gpuheap's C interface, in the way that the first argument names.
#include "gpuheap.h"
#include <cstdint>
#include <cstdio>
#include <cstring>

constexpr std::uint64_t GIB = std::uint64_t(1) << 30;

int main(int, char **arguments) {
  auto is = [arguments](const char *name) { return std::strcmp(arguments[1], name) == 0; };
  gpuheap_heap *heap;
  if (gpuheap_open("cuda:0", nullptr, &heap) != GPUHEAP_STATUS_OK) return 9;
  void *memory = nullptr;
  if (is("fits")) gpuheap_allocate(heap, 20 * GIB, nullptr, &memory);
  if (is("ignored")) gpuheap_allocate(heap, 60 * GIB, nullptr, &memory);
  if (is("pieces")) {
    for (int piece = 0; piece < 30; piece++) gpuheap_allocate(heap, GIB, nullptr, &memory);
  }
  if (is("told") && gpuheap_allocate(heap, 60 * GIB, nullptr, &memory) != GPUHEAP_STATUS_OK)
    std::puts(gpuheap_last_error());
  if (is("halved")) {
    for (std::uint64_t bytes = 64 * GIB;
         gpuheap_allocate(heap, bytes, nullptr, &memory) != GPUHEAP_STATUS_OK; bytes /= 2) {
    }
  }
  gpuheap_close(heap);
  return 0;
}
