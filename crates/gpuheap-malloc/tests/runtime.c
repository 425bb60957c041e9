/* Programs that use the CUDA runtime and no function of gpuheap. The argument selects the
 * program; each prints its results. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *stream;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemGetInfo(size_t *, size_t *);
int cudaMallocAsync(void **, size_t, stream), cudaFreeAsync(void *, stream);
int cudaMallocManaged(void **, size_t, unsigned),
    cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaDeviceGetDefaultMemPool(void **, int),
    cudaMallocFromPoolAsync(void **, size_t, void *, stream);
int cudaDeviceGetMemPool(void **, int), cudaDeviceSetMemPool(int, void *);
int cudaMemPoolCreate(void **, const void *), cudaMemPoolTrimTo(void *, size_t);
int cudaMemPoolGetAttribute(void *, int, void *), cudaMemPoolSetAttribute(void *, int, void *);
int cudaStreamSynchronize(stream);
int cudaMemset(void *, int, size_t), cudaMemsetAsync(void *, int, size_t, stream);
int cudaStreamCreateWithFlags(stream *, unsigned), cudaStreamDestroy(stream);
int cudaSetDevice(int), cudaGetDevice(int *), cudaDeviceReset(void), cudaDeviceSynchronize(void);
int cudaGetLastError(void), cudaPeekAtLastError(void), cudaIpcGetMemHandle(void *, void *);

#define MIB ((size_t)1 << 20)
#define CHECK(call) check(call, #call)

static void check(int code, const char *what) {
  if (code != 0) {
    printf("%s: %d\n", what, code);
    exit(1);
  }
}

/* Allocates, writes and frees memory as most programs do. */
static void *plain(void *unused) {
  void *first, *second;
  CHECK(cudaMalloc(&first, 3 * MIB));
  CHECK(cudaMalloc(&second, 5 * MIB));
  CHECK(cudaMemset(first, 1, 3 * MIB));
  CHECK(cudaFree(first));
  CHECK(cudaFree(second));
  CHECK(cudaFree(NULL));
  return unused;
}

static void run_plain(void) { plain(NULL); }

/* Starts threads whose first call of CUDA is an allocation. */
static void threads(void) {
  pthread_t all[4];
  for (int at = 0; at < 4; at++) pthread_create(&all[at], NULL, plain, NULL);
  for (int at = 0; at < 4; at++) pthread_join(all[at], NULL);
}

static pthread_barrier_t together;

static void *freed(void *memory) {
  pthread_barrier_wait(&together);
  return cudaFree(memory) == 0 ? memory : NULL;
}

/* In each of 50 rounds, four threads free the same memory at once. */
static void free_races(void) {
  int succeeded = 0;
  pthread_barrier_init(&together, NULL, 4);
  for (int round = 0; round < 50; round++) {
    void *memory, *result;
    pthread_t all[4];
    CHECK(cudaMalloc(&memory, MIB));
    for (int at = 0; at < 4; at++) pthread_create(&all[at], NULL, freed, memory);
    for (int at = 0; at < 4; at++) {
      pthread_join(all[at], &result);
      succeeded += result != NULL;
    }
  }
  printf("%d frees succeeded\n", succeeded);
}

static void errors(void) {
  void *memory, *more;
  CHECK(cudaMalloc(&memory, 20 * MIB));
  printf("too much: %d", cudaMalloc(&more, 60 * MIB));
  printf(", last %d", cudaGetLastError());
  printf(", then %d\n", cudaGetLastError());
  CHECK(cudaFree(memory));
  printf("again: %d", cudaFree(memory));
  printf(", last %d\n", cudaGetLastError());
  printf("never: %d", cudaFreeAsync((void *)4096, NULL));
  printf(", last %d\n", cudaGetLastError());
  memory = &memory;
  CHECK(cudaMalloc(&memory, 0));
  printf("nothing: %d\n", memory == NULL);
}

static void others(void) {
  void *managed, *pitched, *pooled, *pool, *served;
  size_t pitch, free = 0, total = 0;
  char handle[64];
  CHECK(cudaMallocManaged(&managed, MIB, 1));
  CHECK(cudaMallocPitch(&pitched, &pitch, 100, 100));
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMallocFromPoolAsync(&pooled, 5 * MIB, pool, NULL));
  CHECK(cudaFreeAsync(pooled, NULL));
  CHECK(cudaMalloc(&served, 8 * MIB));
  CHECK(cudaMemGetInfo(&free, &total));
  printf("%zu of %zu MiB are free\n", free / MIB, total / MIB);
  printf("handle: %d\n", cudaIpcGetMemHandle(handle, served));
  CHECK(cudaFree(managed));
  CHECK(cudaFree(pitched));
  CHECK(cudaFree(served));
}

