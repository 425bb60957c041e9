/* Reads a convolution's plans and a recurrent network's sizes from cuDNN, like PyTorch. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

int cudnnCreate(void **), cudnnDestroy(void *), cudnnSetStream(void *, void *),
    cudnnGetStream(void *, void **);
int cudnnGetProperty(int, int *);
const char *cudnnGetErrorString(int);
int cudnnBackendCreateDescriptor(int, void **), cudnnBackendDestroyDescriptor(void *);
int cudnnBackendFinalize(void *), cudnnBackendExecute(void *, void *, void *);
int cudnnBackendSetAttribute(void *, int, int, int64_t, const void *);
int cudnnBackendGetAttribute(void *, int, int, int64_t, int64_t *, void *);
int cudnnCreateRNNDescriptor(void **), cudnnDestroyRNNDescriptor(void *);
int cudnnSetRNNDescriptor_v8(void *, int, int, int, int, int, int, int, int, int, int, int, int,
                             void *, unsigned);
int cudnnCreateRNNDataDescriptor(void **), cudnnDestroyRNNDataDescriptor(void *);
int cudnnSetRNNDataDescriptor(void *, int, int, int, int, int, const int *, void *);
int cudnnGetRNNWeightSpaceSize(void *, void *, size_t *);
int cudnnGetRNNTempSpaceSizes(void *, void *, int, void *, size_t *, size_t *);
int cudnnGetRNNWeightParams(void *, void *, int, size_t, const void *, int, void *, void **, void *,
                            void **);
int cudnnCreateTensorDescriptor(void **), cudnnDestroyTensorDescriptor(void *);
int cudnnSetTensorNdDescriptor(void *, int, int, const int *, const int *);
int cudnnCreateFilterDescriptor(void **), cudnnDestroyFilterDescriptor(void *);
int cudnnSetFilterNdDescriptor(void *, int, int, int, const int *);
int cudnnCreateConvolutionDescriptor(void **), cudnnDestroyConvolutionDescriptor(void *);
int cudnnSetConvolutionNdDescriptor(void *, int, const int *, const int *, const int *, int, int);
int cudnnGetConvolutionForwardAlgorithm_v7(void *, void *, void *, void *, void *, int, int *,
                                           void *);
int cudnnGetConvolutionForwardWorkspaceSize(void *, void *, void *, void *, void *, int, size_t *);
int cudnnFindConvolutionForwardAlgorithmEx(void *, void *, const void *, void *, const void *,
                                           void *, void *, void *, int, int *, void *, void *,
                                           size_t);
int cudnnGetCTCLossWorkspaceSize(void *, void *, void *, const int *, const int *, const int *, int,
                                 void *, size_t *);
int cudnnGetCTCLossWorkspaceSize_v8(void *, int, void *, void *, void *, size_t *);
int cudnnGetTensorNdDescriptor(void *, int, int *, int *, int *, int *);

#define CHECK(condition)                             \
  do {                                               \
    if (!(condition)) {                              \
      printf("line %d: " #condition "\n", __LINE__); \
      return 1;                                      \
    }                                                \
  } while (0)

enum { HALF = 2, DATA_TYPE = 1, HEURISTIC_MODE = 8, INT64 = 3, INT32 = 23, DESCRIPTOR = 15 };

static void *made(int kind) {
  void *descriptor = 0;
  return cudnnBackendCreateDescriptor(kind, &descriptor) ? 0 : descriptor;
}

static void *tensor(int64_t n, int64_t c, int64_t h, int64_t w) {
  int64_t sizes[] = {n, c, h, w}, strides[] = {c * h * w, h * w, w, 1};
  int type = HALF;
  void *descriptor = made(17);
  if (cudnnBackendSetAttribute(descriptor, 901, DATA_TYPE, 1, &type) ||
      cudnnBackendSetAttribute(descriptor, 902, INT64, 4, sizes) ||
      cudnnBackendSetAttribute(descriptor, 903, INT64, 4, strides) ||
      cudnnBackendFinalize(descriptor))
    return 0;
  return descriptor;
}

/* Reads a heuristic's configuration at `index`, and the number of configurations. Mode 0 selects
 * the heuristic's choices. Mode 2 selects the engines that support every graph. */
