//! The CUDA driver API as one table of functions, found at run time.
