//! Version of the library.

use std::ffi::{CStr, c_char};

/// Major part of the header's version, MAJOR.MINOR.PATCH.
pub const GPUHEAP_VERSION_MAJOR: u32 = 0;
/// Minor part of the header's version, MAJOR.MINOR.PATCH.
pub const GPUHEAP_VERSION_MINOR: u32 = 1;
/// Patch part of the header's version, MAJOR.MINOR.PATCH.
pub const GPUHEAP_VERSION_PATCH: u32 = 0;

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a version has no null"),
    };

/// Returns the version of the loaded library, such as "0.1.0". The pointer is never null. Do not
/// free it.
#[unsafe(no_mangle)]
pub extern "C" fn gpuheap_version() -> *const c_char {
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constants repeat the package's version, because cbindgen cannot evaluate `env!`.
    #[test]
    fn version_numbers_equal_the_packages() {
        let numbers = [GPUHEAP_VERSION_MAJOR, GPUHEAP_VERSION_MINOR, GPUHEAP_VERSION_PATCH];
        assert_eq!(numbers.map(|number| number.to_string()).join("."), env!("CARGO_PKG_VERSION"));
    }
}