static void *config(void *graph, int mode, int index, int64_t *count) {
  void *configs[16], *heuristic = made(4);
  for (int i = 0; i < 16; i++) configs[i] = made(3);
  if (cudnnBackendSetAttribute(heuristic, 201, DESCRIPTOR, 1, &graph) ||
      cudnnBackendSetAttribute(heuristic, 200, HEURISTIC_MODE, 1, &mode) ||
      cudnnBackendFinalize(heuristic) ||
      cudnnBackendGetAttribute(heuristic, 202, DESCRIPTOR, 0, count, 0) || *count > 16 ||
      cudnnBackendGetAttribute(heuristic, 202, DESCRIPTOR, 16, count, configs))
    return 0;
  for (int i = 0; i < 16; i++)
    if (i != index) cudnnBackendDestroyDescriptor(configs[i]);
  return cudnnBackendDestroyDescriptor(heuristic) ? 0 : configs[index];
}

static int plans(void) {
  /* A 3 by 3 filter, applied to 32 images of 28 by 28. */
  void *x = tensor(32, 128, 28, 28), *w = tensor(128, 128, 3, 3), *y = tensor(32, 128, 28, 28);
  void *operation = made(10), *graph = made(15), *window = made(1), *engine = made(2);
  void *pack = made(16), *handle = 0, *stream = 0;
  int64_t ones[] = {1, 1}, count = 7, workspace = 0, index = 7;
  int shared = -1;
  CHECK(x && w && y && cudnnCreate(&handle) == 0 && cudnnCreate(0) == 2002);
  CHECK(cudnnSetStream(handle, 0) == 0 && cudnnGetStream(handle, &stream) == 0 && !stream);
  for (int attribute = 102; attribute <= 105; attribute++)
    CHECK(cudnnBackendSetAttribute(window, attribute, INT64, 2, ones) == 0);
  CHECK(cudnnBackendSetAttribute(operation, 702, DESCRIPTOR, 1, &window) == 0);
  CHECK(cudnnBackendSetAttribute(operation, 704, DESCRIPTOR, 1, &x) == 0);
  CHECK(cudnnBackendSetAttribute(operation, 703, DESCRIPTOR, 1, &w) == 0);
  CHECK(cudnnBackendSetAttribute(operation, 705, DESCRIPTOR, 1, &y) == 0);
  /* A descriptor keeps its attributes after the program destroys the descriptors in them. */
  CHECK(cudnnBackendDestroyDescriptor(w) == 0 && cudnnBackendDestroyDescriptor(0) == 0);
  CHECK(cudnnBackendSetAttribute(graph, 801, DESCRIPTOR, 1, &operation) == 0);
  CHECK(cudnnBackendSetAttribute(graph, 801, DESCRIPTOR, -1, &operation) == 2000);
  CHECK(cudnnBackendSetAttribute(graph, 801, DESCRIPTOR, 1, 0) == 2002);
  CHECK(cudnnBackendGetAttribute(graph, 802, INT64, 1, &count, &index) == 0 && count == 1 &&
        index == 1);
  void *last = config(graph, 2, 0, &count);
  CHECK(last && count == 1);
  void *first = config(graph, 0, 0, &count);
  CHECK(first && count == 3);
  CHECK(cudnnBackendGetAttribute(first, 304, INT32, 1, &count, &shared) == 0 && shared == 0);
  CHECK(cudnnBackendGetAttribute(first, 300, DESCRIPTOR, 1, &count, &engine) == 0);
  CHECK(cudnnBackendGetAttribute(engine, 1301, INT64, 1, &count, &index) == 0 && index == 0);
  CHECK(cudnnBackendGetAttribute(engine, 1303, 11, 0, &count, 0) == 0 && count == 0);
  for (int i = 0; i < 4; i++) {
    void *it = i < 3 ? config(graph, 0, i, &count) : last, *plan = made(5);
    CHECK(cudnnBackendSetAttribute(plan, 401, DESCRIPTOR, 1, &it) == 0 &&
          cudnnBackendFinalize(plan) == 0);
    CHECK(cudnnBackendGetAttribute(plan, 402, INT64, 1, &count, &workspace) == 0 && count == 1);
    printf("workspace %lld\n", (long long)workspace);
    /* Benchmark mode executes each plan twice. The report names the largest workspace. */
    for (int j = 0; j < 2; j++) CHECK(cudnnBackendExecute(handle, plan, pack) == 0);
    CHECK(cudnnBackendExecute(0, plan, pack) == 2002);
    CHECK(cudnnBackendDestroyDescriptor(plan) == 0 && cudnnBackendDestroyDescriptor(it) == 0);
  }
  void *all[] = {x, y, operation, graph, window, engine, first, pack};
  for (int i = 0; i < 8; i++) CHECK(cudnnBackendDestroyDescriptor(all[i]) == 0);
  CHECK(cudnnDestroy(handle) == 0);
  return 0;
}

