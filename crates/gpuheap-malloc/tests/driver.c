/* Programs that use the driver API and no function of gpuheap. The argument selects the program;
 * each prints its results. */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t ptr;
typedef void *stream, *context;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(context *, int), cuCtxSetCurrent(context);
int cuDevicePrimaryCtxReset_v2(int), cuCtxCreate_v2(context *, unsigned, int);
int cuMemAlloc_v2(ptr *, size_t), cuMemFree_v2(ptr), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAllocAsync(ptr *, size_t, stream), cuMemFreeAsync(ptr, stream);
int cuMemAllocAsync_ptsz(ptr *, size_t, stream), cuMemFreeAsync_ptsz(ptr, stream);
int cuMemAllocManaged(ptr *, size_t, unsigned),
    cuMemAllocPitch_v2(ptr *, size_t *, size_t, size_t, unsigned);
int cuDeviceGetDefaultMemPool(void **, int), cuMemAllocFromPoolAsync(ptr *, size_t, void *, stream);
int cuMemPoolGetAttribute(void *, int, void *), cuMemPoolTrimTo(void *, size_t);
int cuMemCreate(uint64_t *, size_t, const void *, uint64_t), cuMemRelease(uint64_t);
int cuArrayCreate_v2(void **, const void *);
int cuMemsetD8Async(ptr, unsigned char, size_t, stream);
int cuMemcpyDtoH_v2(void *, ptr, size_t), cuIpcGetMemHandle(void *, ptr);
int cuStreamCreate(stream *, unsigned), cuStreamDestroy_v2(stream);
int cuLaunchHostFunc(stream, void (*)(void *), void *), cuStreamSynchronize(stream);
int cuStreamBeginCapture_v2(stream, int), cuStreamEndCapture(stream, void **);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

#define MIB ((size_t)1 << 20)
#define CHECK(call) check(call, #call)
enum { NON_BLOCKING = 1, RELAXED = 2, PER_THREAD = 2 };

static void check(int code, const char *what) {
  if (code != 0) {
    printf("%s: %d\n", what, code);
    exit(1);
  }
}

static ptr allocated(size_t bytes) {
  ptr address = 0;
  CHECK(cuMemAlloc_v2(&address, bytes));
  return address;
}

static stream made_stream(void) {
  stream made;
  CHECK(cuStreamCreate(&made, NON_BLOCKING));
  return made;
}

static void start(void) {
  context primary;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
  CHECK(cuCtxSetCurrent(primary));
}

static void live(void) {
  ptr first = allocated(3 * MIB), second = allocated(1000);
  CHECK(cuMemFree_v2(first));
  printf("%d\n", first != second);
}

/* Makes wrong frees. Each is refused and changes nothing. */
static void wrong_frees(void) {
  ptr first = allocated(20 * MIB), second = allocated(20 * MIB), managed;
  CHECK(cuMemAllocManaged(&managed, 4096, 1));
  CHECK(cuMemFree_v2(first));
  printf("again: %d\n", cuMemFree_v2(first));
  printf("inside: %d\n", cuMemFree_v2(second + 512));
  printf("never: %d\n", cuMemFree_v2(12345));
  CHECK(cuMemFree_v2(0));
  CHECK(cuMemFree_v2(managed));
  printf("managed again: %d\n", cuMemFree_v2(managed));
  unsigned char read = 0;
  CHECK(cuMemsetD8Async(second, 7, 20 * MIB, NULL));
  CHECK(cuMemcpyDtoH_v2(&read, second + 20 * MIB - 1, 1));
  CHECK(cuMemFree_v2(second));
  printf("read: %d\n", read);
}

static void limit(void) {
  size_t free = 0, total = 0;
  ptr address = allocated(6 * MIB), more = 0;
  CHECK(cuMemGetInfo_v2(&free, &total));
  printf("%zu of %zu MiB are free\n", free / MIB, total / MIB);
  printf("too much: %d\n", cuMemAlloc_v2(&more, 60 * MIB));
  printf("more than any device has: %d\n", cuMemAlloc_v2(&more, (size_t)1 << 60));
  printf("nothing: %d\n", cuMemAlloc_v2(&more, 0));
  printf("nowhere: %d\n", cuMemAlloc_v2(NULL, 1));
  CHECK(cuMemFree_v2(address));
}

