/* A program that holds 3 MiB until its standard input ends. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t ptr;

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemFree_v2(ptr);

#define CHECK(call)                 \
  do {                              \
    if ((call) != 0) {              \
      printf("%s failed\n", #call); \
      exit(1);                      \
    }                               \
  } while (0)

int main(void) {
  void *context;
  ptr kept, freed;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuMemAlloc_v2(&kept, 3 << 20));
  CHECK(cuMemAlloc_v2(&freed, 1 << 20));
  CHECK(cuMemFree_v2(freed));
  printf("ready\n");
  fflush(stdout);
  getchar();
  return 0;
}
