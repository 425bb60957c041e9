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
            /// The wording equals driver 580's (CUDA 13.0), because programs compare these texts.
            pub fn driver_text(self) -> Option<&'static str> {
                match self {
                    $($(Self::$name => Some($driver_text),)?)*
                    _ => self.text(),
                }
            }

            /// All codes, in the order of the table.
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
    /// Code for a symbol that the loaded library lacks. CUDA has no such code.
    /// [`LibCuda`](crate::LibCuda) returns this code if the called function does not exist.
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
    ERROR_PROFILER_DISABLED = 5, "the profiler is off for this run",
        "profiler disabled while using external profiling tool";
    ERROR_PROFILER_NOT_INITIALIZED = 6, "the profiler is not initialised (no longer returned)",
        "profiler not initialized: call cudaProfilerInitialize()";
    ERROR_PROFILER_ALREADY_STARTED = 7, "the profiler has already started (no longer returned)",
        "profiler already started";
    ERROR_PROFILER_ALREADY_STOPPED = 8, "the profiler has already stopped (no longer returned)",
        "profiler already stopped";
    ERROR_STUB_LIBRARY = 34, "the loaded library is a stub for linking, not a driver",
        "CUDA driver is a stub library";
    ERROR_CALL_REQUIRES_NEWER_DRIVER = 36, "the call needs a newer driver",
        "API call is not supported in the installed CUDA driver";
    ERROR_DEVICE_UNAVAILABLE = 46, "the device is busy or its compute mode forbids another context",
        "CUDA-capable device(s) is/are busy or unavailable";
    ERROR_NO_DEVICE = 100, "no CUDA device", "no CUDA-capable device is detected";
    ERROR_INVALID_DEVICE = 101, "no such device", "invalid device ordinal";
    ERROR_DEVICE_NOT_LICENSED = 102, "the device has no Grid licence",
        "device doesn't have valid Grid license";
    ERROR_INVALID_IMAGE = 200, "not a valid kernel image", "device kernel image is invalid";
    ERROR_INVALID_CONTEXT = 201, "no context is current, or it is not valid any more",
        "invalid device context";
    ERROR_CONTEXT_ALREADY_CURRENT = 202, "the context is already current (no longer returned)",
        "context already current";
    ERROR_MAP_FAILED = 205, "mapping failed", "mapping of buffer object failed";
    ERROR_UNMAP_FAILED = 206, "unmapping failed", "unmapping of buffer object failed";
    ERROR_ARRAY_IS_MAPPED = 207, "the array is mapped and cannot be destroyed", "array is mapped";
    ERROR_ALREADY_MAPPED = 208, "already mapped", "resource already mapped";
    ERROR_NO_BINARY_FOR_GPU = 209, "no kernel image fits this device",
        "no kernel image is available for execution on the device";
    ERROR_ALREADY_ACQUIRED = 210, "the resource is already acquired", "resource already acquired";
    ERROR_NOT_MAPPED = 211, "not mapped", "resource not mapped";
    ERROR_NOT_MAPPED_AS_ARRAY = 212, "the resource is not mapped as an array",
        "resource not mapped as array";
    ERROR_NOT_MAPPED_AS_POINTER = 213, "the resource is not mapped as a pointer",
        "resource not mapped as pointer";
    ERROR_ECC_UNCORRECTABLE = 214, "an ECC error that cannot be corrected",
        "uncorrectable ECC error encountered";
    ERROR_UNSUPPORTED_LIMIT = 215, "the device does not support this limit",
        "limit is not supported on this architecture";
    ERROR_CONTEXT_ALREADY_IN_USE = 216, "the context is in use",
        "exclusive-thread device already in use by a different thread";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access between the two devices is not supported",
        "peer access is not supported between these two devices";
    ERROR_INVALID_PTX = 218, "the PTX does not compile", "a PTX JIT compilation failed";
    ERROR_INVALID_GRAPHICS_CONTEXT = 219, "not a valid graphics context",
        "invalid OpenGL or DirectX context";
    ERROR_NVLINK_UNCORRECTABLE = 220, "an NVLink error that cannot be corrected",
        "uncorrectable NVLink error detected during the execution";
    ERROR_JIT_COMPILER_NOT_FOUND = 221, "the compiler for PTX is not found",
        "PTX JIT compiler library not found";
    ERROR_UNSUPPORTED_PTX_VERSION = 222, "the PTX is of a newer toolchain than the driver",
        "the provided PTX was compiled with an unsupported toolchain.";
    ERROR_JIT_COMPILATION_DISABLED = 223, "the compilation of PTX is switched off",
        "PTX JIT compilation was disabled";
    ERROR_UNSUPPORTED_EXEC_AFFINITY = 224, "the device does not support this execution affinity",
        "the provided execution affinity is not supported";
    ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225, "the PTX calls cudaDeviceSynchronize, which device code may not call",
        "the provided PTX contains unsupported call to cudaDeviceSynchronize";
    ERROR_CONTAINED = 226, "an error on the device that the device contained",
        "Invalid access of peer GPU memory over nvlink or a hardware error";
    ERROR_INVALID_SOURCE = 300, "not a valid kernel source", "device kernel image is invalid";
    ERROR_FILE_NOT_FOUND = 301, "file not found";
    ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "a symbol of a shared object is not found",
        "shared object symbol not found";
    ERROR_SHARED_OBJECT_INIT_FAILED = 303, "a shared object did not initialise",
        "shared object initialization failed";
    ERROR_OPERATING_SYSTEM = 304, "a call of the operating system failed",
        "OS call failed or operation not supported on this OS";
    ERROR_INVALID_HANDLE = 400, "not a valid handle", "invalid resource handle";
    ERROR_ILLEGAL_STATE = 401, "the resource is not in a state for this call",
        "the operation cannot be performed in the present state";
    ERROR_LOSSY_QUERY = 402, "the query would leave out part of the object",
        "attempted introspection would be semantically lossy";
    ERROR_NOT_FOUND = 500, "not found", "named symbol not found";
    ERROR_NOT_READY = 600, "work is still running", "device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, "an access to an address that is not mapped; the context is lost",
        "an illegal memory access was encountered";
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "the launch needs more resources than there are",
        "too many resources requested for launch";
    ERROR_LAUNCH_TIMEOUT = 702, "a kernel ran longer than the device allows; the context is lost",
        "the launch timed out and was terminated";
    ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703, "the launch uses textures in a mode that does not fit",
        "launch uses incompatible texturing mode";
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access is not enabled",
        "peer access has not been enabled";
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708, "the primary context is already active",
        "cannot set while device is active in this process";
    ERROR_CONTEXT_IS_DESTROYED = 709, "the context is destroyed", "context is destroyed";
    ERROR_ASSERT = 710, "an assertion in a kernel failed; the context is lost",
        "device-side assert triggered";
    ERROR_TOO_MANY_PEERS = 711, "the device has no room for another peer",
        "peer mapping resources exhausted";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "the host memory is already registered",
        "part or all of the requested memory range is already mapped";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "the host memory is not registered",
        "pointer does not correspond to a registered memory region";
    ERROR_HARDWARE_STACK_ERROR = 714, "an error in the call stack of a kernel; the context is lost",
        "hardware stack error";
    ERROR_ILLEGAL_INSTRUCTION = 715, "an illegal instruction in a kernel; the context is lost",
        "an illegal instruction was encountered";
    ERROR_MISALIGNED_ADDRESS = 716, "an access to an address that is no multiple of its size; the context is lost",
        "misaligned address";
    ERROR_INVALID_ADDRESS_SPACE = 717, "an instruction met an address of the wrong space; the context is lost",
        "operation not supported on global/shared address space";
    ERROR_INVALID_PC = 718, "the program counter of a kernel left its range; the context is lost",
        "invalid program counter";
    ERROR_LAUNCH_FAILED = 719, "a kernel failed; the context is lost", "unspecified launch failure";
    ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720, "the cooperative launch has more blocks than can run at once",
        "too many blocks in cooperative launch";
    ERROR_TENSOR_MEMORY_LEAK = 721, "a kernel ended with tensor memory allocated; the context is lost",
        "tensor memory not completely freed";
    ERROR_NOT_PERMITTED = 800, "not permitted", "operation not permitted";
    ERROR_NOT_SUPPORTED = 801, "not supported on this device or system", "operation not supported";
    ERROR_SYSTEM_NOT_READY = 802, "the system is not ready to run CUDA",
        "system not yet initialized";
    ERROR_SYSTEM_DRIVER_MISMATCH = 803, "the library and the kernel driver differ in version",
        "system has unsupported display driver / cuda driver combination";
    ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "the device does not support forward compatibility",
        "forward compatibility was attempted on non supported HW";
    ERROR_MPS_CONNECTION_FAILED = 805, "no connection to the MPS server",
        "MPS client failed to connect to the MPS control daemon or the MPS server";
    ERROR_MPS_RPC_FAILURE = 806, "a remote call between MPS client and server failed",
        "the remote procedural call between the MPS server and the MPS client failed";
    ERROR_MPS_SERVER_NOT_READY = 807, "the MPS server does not accept requests yet",
        "MPS server is not ready to accept new MPS client requests";
    ERROR_MPS_MAX_CLIENTS_REACHED = 808, "the MPS server has no room for another client",
        "the hardware resources required to create MPS client have been exhausted";
    ERROR_MPS_MAX_CONNECTIONS_REACHED = 809, "the MPS server has no room for another connection",
        "the hardware resources required to support device connections have been exhausted";
    ERROR_MPS_CLIENT_TERMINATED = 810, "the MPS server ended this client",
        "the MPS client has been terminated by the server";
    ERROR_CDP_NOT_SUPPORTED = 811, "kernels cannot launch kernels here",
        "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it";
    ERROR_CDP_VERSION_MISMATCH = 812, "the module mixes versions of dynamic parallelism",
        "unsupported interaction between different versions of CUDA Dynamic Parallelism";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "not permitted while a stream is capturing",
        "operation not permitted when stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "an earlier error ended the capture",
        "operation failed due to a previous error during capture";
    ERROR_STREAM_CAPTURE_MERGE = 902, "two captures cannot become one",
        "operation would result in a merge of separate capture sequences";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "the capture did not begin on this stream",
        "capture was not ended in the same stream as it began";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, "the capture has work of another stream that its own does not wait for",
        "capturing stream has unjoined work";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, "a capture cannot wait for what is outside of it, nor be waited for",
        "dependency created on uncaptured work in another stream";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "the default stream would wait for a stream that is capturing",
        "operation would make the legacy stream depend on a capturing blocking stream";
    ERROR_CAPTURED_EVENT = 907, "the event was last recorded while a stream was capturing, and marks no work",
        "operation not permitted on an event last recorded in a capturing stream";
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "the capture began on another thread",
        "attempt to terminate a thread-local capture sequence from another thread";
    ERROR_TIMEOUT = 909, "timed out", "wait operation timed out";
    ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910, "the executable graph cannot take this update",
        "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    ERROR_EXTERNAL_DEVICE = 911, "an error on another device",
        "an async error has occured in external entity outside of CUDA";
    ERROR_INVALID_CLUSTER_SIZE = 912, "the clusters of the launch are not valid",
        "a kernel launch error has occurred due to cluster misconfiguration";
    ERROR_FUNCTION_NOT_LOADED = 913, "the function is not loaded",
        "the function handle is not loaded when calling an API that requires a loaded function";
    ERROR_INVALID_RESOURCE_TYPE = 914, "a resource of the wrong type",
        "one or more resources passed in are not valid resource types for the operation";
    ERROR_INVALID_RESOURCE_CONFIGURATION = 915, "a resource does not suffice or does not apply",
        "one or more resources are insufficient or non-applicable for the operation";
    ERROR_KEY_ROTATION = 916, "the rotation of keys failed",
        "an error happened during the key rotation sequence";
    ERROR_UNKNOWN = 999, "unknown error";
}

