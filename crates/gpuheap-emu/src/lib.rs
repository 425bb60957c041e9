//! An emulated CUDA device over host memory: capacity, time, faults, checks.
