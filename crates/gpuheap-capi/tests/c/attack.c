/* Makes every call that the header forbids or refuses, from several threads, in a forked child and
 * at the exit. Prints one line if each call returned a status with a text, and no memory was
 * damaged. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpuheap.h"

enum { THREADS = 8, ROUNDS = 400 };

static gpuheap_heap *heap, *other;
static void *shared[THREADS];
static int wrong;

static void fail(int line, const char *what, int status) {
  printf("line %d: %s: %d, %s\n", line, what, status, gpuheap_last_error());
  fflush(stdout);
  __atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
}

static void expect(int line, gpuheap_status status, int allowed) {
  if (!(allowed >> status & 1)) fail(line, "status", status);
  if (status != GPUHEAP_STATUS_OK && gpuheap_last_error()[0] == 0) fail(line, "no text", status);
}
#define BIT(status) (1 << GPUHEAP_STATUS_##status)
#define EXPECT(allowed, call) expect(__LINE__, call, allowed)

static gpuheap_statistics statistics(gpuheap_heap *of) {
  gpuheap_statistics now = {0};
  now.size = sizeof now;
  EXPECT(BIT(OK), gpuheap_get_statistics(of, &now));
  return now;
}

/* Makes calls that are refused, whatever other threads do. */
static void refused(void) {
  char here[16], *nowhere = NULL;
  void *address = &address, *pair[2] = {here, &address};
  uint64_t sizes[2] = {1000, UINT64_MAX}, bytes = 0;
  gpuheap_flushed flushed = {0};
  gpuheap_scope_report report = {0};
  gpuheap_options options = {0};
  gpuheap_heap *none = NULL;
  gpuheap_scope *scope = NULL;
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_free(heap, here));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_free(heap, (void *)UINTPTR_MAX));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_free_on(heap, here, NULL));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_used_on(heap, here, NULL));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_keep(heap, here));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_fill(heap, here, 0, 1, 0, NULL));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_unregister(heap, here));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_allocation_size(heap, here, &bytes));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_free_batch(heap, 2, pair));
  EXPECT(BIT(OUT_OF_MEMORY), gpuheap_allocate(heap, UINT64_MAX, NULL, &address));
  if (address != NULL) fail(__LINE__, "an address was left", 0);
  EXPECT(BIT(OUT_OF_MEMORY), gpuheap_allocate(heap, (uint64_t)1 << 62, NULL, &address));
  EXPECT(BIT(OUT_OF_MEMORY), gpuheap_allocate_batch(heap, 2, sizes, NULL, pair));
  if (pair[0] != NULL || pair[1] != NULL) fail(__LINE__, "a part of a batch was left", 0);
  EXPECT(BIT(OUT_OF_MEMORY) | BIT(REFUSED),
         gpuheap_allocate_kind(heap, GPUHEAP_KIND_PINNED, UINT64_MAX, NULL, &address));
  EXPECT(BIT(REFUSED), gpuheap_allocate_kind(heap, GPUHEAP_KIND_REGISTERED, 1, NULL, &address));
  EXPECT(BIT(REFUSED), gpuheap_allocate_kind(heap, 99, 1, NULL, &address));
  EXPECT(BIT(REFUSED), gpuheap_allocate(heap, 1, NULL, NULL));
  EXPECT(BIT(REFUSED), gpuheap_allocate(NULL, 1, NULL, &address));
  EXPECT(BIT(REFUSED) | BIT(DRIVER), gpuheap_register(heap, here, UINT64_MAX, NULL));
  EXPECT(BIT(REFUSED), gpuheap_register(heap, NULL, 1, NULL));
  EXPECT(BIT(REFUSED), gpuheap_memory_status(heap, 77, NULL, 0, NULL));
  EXPECT(BIT(REFUSED), gpuheap_memory_status(heap, 0, nowhere, 10, NULL));
  EXPECT(BIT(REFUSED), gpuheap_set_limits(heap, 2, 1, NULL));
  EXPECT(BIT(REFUSED), gpuheap_flush(heap, &flushed));
  EXPECT(BIT(REFUSED), gpuheap_open("no such device", NULL, &none));
  EXPECT(BIT(REFUSED), gpuheap_open("emulated:64MiB", &options, &none));
  options.size = sizeof options;
  options.pool = "no such pool";
  EXPECT(BIT(REFUSED), gpuheap_open("emulated:64MiB", &options, &none));
  if (none != NULL) fail(__LINE__, "a heap was left", 0);
  EXPECT(BIT(OK), gpuheap_open_scope(heap, "of this thread", &scope));
  EXPECT(BIT(REFUSED), gpuheap_close_scope(scope, &report));
  report.size = sizeof report;
  EXPECT(BIT(OK), gpuheap_close_scope(scope, &report));
}

