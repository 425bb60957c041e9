/* 16 threads exchange allocations. Each thread takes an allocation of another thread from a slot,
 * frees it, and leaves a new allocation in the slot. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpuheap.h"

enum { THREADS = 16, ROUNDS = 2000, PLACES = 64 };

static gpuheap_heap *heap;
static struct {
  pthread_mutex_t lock;
  void *address;
} places[PLACES];

static void expect(int line, gpuheap_status status, gpuheap_status expected) {
  if (status != expected) {
    fprintf(stderr, "line %d: status %d: %s\n", line, status, gpuheap_last_error());
    exit(1);
  }
}
#define EXPECT(expected, call) expect(__LINE__, call, GPUHEAP_STATUS_##expected)

static void *work(void *argument) {
  uint32_t random = 1 + (uint32_t)(uintptr_t)argument;
  int mine;
  for (int round = 0; round < ROUNDS; round++) {
    void *address, *theirs;
    uint64_t bytes, read = 0;
    random = random * 1103515245 + 12345;
    bytes = 1 + random / 65536 % 5000;
    EXPECT(OK, gpuheap_allocate(heap, bytes, NULL, &address));
    /* Only this thread has the allocation, whatever other threads do. */
    EXPECT(OK, gpuheap_allocation_size(heap, address, &read));
    if (read != bytes) {
      fprintf(stderr, "%" PRIu64 " bytes have become %" PRIu64 "\n", bytes, read);
      exit(1);
    }
    uint32_t at = random / 256 % PLACES;
    pthread_mutex_lock(&places[at].lock);
    theirs = places[at].address;
    places[at].address = address;
    pthread_mutex_unlock(&places[at].lock);
    EXPECT(OK, gpuheap_free(heap, theirs));
    EXPECT(UNKNOWN_ADDRESS, gpuheap_free(heap, &mine));
  }
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  gpuheap_statistics now = {0};
  now.size = sizeof now;
  EXPECT(OK, gpuheap_open(NULL, NULL, &heap));
  for (int at = 0; at < PLACES; at++) pthread_mutex_init(&places[at].lock, NULL);
  for (uintptr_t at = 0; at < THREADS; at++)
    if (pthread_create(&threads[at], NULL, work, (void *)at) != 0) return 1;
  for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
  for (int at = 0; at < PLACES; at++) {
    void *left = places[at].address;
    EXPECT(OK, gpuheap_free(heap, left));
    if (left != NULL) EXPECT(UNKNOWN_ADDRESS, gpuheap_free(heap, left));
  }
  EXPECT(OK, gpuheap_get_statistics(heap, &now));
  printf("%d threads, %" PRIu64 " allocations, %" PRIu64 " bytes live\n", THREADS, now.allocations,
         now.live);
  EXPECT(OK, gpuheap_close(heap));
  EXPECT(GONE, gpuheap_free(heap, NULL));
  EXPECT(GONE, gpuheap_close(heap));
  return 0;
}
