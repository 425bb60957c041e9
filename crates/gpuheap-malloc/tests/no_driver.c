/* Allocates twice, on two threads. The argument selects how the program ends. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaMalloc(void **, size_t), cudaFree(void *), cudaGetLastError(void);

static void *allocate(void *code) {
  void *memory;
  *(int *)code = cudaMalloc(&memory, 1000);
  return code;
}

int main(int count, char **arguments) {
  int here, there;
  pthread_t other;
  allocate(&here);
  pthread_create(&other, NULL, allocate, &there);
  pthread_join(other, NULL);
  printf("%d %d, last %d\n", here, there, cudaGetLastError());
  fflush(stdout);
  if (count == 2 && strcmp(arguments[1], "aborts") == 0) abort();
  return 0;
}
