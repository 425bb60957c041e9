//! The CUDA driver API as one table of functions, and the real libcuda found at run time.
//!
//! * [`cuda_functions!`] is the table. A row has a function's base name and signature, the version
//!   of CUDA that added this variant of the ABI, and the exported symbol. The [`Driver`] trait, the
//!   loader [`LibCuda`] and the emulator's exports (in other crates) are generated from the table.
//! * [`Driver`] has one method for each symbol, under the name that CUDA gives it. [`LibCuda`]
//!   implements the trait with the machine's driver; `gpuheap-emu` implements it with host memory.
//! * [`CUresult`] is an integer, so that a code from a newer driver is an unknown number and not
//!   undefined behaviour. [`check`] converts a failed call's code to a [`DriverError`] that names
//!   the function.
//! * [`abi`] has types for the arguments of C functions that the workspace exports. [`export!`]
//!   exports such functions.
//! * [`torch`] is the function by which PyTorch reports its blocks.
//!
//! No CUDA toolkit is needed to build or to run. Drivers 12.x and 13.x are supported.
//!
//! ```
//! match gpuheap_driver::LibCuda::open() {
//!     Ok(driver) => println!("{}", gpuheap_driver::Driver::describe(&driver)),
//!     Err(error) => println!("{error}"), // what is missing, where it was searched, what to do
//! }
//! ```

pub mod abi;
mod blocks;
pub mod checkpoint;
mod driver;
mod emulated;
mod error;
pub mod fork;
mod libcuda;
pub mod nvtx;
pub mod probe;
mod requests;
mod result;
mod table;
pub mod torch;
mod types;

pub use blocks::{BlockChecks, BlockEvent, BlockNote, EMULATED_BLOCK, EmulatedBlock};
pub use driver::Driver;
pub use emulated::{EMULATED_DEVICES, EmulatedDevice, EmulatedDevices};
pub use error::{DriverError, check};
pub use libcuda::{LibCuda, OpenError, SEARCH_PATHS};
pub use requests::{EMULATED_REQUEST, EmulatedRequest, RequestReports};
pub use result::CUresult;
pub use table::{FUNCTIONS, Function, Lookup, function, lookup};
pub use types::*;

/// Limits of WSL2 that no driver call reports.
pub mod wsl2 {
    /// Percentage of a device's free memory that programs under WSL2 can count on. Windows decides
    /// how much memory stays on the device. It refuses some requests that are smaller than the free
    /// memory that the driver reports.
    ///
    /// The value is from one report: an LLM server failed with "device not ready" at 88 % of two
    /// devices, and ran at 80 % (microsoft/WSL issue 41176, July 2026). This project has not
    /// measured it.
    pub const USABLE_PERCENT: u64 = 80;

    /// Returns the part of `free` bytes that programs under WSL2 can count on.
    pub const fn usable(free: u64) -> u64 {
        free / 100 * USABLE_PERCENT
    }
}
