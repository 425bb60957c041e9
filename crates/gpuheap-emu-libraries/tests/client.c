/* Multiplies with cuBLAS and cuBLASLt, and calls cuFFT, which refuses. */
#include <stdio.h>
#include <string.h>

int cublasCreate_v2(void **), cublasDestroy_v2(void *), cublasSgemm_v2(void *);
int cublasSgeqrfBatched(void *, int, int, void *, int, void *, int *, int);
int cublasSetPointerMode_v2(void *, int), cublasGetPointerMode_v2(void *, int *);
int cublasSetStream_v2(void *, void *), cublasGetStream_v2(void *, void **);
int cublasLtMatmulDescCreate(void **, int, int), cublasLtMatmulDescDestroy(void *);
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int,
                                   void *, int *);
int cublasLtMatmul(void *), cufftCreate(int *);
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

int main(void) {
  void *handle = 0, *description = 0, *stream = 0;
  int mode = 7, count = 0, plan;
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
  CHECK(cufftCreate(&plan) == 16 && cufftCreate(&plan) == 16);
  CHECK(cublasDestroy_v2(handle) == 0 && cublasDestroy_v2(0) == 1);
  puts("the end of the C program");
  return 0;
}
