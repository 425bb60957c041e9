//! Emulates a CUDA device in host memory, and checks how programs use the device.
//!
//! [`Emulator`] implements [`Driver`](gpuheap_driver::Driver), the table of the CUDA driver API,
//! without a GPU. It counts memory as the real driver does: granules, pools, contexts, free memory.
//! A [`Schedule`] decides when queued work runs, and a [`FaultPlan`] makes calls fail. A
//! [`Finding`] reports misuse: a use after free, a copy out of bounds, a read of bytes never
//! written, a leak, or unordered accesses by two streams.
//!
//! The emulator runs gpuheap's own kernels and no others, and never claims to be a real GPU. The
//! repository's `docs/emulator.md` lists the functions that are modelled and those that are not.
//!
//! ```
//! use gpuheap_driver::{CU_STREAM_NON_BLOCKING, CUcontext, CUresult, CUstream, Driver};
//! use gpuheap_emu::{Emulator, FindingKind, Options, Profile, Schedule};
//!
//! let gpu = Emulator::new(Options {
//!     schedule: Schedule::Seeded(7),
//!     ..Options::with_device(Profile::with_memory(1 << 30))
//! });
//! let (mut context, mut block) = (CUcontext::NULL, 0);
//! let (mut one, mut two) = (CUstream::NULL, CUstream::NULL);
//! // SAFETY: all pointers are valid, and nothing outlives the emulator.
//! let codes = unsafe {
//!     [
//!         gpu.cuInit(0),
//!         gpu.cuDevicePrimaryCtxRetain(&mut context, 0),
//!         gpu.cuCtxSetCurrent(context),
//!         gpu.cuStreamCreate(&mut one, CU_STREAM_NON_BLOCKING),
//!         gpu.cuStreamCreate(&mut two, CU_STREAM_NON_BLOCKING),
//!         gpu.cuMemAlloc_v2(&mut block, 4096),
//!         gpu.cuMemsetD8Async(block, 1, 4096, one),
//!         gpu.cuMemsetD8Async(block, 2, 4096, two), // nothing orders this after the one above
//!     ]
//! };
//! assert_eq!(codes, [CUresult::SUCCESS; 8]);
//! assert_eq!(gpu.findings().unwrap()[0].kind, FindingKind::Unordered);
//! assert_eq!(gpu.usage(0).plain, 2 << 20);
//! ```
//!
//! Internally, `dispatch` calls the method of the same name in `api` for each driver function. The
//! module `state` owns all data, `engine` runs queued work, and `check` looks for misuse in each
//! call.

mod account;
mod api;
mod check;
mod dispatch;
mod emulator;
mod engine;
mod fault;
mod finding;
mod handles;
mod kernels;
mod messages;
mod options;
mod profile;
mod state;
mod visible;

pub use account::{Account, Entry};
pub use emulator::{
    CopyToHost, Emulator, Request, put_request, take_copy_to_host, take_request,
    with_per_thread_default_stream,
};
pub use fault::{Fault, FaultPlan};
pub use finding::{ChecksOff, Finding, FindingKind};
pub use messages::Messages;
pub use options::{Kernels, Options, Schedule};
pub use profile::Profile;
pub use state::calls::Counts;
pub use state::device::Usage;

/// Outcome of a call: a value, or the code that the call returns.
pub(crate) type Outcome<T = ()> = Result<T, gpuheap_driver::CUresult>;

/// Code for an argument that is out of its range.
pub(crate) const INVALID_VALUE: gpuheap_driver::CUresult =
    gpuheap_driver::CUresult::ERROR_INVALID_VALUE;

/// Fails with `code` if the condition is true.
pub(crate) fn fail_if(condition: bool, code: gpuheap_driver::CUresult) -> Outcome {
    if condition { Err(code) } else { Ok(()) }
}

// Pointer arguments of a driver call: results and inputs. `dispatch` converts each C pointer to one
// of these types under the contract of `Driver`. The rest of the emulator then uses them in safe
// code.
pub(crate) type Out<T> = gpuheap_driver::abi::Out<T, gpuheap_driver::CUresult>;
pub(crate) type In<T> = gpuheap_driver::abi::In<T, gpuheap_driver::CUresult>;
