/* With DRIVER: a driver of the functions that the emulated one refuses. Without: a program that
 * calls them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t ptr;
typedef struct {
  size_t width, height;
  int format;
  unsigned channels;
} flat;
typedef struct {
  size_t width, height, depth;
  int format;
  unsigned channels, flags;
} deep;
typedef struct {
  char bytes[64];
} ipc;
typedef struct {
  uint64_t pool[11];
  void *access;
  size_t access_count, bytes;
  ptr pointer;
} node;

int cuInit(unsigned), cuCtxGetCurrent(void **), cuCtxGetDevice(int *);
int cuDeviceGetName(char *, int, int), cuDeviceTotalMem_v2(size_t *, int);
int cuMemGetInfo_v2(size_t *, size_t *), cuMemGetAddressRange_v2(ptr *, size_t *, ptr);
int cuArrayCreate_v2(void **, const flat *), cuArray3DCreate_v2(void **, const deep *);
int cuMipmappedArrayCreate(void **, const deep *, unsigned);
int cuArrayDestroy(void *), cuMipmappedArrayDestroy(void *);
int cuIpcOpenMemHandle_v2(ptr *, ipc, unsigned), cuIpcCloseMemHandle(ptr);
int cuGraphAddMemAllocNode(void **, void *, const void *, size_t, node *);
int cuGraphAddMemFreeNode(void **, void *, const void *, size_t, ptr);
int cuMemAlloc_v2(ptr *, size_t);

/* 1 while the driver lets a request of 95 bytes wait. The request then fails. */
extern atomic_int waits;

#ifdef DRIVER

static uintptr_t last = 0x1000;

static int make(void **handle) {
  *handle = (void *)(last += 0x1000);
  return 0;
}

atomic_int waits;

int cuMemAlloc_v2(ptr *address, size_t bytes) {
  if (bytes != 95) return *address = last += 0x1000, 0;
  waits = 1;
  usleep(1500000);
  waits = 0;
  return 2;
}
int cuInit(unsigned flags) { return (int)flags; }
int cuCtxGetCurrent(void **context) { return *context = (void *)1, 0; }
int cuCtxGetDevice(int *device) { return *device = 0, 0; }
int cuDeviceGetName(char *name, int length, int device) {
  return snprintf(name, (size_t)length, "other %d", device), 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = 1 << 30, device; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = 1 << 29, *total = 1 << 30, 0; }
int cuMemGetAddressRange_v2(ptr *base, size_t *bytes, ptr address) {
  return *base = address, *bytes = 4096, 0;
}
int cuArrayCreate_v2(void **array, const flat *shape) { return (void)shape, make(array); }
int cuArray3DCreate_v2(void **array, const deep *shape) { return (void)shape, make(array); }
int cuMipmappedArrayCreate(void **array, const deep *shape, unsigned levels) {
  return (void)shape, (void)levels, make(array);
}
int cuArrayDestroy(void *array) { return array == 0; }
int cuMipmappedArrayDestroy(void *array) { return array == 0; }
int cuIpcOpenMemHandle_v2(ptr *address, ipc handle, unsigned flags) {
  return (void)flags, *address = (ptr)handle.bytes[63] << 12, 0;
}
int cuIpcCloseMemHandle(ptr address) { return address == 0; }
int cuGraphAddMemAllocNode(void **made, void *graph, const void *before, size_t count, node *node) {
  return (void)graph, (void)before, (void)count, node->pointer = 0x70000, make(made);
}
int cuGraphAddMemFreeNode(void **made, void *graph, const void *before, size_t count, ptr address) {
  return (void)graph, (void)before, (void)count, (void)address, make(made);
}

#else

static void *takes_much(void *code) {
  ptr address;
  *(int *)code = cuMemAlloc_v2(&address, 95);
  return 0;
}

/* With 5 of 100 bytes free until the other request fails. */
static int waits_for_other(void) {
  pthread_t thread;
  ptr address;
  int code = 0;
  pthread_create(&thread, 0, takes_much, &code);
  while (!waits) usleep(1000);
  /* Live memory leaves no room for the second request, so it fails before the driver answers. */
  int small = cuMemAlloc_v2(&address, 3), large = cuMemAlloc_v2(&address, 98), is_early = waits;
  int own = cuMemAlloc_v2(&address, 10);
  pthread_join(thread, 0);
  return printf("%d %d; %d %d %d\n", code, own, small, large, is_early) < 0;
}

int main(int count, char **unused) {
  (void)unused;
  if (count > 1) return cuInit(0) | waits_for_other();
  void *array, *volume, *levels, *made;
  ptr opened;
  flat plane = {100, 20, 0x20, 4};
  deep box = {8, 4, 2, 0x10, 1, 0};
  ipc handle = {{0}};
  handle.bytes[63] = 9;
  node allocation = {{0}, 0, 0, 5000, 0};
  int failed = cuInit(0) | cuArrayCreate_v2(&array, &plane) | cuArray3DCreate_v2(&volume, &box) |
               cuMipmappedArrayCreate(&levels, &box, 2) |
               cuIpcOpenMemHandle_v2(&opened, handle, 1) |
               cuGraphAddMemAllocNode(&made, 0, 0, 0, &allocation);
  failed |= cuArrayDestroy(array) | cuMipmappedArrayDestroy(levels) | cuIpcCloseMemHandle(opened) |
            cuGraphAddMemFreeNode(&made, 0, 0, 0, allocation.pointer);
  return failed;
}

#endif
