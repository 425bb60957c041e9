//! The trait that every implementation of the driver API has.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::types::*;
use crate::{BlockChecks, CUresult, cuda_functions};

macro_rules! driver_trait {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        /// The driver API: one method for each function of [`cuda_functions!`], by its symbol.
        ///
        /// Implemented by [`LibCuda`](crate::LibCuda), the machine's driver, and by the emulated
        /// device of `gpuheap-emu`. Where a stream is asked for, zero is the legacy default stream
        /// unless said otherwise, as in the driver API.
        ///
        /// # Safety
        ///
        /// Every method has the contract of the C function of its name: pointers for results must
        /// be valid for writes, handles must come from the same driver, host memory must stay valid
        /// until the work that uses it is done.
        #[allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub trait Driver: Send + Sync {
            /// Returns what this driver is and where it was found, in one line, for people.
            fn describe(&self) -> String;

            /// The checks that want to know of each block of a heap: those of an emulated device, if
            /// they are on. `None` on a real device.
            fn block_checks(&self) -> Option<&dyn BlockChecks> {
                None
            }

            $($(#[$doc])* unsafe fn $symbol(&self, $($arg: $type),*) -> CUresult;)*
        }
    };
}

cuda_functions!(driver_trait);
