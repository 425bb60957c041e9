//! Failures of the driver, as the pools say them and as the driver did.

use gpuheap_driver::{CUresult, DriverError};
use gpuheap_pool::{DriverFailure, SourceError};

/// The failure of a driver call as a source says it.
pub(crate) fn failure(error: DriverError) -> SourceError {
    if error.is_out_of_memory() {
        return SourceError::OutOfMemory;
    }
    SourceError::Driver(DriverFailure { function: error.function(), code: error.code().0 })
}

/// The failure of a driver call as the driver said it.
pub(crate) fn driver_error(failure: DriverFailure) -> DriverError {
    DriverError::new(failure.function, CUresult(failure.code))
}