#[cfg(test)]
mod tests {
    use super::CUresult;

    #[test]
    fn unknown_code_stays_a_number() {
        let unknown = CUresult(123_456);
        assert_eq!(unknown.name(), None);
        assert_eq!(format!("{unknown:?}"), "CUDA error 123456");
        assert_eq!(format!("{:?}", CUresult::ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY (2)");
    }

    /// Compares the table with `cuda.h` of CUDA 13.0, which has 101 codes.
    #[test]
    fn code_table_matches_cuda_h() {
        let codes: std::collections::BTreeSet<_> = CUresult::ALL.iter().collect();
        assert_eq!((CUresult::ALL.len(), codes.len()), (101, 101));
    }

    #[test]
    fn driver_texts_match_nvidias() {
        let texts = [
            (CUresult::SUCCESS, "no error"),
            (CUresult::ERROR_INVALID_VALUE, "invalid argument"),
            (CUresult::ERROR_OUT_OF_MEMORY, "out of memory"),
            (CUresult::ERROR_INVALID_DEVICE, "invalid device ordinal"),
            (CUresult::ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
            (CUresult::ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
            (CUresult::ERROR_KEY_ROTATION, "an error happened during the key rotation sequence"),
        ];
        for (code, text) in texts {
            assert_eq!(code.driver_text(), Some(text));
        }
    }
}
