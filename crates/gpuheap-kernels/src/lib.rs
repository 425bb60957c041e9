//! Kernels of gpuheap. Each has a name, PTX for a GPU, and Rust code for the emulated device.
//!
//! A function such as [`arithmetic`] plans an operation on arrays: it returns [`Launch`]es, in the
//! order in which they must be queued on one stream. The caller loads [`Kernel::ptx`] with
//! `cuModuleLoadData`, once for each kernel and context. An emulated device identifies the kernel
//! by the entry name in the PTX ([`Kernel::parse`]) and runs [`Kernel::run`]. The emulated result
//! equals the GPU's result to the last bit, with two exceptions: the bits of a NaN may differ, and
//! sums of floats by key are added in any order.
//!
//! Addresses are device addresses, and every element's address is a multiple of its size. Nothing
//! is checked here. An operation without elements has no launches. Every kernel is launched with
//! [`BLOCK`] threads in each block.
//!
//! ```
//! use gpuheap_kernels::{Arithmetic, Kernel, Operand, Type, arithmetic};
//!
//! let (out, left) = (0x7000_0000, 0x7100_0000);
//! let array = Operand::Array { address: left, strides: &[4, 1] };
//! let two = Operand::Scalar(u64::from(2.0_f32.to_bits()));
//! let launches = arithmetic(Arithmetic::Multiply, Type::F32, &[3, 4], out, array, two);
//! let [launch] = launches[..] else { panic!("one suffices") };
//! assert_eq!(launch.kernel.name(), "gpuheap_flat_multiply_f32_array_scalar");
//! assert_eq!(Kernel::parse(&launch.kernel.name()), Some(launch.kernel));
//! ```
#![forbid(unsafe_code)]

mod access;
mod axes;
mod kernel;
mod launch;
mod plan;
mod ptx;
mod run;
mod threads;
mod types;

pub use access::{Access, Region};
pub use kernel::Kernel;
pub use launch::{Launch, Words};
pub use plan::{
    ByKey, Operand, arithmetic, cast, comparison, copy, group, partials, reduce, take, unary,
};
pub use run::Memory;
pub use threads::BLOCK;
pub use types::{Arithmetic, Comparison, Fold, Reduction, Type, Unary};
