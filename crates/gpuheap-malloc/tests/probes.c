/* A program for which CUDA is optional. It looks for CUDA, and is not linked with CUDA. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
  if (count < 2) return 2;
  if (strcmp(arguments[1], "loaded") == 0) {
    printf("loaded: %d\n", dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL);
  } else if (strcmp(arguments[1], "linked") == 0) {
    void *function = dlsym(RTLD_DEFAULT, "cuInit");
    printf("linked: %d, an error: %d\n", function != NULL, dlerror() != NULL);
    function = dlsym(dlopen(NULL, RTLD_LAZY), "cudaMalloc");
    printf("linked: %d, an error: %d\n", function != NULL, dlerror() != NULL);
  } else {
    void *driver = dlopen(arguments[1], RTLD_NOW);
    printf("there: %d\n", driver != NULL);
    if (driver != NULL) dlclose(driver);
  }
  return 0;
}
