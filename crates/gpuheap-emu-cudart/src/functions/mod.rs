//! Functions of the runtime that are more than a function of the driver.
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

/// Returns the driver, with the primary context of the thread's device current unless another one
/// is.
fn entered() -> Outcome<&'static LibCuda> {
    let driver = driver()?;
    context::enter(driver)?;
    Ok(driver)
}
