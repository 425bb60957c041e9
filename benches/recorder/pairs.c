/* Allocates and frees memory, stream-ordered and plain. Built as a program and as a library. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*fn)();
static fn alloc_async, free_async, alloc, release, sync_;

static void *find(const char *name) {
  static void *lib;
  if (!lib) lib = dlopen("libcuda.so.1", RTLD_NOW);
  void *f = lib ? dlsym(lib, name) : 0;
  if (!f) {
    fprintf(stderr, "no %s\n", name);
    exit(1);
  }
  return f;
}

int prepare(int with_context) {
  alloc_async = (fn)find("cuMemAllocAsync");
  free_async = (fn)find("cuMemFreeAsync");
  alloc = (fn)find("cuMemAlloc_v2");
  release = (fn)find("cuMemFree_v2");
  sync_ = (fn)find("cuCtxSynchronize");
  if (with_context) {
    void *context;
    if (((fn)find("cuInit"))(0)) return 1;
    if (((fn)find("cuDevicePrimaryCtxRetain"))(&context, 0)) return 1;
    if (((fn)find("cuCtxSetCurrent"))(context)) return 1;
  }
  void *pool;
  if (((fn)find("cuDeviceGetDefaultMemPool"))(&pool, 0)) return 1;
  uint64_t most = UINT64_MAX;
  return ((fn)find("cuMemPoolSetAttribute"))(pool, 4, &most);
}

static __attribute__((noinline)) int one(size_t bytes) {
  uint64_t p = 0;
  return alloc_async(&p, bytes, (void *)0) || free_async(p, (void *)0);
}

/* This function has the same stack pointer as `one`, as functions that Python calls often have. */
static __attribute__((noinline)) int other(size_t bytes) {
  uint64_t p = 1;
  return alloc_async(&p, bytes, (void *)0) || free_async(p, (void *)0);
}

/* Returns nanoseconds of a pair, or -1. Stream-ordered pairs alternate between two functions. */
double pairs(int count, size_t bytes, int is_async) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (int i = 0; i < count; i++) {
    uint64_t p = 0;
    if (is_async) {
      if (i % 2 ? one(bytes) : other(bytes)) return -1;
    } else if (alloc(&p, bytes) || release(p))
      return -1;
  }
  clock_gettime(CLOCK_MONOTONIC, &b);
  sync_();
  return ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / count;
}

int main(void) {
  if (prepare(1)) {
    puts("no GPU");
    return 1;
  }
  pairs(2000, 1 << 20, 1);
  double best = 1e18, sum = 0;
  for (int round = 0; round < 10; round++) {
    double t = pairs(5000, 1 << 20, 1);
    sum += t;
    if (t < best) best = t;
  }
  printf("async pair 1 MiB: mean %.0f ns, least %.0f ns\n", sum / 10, best);
  pairs(50, 16 << 20, 0);
  printf("plain pair 16 MiB: %.0f ns\n", pairs(300, 16 << 20, 0));
  return 0;
}
