/* Declares the driver's types and functions for the test programs, and checks return codes. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

typedef uint64_t ptr;
typedef struct {
  int kind, handles, location, device;
  void *none;
  unsigned char flags[8];
} properties;

enum { MIB = 1 << 20 };

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(ptr *, size_t), cuMemFree_v2(ptr);
int cuMemCreate(ptr *, size_t, const properties *, uint64_t), cuMemRelease(ptr);
int cuMemAddressReserve(ptr *, size_t, size_t, ptr, uint64_t), cuMemAddressFree(ptr, size_t);
int cuMemMap(ptr, size_t, size_t, ptr, uint64_t), cuMemUnmap(ptr, size_t);

/* Ends the program if a call fails. Exit handlers do not run. */
#define CHECK(call) check(call, #call)

static inline void check(int code, const char *call) {
  if (code == 0) return;
  printf("%s: %d\n", call, code);
  fflush(stdout);
  _exit(1);
}
