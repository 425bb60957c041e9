//! C symbols, made from the table.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_capture::MemoryKind;
use gpuheap_driver::abi::PerThread as _;
use gpuheap_driver::*;

use crate::allocate::{Freed, Number as _, Request, freed};
use crate::copies::{End, Extent, copied};
use crate::layouts::{Array3DDescription, ArrayDescription, GraphAllocation, IpcHandle, Volume};
use crate::table::{In, Out, Text};
use crate::threads::Uncancelled;
use crate::{allocate, arrays, contexts, memory_info, real, settings, virtual_memory};

/// Makes an [`End`] of the given kind, with the argument of that kind.
macro_rules! end {
    (Device) => {
        End::Device
    };
    (($end:ident $place:ident)) => {
        End::$end($place.number())
    };
}

macro_rules! exports {
    ($($library:ident [$($how:tt)*] $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        export! {$(
            fn $symbol($($arg: $type),*) -> CUresult {
                exports!(@if_off [$($how)*] $symbol ($($arg),*));
                let _uncancelled = Uncancelled::enter();
                exports!(@call [$($how)*] $symbol ($($arg),*))
            }
        )*}
    };
    // Programs call these functions most often, so calls that are not recorded return early.
    (@if_off [copies $($rest:tt)*] $symbol:ident $arguments:tt) => {
        if !settings::get().copies {
            return real::$symbol $arguments;
        }
    };
    (@if_off $($rest:tt)*) => {};
    (@call [allocates $kind:ident $bytes:ident] $symbol:ident ($place:ident $(, $arg:ident)*)) => {
        Request::new(MemoryKind::$kind, $bytes, CUstream::NULL)
            .run($place, || real::$symbol($place $(, $arg)*))
    };
    (@call [allocates $kind:ident $bytes:ident $($stream:tt)+] $symbol:ident ($place:ident $(, $arg:ident)*)) => {
        Request::new(MemoryKind::$kind, $bytes, $($stream)+)
            .run($place, || real::$symbol($place $(, $arg)*))
    };
    (@call [frees $space:literal] $symbol:ident ($pointer:ident)) => {
        freed(Freed::new($space, $pointer, CUstream::NULL), || real::$symbol($pointer))
    };
    (@call [frees $space:literal $($stream:tt)+] $symbol:ident ($pointer:ident, $arg:ident)) => {
        freed(Freed::new($space, $pointer, $($stream)+), || real::$symbol($pointer, $arg))
    };
    (@call [ends_primary] $symbol:ident ($device:ident)) => {
        contexts::ends_primary($device, || real::$symbol($device))
    };
    (@call [copies $waits:ident $bytes:ident from $from:tt to $to:tt] $symbol:ident $arguments:tt) => {
        copied(
            stringify!($waits) == "returns",
            Extent { to: end!($to), from: end!($from), bytes: $bytes, is_plain: true },
            || real::$symbol $arguments,
        )
    };
    (@call [copies $waits:ident $copy:ident] $symbol:ident $arguments:tt) => {
        match $copy.get() {
            Ok(copy) => copied(
                stringify!($waits) == "returns",
                copy,
                || real::$symbol $arguments,
            ),
            Err(_) => real::$symbol $arguments,
        }
    };
    (@call [searches] $symbol:ident ($name:ident, $function:ident, $version:ident, $flags:ident $(, $status:ident)?)) => {{
        let code = real::$symbol($name, $function, $version, $flags $(, $status)?);
        if code.is_success() {
            let _ = real::CATCHER.replace($name, $function, $version, $flags);
        }
        code
    }};
    (@call [by $module:ident] $symbol:ident $arguments:tt) => { $module::$symbol $arguments };
}

recorded_functions!(exports);
