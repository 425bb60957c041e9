/* Loads a runtime for itself alone, as Python does, and finds its functions by name. */
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
  return 0;
}
