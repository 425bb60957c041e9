/* Stand-in for PyTorch: an allocator that reports each block to a profiler, and operators that
 * count changes of tensors. If LIBRARY is defined, this file becomes the library with the
 * profiler and the counter. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct device {
  signed char kind, index;
};

/* Implementation of a tensor, with only the fields that the functions below read. */
struct tensor {
  void *memory;
  int64_t elements, storage_bytes, storage_offset;
  int device_kind;
  bool has_dispatch, is_functional, has_storage, is_contiguous;
};

void report(void *block, long bytes, size_t allocated, size_t reserved,
            struct device device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
void bump_version(struct tensor *const *tensor) __asm__(
    "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE");

#ifdef LIBRARY
void report(void *block, long bytes, size_t allocated, size_t reserved, struct device device) {
  printf("profiler: %d, %ld, %zu, %zu, %d %d\n", block != NULL, bytes, allocated, reserved,
         device.kind, device.index);
}

void bump_version(struct tensor *const *tensor) { printf("changed: %d\n", *tensor != NULL); }

bool has_dispatch(struct tensor *const *tensor) __asm__(
    "_ZN2at4impl19tensor_has_dispatchERKNS_6TensorE");
bool is_functional(struct tensor *const *tensor) __asm__(
    "_ZN2at17functionalization4impl18isFunctionalTensorERKNS_6TensorE");
bool has_storage(struct tensor *tensor) __asm__("_ZNK3c1010TensorImpl11has_storageEv");
bool has_dispatch(struct tensor *const *tensor) { return (*tensor)->has_dispatch; }
bool is_functional(struct tensor *const *tensor) { return (*tensor)->is_functional; }
bool has_storage(struct tensor *tensor) { return tensor->has_storage; }

#define GET(name, type, value)                                       \
  int aoti_torch_##name(struct tensor *const *tensor, type *found) { \
    if (!(*tensor)->has_storage) puts("no storage to look at");      \
    *found = value;                                                  \
    return 0;                                                        \
  }
GET(get_device_type, int, (*tensor)->device_kind)
GET(get_data_ptr, void *, (*tensor)->memory)
GET(get_numel, int64_t, (*tensor)->elements)
GET(is_contiguous, bool, (*tensor)->is_contiguous)
GET(get_dtype, int, 3)
GET(get_storage_size, int64_t, (*tensor)->storage_bytes)
GET(get_storage_offset, int64_t, (*tensor)->storage_offset)
GET(get_dim, int64_t, 1)
GET(get_sizes, int64_t *, &(*tensor)->elements)
size_t aoti_torch_dtype_element_size(int type) { return type == 3 ? 4 : 0; }
#else
int cudaMalloc(void **memory, size_t bytes);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);

static const struct device cpu = {0, -1}, cuda = {1, 0};

static int upload(char *memory) {
  int numbers[2] = {7, 8};
  return cudaMemcpy(memory, &numbers[0], 4, 1) || cudaMemcpy(memory + 512, &numbers[1], 4, 1);
}

static int print(char *memory) {
  int numbers[2] = {1, 1};
  if (cudaMemcpy(&numbers[0], memory, 4, 2) || cudaMemcpy(&numbers[1], memory + 512, 4, 2))
    return 1;
  printf("%d %d\n", numbers[0], numbers[1]);
  return 0;
}

/* Uploads two numbers, reports the first number's block, and prints both numbers from the
 * device. */
static int after_report(char *memory, long bytes, struct device device) {
  if (upload(memory)) return 1;
  report(memory, bytes, 3, 4, device);
  return print(memory);
}

/* Uploads two numbers, changes a tensor, and prints both numbers from the device. */
static int after_change(char *memory, struct tensor tensor) {
  struct tensor *changed = &tensor;
  if (upload(memory)) return 1;
  bump_version(&changed);
  return print(memory);
}

static int changes(char *memory) {
  struct tensor plain = {memory, 128, 1024, 0, 1, false, false, true, true}, other = plain;
  if (after_change(memory, plain)) return 1;
  other.is_contiguous = false;
  if (after_change(memory, other)) return 2;
  other.storage_offset = 128;
  other.memory = memory + 512;
  if (after_change(memory, other)) return 3;
  /* Tensors without device memory of their own. */
  other = plain;
  other.device_kind = 0;
  if (after_change(memory, other)) return 4;
  other = plain;
  other.has_dispatch = true;
  if (after_change(memory, other)) return 5;
  other = plain;
  other.is_functional = true;
  if (after_change(memory, other)) return 6;
  other = plain;
  other.has_storage = false;
  return after_change(memory, other);
}

int main(void) {
  void *memory;
  if (cudaMalloc(&memory, 2 << 20)) return 3;
  if (after_report(memory, 512, cpu) || after_report(memory, -512, cuda)) return 4;
  if (after_report(memory, 512, cuda)) return 5;
  return changes(memory);
}
#endif
