/* Stand-in for a profiler's library. It prints the names of memory that it gets through NVTX's
 * memory extension (nvToolsExtMem.h, compatibility 0x0102). */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct segment {
  size_t id, count;
  intptr_t *slots;
};
struct module {
  uint16_t nvtx, size, id, compatibility;
  size_t segments;
  struct segment *segment;
  void *exports;
  const void *info;
};
struct range {
  size_t size;
  const void *start;
};
struct heap {
  uint16_t compatibility, size;
  uint32_t reserved, usage, type;
  size_t range_size;
  const struct range *range;
  uint32_t category, name_type;
  const char *name;
};
struct regions {
  uint16_t compatibility, size;
  uint32_t type;
  void *heap;
  size_t count, range_size;
  const struct range *ranges;
  void *handles;
};
struct ended {
  uint16_t compatibility, size;
  uint32_t by;
  size_t count, region_size;
  const void *const *regions;
};
struct name {
  uint32_t by, type;
  const void *region;
  const char *text;
  uint32_t category, reserved;
};
struct names {
  uint16_t compatibility, size;
  uint32_t reserved;
  size_t count, name_size;
  const struct name *names;
  size_t reserved1;
};

static const char *slash_name(const char *path) {
  const char *name = path;
  for (; *path; path++)
    if (*path == '/') name = path + 1;
  return name;
}

static void *heap_register(void *domain, const struct heap *heap) {
  int is_valid = !domain && heap->compatibility == 0x0102 && heap->size == sizeof *heap &&
                 heap->usage == 2 && heap->type == 1 && heap->name_type == 1 &&
                 heap->range_size == sizeof(struct range) && heap->range->size > 0;
  printf("pool %s%s\n", heap->name, is_valid ? "" : " invalid");
  return (void *)heap->range->start;
}

static void heap_unregister(void *domain, void *heap) {
  printf("pool ended%s\n", !domain && heap ? "" : " invalid");
}

static void regions_register(void *domain, const struct regions *regions) {
  int is_valid = !domain && regions->compatibility == 0x0102 && regions->type == 1 &&
                 regions->size == sizeof *regions && regions->count == 1 && regions->heap &&
                 regions->range_size == sizeof(struct range) && !regions->handles;
  printf("block of %zu%s\n", regions->ranges->size, is_valid ? "" : " invalid");
}

static void regions_unregister(void *domain, const struct ended *ended) {
  int is_valid = !domain && ended->compatibility == 0x0102 && ended->size == sizeof *ended &&
                 ended->by == 1 && ended->count == 1 && ended->region_size == sizeof(void *);
  printf("block ended%s\n", is_valid && ended->regions[0] ? "" : " invalid");
}

static void regions_name(void *domain, const struct names *names) {
  int is_valid = !domain && names->compatibility == 0x0102 && names->size == sizeof *names &&
                 names->count == 1 && names->name_size == sizeof(struct name) &&
                 names->names->by == 1 && names->names->type == 1 && names->names->region;
  printf("named %s%s\n", slash_name(names->names->text), is_valid ? "" : " invalid");
  fflush(stdout);
}

int InitializeInjectionNvtxExtension(struct module *module) {
  if (module->nvtx != 3 || module->size != sizeof *module || module->id != 1 ||
      module->segments != 1 || module->segment->count != 17)
    return 0;
  intptr_t *slots = module->segment->slots;
  slots[1] = (intptr_t)heap_register;
  slots[2] = (intptr_t)heap_unregister;
  slots[4] = (intptr_t)regions_register;
  slots[6] = (intptr_t)regions_unregister;
  slots[7] = (intptr_t)regions_name;
  return 1;
}