/* Stream work that blocks until `released` is posted. */
static sem_t released;
static volatile int done;

static void held(void *unused) {
  (void)unused;
  sem_wait(&released);
  done = 1;
}

static void hold(stream held_up) {
  sem_init(&released, 0, 0);
  CHECK(cuLaunchHostFunc(held_up, held, NULL));
}

static void *release(void *unused) {
  /* The delay makes it likely that a missing wait is detected. */
  usleep(20000);
  sem_post(&released);
  return unused;
}

/* Frees memory while a stream has work. When the free returns, that work is done. The driver's free
 * waits too. */
static void waits(void) {
  stream other = made_stream();
  pthread_t releases;
  ptr address = allocated(MIB);
  hold(other);
  pthread_create(&releases, NULL, release, NULL);
  CHECK(cuMemFree_v2(address));
  printf("done: %d\n", done);
  pthread_join(releases, NULL);
}

static void does_not_wait(void) {
  stream other = made_stream();
  ptr address = allocated(MIB);
  hold(other);
  alarm(60);
  CHECK(cuMemFree_v2(address));
  sem_post(&released);
  CHECK(cuStreamSynchronize(other));
  printf("done: %d\n", done);
}

/* Frees memory that a stream still uses. The next plain allocation must not get that memory before
 * the stream's work is done. */
static void in_use(void) {
  stream first = made_stream(), second = made_stream();
  pthread_t releases;
  ptr address, plain;
  CHECK(cuMemAllocAsync(&address, 20 * MIB, first));
  hold(first);
  CHECK(cuMemsetD8Async(address, 1, 20 * MIB, first));
  CHECK(cuMemFreeAsync(address, first));
  pthread_create(&releases, NULL, release, NULL);
  plain = allocated(20 * MIB);
  printf("done: %d\n", done);
  CHECK(cuMemsetD8Async(plain, 2, 20 * MIB, second));
  CHECK(cuStreamSynchronize(second));
  pthread_join(releases, NULL);
  CHECK(cuMemFree_v2(plain));
}

/* Frees memory on streams, ends these streams, and reuses the memory on other streams. */
static void streams(void) {
  for (int round = 0; round < 20; round++) {
    stream first = made_stream(), second = made_stream();
    ptr one, two;
    CHECK(cuMemAllocAsync(&one, 8 * MIB, first));
    CHECK(cuMemAllocAsync_ptsz(&two, MIB, NULL));
    CHECK(cuMemsetD8Async(one, 1, 8 * MIB, first));
    CHECK(cuMemsetD8Async(two, 2, MIB, (stream)PER_THREAD));
    CHECK(cuMemFreeAsync(one, first));
    CHECK(cuMemFreeAsync_ptsz(two, NULL));
    CHECK(cuStreamDestroy_v2(first));
    ptr plain = allocated(8 * MIB);
    CHECK(cuMemsetD8Async(plain, 3, 8 * MIB, second));
    CHECK(cuMemFree_v2(plain));
    CHECK(cuMemAllocAsync(&one, 8 * MIB, second));
    CHECK(cuMemsetD8Async(one, 4, 8 * MIB, second));
    CHECK(round % 2 ? cuMemFreeAsync(one, second) : cuMemFree_v2(one));
    CHECK(cuStreamDestroy_v2(second));
  }
}

static void capture(void) {
  stream captured = made_stream();
  void *graph;
  ptr before = allocated(MIB), inside = 0;
  CHECK(cuStreamBeginCapture_v2(captured, RELAXED));
  printf("freed inside: %d\n", cuMemFreeAsync(before, captured));
  ptr beside = allocated(MIB);
  CHECK(cuMemFree_v2(beside));
  CHECK(cuMemsetD8Async(before, 1, MIB, captured));
  CHECK(cuStreamEndCapture(captured, &graph));
  CHECK(cuMemFree_v2(before));
  /* The allocation would become a node of the graph. The emulated driver does not support that. */
  CHECK(cuStreamBeginCapture_v2(captured, RELAXED));
  printf("allocated inside: %d\n", cuMemAllocAsync(&inside, MIB, captured));
  cuStreamEndCapture(captured, &graph);
}

