//! Arguments of CUDA's functions.

use gpuheap_driver::{CUdeviceptr, CUresult, CUstream, abi};

pub(crate) type Out<T> = abi::Out<T, CUresult>;
pub(crate) type In<T> = abi::In<T, CUresult>;
pub(crate) type Text = abi::Text<CUresult>;

/// An argument of a program with a default stream for each thread.
pub(crate) trait PerThread {
    /// Returns the argument as the function for one default stream takes it.
    fn per_thread(self) -> Self;
}

impl PerThread for CUstream {
    fn per_thread(self) -> CUstream {
        if self == CUstream::NULL { CUstream::PER_THREAD } else { self }
    }
}

macro_rules! unchanged {
    ($($type:ty),*) => {$(
        impl PerThread for $type {
            fn per_thread(self) -> Self {
                self
            }
        }
    )*};
}

unchanged!(CUdeviceptr, usize, Out<CUdeviceptr>);
