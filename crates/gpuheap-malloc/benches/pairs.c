/* Measures the nanoseconds of an allocation and its free through the CUDA runtime. Compile it
 * with a shared runtime (nvcc -cudart shared), and run it with and without libgpuheap_malloc.so. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
typedef void *cudaStream_t;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaDeviceSynchronize(void);
int cudaMallocAsync(void **, size_t, cudaStream_t), cudaFreeAsync(void *, cudaStream_t);
int cudaStreamCreateWithFlags(cudaStream_t *, unsigned), cudaStreamDestroy(cudaStream_t);
int cudaMemsetAsync(void *, int, size_t, cudaStream_t);
#endif

#define CHECK(call) check((int)(call), #call)

static void check(int code, const char *what) {
  if (code != 0) {
    printf("%s: %d\n", what, code);
    exit(1);
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

static void plain(size_t bytes, cudaStream_t stream) {
  void *memory;
  (void)stream;
  CHECK(cudaMalloc(&memory, bytes));
  CHECK(cudaFree(memory));
}

static void ordered(size_t bytes, cudaStream_t stream) {
  void *memory;
  CHECK(cudaMallocAsync(&memory, bytes, stream));
  CHECK(cudaFreeAsync(memory, stream));
}

/* Allocates, writes and frees memory on one stream, like a step of a program. */
static void written(size_t bytes, cudaStream_t stream) {
  void *memory;
  CHECK(cudaMallocAsync(&memory, bytes, stream));
  CHECK(cudaMemsetAsync(memory, 1, bytes, stream));
  CHECK(cudaFreeAsync(memory, stream));
}

/* Prints the best of 12 rounds, because other load on the machine only makes a round slower. */
static void show(const char *name, void (*pair)(size_t, cudaStream_t), size_t bytes,
                 cudaStream_t stream) {
  double best = 1e18;
  int pairs = 16;
  for (int round = 0; round < 12; round++) {
    CHECK(cudaDeviceSynchronize());
    double since = now();
    for (int at = 0; at < pairs; at++) pair(bytes, stream);
    double each = (now() - since) / pairs;
    if (each < best) best = each;
    /* The next round takes about 20 ms. */
    pairs = (int)(2e7 / best) + 1;
  }
  printf("%-28s %10zu bytes %12.1f ns\n", name, bytes, best);
  fflush(stdout);
}

int main(void) {
  cudaStream_t stream;
  void *first;
  CHECK(cudaMalloc(&first, 1));
  CHECK(cudaStreamCreateWithFlags(&stream, 1));
  size_t sizes[] = {1 << 10, 1 << 20, 64 << 20};
  for (int at = 0; at < 3; at++) show("cudaMalloc, cudaFree", plain, sizes[at], stream);
  for (int at = 0; at < 3; at++) show("cudaMallocAsync, FreeAsync", ordered, sizes[at], stream);
  show("the same, memory written", written, 1 << 20, stream);
  /* Both kinds of memory are now in use, so cudaMalloc may have to wait for a stream. */
  show("cudaMalloc, cudaFree, later", plain, 1 << 20, stream);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(first));
  return 0;
}
