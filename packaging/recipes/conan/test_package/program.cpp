#include <gpuheap.hpp>

#include <cstdio>

int main() try {
  gpuheap::heap heap;
  auto numbers = heap.allocate<float>(1000);
  std::printf("%zu numbers on an emulated device\n", numbers.size());
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
