/* A program that disturbs the recorder by signals, cancellation, exits, raw clones or system
 * limits, as its first argument selects. LIBRARY builds a library whose function LIBRARY allocates
 * and whose destructor frees. C10 builds PyTorch's library that reports blocks. */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "driver.h"

/* PyTorch's report of a block, which the recorder replaces. */
#define REPORT _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
typedef struct {
  int8_t kind, index;
} device;

#ifdef C10

void REPORT(void *block, int64_t bytes, size_t allocated, size_t reserved, device on) {
  printf("reported: %lld %d\n", (long long)bytes, block != 0 && allocated == 1 && reserved == 2);
  (void)on;
}

#else

static ptr allocate(size_t bytes) {
  ptr address;
  CHECK(cuMemAlloc_v2(&address, bytes));
  return address;
}

#ifdef LIBRARY

static ptr kept;

void LIBRARY(void) { kept = allocate(MIB); }

__attribute__((destructor)) static void at_end(void) {
  if (kept) CHECK(cuMemFree_v2(kept));
}

#else

static void use(int device) {
  void *primary;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&primary, device));
  CHECK(cuCtxSetCurrent(primary));
}

/* The recorder opens its file in a thread that is cancelled. */
static void *cancelled(void *unused) {
  use(0);
  pthread_cancel(pthread_self());
  allocate(MIB);
  pthread_testcancel();
  return unused;
}

static void cancels(const char *unused) {
  (void)unused;
  pthread_t thread;
  void *result;
  pthread_create(&thread, 0, cancelled, 0);
  pthread_join(thread, &result);
  printf("cancelled: %d\n", result == PTHREAD_CANCELED);
}

void REPORT(void *, int64_t, size_t, size_t, device) __attribute__((weak));

static void *reports_cancelled(void *unused) {
  static char block;
  use(0);
  pthread_cancel(pthread_self());
  REPORT(&block, 1024, 1, 2, (device){1, 0});
  pthread_testcancel();
  return unused;
}

/* Reports a block in a thread that is cancelled, then loads the library of the report. */
static void reports(const char *folder) {
  char path[512], block;
  pthread_t thread;
  void *result;
  pthread_create(&thread, 0, reports_cancelled, 0);
  pthread_join(thread, &result);
  snprintf(path, sizeof path, "%s/libc10.so", folder);
  if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == 0) puts(dlerror());
  REPORT(&block, 512, 1, 2, (device){1, 0});
  printf("cancelled: %d\n", result == PTHREAD_CANCELED);
}

/* The recorder calls posix_fallocate while it writes. */
static int exits_within;

static void leave(int signal) { exit(signal == SIGUSR1 ? 5 : 6); }

int posix_fallocate(int file, off_t offset, off_t length) {
  if (exits_within) raise(SIGUSR1);
  return fallocate(file, 0, offset, length);
}

static void exits(const char *unused) {
  (void)unused;
  signal(SIGUSR1, leave);
  exits_within = 1;
  allocate(MIB);
}

static void file_limit(const char *bytes) {
  struct rlimit most = {strtoul(bytes, 0, 10), RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &most);
  for (int i = 0; i < 60000; i++) CHECK(cuMemFree_v2(allocate(MIB)));
}

static pthread_key_t key;

static void at_threads_end(void *unused) {
  (void)unused;
  use(0);
  allocate(MIB);
}

static void *sets_key(void *value) {
  pthread_setspecific(key, &key);
  return value;
}

static void late_thread(const char *unused) {
  (void)unused;
  pthread_t thread;
  pthread_key_create(&key, at_threads_end);
  pthread_create(&thread, 0, sets_key, 0);
  pthread_join(thread, 0);
}

static void clones(const char *unused) {
  (void)unused;
  allocate(MIB);
  long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    ptr address;
    _exit(cuMemAlloc_v2(&address, 8 * MIB) == 0);
  }
  waitpid((pid_t)child, 0, 0);
  _exit(3);
}

static const properties ON[2] = {{1, 0, 1, 0, 0, {0}}, {1, 0, 1, 1, 0, {0}}};

/* Maps memory twice, and unmaps it in one call. Failures in between change nothing. */
static void maps(const char *unused) {
  (void)unused;
  ptr handle, again, range, other;
  CHECK(cuMemCreate(&handle, 2 * MIB, ON, 0));
  CHECK(cuMemAddressReserve(&range, 4 * MIB, 0, 0, 0));
  CHECK(cuMemMap(range, 2 * MIB, 0, handle, 0));
  CHECK(cuMemMap(range + 2 * MIB, 2 * MIB, 0, handle, 0));
  again = handle;
  printf("failed: %d", cuMemCreate(&again, 1, ON, 0) != 0);
  printf(" %d", cuMemMap(range, 2 * MIB, 0, handle, 0) != 0);
  printf(" %d", cuMemUnmap(range, MIB) != 0);
  CHECK(cuMemRelease(handle));
  printf(" %d\n", cuMemRelease(handle) != 0);
  CHECK(cuMemCreate(&other, 4 * MIB, ON, 0));
  CHECK(cuMemUnmap(range, 4 * MIB));
  CHECK(cuMemRelease(other));
  CHECK(cuMemAddressFree(range, 4 * MIB));
}

