/* Lists two devices and the emulated device. The test compares the printed lines. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "gpuheap.h"

static uint64_t live(gpuheap_heap *heap) {
  gpuheap_statistics now = {0};
  now.size = sizeof now;
  return gpuheap_get_statistics(heap, &now) == GPUHEAP_STATUS_OK ? now.live : 0;
}

int main(void) {
  size_t count = 0;
  gpuheap_device device = {0}, of_heap = {0};
  gpuheap_heap *heaps[2] = {NULL, NULL};
  void *memory[2];
  if (gpuheap_count_devices(&count) != GPUHEAP_STATUS_OK) {
    printf("%s\n", gpuheap_last_error());
    return 1;
  }
  printf("%zu devices\n", count);
  for (size_t at = 0; at < count; at++) {
    device.size = sizeof device;
    if (gpuheap_get_device(at, &device) != GPUHEAP_STATUS_OK) return 1;
    printf("%s: number %" PRId32 ", %" PRIu64 " MiB, emulated %" PRId32 ", %d %d %d\n", device.name,
           device.ordinal, device.total_memory >> 20, device.is_emulated,
           strlen(device.product) > 0, strlen(device.uuid) == 40,
           device.compute_capability_major > 0);
    if (at < 2 && gpuheap_open(device.name, NULL, &heaps[at]) != GPUHEAP_STATUS_OK) return 1;
  }
  for (size_t at = 0; at < 2; at++) {
    if (gpuheap_allocate(heaps[at], 1000 * (at + 1), NULL, &memory[at]) != GPUHEAP_STATUS_OK)
      return 1;
    of_heap.size = sizeof of_heap;
    if (gpuheap_get_heap_device(heaps[at], &of_heap) != GPUHEAP_STATUS_OK) return 1;
    printf("a heap on %s: live %" PRIu64 "\n", of_heap.name, live(heaps[at]));
  }
  printf("by the other's heap: %d\n", gpuheap_free(heaps[0], memory[1]));
  printf("by its own: %d\n", gpuheap_free(heaps[1], memory[1]));
  printf("freed: %" PRIu64 " %" PRIu64 "\n", live(heaps[0]), live(heaps[1]));

  /* A limit on the second device, and a flush of it, leave the first device unchanged. */
  uint64_t left[2] = {0, 0};
  if (gpuheap_set_limits(heaps[1], 0, 64 << 20, NULL) != GPUHEAP_STATUS_OK) return 1;
  for (size_t at = 0; at < 2; at++) {
    printf("100 MiB: %d\n", gpuheap_allocate(heaps[at], 100 << 20, NULL, &memory[1]));
    gpuheap_free(heaps[at], memory[1]);
  }
  if (gpuheap_flush(heaps[1], NULL) != GPUHEAP_STATUS_OK) return 1;
  for (size_t at = 0; at < 2; at++) gpuheap_reclaim_all(heaps[at], &left[at]);
  printf("after the flush: %d %d\n", left[0] > 0, left[1] > 0);

  /* Passes structures whose sizes are those of an older and of a later version. */
  struct {
    gpuheap_device known;
    uint64_t later;
  } later = {{0}, 7};
  later.known.size = sizeof later;
  printf("later: %d", gpuheap_get_device(1, &later.known));
  printf(", then %" PRIu64 "\n", later.later);
  device.size = sizeof device - 1;
  printf("too small: %d\n", gpuheap_get_device(0, &device));
  device.size = sizeof device;
  printf("none: %d", gpuheap_get_device(count, &device));
  printf(", %s\n", gpuheap_last_error());
  printf("nowhere: %d %d %d\n", gpuheap_get_device(0, NULL), gpuheap_count_devices(NULL),
         gpuheap_get_heap_device(heaps[0], NULL));
  printf("no heap: %d\n", gpuheap_get_heap_device(NULL, &device));
  printf("a third: %d\n", gpuheap_open("cuda:2", NULL, &heaps[0]));
  return 0;
}
