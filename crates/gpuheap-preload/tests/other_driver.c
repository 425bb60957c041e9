/* If DRIVER is defined, this is a driver with the functions that the emulated driver refuses.
 * Otherwise this is a program that calls these functions. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

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

typedef struct {
  size_t x, y, z, level;
  int kind;
  const void *host;
  ptr device;
  void *array, *context;
  size_t pitch, height;
} side;
typedef struct {
  side from, to;
  size_t width, height, depth;
} volume;

int cuCtxGetCurrent(void **), cuCtxGetDevice(int *);
int cuDeviceGetName(char *, int, int), cuDeviceTotalMem_v2(size_t *, int);
int cuMemGetInfo_v2(size_t *, size_t *), cuMemGetAddressRange_v2(ptr *, size_t *, ptr);
int cuArrayCreate_v2(void **, const flat *), cuArray3DCreate_v2(void **, const deep *);
int cuMipmappedArrayCreate(void **, const deep *, unsigned);
int cuArrayDestroy(void *), cuMipmappedArrayDestroy(void *);
int cuIpcOpenMemHandle_v2(ptr *, ipc, unsigned), cuIpcCloseMemHandle(ptr);
int cuGraphAddMemAllocNode(void **, void *, const void *, size_t, node *);
int cuGraphAddMemFreeNode(void **, void *, const void *, size_t, ptr);
int cuMemcpy3D_v2(const volume *), cuMemcpy3DAsync_v2(const volume *, void *);
int cuMemcpy3DPeer(const volume *), cuMemcpy3DPeerAsync(const volume *, void *);
int cuMemcpyHtoA_v2(void *, size_t, const void *, size_t);
int cuMemcpyAtoH_v2(void *, void *, size_t, size_t);
int cuMemcpyHtoAAsync_v2(void *, size_t, const void *, size_t, void *);
int cuMemcpyAtoHAsync_v2(void *, void *, size_t, size_t, void *);
int cuMemcpyDtoA_v2(void *, size_t, ptr, size_t), cuMemcpyAtoD_v2(ptr, void *, size_t, size_t);
int cuMemcpyAtoA_v2(void *, size_t, void *, size_t, size_t);

/* 1 while a request of 95 bytes waits in the driver. The request then fails. */
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
int cuMemcpy3D_v2(const volume *copy) { return copy->width != 16; }
int cuMemcpy3DAsync_v2(const volume *copy, void *stream) { return (void)stream, copy->depth != 2; }
int cuMemcpy3DPeer(const volume *copy) { return copy->depth != 2; }
int cuMemcpy3DPeerAsync(const volume *copy, void *stream) { return (void)stream, copy->depth != 2; }
int cuMemcpyHtoA_v2(void *array, size_t offset, const void *from, size_t bytes) {
  return array == 0 || offset != 1 || from == 0 || bytes == 0;
}
int cuMemcpyAtoH_v2(void *to, void *array, size_t offset, size_t bytes) {
  return to == 0 || array == 0 || offset != 1 || bytes == 0;
}
int cuMemcpyHtoAAsync_v2(void *array, size_t offset, const void *from, size_t bytes, void *stream) {
  return cuMemcpyHtoA_v2(array, offset, from, bytes) | (stream != 0);
}
int cuMemcpyAtoHAsync_v2(void *to, void *array, size_t offset, size_t bytes, void *stream) {
  return cuMemcpyAtoH_v2(to, array, offset, bytes) | (stream != 0);
}
int cuMemcpyDtoA_v2(void *array, size_t offset, ptr from, size_t bytes) {
  return array == 0 || offset != 1 || from == 0 || bytes == 0;
}
int cuMemcpyAtoD_v2(ptr to, void *array, size_t offset, size_t bytes) {
  return to == 0 || array == 0 || offset != 1 || bytes == 0;
}
int cuMemcpyAtoA_v2(void *to, size_t to_offset, void *from, size_t offset, size_t bytes) {
  return to == 0 || to_offset != 1 || from == 0 || offset != 1 || bytes == 0;
}

#else

static void *takes_much(void *code) {
  ptr address;
  *(int *)code = cuMemAlloc_v2(&address, 95);
  return 0;
}

/* Only 5 of 100 bytes are free until the request of 95 bytes fails. */
static int waits_for_other(void) {
  pthread_t thread;
  ptr address;
  int code = 0;
  pthread_create(&thread, 0, takes_much, &code);
  while (!waits) usleep(1000);
  /* Live memory leaves no room for 98 bytes, so that request fails before the driver answers. */
  int small = cuMemAlloc_v2(&address, 3), large = cuMemAlloc_v2(&address, 98), is_early = waits;
  int own = cuMemAlloc_v2(&address, 10);
  pthread_join(thread, 0);
  return printf("%d %d; %d %d %d\n", code, own, small, large, is_early) < 0;
}

/* Copies arrays, and volumes. A volume has 2 layers. A layer has 4 rows of 16 bytes. */
static int copies(void) {
  enum { HOST = 1, DEVICE, ARRAY };
  static char data[4096];
  const side host = {1, 1, 1, 0, HOST, data, 0, 0, 0, 64, 8};
  side device = {0, 0, 0, 0, DEVICE, 0, 0, 0, 0, 64, 8};
  side array = {0, 0, 0, 0, ARRAY, 0, 0, 0, 0, 0, 0};
  const flat plane = {100, 20, 0x20, 4};
  int failed = cuMemAlloc_v2(&device.device, 4096) | cuArrayCreate_v2(&array.array, &plane);
  volume up = {host, array, 16, 4, 2}, down = {device, host, 16, 4, 2};
  volume within = {array, device, 16, 4, 2};
  failed |= cuMemcpy3D_v2(&up);
  failed |= cuMemcpy3DAsync_v2(&down, 0);
  failed |= cuMemcpy3DPeer(&within);
  failed |= cuMemcpy3DPeerAsync(&within, 0);
  failed |= cuMemcpyHtoA_v2(array.array, 1, data, 11);
  failed |= cuMemcpyAtoH_v2(data, array.array, 1, 12);
  failed |= cuMemcpyHtoAAsync_v2(array.array, 1, data, 13, 0);
  failed |= cuMemcpyAtoHAsync_v2(data, array.array, 1, 14, 0);
  failed |= cuMemcpyDtoA_v2(array.array, 1, device.device, 15);
  failed |= cuMemcpyAtoD_v2(device.device, array.array, 1, 16);
  failed |= cuMemcpyAtoA_v2(array.array, 1, array.array, 1, 17);
  return failed;
}

int main(int count, char **words) {
  if (count > 1) return cuInit(0) | (*words[1] == 'c' ? copies() : waits_for_other());
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
