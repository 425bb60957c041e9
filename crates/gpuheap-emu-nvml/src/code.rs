//! Codes that NVML's functions return.

use std::ffi::CStr;

use serde::Deserialize;

/// Outcome of a call: a value, or the code of the failure.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

/// Returns the failure `code` if the condition is true.
pub(crate) fn fail_if(condition: bool, code: Code) -> Outcome {
    if condition { Err(code) } else { Ok(()) }
}

/// Result code of an NVML function, numbered as in `nvmlReturn_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[repr(transparent)]
#[serde(try_from = "String")]
pub(crate) struct Code(u32);

macro_rules! codes {
    ($($name:ident = $number:literal: $text:literal;)*) => {
        impl Code {
            $(pub(crate) const $name: Code = Code($number);)*

            /// Names of all codes.
            const NAMES: &'static [(&'static str, Code)] = &[$((stringify!($name), Code::$name)),*];

            pub(crate) fn number(self) -> u32 {
                self.0
            }

            pub(crate) fn text(self) -> &'static CStr {
                match self.0 {
                    $($number => $text,)*
                    _ => c"unknown code",
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0: c"Success";
    UNINITIALIZED = 1: c"Uninitialized";
    INVALID_ARGUMENT = 2: c"Invalid Argument";
    NOT_SUPPORTED = 3: c"Not Supported";
    NO_PERMISSION = 4: c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5: c"Already Initialized";
    NOT_FOUND = 6: c"Not Found";
    INSUFFICIENT_SIZE = 7: c"Insufficient Size";
    INSUFFICIENT_POWER = 8: c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9: c"Driver Not Loaded";
    TIMEOUT = 10: c"Timeout";
    IRQ_ISSUE = 11: c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12: c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13: c"Function Not Found";
    CORRUPTED_INFOROM = 14: c"Corrupted infoROM";
    GPU_IS_LOST = 15: c"GPU is lost";
    RESET_REQUIRED = 16: c"GPU requires reset";
    OPERATING_SYSTEM = 17: c"blocked by the operating system";
    LIB_RM_VERSION_MISMATCH = 18: c"driver and library differ in version";
    IN_USE = 19: c"In use by another client";
    MEMORY = 20: c"Insufficient Memory";
    NO_DATA = 21: c"No data";
    VGPU_ECC_NOT_SUPPORTED = 22: c"not supported with ECC on";
    INSUFFICIENT_RESOURCES = 23: c"Insufficient Resources";
    FREQ_NOT_SUPPORTED = 24: c"frequency not supported";
    ARGUMENT_VERSION_MISMATCH = 25: c"version of the argument is not supported";
    DEPRECATED = 26: c"deprecated";
    NOT_READY = 27: c"Not Ready";
    GPU_NOT_FOUND = 28: c"no GPU found";
    INVALID_STATE = 29: c"invalid state";
    RESET_TYPE_NOT_SUPPORTED = 30: c"type of reset not supported";
    UNKNOWN = 999: c"Unknown Error";
}

impl TryFrom<String> for Code {
    type Error = String;

    fn try_from(name: String) -> Result<Code, String> {
        let short = name.strip_prefix("NVML_ERROR_").unwrap_or(&name);
        let found =
            Code::NAMES.iter().find(|(name, code)| *name == short && *code != Code::SUCCESS);
        found.map(|(_, code)| *code).ok_or_else(|| {
            format!("{name:?} is no failure of NVML; write its name, such as GPU_IS_LOST")
        })
    }
}
