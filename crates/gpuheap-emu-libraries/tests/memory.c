/* Calls NCCL as one of two ranks, then creates handles of cuBLAS and cuDNN. Prints the number of
 * 2 MiB granules that each call allocates. No context is current at the first call. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

struct identity {
  char bytes[128];
};

int ncclCommInitRank(void **, int, struct identity, int), ncclCommDestroy(void *);
int ncclCommInitAll(void **, int, const int *);
int ncclAllReduce(void *, void *, size_t, int, int, void *, void *);
int ncclBroadcast(void *, void *, size_t, int, int, void *, void *);
int ncclBcast(void *, size_t, int, int, void *, void *);
int ncclSend(void *, size_t, int, int, void *, void *);
int ncclRecv(void *, size_t, int, int, void *, void *);
int cublasCreate_v2(void **), cublasDestroy_v2(void *), cudnnCreate(void **);
int ncclAlltoAll(void *, void *, size_t, int, void *, void *);

typedef int (*call)();

static void *driver, *context;
static size_t before;

#define CALL(name, ...) ((call)dlsym(driver, #name))(__VA_ARGS__)

/* Stand-in for the CUDA runtime: makes the primary context current. */
int cudaFree(void *memory) { return memory != NULL || CALL(cuCtxSetCurrent, context); }

static void step(const char *name, int code) {
  size_t available = 0, total = 0;
  CALL(cuCtxSetCurrent, context);
  CALL(cuMemGetInfo_v2, &available, &total);
  if (before) printf("%s: %d, %ld\n", name, code, ((long)before - (long)available) >> 21);
  before = available;
}

int main(void) {
  struct identity identity = {{0}};
  void *first = NULL, *second = NULL, *each[2], *handle;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver || CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0)) return 1;
  step("start", 0);
  CALL(cuCtxSetCurrent, NULL);
  step("communicator", ncclCommInitRank(&first, 2, identity, 0));
  step("reduction", ncclAllReduce(0, 0, 0, 0, 0, first, 0));
  step("broadcast", ncclBroadcast(0, 0, 0, 0, 0, first, 0));
  step("message", ncclSend(0, 0, 0, 1, first, 0));
  step("another", ncclSend(0, 0, 0, 1, first, 0));
  step("answer", ncclRecv(0, 0, 0, 1, first, 0));
  step("to itself", ncclSend(0, 0, 0, 0, first, 0));
  step("to nobody", ncclSend(0, 0, 0, 2, first, 0));
  step("further communicator", ncclCommInitRank(&second, 2, identity, 0));
  step("broadcast in place", ncclBcast(0, 0, 0, 0, second, 0));
  step("exchange", ncclAlltoAll(0, 0, 0, 0, second, 0));
  step("end", ncclCommDestroy(second));
  step("one on each device", ncclCommInitAll(each, 2, NULL));
  step("cuBLAS", cublasCreate_v2(&handle));
  step("again", cublasCreate_v2(&handle));
  step("destroyed", cublasDestroy_v2(handle));
  step("cuDNN", cudnnCreate(&handle));
  step("again", cudnnCreate(&handle));
  return 0;
}
