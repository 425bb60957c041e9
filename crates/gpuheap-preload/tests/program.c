/* A program whose first argument selects how it finds the driver, and whose second argument selects
 * its work. It prints the bytes that it has allocated, and the bytes that it holds at its end. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define FUNCTIONS(each)                                                                            \
  each(cuInit, (unsigned)) each(cuDevicePrimaryCtxRetain, (void **, int)) each(                    \
      cuDevicePrimaryCtxReset_v2,                                                                  \
      (int)) each(cuCtxSetCurrent, (void *)) each(cuMemAlloc_v2,                                   \
                                                  (ptr *, size_t)) each(cuMemFree_v2, (ptr))       \
      each(cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned)) each(                  \
          cuMemAllocManaged, (ptr *, size_t, unsigned)) each(cuMemAllocHost_v2, (void **, size_t)) \
          each(cuMemHostAlloc, (void **, size_t, unsigned)) each(cuMemFreeHost, (void *)) each(    \
              cuMemHostRegister_v2,                                                                \
              (void *, size_t, unsigned)) each(cuMemHostUnregister, (void *))                      \
              each(cuMemAllocAsync, (ptr *, size_t, void *)) each(cuMemFreeAsync, (ptr, void *))   \
                  each(cuDeviceGetDefaultMemPool, (void **, int))                                  \
                      each(cuMemAllocFromPoolAsync, (ptr *, size_t, void *, void *))               \
                          each(cuMemCreate, (ptr *, size_t, const properties *, uint64_t))         \
                              each(cuMemRelease, (ptr)) each(                                      \
                                  cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t))     \
                                  each(cuMemMap, (ptr, size_t, size_t, ptr, uint64_t))             \
                                      each(cuMemUnmap, (ptr, size_t))                              \
                                          each(cuMemGetInfo_v2, (size_t *, size_t *))              \
                                              each(cuDeviceTotalMem_v2, (size_t *, int))

#define DECLARE(name, arguments) int name arguments;
#define POINTER(name, arguments) int(*name) arguments;
#define LINK(name, arguments) api.name = name;
#define SEARCH(name, arguments) api.name = (int(*) arguments)search(#name);

FUNCTIONS(DECLARE)
int cuGetProcAddress(const char *, void **, int, uint64_t);

static struct {
  FUNCTIONS(POINTER)
} api;

static void *library;
static int by_address;
static atomic_size_t taken, held;

/* Searches with dlsym, or with a cuGetProcAddress that dlsym found, as CUDA runtimes do. */
static void *search(const char *symbol) {
  if (!by_address) return dlsym(library, symbol);
  int (*find)(const char *, void **, int, uint64_t, int *) = 0;
  *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
  char base[64];
  snprintf(base, sizeof base, "%s", symbol);
  char *version = strstr(base, "_v2");
  if (version) *version = 0;
  void *found = 0;
  int status;
  CHECK(find(base, &found, 12000, 0, &status));
  return found;
}

static ptr allocate(size_t bytes) {
  ptr address;
  CHECK(api.cuMemAlloc_v2(&address, bytes));
  taken += bytes;
  held += bytes;
  return address;
}

static void release(ptr address, size_t bytes) {
  CHECK(api.cuMemFree_v2(address));
  held -= bytes;
}

static void use(void) {
  void *primary;
  CHECK(api.cuInit(0));
  CHECK(api.cuDevicePrimaryCtxRetain(&primary, 0));
  CHECK(api.cuCtxSetCurrent(primary));
}

static void leak(void) {
  for (int i = 0; i < 3; i++) release(allocate(5 * MIB), 5 * MIB);
  allocate(3 * MIB + 1);
}

