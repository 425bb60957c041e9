//! The emulated CUDA device as a libcuda.so.1 for unmodified driver-API programs.
