/* Calls functions for managed memory, whose arguments differ between CUDA 12 and 13. Prints the
 * version of the runtime, the preferred device, and the device of the last prefetch. */
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  int type, id;
} location;
#if MAJOR == 12
int cudaMemAdvise(const void *, size_t, int, int);
int cudaMemPrefetchAsync(const void *, size_t, int, void *);
#else
int cudaMemAdvise(const void *, size_t, int, location);
int cudaMemPrefetchAsync(const void *, size_t, location, unsigned, void *);
#endif
int cudaMallocManaged(void **, size_t, unsigned), cudaRuntimeGetVersion(int *);
int cudaMemRangeGetAttribute(void *, size_t, int, const void *, size_t), cudaStreamCreate(void **);

static void check(int code, const char *what) {
  if (code != 0) {
    printf("%s: %d\n", what, code);
    exit(1);
  }
}
#define CHECK(call) check(call, #call)

int main(void) {
  void *memory, *stream;
  int version = 0, preferred = -2, prefetched = -2;
  size_t bytes = (size_t)1 << 21;
  CHECK(cudaRuntimeGetVersion(&version));
  CHECK(cudaMallocManaged(&memory, bytes, 1));
  CHECK(cudaStreamCreate(&stream));
#if MAJOR == 12
  CHECK(cudaMemAdvise(memory, bytes, 3, 1));
  CHECK(cudaMemPrefetchAsync(memory, bytes, 1, stream));
#else
  location device = {1, 1};
  CHECK(cudaMemAdvise(memory, bytes, 3, device));
  CHECK(cudaMemPrefetchAsync(memory, bytes, device, 0, stream));
#endif
  CHECK(cudaMemRangeGetAttribute(&preferred, sizeof preferred, 2, memory, bytes));
  CHECK(cudaMemRangeGetAttribute(&prefetched, sizeof prefetched, 4, memory, bytes));
  printf("%d: preferred %d, prefetched %d\n", version / 1000, preferred, prefetched);
  return 0;
}
