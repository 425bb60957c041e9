//! The trait that every implementation of the driver API implements.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::types::*;
use crate::{BlockChecks, CUresult, RequestReports, cuda_functions};

macro_rules! driver_trait {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        /// The driver API. It has a method for each function of [`cuda_functions!`]. The method's
        /// name is the function's symbol.
        ///
        /// [`LibCuda`](crate::LibCuda) implements the trait with the machine's driver, and
        /// `gpuheap-emu` with an emulated device. Stream 0 is the legacy default stream, unless the
        /// method's doc names another.
        ///
        /// # Safety
        ///
        /// Every method has the contract of the C function with the same name. Pointers for results
        /// must be valid for writes. Handles must come from the same driver. Host memory must stay
        /// valid until all work that uses the memory has completed.
        #[allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub trait Driver: Send + Sync {
            /// Returns one line of text with the kind and location of this driver.
            fn describe(&self) -> String;

            /// Returns the checks with which an emulated device watches each block of a heap.
            /// Returns `None` on a real device, or if the checks are off.
            fn block_checks(&self) -> Option<&dyn BlockChecks> {
                None
            }

            /// Returns the function of an emulated libcuda that receives a heap's requests; `None`
            /// on another driver.
            fn request_reports(&self) -> Option<RequestReports<'_>> {
                None
            }

            $($(#[$doc])* unsafe fn $symbol(&self, $($arg: $type),*) -> CUresult;)*
        }
    };
}

cuda_functions!(driver_trait);
