//! `CUresult`, the code that a driver function returns.

use std::fmt;

macro_rules! results {
    ($($name:ident = $code:literal, $text:literal $(, $driver_text:literal)?;)*) => {
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

            /// Returns the text for `cuGetErrorString`; `None` for a code newer than this table.
            /// The codes whose text programs compare have NVIDIA's wording, the others
            /// [`text`](Self::text).
            pub fn driver_text(self) -> Option<&'static str> {
                match self {
                    $($(Self::$name => Some($driver_text),)?)*
                    _ => self.text(),
                }
            }

            /// All codes of the table, in its order.
            pub const ALL: &[CUresult] = &[$(Self::$name),*];
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
    ERROR_INVALID_VALUE = 1, "an argument is out of its range", "invalid argument";
    ERROR_OUT_OF_MEMORY = 2, "out of memory";
    ERROR_NOT_INITIALIZED = 3, "cuInit has not been called", "initialization error";
    ERROR_DEINITIALIZED = 4, "the driver is shutting down", "driver shutting down";
    ERROR_PROFILER_DISABLED = 5, "the profiler is off for this run";
    ERROR_PROFILER_NOT_INITIALIZED = 6, "the profiler is not initialised (no longer returned)";
    ERROR_PROFILER_ALREADY_STARTED = 7, "the profiler has already started (no longer returned)";
    ERROR_PROFILER_ALREADY_STOPPED = 8, "the profiler has already stopped (no longer returned)";
    ERROR_STUB_LIBRARY = 34, "the loaded library is a stub for linking, not a driver";
    ERROR_CALL_REQUIRES_NEWER_DRIVER = 36, "the call needs a newer driver";
    ERROR_DEVICE_UNAVAILABLE = 46, "the device is busy or its compute mode forbids another context";
    ERROR_NO_DEVICE = 100, "no CUDA device", "no CUDA-capable device is detected";
    ERROR_INVALID_DEVICE = 101, "no such device", "invalid device ordinal";
    ERROR_DEVICE_NOT_LICENSED = 102, "the device has no Grid licence";
    ERROR_INVALID_IMAGE = 200, "not a valid kernel image", "device kernel image is invalid";
    ERROR_INVALID_CONTEXT = 201, "no context is current, or it is not valid any more", "invalid device context";
    ERROR_CONTEXT_ALREADY_CURRENT = 202, "the context is already current (no longer returned)";
    ERROR_MAP_FAILED = 205, "mapping failed";
    ERROR_UNMAP_FAILED = 206, "unmapping failed";
    ERROR_ARRAY_IS_MAPPED = 207, "the array is mapped and cannot be destroyed";
    ERROR_ALREADY_MAPPED = 208, "already mapped";
    ERROR_NO_BINARY_FOR_GPU = 209, "no kernel image fits this device", "no kernel image is available for execution on the device";
    ERROR_ALREADY_ACQUIRED = 210, "the resource is already acquired";
    ERROR_NOT_MAPPED = 211, "not mapped";
    ERROR_NOT_MAPPED_AS_ARRAY = 212, "the resource is not mapped as an array";
    ERROR_NOT_MAPPED_AS_POINTER = 213, "the resource is not mapped as a pointer";
    ERROR_ECC_UNCORRECTABLE = 214, "an ECC error that cannot be corrected";
    ERROR_UNSUPPORTED_LIMIT = 215, "the device does not support this limit";
    ERROR_CONTEXT_ALREADY_IN_USE = 216, "the context is in use";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access between the two devices is not supported";
    ERROR_INVALID_PTX = 218, "the PTX does not compile", "a PTX JIT compilation failed";
    ERROR_INVALID_GRAPHICS_CONTEXT = 219, "not a valid graphics context";
    ERROR_NVLINK_UNCORRECTABLE = 220, "an NVLink error that cannot be corrected";
    ERROR_JIT_COMPILER_NOT_FOUND = 221, "the compiler for PTX is not found";
    ERROR_UNSUPPORTED_PTX_VERSION = 222, "the PTX is of a newer toolchain than the driver";
    ERROR_JIT_COMPILATION_DISABLED = 223, "the compilation of PTX is switched off";
    ERROR_UNSUPPORTED_EXEC_AFFINITY = 224, "the device does not support this execution affinity";
    ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225, "the PTX calls cudaDeviceSynchronize, which device code may not call";
    ERROR_CONTAINED = 226, "an error on the device that the device contained";
    ERROR_INVALID_SOURCE = 300, "not a valid kernel source";
    ERROR_FILE_NOT_FOUND = 301, "file not found";
    ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "a symbol of a shared object is not found";
    ERROR_SHARED_OBJECT_INIT_FAILED = 303, "a shared object did not initialise";
    ERROR_OPERATING_SYSTEM = 304, "a call of the operating system failed";
    ERROR_INVALID_HANDLE = 400, "not a valid handle", "invalid resource handle";
    ERROR_ILLEGAL_STATE = 401, "the resource is not in a state for this call";
    ERROR_LOSSY_QUERY = 402, "the query would leave out part of the object";
    ERROR_NOT_FOUND = 500, "not found", "named symbol not found";
    ERROR_NOT_READY = 600, "work is still running", "device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, "an access to an address that is not mapped; the context is lost", "an illegal memory access was encountered";
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "the launch needs more resources than there are", "too many resources requested for launch";
    ERROR_LAUNCH_TIMEOUT = 702, "a kernel ran longer than the device allows; the context is lost", "the launch timed out and was terminated";
    ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703, "the launch uses textures in a mode that does not fit";
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access is not enabled";
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708, "the primary context is already active";
    ERROR_CONTEXT_IS_DESTROYED = 709, "the context is destroyed", "context is destroyed";
    ERROR_ASSERT = 710, "an assertion in a kernel failed; the context is lost", "device-side assert triggered";
    ERROR_TOO_MANY_PEERS = 711, "the device has no room for another peer";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "the host memory is already registered";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "the host memory is not registered";
    ERROR_HARDWARE_STACK_ERROR = 714, "an error in the call stack of a kernel; the context is lost";
    ERROR_ILLEGAL_INSTRUCTION = 715, "an illegal instruction in a kernel; the context is lost";
    ERROR_MISALIGNED_ADDRESS = 716, "an access to an address that is no multiple of its size; the context is lost", "misaligned address";
    ERROR_INVALID_ADDRESS_SPACE = 717, "an instruction met an address of the wrong space; the context is lost";
    ERROR_INVALID_PC = 718, "the program counter of a kernel left its range; the context is lost";
    ERROR_LAUNCH_FAILED = 719, "a kernel failed; the context is lost", "unspecified launch failure";
    ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720, "the cooperative launch has more blocks than can run at once";
    ERROR_TENSOR_MEMORY_LEAK = 721, "a kernel ended with tensor memory allocated; the context is lost";
    ERROR_NOT_PERMITTED = 800, "not permitted", "operation not permitted";
    ERROR_NOT_SUPPORTED = 801, "not supported on this device or system", "operation not supported";
    ERROR_SYSTEM_NOT_READY = 802, "the system is not ready to run CUDA";
    ERROR_SYSTEM_DRIVER_MISMATCH = 803, "the library and the kernel driver differ in version";
    ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "the device does not support forward compatibility";
    ERROR_MPS_CONNECTION_FAILED = 805, "no connection to the MPS server";
    ERROR_MPS_RPC_FAILURE = 806, "a remote call between MPS client and server failed";
    ERROR_MPS_SERVER_NOT_READY = 807, "the MPS server does not accept requests yet";
    ERROR_MPS_MAX_CLIENTS_REACHED = 808, "the MPS server has no room for another client";
    ERROR_MPS_MAX_CONNECTIONS_REACHED = 809, "the MPS server has no room for another connection";
    ERROR_MPS_CLIENT_TERMINATED = 810, "the MPS server ended this client";
    ERROR_CDP_NOT_SUPPORTED = 811, "kernels cannot launch kernels here";
    ERROR_CDP_VERSION_MISMATCH = 812, "the module mixes versions of dynamic parallelism";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "not permitted while a stream is capturing", "operation not permitted when stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "an earlier error ended the capture", "operation failed due to a previous error during capture";
    ERROR_STREAM_CAPTURE_MERGE = 902, "two captures cannot become one";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "the capture did not begin on this stream";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, "the capture has work of another stream that its own does not wait for";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, "a capture cannot wait for what is outside of it, nor be waited for";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "the default stream would wait for a stream that is capturing";
    ERROR_CAPTURED_EVENT = 907, "the event was last recorded while a stream was capturing, and marks no work";
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "the capture began on another thread";
    ERROR_TIMEOUT = 909, "timed out";
    ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910, "the executable graph cannot take this update";
    ERROR_EXTERNAL_DEVICE = 911, "an error on another device";
    ERROR_INVALID_CLUSTER_SIZE = 912, "the clusters of the launch are not valid";
    ERROR_FUNCTION_NOT_LOADED = 913, "the function is not loaded";
    ERROR_INVALID_RESOURCE_TYPE = 914, "a resource of the wrong type";
    ERROR_INVALID_RESOURCE_CONFIGURATION = 915, "a resource does not suffice or does not apply";
    ERROR_KEY_ROTATION = 916, "the rotation of keys failed";
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

    /// `cuda.h` of CUDA 13.0 has 101 codes.
    #[test]
    fn table_has_every_code_of_cuda_h() {
        let codes: std::collections::BTreeSet<_> = CUresult::ALL.iter().collect();
        assert_eq!((CUresult::ALL.len(), codes.len()), (101, 101));
    }

    #[test]
    fn driver_text_is_nvidias_where_programs_compare_it() {
        let texts = [
            (CUresult::SUCCESS, "no error"),
            (CUresult::ERROR_INVALID_VALUE, "invalid argument"),
            (CUresult::ERROR_OUT_OF_MEMORY, "out of memory"),
            (CUresult::ERROR_INVALID_DEVICE, "invalid device ordinal"),
            (CUresult::ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
        ];
        for (code, text) in texts {
            assert_eq!(code.driver_text(), Some(text));
        }
    }
}
