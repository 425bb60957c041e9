//! Dispatches each function of the driver's table to the emulator's method of the same name.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::abi::Arg;
use gpuheap_driver::*;

use crate::Emulator;
use crate::state::calls::Symbol;

macro_rules! dispatch {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case)]
        impl Driver for Emulator {
            fn describe(&self) -> String {
                self.description()
            }

            fn block_checks(&self) -> Option<&dyn BlockChecks> {
                self.shared.checks.then_some(self)
            }

            $(unsafe fn $symbol(&self, $($arg: $type),*) -> CUresult {
                match self.enter(Symbol::$symbol as usize) {
                    Ok(mut call) => {
                        // SAFETY: the caller meets the contract of the C function, as `Driver`
                        // requires.
                        let outcome = dispatch!(@call call.$symbol($(unsafe { $arg.typed() }),*));
                        call.end(Symbol::$symbol as usize, outcome)
                    }
                    Err(code) => code,
                }
            })*
        }

        /// Argument types of the table's driver functions. Each is a tuple, or the type of the only
        /// argument.
        #[allow(non_camel_case_types, dead_code, unused_parens, reason = "one type for each symbol")]
        pub(crate) mod args {
            use super::*;

            $(pub(crate) type $symbol = ($(<$type as Arg>::Typed),*);)*
        }
    };
    (@call $call:ident.$symbol:ident($($one:expr)?)) => { $call.$symbol($($one)?) };
    (@call $call:ident.$symbol:ident($($several:expr),*)) => { $call.$symbol(($($several),*)) };
}

cuda_functions!(dispatch);

impl Emulator {
    fn description(&self) -> String {
        let options = self.options();
        let name = |number: usize| options.devices.get(number).map(|device| device.name.as_str());
        let devices: Vec<_> = options.shown().into_iter().filter_map(name).collect();
        let devices = if devices.is_empty() { "no device".to_owned() } else { devices.join(", ") };
        let version = options.driver_version;
        format!("emulated CUDA driver {}.{}: {devices}", version / 1000, version % 1000 / 10)
    }
}
