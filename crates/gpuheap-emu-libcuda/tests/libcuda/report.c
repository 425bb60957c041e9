/* Sets a function for copies to the host, copies, and removes the function. Then the program and
 * its forked child exit. The child has no device. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*call)();
static unsigned long long copied, calls;

struct copy {
  char *address;
  unsigned long long bytes;
  bool is_written;
};

/* Replaces the first copied byte, unless the whole result was written by a copy or fill. */
static void on_copy(const struct copy *copy) {
  copied += copy->bytes;
  calls++;
  if (!copy->is_written) copy->address[0] = 9;
}

int main(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
  unsigned long long memory;
  char host[64];
  if (!library) return 1;
#define CALL(name, ...) ((call)dlsym(library, #name))(__VA_ARGS__)
  if (CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0)) return 2;
  CALL(cuCtxSetCurrent, context);
  CALL(cuMemAlloc_v2, &memory, (size_t)4 << 20);
  CALL(cuMemsetD8_v2, memory, 1, (size_t)64);
  CALL(gpuheap_emulated_on_copy_to_host, on_copy);
  CALL(cuMemcpyDtoH_v2, host, memory, (size_t)64);
  CALL(cuMemcpyDtoHAsync_v2, host, memory, (size_t)32, (void *)0);
  if (host[0] != 1) return 3;
  CALL(cuMemcpyDtoH_v2, host, memory + 32, (size_t)33);
  if (host[0] != 9 || host[1] != 1) return 4;
  CALL(gpuheap_emulated_on_copy_to_host, (void *)0);
  /* The program's allocator hands out the first 32 bytes again. */
  CALL(gpuheap_emulated_handed_out, memory, 32ULL);
  CALL(cuMemcpyDtoH_v2, host, memory, (size_t)64);
  if (host[31] || !host[32]) return 5;
  if (fork() == 0) exit(0);
  wait(0);
  printf("%llu bytes in %llu\n", copied, calls);
  return 0;
}
