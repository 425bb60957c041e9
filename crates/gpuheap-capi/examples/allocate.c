/* Uses a heap in C: open, allocate, free, read the figures, exceed the limit, reclaim, close.
 *
 *     cc -std=c99 allocate.c -I crates/gpuheap-capi/include -L target/release -lgpuheap_capi
 *
 * Runs on the device that GPUHEAP_DEVICE names: cuda:0 is a GPU, emulated:1GiB needs none. The
 * example uses the default stream, 0. Your program passes its cudaStream_t or CUstream, and passes
 * the addresses to its kernels.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpuheap.h"

static const uint64_t MIB = 1 << 20;

/* Ends the program if a call failed. Used for calls that must succeed. */
static void check(gpuheap_status status) {
  if (status != GPUHEAP_STATUS_OK) {
    fprintf(stderr, "%s\n", gpuheap_last_error());
    exit(1);
  }
}

static void show(gpuheap_heap *heap, const char *when) {
  gpuheap_statistics now = {0};
  now.size = sizeof now;
  check(gpuheap_get_statistics(heap, &now));
  printf("%s: %" PRIu64 " bytes live in %" PRIu64 " allocations, %" PRIu64 " at most\n", when,
         now.live, now.live_allocations, now.live_peak);
}

int main(void) {
  gpuheap_heap *heap;
  gpuheap_options options = {0};
  void *small, *large, *too_large;
  uint64_t bytes;
  size_t length;
  char *text;

  options.size = sizeof options;
  options.pool = "split";
  options.hard_limit = 64 * MIB;
  check(gpuheap_open(NULL, &options, &heap));

  check(gpuheap_allocate(heap, 1000, NULL, &small));
  check(gpuheap_allocate(heap, 20 * MIB, NULL, &large));
  check(gpuheap_allocation_size(heap, large, &bytes));
  printf("%" PRIu64 " bytes at a multiple of 512: %s\n", bytes,
         (uintptr_t)large % 512 == 0 ? "yes" : "no");
  show(heap, "allocated");

  check(gpuheap_free(heap, large));
  show(heap, "freed");

  /* A failed call returns a status, and a text with a remedy. */
  if (gpuheap_free(heap, large) == GPUHEAP_STATUS_UNKNOWN_ADDRESS)
    printf("a second free is refused\n");
  if (gpuheap_allocate(heap, 100 * MIB, NULL, &too_large) == GPUHEAP_STATUS_OUT_OF_MEMORY)
    printf("%s\n", gpuheap_last_error());

  /* Returns all cached memory to the driver. */
  check(gpuheap_free(heap, small));
  check(gpuheap_reclaim_all(heap, &bytes));
  printf("something went back: %s\n", bytes > 0 ? "yes" : "no");

  /* The first call reads the length of the text, as with snprintf. */
  check(gpuheap_memory_status(heap, GPUHEAP_FORMAT_TEXT, NULL, 0, &length));
  text = malloc(length + 1);
  if (text == NULL) return 1;
  check(gpuheap_memory_status(heap, GPUHEAP_FORMAT_TEXT, text, length + 1, NULL));
  printf("%s\n", text);
  free(text);

  check(gpuheap_close(heap));
  return 0;
}
