//! The trait that every implementation of the driver API has.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::types::*;
use crate::{BlockChecks, CUresult, RequestReports, cuda_functions};

macro_rules! driver_trait {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        /// The driver API: one method for each function of [`cuda_functions!`], by its symbol.
        ///
        /// [`LibCuda`](crate::LibCuda) implements it by the machine's driver, and `gpuheap-emu` by
        /// an emulated device. A stream of zero is the legacy default stream, as in the driver API,
        /// unless the method says otherwise.
        ///
        /// # Safety
        ///
        /// Every method has the contract of the C function of its name. Pointers for results must
        /// be valid for writes. Handles must come from the same driver. Host memory must stay valid
        /// until the work that uses it is done.
        #[allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub trait Driver: Send + Sync {
            /// Returns the kind and location of this driver, in one line, for people.
            fn describe(&self) -> String;

            /// Returns the checks of an emulated device that judge each block of a heap, if they
            /// are on; `None` on a real device.
            fn block_checks(&self) -> Option<&dyn BlockChecks> {
                None
            }

            /// Returns an emulated libcuda to which a heap reports requests; `None` on another
            /// driver.
            fn request_reports(&self) -> Option<RequestReports<'_>> {
                None
            }

            $($(#[$doc])* unsafe fn $symbol(&self, $($arg: $type),*) -> CUresult;)*
        }
    };
}

cuda_functions!(driver_trait);
