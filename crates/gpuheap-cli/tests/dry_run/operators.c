/* Functions with the names of PyTorch's operators. Each function reads four bytes from the device
 * through the driver, directly or through another operator. */
#include <dlfcn.h>
#include <stddef.h>

typedef int (*call)();

static void *library;
static unsigned long long memory;

#define CALL(name, ...) ((call)dlsym(library, #name))(__VA_ARGS__)
#define OPERATOR(length, name) __asm__("_ZN2at4_ops" #length #name "4callERKNS_6TensorE")

int item(void) OPERATOR(4, item);
int nonzero(void) OPERATOR(7, nonzero);
int repeat(void) OPERATOR(24, repeat_interleave_Tensor);
int equal(void) OPERATOR(5, equal);
int cov(void) OPERATOR(3, cov);

int open_device(void) {
  void *context;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library || CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0)) return 1;
  CALL(cuCtxSetCurrent, context);
  return CALL(cuMemAlloc_v2, &memory, (size_t)4096);
}

int item(void) {
  int value = 0;
  CALL(cuMemcpyDtoH_v2, &value, memory, (size_t)4);
  return value;
}

int nonzero(void) { return item() + 1; }
int repeat(void) { return item() + 1; }
int equal(void) { return item() + 1; }
int cov(void) { return equal() + 1; }
