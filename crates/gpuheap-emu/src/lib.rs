//! An emulated CUDA device over host memory: capacity, time, faults, checks.
//!
//! [`Emulator`] implements [`Driver`](gpuheap_driver::Driver), the table of the CUDA driver API,
//! without a GPU. It keeps the real driver's books (granules, pools, contexts, free memory), runs
//! streams later under a [`Schedule`], fails by a [`FaultPlan`], and finds misuse: [`Finding`]s
//! tell of use after free, copies out of bounds, bytes never written, leaks, and accesses of two
//! streams that nothing orders. It runs gpuheap's own kernels and no others, and never claims to be
//! a real GPU; what is modelled and what is not stands in `docs/emulator.md` of the repository.
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
//! Inside: `dispatch` leads the table to methods of the same names in `api`; `state` is what the
//! driver knows; `engine` does queued work; `check` judges each call.

mod api;
mod args;
mod check;
mod dispatch;
mod emulator;
mod engine;
mod fault;
mod finding;
mod handles;
mod kernels;
mod options;
mod profile;
mod state;

pub use emulator::{Emulator, with_per_thread_default_stream};
pub use fault::{Fault, FaultPlan};
pub use finding::{ChecksOff, Finding, FindingKind};
pub use options::{Options, Schedule};
pub use profile::Profile;
pub use state::device::Usage;

/// Outcome of a call: nothing more to say, or a code.
pub(crate) type Outcome<T = ()> = Result<T, gpuheap_driver::CUresult>;
