/* Typical program for the CUDA runtime. It declares the functions that it uses, and prints
 * results. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned x, y, z;
} dim3;
typedef void *stream_t, *event_t, *graph_t, *pool_t;
typedef struct {
  int type, device;
  void *on_device, *on_host;
  void *reserved[8];
} attributes_t;

int cudaGetDeviceCount(int *), cudaSetDevice(int), cudaGetDevice(int *), cudaDeviceReset(void);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemGetInfo(size_t *, size_t *);
int cudaMallocHost(void **, size_t), cudaFreeHost(void *),
    cudaMallocManaged(void **, size_t, unsigned);
int cudaMemcpy(void *, const void *, size_t, int), cudaMemset(void *, int, size_t);
int cudaMemcpyAsync(void *, const void *, size_t, int, stream_t),
    cudaMemsetAsync(void *, int, size_t, stream_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaMallocAsync(void **, size_t, stream_t), cudaFreeAsync(void *, stream_t);
int cudaDeviceGetDefaultMemPool(pool_t *, int), cudaMemPoolTrimTo(pool_t, size_t);
int cudaStreamCreateWithFlags(stream_t *, unsigned), cudaStreamSynchronize(stream_t),
    cudaStreamDestroy(stream_t);
int cudaEventCreate(event_t *), cudaEventRecord(event_t, stream_t), cudaEventDestroy(event_t);
int cudaEventElapsedTime(float *, event_t, event_t),
    cudaStreamWaitEvent(stream_t, event_t, unsigned);
int cudaStreamBeginCapture(stream_t, int), cudaStreamEndCapture(stream_t, graph_t *);
int cudaGraphInstantiate(graph_t *, graph_t, unsigned long long),
    cudaGraphLaunch(graph_t, stream_t);
int cudaGraphExecDestroy(graph_t), cudaGraphDestroy(graph_t), cudaIpcGetMemHandle(void *, void *);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, stream_t),
    cudaDeviceSynchronize(void);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
int cudaGetDeviceProperties(void *, int), cudaGetDeviceProperties_v2(void *, int);
int cudaPointerGetAttributes(attributes_t *, const void *), cudaRuntimeGetVersion(int *);
int cudaGetSymbolAddress(void **, const void *),
    cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
int cudaGetLastError(void), cudaPeekAtLastError(void), cudaGetSymbolSize(size_t *, const void *);
const char *cudaGetErrorName(int), *cudaGetErrorString(int);
typedef struct {
  int magic, version;
  const void *data, *more;
} fat_binary;
void **__cudaRegisterFatBinary(void *), __cudaRegisterFatBinaryEnd(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *,
                            void *, void *, int *);
int cudaFuncGetAttributes(void *, const void *), cudaFuncSetAttribute(const void *, int, int);
int cudaGraphGetNodes(graph_t, void **, size_t *),
    cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
int cudaStreamGetCaptureInfo(stream_t, int *, unsigned long long *, graph_t *, const void **,
                             const void **, size_t *);
int cudaMemcpyPeer(void *, int, const void *, int, size_t),
    cudaDeviceEnablePeerAccess(int, unsigned);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, stream_t);
int __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, stream_t *);

#define MIB ((size_t)1 << 20)

static void check(int code, const char *what) {
  if (code != 0) {
    printf("%s: %s: %s\n", what, cudaGetErrorName(code), cudaGetErrorString(code));
    exit(1);
  }
}
#define CHECK(call) check(call, #call)

static size_t in_use(void) {
  size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  return (total - free) / MIB;
}

static void memory(void) {
  void *small, *large, *host, *managed, *nothing = &nothing;
  char out[64] = {0};
  attributes_t of;
  size_t before;
  CHECK(cudaFree(0));
  before = in_use();
  CHECK(cudaMalloc(&large, 10 * MIB));
  CHECK(cudaMalloc(&small, 1000));
  printf("plain: %zu MiB\n", in_use() - before);
  CHECK(cudaMalloc(&nothing, 0));
  printf("of no bytes: %d\n", nothing == NULL);
  CHECK(cudaMallocHost(&host, 4096));
  CHECK(cudaMallocManaged(&managed, 4096, 1));
  memset(host, 7, 4096);
  CHECK(cudaMemcpy(small, host, 1000, 1));
  CHECK(cudaMemset((char *)small + 8, 9, 8));
  CHECK(cudaMemcpy(out, small, 32, 2));
  printf("copied: %d %d %d\n", out[0], out[8], out[16]);
  CHECK(cudaMemcpy2D(out, 4, small, 8, 4, 3, 2));
  printf("rectangle: %d %d %d\n", out[0], out[4], out[8]);
  CHECK(cudaPointerGetAttributes(&of, (char *)small + 1));
  printf("device memory: %d %d\n", of.type, of.device);
  CHECK(cudaPointerGetAttributes(&of, host));
  printf("pinned: %d %d\n", of.type, of.on_host == host);
  CHECK(cudaPointerGetAttributes(&of, managed));
  printf("managed: %d\n", of.type);
  CHECK(cudaPointerGetAttributes(&of, out));
  printf("unknown: %d\n", of.type);
  CHECK(cudaFree(small));
  CHECK(cudaFree(large));
  CHECK(cudaFree(managed));
  CHECK(cudaFreeHost(host));
  printf("freed: %zu MiB\n", in_use() - before);
  printf("freed twice: %s\n", cudaGetErrorName(cudaFree(small)));
  printf("last: %s, ", cudaGetErrorName(cudaGetLastError()));
  printf("then %s\n", cudaGetErrorName(cudaPeekAtLastError()));
  printf("too much: %s\n", cudaGetErrorString(cudaMalloc(&large, (size_t)1 << 50)));
  cudaGetLastError();
}

static void order(void) {
  stream_t first, second;
  event_t begin, end;
  graph_t graph, executable;
  pool_t pool;
  void *block, *other;
  float milliseconds = -1;
  char out = 0;
  int code = 0;
  size_t left = 0, total = 0, before = in_use();
  CHECK(cudaStreamCreateWithFlags(&first, 1));
  /* Failed streams are not counted: the sixth stream would take 2 MiB more. */
  CHECK(cudaMemGetInfo(&left, &total));
  CHECK(cudaMalloc(&block, left - left % (2 * MIB)));
  for (int i = 0; i < 4; i++) code = cudaStreamCreateWithFlags(&second, 1);
  printf("no memory for a stream: %s\n", cudaGetErrorString(code));
  cudaGetLastError();
  CHECK(cudaFree(block));
  CHECK(cudaStreamCreateWithFlags(&second, 1));
  printf("two streams: %zu MiB\n", in_use() - before);
  before = in_use();
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin, first));
  CHECK(cudaMallocAsync(&block, MIB, first));
  CHECK(cudaMemsetAsync(block, 3, MIB, first));
  CHECK(cudaEventRecord(end, first));
  CHECK(cudaStreamWaitEvent(second, end, 0));
  CHECK(cudaMemcpyAsync(&out, block, 1, 2, second));
  CHECK(cudaStreamSynchronize(second));
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  printf("in order: %d, %d\n", out, milliseconds >= 0);
  CHECK(cudaFreeAsync(block, second));
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMemPoolTrimTo(pool, 0));
  printf("pool: %zu MiB\n", in_use() - before);
  CHECK(cudaMalloc(&other, 1));
  CHECK(cudaMemset(other, 0, 1));
  CHECK(cudaStreamBeginCapture(first, 0));
  CHECK(cudaMemsetAsync(other, 5, 1, first));
  CHECK(cudaStreamEndCapture(first, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphLaunch(executable, first));
  CHECK(cudaStreamSynchronize(first));
  CHECK(cudaMemcpy(&out, other, 1, 2));
  printf("captured: %d\n", out);
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaFree(other));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaStreamDestroy(first));
  CHECK(cudaStreamDestroy(second));
}

