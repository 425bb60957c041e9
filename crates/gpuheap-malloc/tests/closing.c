/* Calls the drop-in's function that dlsym found, before and after its library is closed. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
  void *runtime = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (runtime == NULL) return 2;
  int (*release)(void *) = (int (*)(void *))dlsym(runtime, "cudaFree");
  printf("before: %d\n", release((void *)512));
  dlclose(runtime);
  printf("after: %d\n", release((void *)512));
  return 0;
}
