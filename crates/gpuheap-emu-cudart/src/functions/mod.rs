//! Functions of the runtime that do more than call one function of the driver.
#![allow(non_snake_case, reason = "named as in C")]

mod copies;
mod kernels;
mod memory;
mod properties;
mod streams;
mod system;

pub(crate) use copies::*;
pub(crate) use kernels::*;
pub(crate) use memory::*;
pub(crate) use properties::*;
pub(crate) use streams::*;
pub(crate) use system::*;

/// Argument types of the table's functions. Each is a tuple, or the type of the only argument.
#[allow(non_camel_case_types, dead_code, unused_parens, reason = "one type for each name")]
pub(crate) mod args {
    use std::ffi::{c_char, c_int, c_uint, c_void};

    use gpuheap_driver::*;

    use crate::error::{In, Out, Text};
    use crate::types::{Dim3, FunctionAttributes, LaunchConfig, PointerAttributes};

    macro_rules! types {
        ($($(#[$doc:meta])* $name:ident $(| $twin:ident)? [$($how:tt)*] ($($arg:ident: $type:ty),*);)*) => {
            $(pub(crate) type $name = ($($type),*);)*
        };
    }

    runtime_functions!(types);
}