/* CUDA's attributes of a pool. */
enum { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

static uint64_t figure(void *pool, int attribute) {
  uint64_t value = 0;
  CHECK(cudaMemPoolGetAttribute(pool, attribute, &value));
  return value;
}

static void print_used(const char *when, void *pool) {
  uint64_t used = figure(pool, USED), high = figure(pool, USED_HIGH);
  uint64_t reserved = figure(pool, RESERVED), reserved_high = figure(pool, RESERVED_HIGH);
  printf("%s: %lu of at most %lu used, reserved %d %d\n", when, used, high, reserved >= used,
         reserved_high >= reserved);
}

static void pools(void) {
  void *pool, *own, *plain, *first, *second, *others;
  stream made;
  uint64_t none = 0, threshold = 0;
  CHECK(cudaDeviceGetMemPool(&pool, 0));
  CHECK(cudaStreamCreateWithFlags(&made, 1));
  CHECK(cudaMalloc(&plain, 5 * MIB));
  print_used("plain", pool);
  CHECK(cudaMallocAsync(&first, 1024, made));
  uint64_t reserved = figure(pool, RESERVED);
  CHECK(cudaMallocAsync(&second, 2048, made));
  print_used("two", pool);
  printf("reserved stays: %d\n", figure(pool, RESERVED) == reserved);
  CHECK(cudaFreeAsync(first, made));
  print_used("one", pool);
  CHECK(cudaMemPoolSetAttribute(pool, USED_HIGH, &none));
  CHECK(cudaMemPoolSetAttribute(pool, RESERVED_HIGH, &none));
  print_used("after a reset", pool);
  CHECK(cudaMallocFromPoolAsync(&others, MIB, pool, made));
  print_used("with the driver's own", pool);
  CHECK(cudaFreeAsync(others, made));
  CHECK(cudaFreeAsync(second, made));
  /* Both of the heap's tables now know the stream, so its end is announced to both tables. */
  CHECK(cudaFreeAsync(plain, made));
  CHECK(cudaStreamSynchronize(made));
  CHECK(cudaMemPoolTrimTo(pool, 0));
  printf("trimmed: %lu\n", figure(pool, RESERVED));
  CHECK(cudaMalloc(&plain, 1048));
  CHECK(cudaMallocAsync(&first, MIB, made));
  CHECK(cudaFreeAsync(first, made));
  CHECK(cudaStreamSynchronize(made));
  CHECK(cudaMemPoolTrimTo(pool, 0));
  printf("trimmed with a plain block: %lu\n", figure(pool, RESERVED));
  CHECK(cudaFree(plain));
  CHECK(cudaMemPoolTrimTo(pool, 0));
  CHECK(cudaMallocAsync(&first, 8 * MIB, made));
  CHECK(cudaFreeAsync(first, made));
  CHECK(cudaMemPoolTrimTo(pool, 32 * MIB));
  printf("kept: %d", figure(pool, RESERVED) >= 8 * MIB);
  CHECK(cudaMemPoolTrimTo(pool, 4 * MIB));
  printf(" %d\n", figure(pool, RESERVED) <= 4 * MIB);
  CHECK(cudaStreamDestroy(made));
  printf("plain kept: ");
  CHECK(cudaMalloc(&plain, 16 * MIB));
  CHECK(cudaFree(plain));
  printf("%lu\n", figure(pool, RESERVED));
  threshold = 2 * MIB;
  CHECK(cudaMemPoolSetAttribute(pool, THRESHOLD, &threshold));
  printf("threshold: %lu", figure(pool, THRESHOLD));
  CHECK(cudaMallocAsync(&first, 8 * MIB, NULL));
  CHECK(cudaFreeAsync(first, NULL));
  CHECK(cudaDeviceSynchronize());
  printf(", reserved %d\n", figure(pool, RESERVED) <= threshold);
  /* Makes another pool the current one. The heap now replaces this pool. */
  uint32_t properties[22] = {1, 0, 1, 0};
  CHECK(cudaMemPoolCreate(&own, properties));
  CHECK(cudaDeviceSetMemPool(0, own));
  CHECK(cudaMallocAsync(&first, 1024, NULL));
  printf("another: %lu, before: %lu\n", figure(own, USED), figure(pool, USED));
  CHECK(cudaFreeAsync(first, NULL));
}

static void streams(void) {
  for (int round = 0; round < 20; round++) {
    stream made;
    void *memory;
    CHECK(cudaStreamCreateWithFlags(&made, 1));
    CHECK(cudaMallocAsync(&memory, 4 * MIB, made));
    CHECK(cudaMemsetAsync(memory, 1, 4 * MIB, made));
    CHECK(round % 2 ? cudaFreeAsync(memory, made) : cudaFree(memory));
    CHECK(cudaStreamDestroy(made));
  }
  void *memory;
  CHECK(cudaMallocAsync(&memory, MIB, NULL));
  CHECK(cudaFreeAsync(memory, NULL));
}

static void devices(void) {
  void *here, *there, *in_order;
  stream made;
  CHECK(cudaMalloc(&here, MIB));
  CHECK(cudaSetDevice(1));
  CHECK(cudaStreamCreateWithFlags(&made, 1));
  CHECK(cudaMalloc(&there, 2 * MIB));
  CHECK(cudaFree(here));
  CHECK(cudaSetDevice(0));
  /* The memory is allocated on the stream's device, not the current device. */
  CHECK(cudaMallocAsync(&in_order, 3 * MIB, made));
  CHECK(cudaMemsetAsync(in_order, 1, 3 * MIB, made));
  CHECK(cudaFreeAsync(in_order, made));
  CHECK(cudaMalloc(&here, MIB));
  CHECK(cudaFree(here));
}

/* Makes equal requests on each of two devices, and trims the pool of the second device. */
static void device_limits(void) {
  void *pools[2], *memory;
  size_t free = 0, total = 0;
  for (int at = 0; at < 2; at++) {
    CHECK(cudaSetDevice(at));
    CHECK(cudaDeviceGetMemPool(&pools[at], at));
    CHECK(cudaMallocAsync(&memory, 20 * MIB, NULL));
    CHECK(cudaFreeAsync(memory, NULL));
    memory = NULL;
    printf("100 MiB: %d", cudaMalloc(&memory, 100 * MIB));
    CHECK(cudaMemGetInfo(&free, &total));
    printf(", %zu of %zu MiB are free\n", free / MIB, total / MIB);
    CHECK(cudaFree(memory));
  }
  CHECK(cudaMemPoolTrimTo(pools[1], 0));
  printf("after a trim: %d %d\n", figure(pools[0], RESERVED) > 0, figure(pools[1], RESERVED) > 0);
}

/* Allocates and frees in a loop until the process ends. */
static void *forever(void *unused) {
  for (;;) {
    void *memory;
    int code = cudaMalloc(&memory, MIB);
    if (code == 0) code = cudaFree(memory);
    if (code != 0) return unused;
  }
}

static void leave(void) {
  pthread_t made;
  void *memory;
  CHECK(cudaMalloc(&memory, 1000));
  for (int at = 0; at < 4; at++) pthread_create(&made, NULL, forever, NULL);
  struct timespec moment = {0, 5000000};
  nanosleep(&moment, NULL);
}

static void reset(void) {
  void *before, *after;
  CHECK(cudaMalloc(&before, MIB));
  CHECK(cudaDeviceReset());
  CHECK(cudaMalloc(&after, 2 * MIB));
  CHECK(cudaMemset(after, 1, 2 * MIB));
  printf("%d\n", cudaDeviceSynchronize());
  CHECK(cudaFree(after));
}

/* Resets the device three times, twice with live memory, and ends after the last reset. */
static void resets(void) {
  void *memory;
  for (int round = 0; round < 1000; round++) {
    CHECK(cudaMalloc(&memory, 2 * MIB));
    CHECK(cudaFree(memory));
  }
  CHECK(cudaMalloc(&memory, 3 * MIB));
  CHECK(cudaMalloc(&memory, 1000));
  CHECK(cudaDeviceReset());
  CHECK(cudaMalloc(&memory, 1000));
  CHECK(cudaFree(memory));
  CHECK(cudaDeviceReset());
  CHECK(cudaMalloc(&memory, 1000));
  CHECK(cudaDeviceReset());
}

/* Frees all memory, then resets the device, as many programs do at their end. */
static void resets_freed(void) {
  plain(NULL);
  CHECK(cudaDeviceReset());
}

/* Uses CUDA without allocating memory. */
static void nothing(void) { CHECK(cudaDeviceSynchronize()); }

int main(int count, char **arguments) {
  static const struct {
    const char *name;
    void (*run)(void);
  } programs[] = {
      {"plain", run_plain},
      {"threads", threads},
      {"free_races", free_races},
      {"errors", errors},
      {"others", others},
      {"streams", streams},
      {"pools", pools},
      {"devices", devices},
      {"device_limits", device_limits},
      {"reset", reset},
      {"leave", leave},
      {"resets", resets},
      {"resets_freed", resets_freed},
      {"nothing", nothing},
  };
  for (size_t at = 0; count == 2 && at < sizeof programs / sizeof *programs; at++) {
    if (strcmp(arguments[1], programs[at].name) == 0) {
      programs[at].run();
      return 0;
    }
  }
  return 2;
}