static void reset(void) {
  ptr before = allocated(MIB);
  CHECK(cuDevicePrimaryCtxReset_v2(0));
  start();
  printf("freed after the reset: %d\n", cuMemFree_v2(before));
  ptr after = allocated(MIB);
  CHECK(cuMemsetD8Async(after, 1, MIB, NULL));
  CHECK(cuMemFree_v2(after));
}

static void own_context(void) {
  context own;
  CHECK(cuCtxCreate_v2(&own, 0, 0));
  ptr address = allocated(MIB);
  CHECK(cuMemFree_v2(address));
}

/* Allocates in the primary context and in a context that the program made. Frees memory of each
 * context while the other context is current. */
static void contexts(void) {
  context primary, own;
  CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
  ptr served = allocated(MIB), more = allocated(2 * MIB);
  CHECK(cuCtxCreate_v2(&own, 0, 0));
  ptr others = allocated(3 * MIB);
  CHECK(cuMemFree_v2(served));
  CHECK(cuCtxSetCurrent(primary));
  CHECK(cuMemFree_v2(others));
  printf("again: %d\n", cuMemFree_v2(served));
  CHECK(cuMemFree_v2(more));
}

/* Allocates memory that no heap serves. */
static void foreign(void) {
  /* The driver's structure of 32 bytes: allocation type, handle types, location type, device
   * ordinal. */
  uint32_t properties[8] = {1, 0, 1, 0};
  /* The driver's array description. */
  struct {
    size_t width, height;
    uint32_t format, channels;
  } description = {64, 64, 0x20, 4};
  ptr managed, pitched, pooled;
  uint64_t handle;
  size_t pitch;
  void *pool, *array;
  CHECK(cuMemAllocManaged(&managed, MIB, 1));
  CHECK(cuMemAllocManaged(&managed, MIB, 1));
  CHECK(cuMemAllocPitch_v2(&pitched, &pitch, 1000, 100, 4));
  CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cuMemAllocFromPoolAsync(&pooled, 3 * MIB, pool, NULL));
  CHECK(cuMemFreeAsync(pooled, NULL));
  CHECK(cuMemCreate(&handle, 2 * MIB, properties, 0));
  CHECK(cuMemRelease(handle));
  /* The emulated driver has no arrays. A failed call is not counted. */
  printf("array: %d\n", cuArrayCreate_v2(&array, &description) == 0);
  printf("too large: %d\n", cuMemAllocManaged(&managed, 0, 1));
}

/* Looks up a function in three ways, and reads a pool's figure through each pointer. */
static void pool_ways(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *pool;
  int (*ways[3])(void *, int, void *) = {cuMemPoolGetAttribute, NULL, NULL}, status;
  int (*trim)(void *, size_t) = NULL;
  ptr address;
  *(void **)&ways[1] = dlsym(library, "cuMemPoolGetAttribute");
  CHECK(cuGetProcAddress_v2("cuMemPoolGetAttribute", (void **)&ways[2], 12000, 0, &status));
  CHECK(cuGetProcAddress_v2("cuMemPoolTrimTo", (void **)&trim, 12000, 0, &status));
  CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cuMemAllocAsync(&address, 3 * MIB, NULL));
  for (int way = 0; way < 3; way++) {
    uint64_t used = 0;
    CHECK(ways[way](pool, 7, &used));
    printf("%lu ", used / MIB);
  }
  CHECK(cuMemFreeAsync(address, NULL));
  CHECK(cuStreamSynchronize(NULL));
  CHECK(trim(pool, 0));
  uint64_t reserved = 1;
  CHECK(cuMemPoolGetAttribute(pool, 5, &reserved));
  printf("trimmed %lu\n", reserved);
}