static void families(void) {
  ptr pitched, managed, ordered, pooled, physical, range;
  size_t pitch;
  void *pinned, *mapped, *pool;
  static _Alignas(4096) char own[8192];
  CHECK(api.cuMemAllocPitch_v2(&pitched, &pitch, 1000, 10, 4));
  CHECK(api.cuMemAllocManaged(&managed, MIB, 1));
  CHECK(api.cuMemAllocHost_v2(&pinned, 1000));
  CHECK(api.cuMemHostAlloc(&mapped, 3000, 2));
  CHECK(api.cuMemHostRegister_v2(own, sizeof own, 0));
  CHECK(api.cuMemAllocAsync(&ordered, 4 * MIB, 0));
  CHECK(api.cuDeviceGetDefaultMemPool(&pool, 0));
  CHECK(api.cuMemAllocFromPoolAsync(&pooled, 5 * MIB, pool, 0));
  properties device = {1, 0, 1, 0, 0, {0}};
  CHECK(api.cuMemCreate(&physical, 2 * MIB, &device, 0));
  CHECK(api.cuMemAddressReserve(&range, 2 * MIB, 0, 0, 0));
  CHECK(api.cuMemMap(range, 2 * MIB, 0, physical, 0));
  CHECK(api.cuMemRelease(physical));
  size_t most = pitch * 10 + MIB + 4 * MIB + 5 * MIB + 2 * MIB;
  taken += most;
  allocate(7);
  CHECK(api.cuMemUnmap(range, 2 * MIB));
  CHECK(api.cuMemFreeAsync(ordered, 0));
  CHECK(api.cuMemFreeAsync(pooled, 0));
  CHECK(api.cuMemFree_v2(pitched));
  CHECK(api.cuMemFree_v2(managed));
  CHECK(api.cuMemHostUnregister(own));
  CHECK(api.cuMemFreeHost(mapped));
  printf("again: %d\n", api.cuMemFree_v2(managed) != 0);
}

static _Thread_local ptr kept;
static pthread_key_t at_end;

static void free_kept(void *address) { release(*(ptr *)address, MIB); }

static void *threads_work(void *name) {
  prctl(PR_SET_NAME, name);
  use();
  kept = allocate(MIB);
  if (!strcmp(name, "frees")) release(kept, MIB);
  if (!strcmp(name, "at-end")) pthread_setspecific(at_end, &kept);
  return 0;
}

static void threads(void) {
  const char *names[] = {"leaks", "frees", "at-end"};
  pthread_key_create(&at_end, free_kept);
  for (int i = 0; i < 3; i++) {
    pthread_t thread;
    pthread_create(&thread, 0, threads_work, (void *)names[i]);
    pthread_join(thread, 0);
  }
}

/* Makes the process's first allocations, on eight threads at once. */
static pthread_barrier_t all_wait;

static void *rush_work(void *unused) {
  (void)unused;
  use();
  pthread_barrier_wait(&all_wait);
  for (int i = 0; i < 4; i++) allocate(MIB);
  return 0;
}

static void rush(void) {
  pthread_t all[8];
  pthread_barrier_init(&all_wait, 0, 8);
  for (int i = 0; i < 8; i++) pthread_create(&all[i], 0, rush_work, 0);
  for (int i = 0; i < 8; i++) pthread_join(all[i], 0);
}

static void many(void) {
  struct timespec began, ended;
  clock_gettime(CLOCK_MONOTONIC, &began);
  for (int i = 0; i < 200000; i++) {
    ptr address;
    CHECK(api.cuMemAllocAsync(&address, MIB, 0));
    CHECK(api.cuMemFreeAsync(address, 0));
  }
  clock_gettime(CLOCK_MONOTONIC, &ended);
  fprintf(stderr, "%.0f ns a pair\n",
          ((ended.tv_sec - began.tv_sec) * 1e9 + (ended.tv_nsec - began.tv_nsec)) / 200000);
}

static void reset(void) {
  allocate(9 * MIB);
  CHECK(api.cuDevicePrimaryCtxReset_v2(0));
  held = 0;
}

static void crash(void) {
  allocate(MIB);
  raise(SIGSEGV);
}

static void killed(void) {
  allocate(2 * MIB);
  raise(SIGKILL);
}

static void quits(void) {
  allocate(MIB);
  _exit(7);
}

