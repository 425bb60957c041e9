/* Multiplies with cuBLAS and cuBLASLt, reads sizes from cuFFT, cuSOLVER and cuSPARSE, and calls
 * cuFile, which fails. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int cublasCreate_v2(void **), cublasDestroy_v2(void *), cublasSgemm_v2(void *);
int cublasSgeqrfBatched(void *, int, int, void *, int, void *, int *, int);
int cublasSetPointerMode_v2(void *, int), cublasGetPointerMode_v2(void *, int *);
int cublasSetStream_v2(void *, void *), cublasGetStream_v2(void *, void **);
int cublasLtMatmulDescCreate(void **, int, int), cublasLtMatmulDescDestroy(void *);
int cublasLtMatrixLayoutCreate(void **, int, uint64_t, uint64_t, int64_t);
int cublasLtMatrixLayoutGetAttribute(void *, int, void *, size_t, size_t *);
int cublasLtMatrixLayoutSetAttribute(void *, int, void *, size_t);
int cublasLtMatrixLayoutDestroy(void *), cublasGetVersion_v2(void *, int *);
const char *cublasGetStatusString(int);
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int,
                                   void *, int *);
int cublasLtMatmul(void *), cuFileBufRegister(void *, size_t, int);
int cufftCreate(int *), cufftDestroy(int), cufftSetAutoAllocation(int, int), cufftXtExec(int);
int cufftXtMakePlanMany(int, int, long long *, long long *, long long, long long, int, long long *,
                        long long, long long, int, long long, size_t *, int);
int cufftMakePlan1d(int, int, int, int, size_t *);
int cusolverDnCreate(void **), cusolverDnDestroy(void *), cusolverDnSgetrf(void *);
int cusolverDnSgesvdj_bufferSize(void *, int, int, int, int, void *, int, void *, void *, int,
                                 void *, int, int *, void *);
int cusolverDnXsyevBatched_bufferSize(void *, void *, int, int, int64_t, int, void *, int64_t, int,
                                      void *, int, size_t *, size_t *, int64_t);
int cusolverDnDgesvdaStridedBatched_bufferSize(void *, int, int, int, int, void *, int, long long,
                                               void *, long long, void *, int, long long, void *,
                                               int, long long, int *, int);
int cusparseCreate(void **), cusparseDestroy(void *), cusparseSpMM(void *);
int cusparseCreateCsr(void **, int64_t, int64_t, int64_t, void *, void *, void *, int, int, int,
                      int);
int cusparseCreateDnMat(void **, int64_t, int64_t, int64_t, void *, int, int);
int cusparseDestroySpMat(void *), cusparseDestroyDnMat(void *);
int cusparseSpMM_bufferSize(void *, int, int, void *, void *, void *, void *, void *, int, int,
                            size_t *);
int cusparseSpGEMM_workEstimation(void *, int, int, void *, void *, void *, void *, void *, int,
                                  int, void *, size_t *, void *);
int cusparseSpGEMM_compute(void *, int, int, void *, void *, void *, void *, void *, int, int,
                           void *, size_t *, void *);
int cusparseSpMatGetSize(void *, int64_t *, int64_t *, int64_t *);
int ncclCommInitAll(void **, int, void *), ncclCommDestroy(void *);
int ncclAllReduce(void *, void *, size_t, int, int, void *, void *);
size_t cublasLtGetVersion(void), cudnnGetVersion(void);
int cuptiGetResultString(int, const char **);
const char *cusparseGetErrorString(int);

#define CHECK(condition)                             \
  do {                                               \
    if (!(condition)) {                              \
      printf("line %d: " #condition "\n", __LINE__); \
      return 1;                                      \
    }                                                \
  } while (0)

struct answer {
  unsigned long long algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

static int transform(void) {
  long long sizes[] = {129, 480};
  int plan = 0;
  size_t bytes = 7;
  CHECK(cufftCreate(0) == 4 && cufftCreate(&plan) == 0 && plan);
  CHECK(cufftSetAutoAllocation(plan, 0) == 0 && cufftSetAutoAllocation(plan + 1, 0) == 1);
  CHECK(cufftXtMakePlanMany(plan, 2, sizes, 0, 1, 1, 4, 0, 1, 1, 4, 3, &bytes, 4) == 0);
  CHECK(bytes == 1486080 && cufftXtExec(plan) == 0 && cufftXtExec(plan + 1) == 1);
  CHECK(cufftXtMakePlanMany(plan, 2, sizes, 0, 1, 1, 0, 0, 1, 1, 0, 3, &bytes, 4) == 3);
  sizes[1] = 0;
  CHECK(cufftXtMakePlanMany(plan, 2, sizes, 0, 1, 1, 4, 0, 1, 1, 4, 3, &bytes, 4) == 8);
  CHECK(cufftMakePlan1d(plan, 1 << 16, 0x29, 7, &bytes) == 0 && bytes == 7 << 19);
  CHECK(cufftMakePlan1d(plan, 8, 3, 7, &bytes) == 3);
  CHECK(cufftDestroy(plan) == 0 && cufftDestroy(plan) == 1);
  return 0;
}

static int solve(void) {
  void *handle = 0;
  int elements = 7;
  size_t device = 7, host = 7;
  CHECK(cusolverDnCreate(0) == 3 && cusolverDnCreate(&handle) == 0);
  CHECK(cusolverDnSgesvdj_bufferSize(handle, 1, 1, 512, 512, 0, 512, 0, 0, 512, 0, 512, &elements,
                                     0) == 0);
  CHECK(elements == 559648);
  CHECK(cusolverDnSgesvdj_bufferSize(handle, 1, 1, -1, 512, 0, 512, 0, 0, 512, 0, 512, &elements,
                                     0) == 3);
  CHECK(cusolverDnDgesvdaStridedBatched_bufferSize(handle, 1, 1, 4096, 64, 0, 4096, 0, 0, 0, 0,
                                                   4096, 0, 0, 64, 0, &elements, 1) == 0);
  CHECK(elements > 393000 && elements < 394000);
  CHECK(cusolverDnXsyevBatched_bufferSize(handle, 0, 1, 0, 16, 0, 0, 16, 0, 0, 0, &device, &host,
                                          64) == 0);
  CHECK(device > 20100000 && device < 20130000 && host == 0);
  CHECK(cusolverDnXsyevBatched_bufferSize(handle, 0, 1, 0, 16, 9, 0, 16, 0, 0, 0, &device, &host,
                                          64) == 3);
  CHECK(cusolverDnSgetrf(handle) == 0 && cusolverDnSgetrf(0) == 1);
  CHECK(cusolverDnDestroy(handle) == 0 && cusolverDnDestroy(0) == 1);
  return 0;
}

static int sparse(void) {
  void *handle = 0, *a = 0, *b = 0, *c = 0;
  int64_t rows = 7, columns = 7, values = 7;
  size_t bytes = 7;
  CHECK(cusparseCreate(&handle) == 0);
  CHECK(cusparseCreateCsr(&a, 1000, 1000, -1, 0, 0, 0, 2, 2, 0, 0) == 3);
  CHECK(cusparseCreateCsr(&a, 4096, 4096, 99692, 0, 0, 0, 2, 2, 0, 0) == 0);
  CHECK(cusparseCreateDnMat(&b, 4096, 64, 64, 0, 0, 2) == 0);
  CHECK(cusparseSpMM_bufferSize(handle, 0, 0, 0, a, b, 0, b, 0, 4, &bytes) == 0);
  CHECK(bytes == 99692 / 64 + 7 && cusparseSpMM(handle) == 0);
  CHECK(cusparseSpMM_bufferSize(handle, 0, 0, 0, 0, b, 0, b, 0, 4, &bytes) == 1);
  CHECK(cusparseCreateCsr(&c, 4096, 4096, 0, 0, 0, 0, 2, 2, 0, 0) == 0);
  CHECK(cusparseSpGEMM_workEstimation(handle, 0, 0, 0, a, a, 0, c, 0, 0, 0, &bytes, 0) == 0);
  CHECK(bytes > 1190000 && bytes < 1200000);
  CHECK(cusparseSpGEMM_compute(handle, 0, 0, 0, a, a, 0, c, 0, 0, 0, &bytes, handle) == 0);
  CHECK(cusparseSpMatGetSize(c, &rows, &columns, &values) == 0 && rows == 4096 && columns == 4096);
  CHECK(values > 2250000 && values < 2270000);
  CHECK(cusparseDestroySpMat(a) == 0 && cusparseDestroySpMat(c) == 0);
  CHECK(cusparseDestroyDnMat(b) == 0 && cusparseDestroy(handle) == 0);
  return 0;
}

static int communicate(void) {
  void *ranks[2] = {0, 0};
  CHECK(ncclCommInitAll(ranks, 2, 0) == 0 && ranks[0] && ranks[1]);
  CHECK(ncclAllReduce(0, 0, 0, 0, 0, ranks[0], 0) == 0);
  CHECK(ncclAllReduce(0, 0, 0, 0, 0, 0, 0) == 4);
  CHECK(ncclCommDestroy(ranks[0]) == 0 && ncclCommDestroy(ranks[1]) == 0);
  return 0;
}

static int describe(void) {
  void *layout = 0;
  uint64_t columns = 7;
  int32_t count = 7, order = 7;
  size_t written = 7;
  CHECK(cublasLtMatrixLayoutCreate(&layout, 0, 30, 20, 30) == 0);
  CHECK(cublasLtMatrixLayoutGetAttribute(layout, 3, &columns, 8, &written) == 0);
  CHECK(columns == 20 && written == 8);
  CHECK(cublasLtMatrixLayoutGetAttribute(layout, 1, &order, 4, 0) == 0 && order == 0);
  count = 5;
  CHECK(cublasLtMatrixLayoutSetAttribute(layout, 5, &count, 4) == 0);
  CHECK(cublasLtMatrixLayoutGetAttribute(layout, 5, &order, 4, 0) == 0 && order == 5);
  CHECK(cublasLtMatrixLayoutGetAttribute(0, 5, &order, 4, 0) == 1);
  CHECK(cublasLtMatrixLayoutSetAttribute(layout, 5, 0, 4) == 7);
  CHECK(cublasLtMatrixLayoutDestroy(layout) == 0 && cublasLtMatrixLayoutDestroy(0) == 1);
  CHECK(cublasGetVersion_v2(0, &count) == 0 && count >= 130000 && cublasGetStatusString(1));
  return 0;
}

int main(void) {
  void *handle = 0, *description = 0, *stream = 0;
  int mode = 7, count = 0;
  struct answer answers[2];
  CHECK(cublasCreate_v2(0) == 7);
  CHECK(cublasCreate_v2(&handle) == 0 && handle);
  mode = 7;
  CHECK(cublasSgeqrfBatched(handle, 8, 8, 0, 8, 0, &mode, 4) == 0 && mode == 0);
  CHECK(cublasGetPointerMode_v2(handle, &mode) == 0 && mode == 0);
  CHECK(cublasSetPointerMode_v2(handle, 1) == 0);
  CHECK(cublasGetPointerMode_v2(handle, &mode) == 0 && mode == 1);
  CHECK(cublasGetPointerMode_v2(0, &mode) == 1);
  CHECK(cublasSetStream_v2(handle, &mode) == 0);
  CHECK(cublasGetStream_v2(handle, &stream) == 0 && stream == &mode);
  CHECK(cublasSgemm_v2(handle) == 0);
  CHECK(cublasLtGetVersion() >= 120000 && cudnnGetVersion() >= 90000);
  CHECK(cublasLtMatmulDescCreate(&description, 0, 0) == 0 && description);
  memset(answers, 0xff, sizeof answers);
  CHECK(cublasLtMatmulAlgoGetHeuristic(handle, 0, 0, 0, 0, 0, 0, 1, answers, &count) == 0);
  CHECK(count == 1 && answers[0].workspace == 0 && answers[0].state == 0);
  CHECK(answers[1].state == -1);
  CHECK(cublasLtMatmulAlgoGetHeuristic(handle, 0, 0, 0, 0, 0, 0, 0, answers, &count) == 7);
  CHECK(cublasLtMatmul(handle) == 0 && cublasLtMatmulDescDestroy(description) == 0);
  const char *text = 0;
  CHECK(cuptiGetResultString(27, &text) == 0 && text && cusparseGetErrorString(1));
  CHECK(describe() == 0 && transform() == 0 && solve() == 0 && sparse() == 0 && communicate() == 0);
  CHECK(cuFileBufRegister(0, 0, 0) == 5001 && cuFileBufRegister(0, 0, 0) == 5001);
  CHECK(cublasDestroy_v2(handle) == 0 && cublasDestroy_v2(0) == 1);
  puts("the end of the C program");
  return 0;
}
