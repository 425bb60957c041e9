/* A program that copies between the host and a device. With an argument, it ends by SIGKILL some
 * time after its last copy. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

typedef struct {
  int kind, handles, location, id;
  void *security;
  size_t most;
  unsigned char rest[56];
} pool_properties;

int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemHostRegister_v2(void *, size_t, unsigned);
/* Source or destination of a copied rectangle, in the layout of one half of CUDA_MEMCPY2D. */
typedef struct {
  size_t x, y;
  int kind;
  const void *host;
  ptr device;
  void *array;
  size_t pitch;
} side;
typedef struct {
  side from, to;
  size_t width, height;
} rectangle;

int cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuMemcpyHtoDAsync_v2(ptr, const void *, size_t, void *);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyDtoD_v2(ptr, ptr, size_t);
int cuMemcpy(ptr, ptr, size_t);
int cuMemcpyAsync(ptr, ptr, size_t, void *);
int cuMemcpy2D_v2(const rectangle *), cuMemcpy2DUnaligned_v2(const rectangle *);
int cuMemcpy2DAsync_v2(const rectangle *, void *);
int cuMemcpyPeer(ptr, void *, ptr, void *, size_t);
int cuMemcpyPeerAsync(ptr, void *, ptr, void *, size_t, void *);
int cuStreamSynchronize(void *);
int cuMemPoolCreate(void **, const pool_properties *);
int cuMemAllocFromPoolAsync(ptr *, size_t, void *, void *);
int cuMemAllocManaged(ptr *, size_t, unsigned);

static void upload(ptr to, const void *from, size_t bytes) {
  CHECK(cuMemcpyHtoD_v2(to, from, bytes));
}

/* The recorder writes the sums of all sites at the second site's first copy. */
static void ends_early(ptr device, const char *from) {
  for (int step = 0; step < 3; step++) upload(device, from, 1000);
  usleep(1100000);
  CHECK(cuMemcpyHtoD_v2(device, from, 10));
  kill(getpid(), SIGKILL);
}

static void upload_managed(ptr to, const void *from) {
  for (int step = 0; step < 2; step++) upload(to, from, 1000);
}

/* Copies rectangles of ten rows with 100 bytes each, and copies between contexts. */
static void shapes(void *context, ptr device, ptr other, const void *pageable, const void *pinned) {
  enum { HOST = 1, DEVICE = 2, UNIFIED = 4 };
  const side on_device = {0, 1, DEVICE, NULL, device, NULL, 512};
  const side on_other = {0, 0, DEVICE, NULL, other, NULL, 512};
  const side on_host = {5, 2, HOST, pageable, 0, NULL, 128};
  const side unified = {5, 2, UNIFIED, NULL, (ptr)(uintptr_t)pinned, NULL, 128};
  const rectangle up = {on_host, on_device, 100, 10}, down = {on_device, unified, 100, 10};
  const rectangle within = {on_device, on_other, 100, 10};
  for (int step = 0; step < 2; step++) CHECK(cuMemcpy2D_v2(&up));
  CHECK(cuMemcpy2DUnaligned_v2(&down));
  CHECK(cuMemcpy2DAsync_v2(&within, NULL));
  CHECK(cuMemcpyPeer(other, context, device, context, 50));
  CHECK(cuMemcpyPeerAsync(other, context, device, context, 60, NULL));
}

int main(int count, char **arguments) {
  const pool_properties managed = {.kind = 2};
  void *context, *pinned, *pool;
  ptr device, other, whole, pooled;
  char *pageable = calloc(1, 2 * MIB), *registered = aligned_alloc(4096, MIB);
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuMemAlloc_v2(&device, 4 * MIB));
  CHECK(cuMemAlloc_v2(&other, 4 * MIB));
  CHECK(cuMemHostAlloc(&pinned, MIB, 0));
  CHECK(cuMemHostRegister_v2(registered, MIB, 0));
  memset(pinned, 1, MIB);
  (void)arguments;
  if (count > 1) ends_early(device, pageable);

  /* Uploads equal data three times, then different data each time. */
  for (int step = 0; step < 6; step++) {
    if (step >= 3) pageable[0] = step;
    upload(device, pageable, 2 * MIB);
  }
  CHECK(cuMemcpyHtoDAsync_v2(device, (char *)pinned + 5, 1000, NULL));
  CHECK(cuMemcpyAsync(other, (ptr)(uintptr_t)pageable, 100, NULL));
  CHECK(cuStreamSynchronize(NULL));
  CHECK(cuMemcpyDtoH_v2(registered + 4096, device, 4096));
  CHECK(cuMemcpyDtoD_v2(other, device, 3 * MIB));
  CHECK(cuMemcpy(other, device, 7));
  shapes(context, device, other, pageable, pinned);
  /* Managed memory is not read, even if its allocation is not recorded. */
  CHECK(cuMemAllocManaged(&whole, MIB, 1));
  CHECK(cuMemPoolCreate(&pool, &managed));
  CHECK(cuMemAllocFromPoolAsync(&pooled, MIB, pool, NULL));
  CHECK(cuStreamSynchronize(NULL));
  upload_managed(device, (void *)(uintptr_t)whole);
  upload_managed(device, (void *)(uintptr_t)pooled);
  /* A copy that the driver refuses does not count. */
  printf("refused: %d\n", cuMemcpyDtoD_v2(other, device, 400 * (size_t)MIB) != 0);
  CHECK(cuMemFree_v2(device));
  return 0;
}
