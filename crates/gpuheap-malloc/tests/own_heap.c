/* A program that makes its own heap through the C interface. */
#include <stdio.h>

#include "gpuheap.h"

static unsigned long long live(gpuheap_heap *heap) {
  gpuheap_statistics now = {0};
  now.size = sizeof now;
  gpuheap_get_statistics(heap, &now);
  return now.live;
}

int main(int count, char **arguments) {
  gpuheap_heap *heap;
  void *memory;
  if (count != 2 || gpuheap_open(arguments[1], NULL, &heap) != GPUHEAP_STATUS_OK ||
      gpuheap_allocate(heap, 1000, NULL, &memory) != GPUHEAP_STATUS_OK) {
    printf("%s\n", gpuheap_last_error());
    return 1;
  }
  printf("live: %llu", live(heap));
  gpuheap_free(heap, memory);
  printf(", then %llu\n", live(heap));
  return gpuheap_close(heap) == GPUHEAP_STATUS_OK ? 0 : 1;
}
