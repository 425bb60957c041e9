find_package(gpuheap 0.9 REQUIRED)