static void other_device(const char *unused) {
  (void)unused;
  ptr handle;
  use(0);
  allocate(32 * MIB);
  CHECK(cuMemCreate(&handle, 128 * MIB, ON + 1, 0));
}

static void call_in(void *library, const char *name) {
  void (*function)(void) = 0;
  *(void **)&function = dlsym(library, name);
  function();
}

/* Opens libraries one after the other, so that they get the same addresses. */
static void closes(const char *folder) {
  char path[512];
  const char *names[] = {"first", "second"};
  void *at[2];
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/lib%s.so", folder, names[i]);
    void *library = dlopen(path, RTLD_NOW);
    at[i] = dlsym(library, names[i]);
    call_in(library, names[i]);
    dlclose(library);
  }
  printf("same address: %d\n", at[0] == at[1]);
}

static void late_free(const char *folder) {
  char path[512];
  snprintf(path, sizeof path, "%s/libfirst.so", folder);
  call_in(dlopen(path, RTLD_NOW), "first");
}

static size_t resident(void) {
  size_t pages[2] = {0, 0};
  FILE *file = fopen("/proc/self/statm", "r");
  if (fscanf(file, "%zu %zu", &pages[0], &pages[1]) != 2) exit(1);
  fclose(file);
  return pages[1] * (size_t)sysconf(_SC_PAGESIZE);
}

/* Each path through the calls gives a different stack. */
static void walk(unsigned path, int depth) {
  if (depth == 0) {
    CHECK(cuMemFree_v2(allocate(MIB)));
  } else if (path & 1) {
    walk(path >> 1, depth - 1);
  } else {
    walk(path >> 1, depth - 1);
  }
  __asm__ volatile("");
}

static void stacks(const char *unused) {
  (void)unused;
  for (unsigned path = 0; path < 60000; path++) walk(path, 16);
  size_t before = resident();
  for (unsigned path = 0; path < 60000; path++) walk(path, 17);
  printf("grows: %d\n", resident() > before + 8 * MIB);
}

/* Large requests fill the limit until the driver refuses them. Small requests then have room. */
static atomic_size_t refused;

static void *takes_much(void *stop) {
  ptr address;
  use(0);
  while (!*(atomic_int *)stop) cuMemAlloc_v2(&address, 95 * MIB);
  return 0;
}

static void *takes_little(void *unused) {
  use(0);
  for (int i = 0; i < 20000; i++) {
    ptr address;
    if (cuMemAlloc_v2(&address, MIB) != 0) {
      refused++;
    } else {
      CHECK(cuMemFree_v2(address));
    }
  }
  return unused;
}

static void crowd(const char *unused) {
  (void)unused;
  static atomic_int stop;
  pthread_t all[16];
  for (int i = 0; i < 16; i++) {
    pthread_create(&all[i], 0, i < 8 ? takes_much : takes_little, &stop);
  }
  for (int i = 8; i < 16; i++) pthread_join(all[i], 0);
  stop = 1;
  for (int i = 0; i < 8; i++) pthread_join(all[i], 0);
  printf("refused with room: %zu\n", (size_t)refused);
}

/* A child reads this pipe to wait until its parent ends. */
static int parent[2];

static void *waits(void *unused) {
  char byte;
  (void)!read(parent[0], &byte, 1);
  _exit(0);
  return unused;
}

static char state_of(pid_t process) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  FILE *file = fopen(path, "r");
  if (fscanf(file, "%*d %*s %c", &state) != 1) exit(1);
  fclose(file);
  return state;
}

