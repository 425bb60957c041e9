//! Functions of the runtime that are more than a function of the driver.
//!
//! Each is called with the arguments of the C function of its name, and its safety contract is that
//! function's.
#![allow(non_snake_case, clippy::missing_safety_doc)]

mod copies;
mod devices;
mod kernels;
mod memory;
mod properties;
mod system;

pub(crate) use copies::*;
pub(crate) use devices::*;
pub(crate) use kernels::*;
pub(crate) use memory::*;
pub(crate) use properties::*;
pub(crate) use system::*;

use gpuheap_driver::{CUresult, LibCuda};

use crate::call::driver;
use crate::context;
use crate::error::Outcome;

/// Returns the driver, with the primary context of the thread's device current unless another one
/// is.
fn entered() -> Outcome<&'static LibCuda> {
    let driver = driver()?;
    context::enter(driver)?;
    Ok(driver)
}

/// Writes a result. A null pointer gives `INVALID_VALUE`.
///
/// # Safety
///
/// `to` is null or valid for a write.
unsafe fn write<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so valid for a write.
    unsafe { to.write(value) };
    Ok(())
}
