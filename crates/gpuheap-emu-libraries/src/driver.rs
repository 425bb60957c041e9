//! The process's driver, which the stand-ins call as the vendor's libraries do.

use std::sync::OnceLock;

use gpuheap_driver::LibCuda;

/// Returns the driver; `None` if there is no driver.
pub(crate) fn driver() -> Option<&'static LibCuda> {
    static DRIVER: OnceLock<Option<LibCuda>> = OnceLock::new();
    DRIVER.get_or_init(|| LibCuda::open().ok()).as_ref()
}