/* A child takes 4 MiB and becomes hard to find. Its parent then requests 4 MiB too. */
static void shares(const char *child_does) {
  int ends[2];
  char byte = 0;
  if (pipe2(ends, O_CLOEXEC) != 0 || pipe2(parent, O_CLOEXEC) != 0) exit(1);
  pid_t child = fork();
  if (child == 0) {
    pthread_t thread;
    close(parent[1]);
    if (!strcmp(child_does, "device")) setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    use(0);
    allocate(4 * MIB);
    if (!strcmp(child_does, "exec")) execl("/bin/sleep", "sleep", "3", (char *)0);
    if (!strcmp(child_does, "user") && setuid(65534) != 0) exit(1);
    if (!strcmp(child_does, "thread")) pthread_create(&thread, 0, waits, 0);
    (void)!write(ends[1], &byte, 1);
    if (!strcmp(child_does, "thread")) pthread_exit(0);
    waits(0);
  }
  close(ends[1]);
  (void)!read(ends[0], &byte, 1);
  while (!strcmp(child_does, "thread") && state_of(child) != 'Z') sched_yield();
  if (!strcmp(child_does, "user") && setuid(65533) != 0) exit(1);
  use(0);
  ptr address;
  printf("parent: %d\n", cuMemAlloc_v2(&address, 4 * MIB));
  fflush(stdout);
  _exit(0);
}

/* A child with 4 MiB is killed while it holds the lock of the ledger. The child has changed a
 * total, and not yet its share. The parent then requests all memory. */
static void half_done(const char *unused) {
  enum { DEVICES = 64, ENTRIES = 1 + 3 * DEVICES, ENTRY = 1 + 2 * DEVICES, ID = (1 << 22) - 1 };
  int ends[2];
  char byte = 0;
  ptr address;
  if (pipe(ends) != 0) exit(1);
  pid_t child = fork();
  if (child == 0) {
    use(0);
    allocate(4 * MIB);
    (void)!write(ends[1], &byte, 1);
    pause();
  }
  (void)!read(ends[0], &byte, 1);
  int file = open(getenv("GPUHEAP_RUN_LEDGER"), O_RDWR);
  uint64_t *ledger = mmap(0, MIB / 2, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  uint64_t *owner = ledger + ENTRIES;
  while ((*owner & ID) != (uint64_t)child) owner += ENTRY;
  ledger[0] = *owner;
  ledger[1 + DEVICES] += MIB;
  ledger[2 + DEVICES] += MIB;
  kill(child, SIGKILL);
  waitpid(child, 0, 0);
  use(0);
  printf("parent: %d\n", cuMemAlloc_v2(&address, 6 * MIB));
  fflush(stdout);
  _exit(unused == 0);
}

/* Two fibres allocate at the same stack address. The second fibre's stack ends before the places
 * of the first fibre's return addresses. */
static size_t pad;

static void fibre(void) {
  volatile char *unused = alloca(pad);
  unused[0] = 1;
  allocate(MIB);
}

static void fibres(const char *unused) {
  enum { BYTES = 128 * 1024 };
  ucontext_t own, other;
  char *stack = mmap(0, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)unused;
  for (int halves = 2; halves > 0; halves--) {
    if (halves == 1) munmap(stack + BYTES, BYTES);
    getcontext(&other);
    other.uc_stack.ss_sp = stack;
    other.uc_stack.ss_size = halves * BYTES;
    other.uc_link = &own;
    pad = (halves - 1) * BYTES + 64;
    makecontext(&other, fibre, 0);
    swapcontext(&own, &other);
  }
}

static void one(const char *unused) {
  (void)unused;
  allocate(MIB);
}

extern char **environ;

/* Starts children with the program's own list of libraries. */
static void preloads(const char *library) {
  char self[] = "/proc/self/exe", *arguments[] = {self, "one", 0};
  pid_t child;
  setenv("LD_PRELOAD", library, 1);
  for (int i = 0; i < 3; i++) {
    if (fork() != 0) continue;
    if (i == 0) execve(self, arguments, environ);
    if (i == 1) execv(self, arguments);
    execvp(self, arguments);
    _exit(1);
  }
  CHECK(posix_spawn(&child, self, 0, 0, arguments, environ));
  CHECK(posix_spawnp(&child, self, 0, 0, arguments, environ));
  while (wait(0) > 0) {
  }
}

int main(int count, char **arguments) {
  const char *work = arguments[1], *word = count > 2 ? arguments[2] : "";
  struct {
    const char *name;
    void (*run)(const char *);
    int uses;
  } all[] = {{"cancels", cancels, 0},
             {"reports", reports, 0},
             {"exits", exits, 1},
             {"file-limit", file_limit, 1},
             {"late-thread", late_thread, 0},
             {"clones", clones, 1},
             {"maps", maps, 1},
             {"other-device", other_device, 0},
             {"closes", closes, 1},
             {"late-free", late_free, 1},
             {"stacks", stacks, 1},
             {"crowd", crowd, 1},
             {"fibres", fibres, 1},
             {"shares", shares, 0},
             {"half-done", half_done, 0},
             {"one", one, 1},
             {"preloads", preloads, 0}};
  /* Ends a program that hangs. */
  alarm(60);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(work, all[i].name) != 0) continue;
    if (all[i].uses) use(0);
    all[i].run(word);
  }
  return 3;
}

#endif
#endif
