//! Kernels that the emulated device runs: gpuheap's own with the feature `kernels`, else none.

#[cfg(not(feature = "kernels"))]
mod none;

#[cfg(feature = "kernels")]
pub(crate) use gpuheap_kernels::{Access, BLOCK, Kernel, Memory, Region};
#[cfg(not(feature = "kernels"))]
pub(crate) use none::{Access, BLOCK, Kernel, Memory, Region};
