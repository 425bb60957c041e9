/* A runtime of one function. The loader unmaps it when a program closes it. */
int cudaFree(void *memory);

int cudaFree(void *memory) { return memory != 0 ? 17 : 0; }