struct found {
  int algorithm, status;
  float time;
  size_t workspace;
  int deterministic, math, reserved[3];
};

/* Computes the convolution of `plans` with functions that are older than operation graphs. */
static int older(void) {
  int images[] = {32, 128, 28, 28}, strides[] = {128 * 784, 784, 28, 1},
      filter[] = {128, 128, 3, 3};
  int ones[] = {1, 1}, count = 0;
  void *x = 0, *w = 0, *window = 0;
  struct found found[8];
  size_t bytes = 0;
  CHECK(cudnnCreateTensorDescriptor(&x) == 0 && cudnnCreateFilterDescriptor(&w) == 0 &&
        cudnnCreateConvolutionDescriptor(&window) == 0);
  CHECK(cudnnSetTensorNdDescriptor(x, HALF, 4, images, strides) == 0);
  CHECK(cudnnSetFilterNdDescriptor(w, HALF, 0, 4, filter) == 0);
  CHECK(cudnnSetConvolutionNdDescriptor(window, 2, ones, ones, ones, 1, 0) == 0);
  CHECK(cudnnGetConvolutionForwardAlgorithm_v7(0, x, w, window, x, 8, &count, found) == 0);
  CHECK(count == 3 && found[0].algorithm == 0);
  for (int i = 0; i < count; i++)
    CHECK(cudnnGetConvolutionForwardWorkspaceSize(0, x, w, window, x, i, &bytes) == 0 &&
          bytes == found[i].workspace);
  CHECK(cudnnGetConvolutionForwardWorkspaceSize(0, x, w, window, x, 8, &bytes) == 3000);
  printf("by algorithm %zu\n", found[0].workspace);
  CHECK(cudnnFindConvolutionForwardAlgorithmEx(0, x, 0, w, 0, window, x, 0, 8, &count, found, 0,
                                               found[0].workspace) == 0);
  CHECK(count >= 1 && found[0].workspace <= bytes);
  CHECK(cudnnFindConvolutionForwardAlgorithmEx(0, x, 0, w, 0, window, x, 0, 8, &count, found, 0,
                                               0) == 0);
  CHECK(count == 0);
  CHECK(cudnnDestroyTensorDescriptor(x) == 0 && cudnnDestroyFilterDescriptor(w) == 0 &&
        cudnnDestroyConvolutionDescriptor(window) == 0);
  return 0;
}

/* Reads the workspace of CTC loss for 100 steps of 16 sequences, with 30 classes and up to 30
 * labels. */
static int loss(void) {
  int sizes[] = {100, 16, 30}, strides[] = {480, 30, 1}, lengths[16];
  size_t by_host = 0, by_device = 0;
  void *probabilities = 0;
  for (int i = 0; i < 16; i++) lengths[i] = i == 7 ? 30 : 12;
  CHECK(cudnnCreateTensorDescriptor(&probabilities) == 0);
  CHECK(cudnnSetTensorNdDescriptor(probabilities, 0, 3, sizes, strides) == 0);
  CHECK(cudnnGetCTCLossWorkspaceSize(0, probabilities, 0, 0, lengths, 0, 0, 0, &by_host) == 0);
  CHECK(cudnnGetCTCLossWorkspaceSize(0, probabilities, 0, 0, 0, 0, 0, 0, &by_host) == 2002);
  CHECK(cudnnGetCTCLossWorkspaceSize_v8(0, 0, 0, probabilities, 0, &by_device) == 0);
  CHECK(cudnnDestroyTensorDescriptor(probabilities) == 0);
  printf("loss %zu, %zu\n", by_host, by_device);
  return 0;
}