/* The child outlives its parent. The parent has not used the driver. */
static void forks(void) {
  int ends[2];
  char byte;
  if (pipe(ends) != 0) exit(1);
  if (fork() != 0) {
    _exit(0);
  }
  close(ends[1]);
  (void)!read(ends[0], &byte, 1);
  use();
  allocate(6 * MIB);
}

static void executes(void) {
  allocate(MIB);
  execl("/proc/self/exe", "program", "linked", "leak", (char *)0);
}

static atomic_size_t refused;

static void *at_limit(void *most) {
  use();
  for (int i = 0; i < 2000; i++) {
    size_t bytes = (size_t)(i % 7 + 1) * 4096;
    ptr address;
    if (atomic_fetch_add(&held, bytes) + bytes > *(size_t *)most) {
      atomic_fetch_sub(&held, bytes);
      continue;
    }
    /* There is room, so the request must succeed. */
    if (api.cuMemAlloc_v2(&address, bytes) != 0) {
      refused++;
    } else {
      CHECK(api.cuMemFree_v2(address));
    }
    atomic_fetch_sub(&held, bytes);
  }
  return 0;
}

static void limit(void) {
  size_t free, total, most = 64 * 4096;
  ptr address;
  CHECK(api.cuMemGetInfo_v2(&free, &total));
  printf("free %zu of %zu\n", free, total);
  CHECK(api.cuMemAlloc_v2(&address, most));
  printf("a byte more: %d\n", api.cuMemAlloc_v2(&address, 1));
  CHECK(api.cuMemGetInfo_v2(&free, &total));
  printf("free %zu\n", free);
  CHECK(api.cuMemFree_v2(address));
  pthread_t all[16];
  for (int i = 0; i < 16; i++) pthread_create(&all[i], 0, at_limit, &most);
  for (int i = 0; i < 16; i++) pthread_join(all[i], 0);
  printf("refused with room: %zu\n", (size_t)refused);
}

/* Each of three children holds memory. One child is killed, and its memory is free again. */
static void shares(void) {
  int ends[2], first[2];
  char byte = 0;
  pid_t killed_one = 0;
  if (pipe(ends) != 0 || pipe(first) != 0) exit(1);
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    if (child == 0) {
      ptr address;
      close(ends[1]);
      use();
      int code = api.cuMemAlloc_v2(&address, 4 * MIB);
      printf("child %d: %d\n", i, code);
      fflush(stdout);
      (void)!write(first[1], &byte, 1);
      (void)!read(ends[0], &byte, 1);
      _exit(0);
    }
    (void)!read(first[0], &byte, 1);
    if (i == 1) killed_one = child;
  }
  kill(killed_one, SIGKILL);
  waitpid(killed_one, 0, 0);
  ptr address;
  use();
  printf("parent: %d\n", api.cuMemAlloc_v2(&address, 4 * MIB));
  close(ends[1]);
  while (wait(0) > 0) {
  }
}

static void fails(void) {
  ptr address;
  for (int i = 0; i < 3; i++) printf("%d ", api.cuMemAlloc_v2(&address, MIB));
  printf("\n");
}

int main(int count, char **arguments) {
  const char *way = arguments[1], *work = count > 2 ? arguments[2] : "";
  if (!strcmp(way, "linked")) {
    FUNCTIONS(LINK)
  } else {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    by_address = !strcmp(way, "address");
    FUNCTIONS(SEARCH)
  }
  if (!strcmp(work, "forks")) {
    forks();
  } else if (!strcmp(work, "shares")) {
    shares();
  } else {
    use();
  }
  struct {
    const char *name;
    void (*run)(void);
  } all[] = {{"leak", leak},   {"families", families}, {"threads", threads}, {"reset", reset},
             {"crash", crash}, {"killed", killed},     {"quits", quits},     {"executes", executes},
             {"limit", limit}, {"fails", fails},       {"many", many},       {"rush", rush}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!strcmp(work, all[i].name)) all[i].run();
  }
  printf("taken %zu, held %zu\n", (size_t)taken, (size_t)held);
  return 3;
}
