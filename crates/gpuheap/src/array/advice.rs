//! Advice on unified memory, as the driver is given it.

use std::ffi::c_int;

use gpuheap_driver::{CUdevice, check};

use crate::device::Context;
use crate::error::Error;

/// Advice in the driver's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) advice: c_int,
    pub(super) place: CUdevice,
}

impl Told {
    /// Passes the advice to the driver, for memory of `context`.
    pub(super) fn tell(self, context: &Context, address: u64, bytes: u64) -> Result<(), Error> {
        let _current = context.enter()?;
        let Told { advice, place } = self;
        // SAFETY: the range is of live managed memory, which the caller holds.
        let told = unsafe { context.driver().cuMemAdvise(address, bytes as usize, advice, place) };
        Ok(check("cuMemAdvise", told)?)
    }
}