/* Frees addresses that other threads free too, in this heap and in another heap. */
static void *work(void *argument) {
  uintptr_t self = (uintptr_t)argument;
  for (int round = 0; round < ROUNDS; round++) {
    void *mine = NULL, *theirs;
    char text[64];
    gpuheap_scope *scope = NULL;
    EXPECT(BIT(OK), gpuheap_open_scope(heap, NULL, &scope));
    EXPECT(BIT(OK), gpuheap_allocate(heap, 512 * (1 + round % 7), NULL, &mine));
    EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_free(other, mine));
    __atomic_store_n(&shared[self], mine, __ATOMIC_RELEASE);
    theirs = __atomic_load_n(&shared[(self + 1 + round % 3) % THREADS], __ATOMIC_ACQUIRE);
    if (theirs != NULL) EXPECT(BIT(OK) | BIT(UNKNOWN_ADDRESS), gpuheap_free(heap, theirs));
    EXPECT(BIT(OK) | BIT(UNKNOWN_ADDRESS), gpuheap_free(heap, mine));
    EXPECT(BIT(OK), gpuheap_memory_status(heap, round % 2, text, sizeof text, NULL));
    EXPECT(BIT(OK), gpuheap_close_scope(scope, NULL));
    if (round % 100 == 0) refused();
    if (round % 50 == 0) EXPECT(BIT(OK), gpuheap_reclaim_all(heap, NULL));
  }
  return NULL;
}

static int in_child(void) {
  void *address;
  gpuheap_heap *opened = NULL;
  EXPECT(BIT(GONE), gpuheap_allocate(heap, 1000, NULL, &address));
  EXPECT(BIT(GONE), gpuheap_free(heap, shared[0]));
  EXPECT(BIT(GONE), gpuheap_wait(heap));
  EXPECT(BIT(GONE), gpuheap_flush(heap, NULL));
  EXPECT(BIT(GONE), gpuheap_close(heap));
  EXPECT(BIT(GONE), gpuheap_allocate(heap, 1000, NULL, &address));
  /* The child may open its own device. */
  EXPECT(BIT(OK) | BIT(GONE), gpuheap_open("emulated:64MiB", NULL, &opened));
  if (opened != NULL) {
    EXPECT(BIT(OK), gpuheap_allocate(opened, 1000, NULL, &address));
    EXPECT(BIT(OK), gpuheap_free(opened, address));
    EXPECT(BIT(OK), gpuheap_close(opened));
  }
  return wrong;
}

static void *kept;

static void *at_thread_end(void *argument) {
  void *address;
  (void)argument;
  EXPECT(BIT(OK), gpuheap_allocate(heap, 5000, NULL, &address));
  return address;
}

static void at_exit(void) {
  void *address;
  EXPECT(BIT(OK), gpuheap_free(heap, kept));
  EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_free(heap, kept));
  EXPECT(BIT(OK), gpuheap_allocate(heap, 1000, NULL, &address));
  EXPECT(BIT(OK), gpuheap_close(heap));
  EXPECT(BIT(GONE), gpuheap_free(heap, address));
  EXPECT(BIT(GONE), gpuheap_close(heap));
  if (wrong) _exit(1);
}

int main(void) {
  pthread_t threads[THREADS];
  int status = 0;
  atexit(at_exit);
  EXPECT(BIT(OK), gpuheap_open(NULL, NULL, &heap));
  EXPECT(BIT(OK), gpuheap_open(NULL, NULL, &other));
  for (uintptr_t at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, work, (void *)at);
  for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
  for (int at = 0; at < THREADS; at++) {
    if (shared[at] != NULL) EXPECT(BIT(UNKNOWN_ADDRESS), gpuheap_free(heap, shared[at]));
  }
  if (statistics(heap).live != 0 || statistics(other).allocations != 0)
    fail(__LINE__, "memory was left", 0);
  /* Frees memory that an ended thread allocated. */
  pthread_create(&threads[0], NULL, at_thread_end, NULL);
  pthread_join(threads[0], &kept);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    status = in_child();
    fflush(stdout);
    _exit(status);
  }
  waitpid(child, &status, 0);
  if (status != 0) fail(__LINE__, "the child", status);
  EXPECT(BIT(OK), gpuheap_close(other));
  EXPECT(BIT(GONE), gpuheap_close(other));
  EXPECT(BIT(OK), gpuheap_close(NULL));
  printf("attacked: %d wrong\n", wrong);
  return wrong;
}
