/* A program with its own pool. The pool reuses a block that still contains an earlier user's
 * upload. A kernel writes a size into the block. The program prints the size, and allocates that
 * many bytes. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*call)();

static void *library;
#define CALL(name, ...) ((call)dlsym(library, #name))(__VA_ARGS__)

static const char ptx[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry count(.param .u64 size) { ret; }\n";

int main(void) {
  void *context, *module, *kernel;
  unsigned long long pool, block, memory, size = 1ULL << 40;
  void *arguments[] = {&block};
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library || CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0)) return 9;
  CALL(cuCtxSetCurrent, context);
  if (CALL(cuModuleLoadData, &module, ptx)) return 8;
  if (CALL(cuModuleGetFunction, &kernel, module, "count")) return 7;
  if (CALL(cuMemAlloc_v2, &pool, (size_t)1 << 20)) return 6;
  block = pool + 512;
  CALL(cuMemcpyHtoD_v2, block, &size, sizeof size);
  CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, arguments, (void *)0);
  CALL(cuMemcpyDtoH_v2, &size, block, sizeof size);
  printf("%llu\n", size);
  return size && CALL(cuMemAlloc_v2, &memory, (size_t)size);
}
