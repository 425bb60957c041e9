/* C program linked with libcuda.so.1. It uses neither dlopen nor CUDA's headers. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;
typedef struct stream *stream;
typedef struct event *event;
typedef struct context *context;

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetName(char *name, int length, int device);
int cuDevicePrimaryCtxRetain(context *context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(context context);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuMemAlloc_v2(address *pointer, size_t bytes);
int cuMemFree_v2(address pointer);
int cuMemAllocAsync(address *pointer, size_t bytes, stream stream);
int cuMemFreeAsync(address pointer, stream stream);
int cuMemcpyHtoD_v2(address target, const void *source, size_t bytes);
int cuMemcpyDtoH_v2(void *target, address source, size_t bytes);
int cuMemcpyDtoHAsync_v2(void *target, address source, size_t bytes, stream stream);
int cuMemsetD32Async(address pointer, unsigned value, size_t count, stream stream);
int cuStreamCreate(stream *stream, unsigned flags);
int cuStreamSynchronize(stream stream);
int cuStreamDestroy_v2(stream stream);
int cuStreamWaitEvent(stream stream, event event, unsigned flags);
int cuEventCreate(event *event, unsigned flags);
int cuEventRecord(event event, stream stream);
int cuEventDestroy_v2(event event);
int cuGetErrorName(int code, const char **name);
int cuGetProcAddress_v2(const char *base, void **function, int version, unsigned long long flags,
                        int *status);

#define OUT_OF_MEMORY 2
#define NOT_INITIALIZED 3
#define PER_THREAD 2

static int expect(int line, int code, int expected) {
  const char *name = "?";
  if (code == expected) return 1;
  cuGetErrorName(code, &name);
  fprintf(stderr, "line %d: %s (%d), expected %d\n", line, name, code, expected);
  _exit(1);
}
#define IS(code, expected) expect(__LINE__, (code), (expected))
#define OK(code) IS(code, 0)
#define HOLDS(what) IS(!(what), 0)

int main(void) {
  size_t before, after, total;
  context context;
  int device;

  IS(cuMemGetInfo_v2(&before, &total), NOT_INITIALIZED);
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  char name[64];
  OK(cuDeviceGetName(name, sizeof name, device));
  HOLDS(strstr(name, "emulated"));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  OK(cuMemGetInfo_v2(&before, &total));

  /* Copies pageable memory to the device and back. */
  char text[] = "one GPU, emulated", back[sizeof text] = "";
  address plain;
  OK(cuMemAlloc_v2(&plain, sizeof text));
  OK(cuMemcpyHtoD_v2(plain, text, sizeof text));
  OK(cuMemcpyDtoH_v2(back, plain, sizeof text));
  HOLDS(!strcmp(text, back));

  /* Writes on one stream, and reads on another stream after an event. */
  stream writer, reader;
  event written;
  address block;
  unsigned words[1000];
  OK(cuStreamCreate(&writer, 0));
  OK(cuStreamCreate(&reader, 1));
  OK(cuEventCreate(&written, 2));
  OK(cuMemAllocAsync(&block, sizeof words, writer));
  OK(cuMemsetD32Async(block, 0xFEEDBEEF, 1000, writer));
  OK(cuEventRecord(written, writer));
  OK(cuStreamWaitEvent(reader, written, 0));
  OK(cuMemcpyDtoHAsync_v2(words, block, sizeof words, reader));
  OK(cuMemFreeAsync(block, reader));
  OK(cuStreamSynchronize(reader));
  for (int i = 0; i < 1000; i++) HOLDS(words[i] == 0xFEEDBEEF);

  /* Uses the per-thread default stream, like a program compiled for it. */
  int (*alloc_async)(address *, size_t, stream), (*synchronize)(stream), status;
  OK(cuGetProcAddress_v2("cuMemAllocAsync", (void **)&alloc_async, 11020, PER_THREAD, &status));
  HOLDS(status == 0 && alloc_async != cuMemAllocAsync);
  OK(cuGetProcAddress_v2("cuStreamSynchronize", (void **)&synchronize, 7000, PER_THREAD, NULL));
  OK(alloc_async(&block, 1 << 20, NULL));
  OK(synchronize(NULL));
  OK(cuMemFree_v2(block));

  IS(cuMemAlloc_v2(&block, total + 1), OUT_OF_MEMORY);

  /* A forked child has no device, and its calls do not hang. */
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    IS(cuMemAlloc_v2(&block, 1), NOT_INITIALIZED);
    IS(cuInit(0), NOT_INITIALIZED);
    const char *text;
    OK(cuGetErrorName(NOT_INITIALIZED, &text));
    _exit(strcmp(text, "CUDA_ERROR_NOT_INITIALIZED") ? 1 : 7);
  }
  int ended;
  HOLDS(waitpid(child, &ended, 0) == child);
  HOLDS(WIFEXITED(ended) && WEXITSTATUS(ended) == 7);

  OK(cuEventDestroy_v2(written));
  OK(cuStreamDestroy_v2(writer));
  OK(cuStreamDestroy_v2(reader));
  OK(cuMemFree_v2(plain));
  OK(cuMemGetInfo_v2(&after, &total));
  HOLDS(before == after);
  OK(cuDevicePrimaryCtxRelease_v2(device));
  puts("the end of the C program");
  return 0;
}