static void kernel(void) {}
static int shadow;

static void code(void) {
  dim3 grid = {10, 1, 1}, block = {256, 1, 1}, none = {0, 1, 1}, large = {2048, 1, 1}, popped;
  int blocks = 0, value = 6, version = 0, count = 0;
  size_t shared = 0, bytes = 0;
  stream_t stream = &stream;
  void *address;
  static char properties[2048];
  static const char image[] = "\x50\xed\x55\xba\x01\0\x10\0\0\0\0\0\0\0\0";
  static fat_binary binary = {0x466243b1, 1, image, NULL};
  static char function[144];
  void *mine, *theirs, *entry = NULL;
  stream_t captured;
  graph_t graph;
  unsigned long long id = 0;
  int status = -1;
  void **module = __cudaRegisterFatBinary(&binary);
  __cudaRegisterFunction(module, (char *)kernel, (char *)kernel, "kernel", -1, NULL, NULL, NULL,
                         NULL, NULL);
  __cudaRegisterFatBinaryEnd(module);
  __cudaRegisterVar(module, (char *)&shadow, "shadow", "shadow", 0, sizeof shadow, 0, 0);
  CHECK(cudaLaunchKernel((void *)kernel, grid, block, NULL, 0, NULL));
  printf("no blocks: %s\n",
         cudaGetErrorName(cudaLaunchKernel((void *)kernel, none, block, NULL, 0, NULL)));
  printf("large blocks: %s\n",
         cudaGetErrorName(cudaLaunchKernel((void *)kernel, grid, large, NULL, 0, NULL)));
  printf("no kernel: %s\n", cudaGetErrorName(cudaLaunchKernel(NULL, grid, block, NULL, 0, NULL)));
  __cudaPushCallConfiguration(grid, block, 12, NULL);
  CHECK(__cudaPopCallConfiguration(&popped, &popped, &shared, &stream));
  printf("pushed: %u %zu %d\n", popped.x, shared, stream == NULL);
  printf("nothing pushed: %s\n",
         cudaGetErrorName(__cudaPopCallConfiguration(&popped, &popped, &shared, &stream)));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (void *)kernel, 256, 0));
  printf("occupancy: %d\n", blocks);
  CHECK(cudaFuncSetAttribute((void *)kernel, 8, 100 << 10));
  CHECK(cudaFuncGetAttributes(function, (void *)kernel));
  printf("threads: %d, dynamic: %d\n", *(int *)(function + 24), *(int *)(function + 44));
  CHECK(cudaStreamCreateWithFlags(&captured, 1));
  CHECK(cudaStreamBeginCapture(captured, 0));
  CHECK(cudaLaunchKernel((void *)kernel, grid, block, NULL, 0, captured));
  CHECK(cudaStreamGetCaptureInfo(captured, &status, &id, NULL, NULL, NULL, NULL));
  CHECK(cudaStreamEndCapture(captured, &graph));
  CHECK(cudaGraphGetNodes(graph, NULL, &bytes));
  printf("captured: status %d, %d, %zu node\n", status, id != 0, bytes);
  CHECK(cudaGetDriverEntryPointByVersion("cuGreenCtxCreate", &entry, 12040, 0, &status));
  printf("green context: %d %d\n", entry != NULL, status);
  CHECK(cudaGetDriverEntryPointByVersion("cuMemCreate", &entry, 12000, 0, &status));
  printf("entry point: %d %d\n", entry != NULL, status);
  CHECK(cudaMemcpyToSymbol(&shadow, &value, sizeof value, 0, 1));
  CHECK(cudaGetSymbolAddress(&address, &shadow));
  CHECK(cudaGetSymbolSize(&bytes, &shadow));
  value = 0;
  CHECK(cudaMemcpy(&value, address, sizeof value, 2));
  printf("variable: %d of %zu\n", value, bytes);
  printf("past its end: %s\n",
         cudaGetErrorName(cudaMemcpyToSymbol(&shadow, &value, sizeof value, 1, 1)));
  printf("no variable: %s\n", cudaGetErrorName(cudaGetSymbolSize(&bytes, &value)));
  printf("shared with processes: %s\n", cudaGetErrorName(cudaIpcGetMemHandle(properties, address)));
  CHECK(cudaGetDeviceProperties(properties, 0));
  printf("CUDA 13: %s, %d.%d, %d\n", properties, *(int *)(properties + 360),
         *(int *)(properties + 364), *(int *)(properties + 384));
  CHECK(cudaGetDeviceProperties_v2(properties, 0));
  printf("CUDA 12: %s, %d.%d, %d\n", properties, *(int *)(properties + 360),
         *(int *)(properties + 364), *(int *)(properties + 388));
  CHECK(cudaRuntimeGetVersion(&version));
  CHECK(cudaGetDeviceCount(&count));
  printf("version %d, %d devices\n", version, count);
  printf("no such device: %s\n", cudaGetErrorName(cudaSetDevice(9)));
  CHECK(cudaSetDevice(1));
  CHECK(cudaGetDevice(&count));
  printf("device %d\n", count);
  CHECK(cudaMalloc(&mine, MIB));
  CHECK(cudaMemset(mine, 4, MIB));
  CHECK(cudaSetDevice(0));
  CHECK(cudaMalloc(&theirs, MIB));
  CHECK(cudaDeviceEnablePeerAccess(1, 0));
  CHECK(cudaMemcpyPeer(theirs, 0, mine, 1, MIB));
  value = 0;
  CHECK(cudaMemcpy(&value, theirs, 1, 2));
  printf("from a peer: %d\n", value);
  CHECK(cudaFree(theirs));
  CHECK(cudaSetDevice(1));
  CHECK(cudaDeviceReset());
  CHECK(cudaMalloc(&address, MIB));
  CHECK(cudaFree(address));
  printf("unknown code: %s\n", cudaGetErrorString(12345));
}

int main(void) {
  memory();
  order();
  code();
  return 0;
}
