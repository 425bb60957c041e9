/* A runtime that loads the driver at each call. CUDA's runtime does so at its first call. This
 * runtime never allocates memory. */
#include <dlfcn.h>
#include <stddef.h>

int cudaMalloc(void **, size_t), cudaFree(void *), cudaGetLastError(void);

static int call(void) { return dlopen("libcuda.so.1", RTLD_NOW) == NULL ? 35 : 999; }

int cudaMalloc(void **memory, size_t bytes) {
  (void)bytes;
  *memory = NULL;
  return call();
}

int cudaFree(void *memory) {
  (void)memory;
  return call();
}

int cudaGetLastError(void) { return 0; }
