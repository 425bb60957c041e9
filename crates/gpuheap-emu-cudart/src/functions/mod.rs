//! Functions of the runtime that do more than call one function of the driver.
#![allow(non_snake_case, reason = "named as in C")]

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

use gpuheap_driver::LibCuda;

use crate::call::driver;
use crate::context;
use crate::error::Outcome;

/// Returns the driver. If the thread has no current context, first makes the primary context of the
/// thread's device current.
fn entered() -> Outcome<&'static LibCuda> {
    let driver = driver()?;
    context::enter(driver)?;
    Ok(driver)
}
