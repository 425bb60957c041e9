/* A runtime of one function, which the loader unmaps when a program closes it. */
int cudaFree(void *memory);

int cudaFree(void *memory) { return memory != 0 ? 17 : 0; }
