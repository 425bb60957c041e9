/* A runtime with one function. The loader unmaps the library when a program closes it. */
int cudaFree(void *memory);

int cudaFree(void *memory) { return memory != 0 ? 17 : 0; }
