/* Allocates device memory through the driver, reads 8 bytes of it, and frees it. The first argument
 * is the size in MiB. If a second argument is given, queries the free memory first. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*call)();

static call find(const char *name) {
  static void *library;
  if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
  call found = library ? (call)dlsym(library, name) : 0;
  if (!found) {
    fprintf(stderr, "%s is missing\n", name);
    exit(9);
  }
  return found;
}

int main(int count, char **arguments) {
  char name[100];
  void *context;
  unsigned long long memory;
  size_t total;
  int devices, code;
  if (find("cuInit")(0) || find("cuDeviceGetCount")(&devices)) return 8;
  find("cuDeviceGetName")(name, sizeof name, 0);
  find("cuDeviceTotalMem_v2")(&total, 0);
  find("cuDevicePrimaryCtxRetain")(&context, 0);
  find("cuCtxSetCurrent")(context);
  size_t free_bytes, host = 0;
  if (count > 2) find("cuMemGetInfo_v2")(&free_bytes, &total);
  code = find("cuMemAlloc_v2")(&memory, (size_t)atol(count > 1 ? arguments[1] : "1") << 20);
  if (!code) {
    find("cuMemcpyDtoH_v2")(&host, memory, sizeof host);
    find("cuMemFree_v2")(memory);
  }
  find("cuLinkComplete")();
  printf("%d x %s, %zu MiB: %d\n", devices, name, total >> 20, code);
  return code != 0;
}