static int network(void) {
  void *network = 0, *sequences = 0, *matrix = 0, *vector = 0, *matrix_at = 0, *vector_at = 0;
  size_t weights = 0, workspace = 0, reserve = 7;
  int type = 7, dimensions = 0, sizes[3] = {0}, strides[3] = {0};
  char *base = (char *)4096;
  CHECK(cudnnCreateRNNDescriptor(&network) == 0 && cudnnCreateRNNDataDescriptor(&sequences) == 0);
  CHECK(cudnnCreateTensorDescriptor(&matrix) == 0 && cudnnCreateTensorDescriptor(&vector) == 0);
  CHECK(cudnnSetRNNDescriptor_v8(network, 0, 2, 2, 0, 0, 0, 0, 0, 512, 1024, 1024, 0, 0, 0) ==
        2000);
  CHECK(cudnnSetRNNDescriptor_v8(network, 0, 2, 2, 0, 0, 0, 0, 0, 512, 1024, 1024, 3, 0, 0) == 0);
  CHECK(cudnnSetRNNDataDescriptor(sequences, 0, 0, 200, 64, 512, 0, 0) == 0);
  CHECK(cudnnGetRNNWeightSpaceSize(0, network, &weights) == 0);
  CHECK(cudnnGetRNNTempSpaceSizes(0, network, 0, sequences, &workspace, &reserve) == 0 &&
        reserve == 0);
  CHECK(cudnnGetRNNTempSpaceSizes(0, network, 1, sequences, &workspace, &reserve) == 0);
  printf("weights %zu, reserve %zu\n", weights, reserve);
  /* Reads the second gate for the second layer's input. Its weights follow the weights of the
   * first layer and one matrix. */
  CHECK(cudnnGetRNNWeightParams(0, network, 1, weights, base, 1, matrix, &matrix_at, vector,
                                &vector_at) == 0);
  size_t first = 4u * 1024 * (512 + 1024);
  CHECK((char *)matrix_at == base + 4 * (first + 1024 * 1024));
  CHECK(cudnnGetTensorNdDescriptor(matrix, 3, &type, &dimensions, sizes, strides) == 0);
  CHECK(type == 0 && dimensions == 3 && sizes[0] == 1 && sizes[1] == 1024 && sizes[2] == 1024);
  CHECK(cudnnGetRNNWeightParams(0, network, 2, weights, base, 7, matrix, &matrix_at, vector,
                                &vector_at) == 0);
  /* The last vector ends at the end of the weights. */
  CHECK((char *)vector_at + 4 * 1024 == base + weights);
  CHECK(cudnnGetRNNWeightParams(0, network, 2, weights, base, 8, matrix, &matrix_at, vector,
                                &vector_at) == 0);
  CHECK(!matrix_at && !vector_at);
  CHECK(cudnnGetRNNWeightParams(0, network, 3, weights, base, 0, matrix, &matrix_at, vector,
                                &vector_at) == 2000);
  CHECK(cudnnDestroyRNNDescriptor(network) == 0 && cudnnDestroyRNNDataDescriptor(sequences) == 0);
  CHECK(cudnnDestroyTensorDescriptor(matrix) == 0 && cudnnDestroyTensorDescriptor(vector) == 0);
  return 0;
}

int main(void) {
  int major = 0;
  CHECK(cudnnGetProperty(0, &major) == 0 && major == 9 && cudnnGetProperty(9, &major) == 2000);
  CHECK(cudnnGetErrorString(0)[0] == 'C' && cudnnGetErrorString(-5));
  return plans() || older() || loss() || network();
}
