//! Arguments of CUDA's functions.

use gpuheap_driver::{CUresult, abi};

pub(crate) type Out<T> = abi::Out<T, CUresult>;
pub(crate) type In<T> = abi::In<T, CUresult>;
pub(crate) type Text = abi::Text<CUresult>;
