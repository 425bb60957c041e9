//! The real functions of CUDA's libraries, for the calls that are passed on.
//!
//! A function is searched in the libraries after this one in the loader's order. That order does
//! not contain libraries that a program loaded with `RTLD_LOCAL`, as Python does. In such a
//! library, a function is found by the library's name, or from the address that the program's own
//! search returned.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpuheap_driver::*;

use crate::loader;
use crate::table::{In, Out, Text};
use crate::unserved::IpcHandle;

/// File names of the driver's library.
const DRIVER: &[&CStr] = &[c"libcuda.so.1"];
/// File names of the runtime's library, newest first.
const RUNTIME: &[&CStr] = &[c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0"];

/// Returns `true` if the runtime's library is loaded.
pub(crate) fn has_runtime() -> bool {
    reals::cudaMalloc.address().is_some()
}

/// A function of CUDA's libraries, found at its first use.
struct Real {
    symbol: &'static CStr,
    libraries: &'static [&'static CStr],
    address: AtomicPtr<c_void>,
}

impl Real {
    const fn new(symbol: &'static CStr, libraries: &'static [&'static CStr]) -> Real {
        Real { symbol, libraries, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the function's address; `None` if no loaded library contains the function.
    #[inline]
    fn address(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.find() } else { Some(known) }
    }

    #[cold]
    fn find(&self) -> Option<*mut c_void> {
        let mut found = loader::next(self.symbol);
        for library in self.libraries {
            if found.is_none() {
                found = loader::in_loaded(library, self.symbol);
            }
        }
        found.inspect(|found| self.address.store(*found, Ordering::Relaxed))
    }

    /// Records the address that the program's own search found. Pins the library, because the
    /// program may close it.
    fn note(&self, address: *mut c_void) {
        let null = ptr::null_mut();
        let noted =
            self.address.compare_exchange(null, address, Ordering::Relaxed, Ordering::Relaxed);
        if noted.is_ok() {
            loader::pin(address);
        }
    }
}

macro_rules! functions {
    ($($library:ident [$($how:tt)*] $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        $(
            #[allow(non_snake_case, reason = "named as in C")]
            #[allow(dead_code, reason = "a per-thread twin is passed on as the function, with that stream")]
            pub(crate) fn $symbol($($arg: $type),*) -> CUresult {
                match reals::$symbol.address() {
                    // SAFETY: the symbol has this signature in CUDA's headers. The arguments come
                    // from the program's own call, or are handles and pointers that are valid by
                    // their types. CUDA's libraries are not unloaded.
                    Some(found) => unsafe {
                        let function: unsafe extern "C" fn($($type),*) -> CUresult = transmute(found);
                        function($($arg),*)
                    },
                    None => CUresult::ERROR_NOT_FOUND,
                }
            }
        )*
    };
}

macro_rules! cells {
    ($($library:ident [$($how:tt)*] $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        $(
            #[allow(non_upper_case_globals, reason = "named as in C")]
            pub(super) static $symbol: Real = Real::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                    Ok(symbol) => symbol,
                    Err(_) => c"",
                },
                cells!(@$library),
            );
        )*
    };
    (@driver_api) => { DRIVER };
    (@runtime_api) => { RUNTIME };
}

/// Functions that only this library calls.
macro_rules! called_functions {
    ($callback:path) => {
        $callback! {
        driver_api [] cuCtxGetCurrent (context: &mut CUcontext);
        driver_api [] cuCtxGetDevice (device: &mut CUdevice);
        driver_api [] cuDeviceGetMemPool (pool: &mut CUmemoryPool, device: CUdevice);
        driver_api [] cuDevicePrimaryCtxRetain (context: &mut CUcontext, device: CUdevice);
        driver_api [] cuDevicePrimaryCtxRelease_v2 (device: CUdevice);
        driver_api [] cuStreamGetCtx (stream: CUstream, context: &mut CUcontext);
        driver_api [] cuStreamQuery (stream: CUstream);
        driver_api [] cuStreamIsCapturing (stream: CUstream, status: &mut CUstreamCaptureStatus);
        runtime_api [] cudaGetDevice (device: &mut c_int);
        }
    };
}

interposed_functions!(functions);
called_functions!(functions);

mod reals {
    use super::{CStr, DRIVER, RUNTIME, Real};

    interposed_functions!(cells);
    called_functions!(cells);
}

/// Symbols of this library, from `exports.rs`.
mod own {
    use super::*;

    macro_rules! addresses {
        ($($library:ident [$($how:tt)*] $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
            // SAFETY: the table declares the symbols with their types.
            unsafe extern "C" {
                $(fn $symbol($($arg: $type),*) -> CUresult;)*
            }

            /// Returns the function of this library that replaces `symbol`, and the real function.
            pub(super) fn find(symbol: &str) -> Option<(*mut c_void, &'static Real)> {
                match symbol {
                    $(stringify!($symbol) => Some(($symbol as *mut c_void, &reals::$symbol)),)*
                    _ => None,
                }
            }
        };
    }

    interposed_functions!(addresses);
}

/// Returns the function of this library that replaces `symbol`.
pub(crate) fn own_address(symbol: &str) -> Option<*mut c_void> {
    own::find(symbol).map(|(own, _)| own)
}

/// Records the address of a real function that the program's own search found.
pub(crate) fn note(symbol: &str, address: *mut c_void) {
    if let Some((own, real)) = own::find(symbol)
        && own != address
    {
        real.note(address);
    }
}

/// Returns `true` if a loaded library of CUDA contains the real function `symbol`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_loaded(symbol: &str) -> bool {
    own::find(symbol).is_some_and(|(_, real)| real.address().is_some())
}
