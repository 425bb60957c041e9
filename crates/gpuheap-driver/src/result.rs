//! `CUresult`, the code that a driver function returns.

use std::fmt;

macro_rules! results {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl CUresult {
            $(#[doc = concat!($text, ".")] pub const $name: CUresult = CUresult($code);)*

            /// Returns the name that `cuda.h` gives the code; `None` for a code newer than this
            /// table.
            pub fn name(self) -> Option<&'static str> {
                match self { $(Self::$name => Some(concat!("CUDA_", stringify!($name))),)* _ => None }
            }

            /// Returns the meaning of the code; `None` for a code newer than this table.
            pub fn text(self) -> Option<&'static str> {
                match self { $(Self::$name => Some($text),)* _ => None }
            }
        }
    };
}

/// Code that a driver function returns. Any integer is valid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
#[must_use]
pub struct CUresult(pub i32);

impl CUresult {
    /// Code for a symbol that the loaded library lacks. It is not CUDA's own:
    /// [`LibCuda`](crate::LibCuda) returns it instead of a call that cannot be made.
    pub const MISSING_SYMBOL: CUresult = CUresult(-1);

    /// Returns whether the call succeeded.
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }
}

impl fmt::Debug for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}

results! {
    SUCCESS = 0, "no error";
    ERROR_INVALID_VALUE = 1, "an argument is out of its range";
    ERROR_OUT_OF_MEMORY = 2, "out of memory";
    ERROR_NOT_INITIALIZED = 3, "cuInit has not been called";
    ERROR_DEINITIALIZED = 4, "the driver is shutting down";
    ERROR_STUB_LIBRARY = 34, "the loaded library is a stub for linking, not a driver";
    ERROR_DEVICE_UNAVAILABLE = 46, "the device is busy or its compute mode forbids another context";
    ERROR_NO_DEVICE = 100, "no CUDA device";
    ERROR_INVALID_DEVICE = 101, "no such device";
    ERROR_INVALID_IMAGE = 200, "not a valid kernel image";
    ERROR_INVALID_CONTEXT = 201, "no context is current, or it is not valid any more";
    ERROR_MAP_FAILED = 205, "mapping failed";
    ERROR_UNMAP_FAILED = 206, "unmapping failed";
    ERROR_ALREADY_MAPPED = 208, "already mapped";
    ERROR_NO_BINARY_FOR_GPU = 209, "no kernel image fits this device";
    ERROR_NOT_MAPPED = 211, "not mapped";
    ERROR_UNSUPPORTED_LIMIT = 215, "the device does not support this limit";
    ERROR_CONTEXT_ALREADY_IN_USE = 216, "the context is in use";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access between the two devices is not supported";
    ERROR_INVALID_PTX = 218, "the PTX does not compile";
    ERROR_INVALID_SOURCE = 300, "not a valid kernel source";
    ERROR_FILE_NOT_FOUND = 301, "file not found";
    ERROR_OPERATING_SYSTEM = 304, "a call of the operating system failed";
    ERROR_INVALID_HANDLE = 400, "not a valid handle";
    ERROR_ILLEGAL_STATE = 401, "the resource is not in a state for this call";
    ERROR_NOT_FOUND = 500, "not found";
    ERROR_NOT_READY = 600, "work is still running";
    ERROR_ILLEGAL_ADDRESS = 700, "an access to an address that is not mapped; the context is lost";
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "the launch needs more resources than there are";
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access is not enabled";
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708, "the primary context is already active";
    ERROR_CONTEXT_IS_DESTROYED = 709, "the context is destroyed";
    ERROR_ASSERT = 710, "an assertion in a kernel failed; the context is lost";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "the host memory is already registered";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "the host memory is not registered";
    ERROR_MISALIGNED_ADDRESS = 716, "an access to an address that is no multiple of its size; the context is lost";
    ERROR_LAUNCH_FAILED = 719, "a kernel failed; the context is lost";
    ERROR_NOT_PERMITTED = 800, "not permitted";
    ERROR_NOT_SUPPORTED = 801, "not supported on this device or system";
    ERROR_SYSTEM_NOT_READY = 802, "the system is not ready to run CUDA";
    ERROR_SYSTEM_DRIVER_MISMATCH = 803, "the library and the kernel driver differ in version";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "not permitted while a stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "an earlier error ended the capture";
    ERROR_STREAM_CAPTURE_MERGE = 902, "two captures cannot become one";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "the capture did not begin on this stream";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, "the capture has work of another stream that its own does not wait for";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, "a capture cannot wait for what is outside of it, nor be waited for";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "the default stream would wait for a stream that is capturing";
    ERROR_CAPTURED_EVENT = 907, "the event was last recorded while a stream was capturing, and marks no work";
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "the capture began on another thread";
    ERROR_TIMEOUT = 909, "timed out";
    ERROR_EXTERNAL_DEVICE = 911, "an error on another device";
    ERROR_UNKNOWN = 999, "unknown error";
}

#[cfg(test)]
mod tests {
    use super::CUresult;

    #[test]
    fn a_code_from_a_newer_driver_is_only_a_number() {
        let unknown = CUresult(123_456);
        assert_eq!(unknown.name(), None);
        assert_eq!(format!("{unknown:?}"), "CUDA error 123456");
        assert_eq!(format!("{:?}", CUresult::ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY (2)");
    }
}
