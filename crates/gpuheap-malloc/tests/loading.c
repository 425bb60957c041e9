/* Loads a runtime with RTLD_LOCAL, as Python does, and finds its functions by name. Then closes
 * the runtime and loads it again. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
  void *runtime = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (runtime == NULL) return 2;
  int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(runtime, "cudaMalloc");
  int (*release)(void *) = (int (*)(void *))dlsym(runtime, "cudaFree");
  int (*last)(void) = (int (*)(void))dlsym(runtime, "cudaGetLastError");
  void *memory, *more;
  printf("allocated: %d\n", allocate(&memory, 1 << 20));
  printf("too much: %d", allocate(&more, (size_t)1 << 50));
  printf(", last %d\n", last());
  printf("freed: %d\n", release(memory));
  printf("again: %d\n", release(memory));
  allocate(&memory, 1 << 20);
  dlclose(runtime);
  runtime = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (runtime == NULL) return 3;
  release = (int (*)(void *))dlsym(runtime, "cudaFree");
  allocate = (int (*)(void **, size_t))dlsym(runtime, "cudaMalloc");
  printf("loaded again: %d", release(memory));
  printf(" %d", release((void *)512));
  printf(" %d\n", allocate(&memory, 1000));
  dlclose(runtime);
  return 0;
}
