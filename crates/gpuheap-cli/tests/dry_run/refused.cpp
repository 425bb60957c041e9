// Takes memory through the CUDA runtime, in the way that the first argument names. Only `checked`
// checks the results of its calls.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

extern "C" {
int cudaMalloc(void **, std::size_t);
int cudaMallocManaged(void **, std::size_t, unsigned);
int cudaMallocAsync(void **, std::size_t, void *);
int cudaFree(void *);
int cudaMemset(void *, int, std::size_t);
}

constexpr std::size_t GIB = std::size_t(1) << 30;

static void ignore() {
  void *large, *small;
  cudaMalloc(&large, 60 * GIB);
  cudaMalloc(&small, GIB);
  cudaMemset(small, 0, GIB);
}

static void ignore_ordered() {
  void *large;
  cudaMallocAsync(&large, 60 * GIB, nullptr);
}

static int check() {
  void *large;
  return cudaMalloc(&large, 60 * GIB);
}

static void free_and_repeat() {
  void *first, *second;
  cudaMalloc(&first, 16 * GIB);
  if (cudaMalloc(&second, 16 * GIB) != 0) {
    cudaFree(first);
    cudaMalloc(&second, 16 * GIB);
  }
}

static void halve() {
  void *workspace;
  for (std::size_t bytes = 64 * GIB; cudaMalloc(&workspace, bytes) != 0 && bytes > 0; bytes /= 2) {
  }
}

// The second array does not fit while the first is live. The third array has the same size.
static void three_arrays() {
  void *first, *second, *third;
  cudaMalloc(&first, 16 * GIB);
  cudaMalloc(&second, 16 * GIB);
  cudaFree(first);
  cudaMalloc(&third, 16 * GIB);
}

// Halves the size each time. The first sizes do not fit on the card.
static void sweep() {
  for (std::size_t bytes = 64 * GIB; bytes >= GIB; bytes /= 2) {
    void *workspace = nullptr;
    cudaMalloc(&workspace, bytes);
    cudaMemset(workspace, 0, bytes);
    cudaFree(workspace);
  }
}

// Allocates a workspace three times. The second one does not fit, because the model is live.
static void take_turns() {
  void *model, *workspace;
  cudaMalloc(&model, 16 * GIB);
  for (int turn = 1; turn <= 3; turn++) {
    workspace = nullptr;
    cudaMalloc(&workspace, (turn == 1 ? 1 : 16) * GIB);
    cudaMemset(workspace, 0, GIB);
    cudaFree(workspace);
    if (turn == 2) cudaFree(model);
  }
}

static void managed(std::size_t bytes) {
  void *pages;
  cudaMallocManaged(&pages, bytes, 1);
}

int main(int, char **arguments) {
  const char *way = arguments[1];
  auto is = [way](const char *name) { return std::strcmp(way, name) == 0; };
  if (is("ignored")) ignore();
  if (is("ordered")) ignore_ordered();
  if (is("checked")) return check();
  if (is("repeated")) free_and_repeat();
  if (is("halved")) halve();
  if (is("three")) three_arrays();
  if (is("sweep")) sweep();
  if (is("turns")) take_turns();
  if (is("managed GiB")) managed(std::atol(arguments[2]) * GIB);
  if (is("managed")) managed(60 * GIB);
  if (is("managed little")) managed(GIB);
  if (is("waits")) {
    managed(GIB);
    pause();
  }
  if (is("exec")) {
    ignore();
    execl("/proc/self/exe", "refused", "halved", nullptr);
  }
  if (is("exec twice")) {
    ignore();
    execl("/proc/self/exe", "refused", "exec little", nullptr);
  }
  if (is("exec little")) {
    managed(GIB);
    execl("/proc/self/exe", "refused", "halved", nullptr);
  }
  if (is("killed")) {
    ignore();
    _exit(0);
  }
  return 0;
}
