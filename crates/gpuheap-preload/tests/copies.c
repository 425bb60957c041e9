/* A program that copies between the host and a device. With an argument, it ends by SIGKILL some
 * time after its last copy. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t ptr;
typedef struct {
  int kind, handles, location, id;
  void *security;
  size_t most;
  unsigned char rest[56];
} pool_properties;

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemFree_v2(ptr);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuMemcpyHtoDAsync_v2(ptr, const void *, size_t, void *);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyDtoD_v2(ptr, ptr, size_t);
int cuMemcpy(ptr, ptr, size_t);
int cuMemcpyAsync(ptr, ptr, size_t, void *);
int cuStreamSynchronize(void *);
int cuMemPoolCreate(void **, const pool_properties *);
int cuMemAllocFromPoolAsync(ptr *, size_t, void *, void *);
int cuMemAllocManaged(ptr *, size_t, unsigned);

enum { MIB = 1 << 20 };

#define CHECK(call)                 \
  do {                              \
    if ((call) != 0) {              \
      printf("%s failed\n", #call); \
      exit(1);                      \
    }                               \
  } while (0)

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

  /* Uploads equal data three times, then other data three times. */
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
  /* Managed memory is not read, be its allocation recorded or not. */
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
