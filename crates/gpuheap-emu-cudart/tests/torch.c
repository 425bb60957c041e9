/* Stands for PyTorch's allocator, which reports each block to a profiler in another library. With C10
 * defined, it is that library. */
#include <stdio.h>
#include <string.h>

struct device {
  signed char kind, index;
};

void report(void *block, long bytes, size_t allocated, size_t reserved,
            struct device device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");

#ifdef C10
void report(void *block, long bytes, size_t allocated, size_t reserved, struct device device) {
  printf("profiler: %d, %ld, %zu, %zu, %d %d\n", block != NULL, bytes, allocated, reserved,
         device.kind, device.index);
}
#else
int cudaMalloc(void **memory, size_t bytes);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);

static const struct device cpu = {0, -1}, cuda = {1, 0};

/* Uploads two numbers, reports the first one's block, and prints both as the device has them. */
static int after(char *memory, long bytes, struct device device) {
  int numbers[2] = {7, 8};
  if (cudaMemcpy(memory, &numbers[0], 4, 1) || cudaMemcpy(memory + 512, &numbers[1], 4, 1))
    return 1;
  report(memory, bytes, 3, 4, device);
  memset(numbers, 1, sizeof numbers);
  if (cudaMemcpy(&numbers[0], memory, 4, 2) || cudaMemcpy(&numbers[1], memory + 512, 4, 2))
    return 2;
  printf("%d %d\n", numbers[0], numbers[1]);
  return 0;
}

int main(void) {
  void *memory;
  if (cudaMalloc(&memory, 2 << 20)) return 3;
  if (after(memory, 512, cpu) || after(memory, -512, cuda)) return 4;
  return after(memory, 512, cuda);
}
#endif
