// Why does a program that runs elsewhere run out of memory under WSL2?
//
// Windows owns the device and lends it to Linux. Pinned memory is scarce, however much the host
// has. Windows may refuse memory that the driver reports as free. Managed memory does not page, so
// it cannot be larger than the device and cannot be prefetched. A heap's default limit leaves room,
// and an error names its cause.
//
//     plain                                  with gpuheap
//     cudaHostAlloc(&p, n, 0);   // error 2  heap.allocate_kind<char>(GPUHEAP_KIND_PINNED, n);
//     cudaMemGetInfo(&free, &total);         heap.would_fit(n);
//     cudaMalloc(&p, free);      // error 2  heap.allocate<char>(n);
//
// Shows the figures of the machine. Without WSL2, run it on the emulated driver and runtime
// (docs/cpp.md, "WSL2") with GPUHEAP_EMULATED_DEVICE=wsl2-rtx4060
// GPUHEAP_DEVICE=emulated:wsl2-rtx4060. This emulated device provokes these errors.
#include <gpuheap.hpp>

#include "runtime.hpp"

#include <string>
#include <vector>

constexpr std::size_t MIB = std::size_t(1) << 20;
// Limit of the pinned bytes, so that the host stays usable.
constexpr std::size_t MOST_PINNED = 2048 * MIB;

// Pins up to `MOST_PINNED` bytes in pieces, frees them, and returns the number of bytes pinned.
static std::size_t pinned_until_refused() {
  std::vector<void *> pieces;
  void *piece;
  while (pieces.size() * 64 * MIB < MOST_PINNED && cudaHostAlloc(&piece, 64 * MIB, 0) == 0)
    pieces.push_back(piece);
  (void)cudaGetLastError();
  for (void *each : pieces) CHECK(cudaFreeHost(each));
  return pieces.size() * 64 * MIB;
}

// Allocates up to `free` bytes in pieces, frees them, and returns the number of bytes allocated.
static std::size_t served_of_free(std::size_t free) {
  std::vector<void *> pieces;
  void *piece;
  while ((pieces.size() + 1) * 64 * MIB <= free && cudaMalloc(&piece, 64 * MIB) == 0)
    pieces.push_back(piece);
  (void)cudaGetLastError();
  for (void *each : pieces) CHECK(cudaFree(each));
  return pieces.size() * 64 * MIB;
}

static void plain() {
  int both_sides = 0;
  CHECK(cudaFree(nullptr));
  CHECK(cudaDeviceGetAttribute(&both_sides, cudaDevAttrConcurrentManagedAccess, 0));
  std::printf("plain:   managed memory pages, and host and device use it at once: %s\n",
              both_sides ? "yes" : "no");
  std::size_t pinned = pinned_until_refused();
  std::printf("plain:   pinned %zu MiB%s\n", pinned / MIB,
              pinned < MOST_PINNED ? ", then refused" : " of as many");
  std::size_t free = device_free(), served = served_of_free(free);
  std::printf("plain:   free %zu MiB, served %zu MiB of them\n", free / MIB, served / MIB);
}

// Returns the first sentence of an error. The figures follow the sentence in brackets.
static std::string in_short(const gpuheap::failure &why) {
  return why.text().substr(0, why.text().find(" ("));
}

static void with_gpuheap() {
  gpuheap::heap heap;
  auto pinned = heap.try_allocate_kind<char>(GPUHEAP_KIND_PINNED, MOST_PINNED);
  std::printf("gpuheap: pinned: %s\n", pinned ? "served" : in_short(pinned.why()).c_str());
  std::size_t total = heap.device().total_memory;
  for (std::size_t percent : {50, 90}) {
    auto part = heap.try_allocate<char>(total / 100 * percent);
    std::printf("gpuheap: %zu %% of the device: %s\n", percent,
                part ? "served" : in_short(part.why()).c_str());
  }
}

int main() try {
  plain();
  with_gpuheap();
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