static void served_and_foreign(void) {
  CHECK(cuMemFree_v2(allocated(1000)));
  foreign();
}

static void found(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *by_name = NULL;
  int status;
  CHECK(cuGetProcAddress_v2("cuMemAlloc", &by_name, 12000, 0, &status));
  void *ours = (void *)cuMemAlloc_v2;
  printf("one function: %d %d\n", by_name == ours, dlsym(library, "cuMemAlloc_v2") == ours);
  CHECK(cuGetProcAddress_v2("cuMemFreeAsync", &by_name, 12000, 2, &status));
  printf("a twin: %d\n", by_name == (void *)cuMemFreeAsync_ptsz);
  CHECK(cuGetProcAddress_v2("cuInit", &by_name, 12000, 0, &status));
  printf("another: %d %d\n", by_name == (void *)cuInit, dlsym(library, "cuInit") == (void *)cuInit);
  /* cuGetProcAddress takes these names without the suffix of their variant. */
  CHECK(cuGetProcAddress_v2("cuMemAllocPitch", &by_name, 12000, 0, &status));
  printf("counted: %d", by_name == (void *)cuMemAllocPitch_v2);
  CHECK(cuGetProcAddress_v2("cuMemAllocManaged", &by_name, 12000, 0, &status));
  printf(" %d\n", by_name == (void *)cuMemAllocManaged);
  printf("missing: %d\n", dlsym(library, "cudaMalloc") == NULL);
  printf("which the loader says: %d\n", dlerror() != NULL);
  printf("handle: %d\n", cuIpcGetMemHandle(&status, allocated(MIB)));
}

static void child(void) {
  ptr address = allocated(MIB);
  fflush(stdout);
  pid_t forked = fork();
  if (forked == 0) {
    ptr in_child = 0;
    printf("child: %d", cuMemAlloc_v2(&in_child, MIB));
    printf(" %d\n", cuMemFree_v2(address));
    exit(0);
  }
  int status;
  waitpid(forked, &status, 0);
  printf("parent: %d\n", status);
  CHECK(cuMemFree_v2(address));
}

enum { THREADS = 8, ROUNDS = 2000 };
static ptr passed_on[THREADS];

static void *work(void *number) {
  start();
  for (int round = 0; round < ROUNDS; round++) {
    ptr address = allocated((size_t)1 << (9 + round % 12));
    ptr others = __atomic_exchange_n(&passed_on[(round + (intptr_t)number) % THREADS], address,
                                     __ATOMIC_ACQ_REL);
    CHECK(cuMemFree_v2(others));
  }
  return NULL;
}

static void threads(void) {
  pthread_t all[THREADS];
  for (intptr_t at = 0; at < THREADS; at++) pthread_create(&all[at], NULL, work, (void *)at);
  for (int at = 0; at < THREADS; at++) pthread_join(all[at], NULL);
  for (int at = 0; at < THREADS; at++) CHECK(cuMemFree_v2(passed_on[at]));
}

static ptr kept;

static void free_at_exit(void) { CHECK(cuMemFree_v2(kept)); }

static void at_exit(void) {
  kept = allocated(MIB);
  atexit(free_at_exit);
}

int main(int count, char **arguments) {
  static const struct {
    const char *name;
    void (*run)(void);
  } programs[] = {
      {"live", live},
      {"wrong_frees", wrong_frees},
      {"limit", limit},
      {"waits", waits},
      {"does_not_wait", does_not_wait},
      {"in_use", in_use},
      {"streams", streams},
      {"capture", capture},
      {"reset", reset},
      {"own_context", own_context},
      {"contexts", contexts},
      {"foreign", foreign},
      {"served_and_foreign", served_and_foreign},
      {"found", found},
      {"pool_ways", pool_ways},
      {"child", child},
      {"threads", threads},
      {"at_exit", at_exit},
  };
  for (size_t at = 0; count == 2 && at < sizeof programs / sizeof *programs; at++) {
    if (strcmp(arguments[1], programs[at].name) == 0) {
      start();
      programs[at].run();
      return 0;
    }
  }
  return 2;
}
