//! Macros that call an emulator, and a function that creates an emulator for a test.

use gpuheap_driver::*;
use gpuheap_emu::{Emulator, Options};

/// Calls a function of the emulator and returns its code.
macro_rules! call {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the tests pass valid pointers. The emulator finds handles and device addresses
        // that are wrong or stale.
        unsafe { $gpu.$function($($arg),*) }
    };
}

/// Calls a function of the emulator that must succeed.
macro_rules! ok {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(call!($gpu, $function($($arg),*)), CUresult::SUCCESS, stringify!($function))
    };
}

/// Calls a function of the emulator that must succeed. Returns the value that the function writes
/// to its first argument.
macro_rules! made {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let mut made = Default::default();
        ok!($gpu, $function(&mut made, $($arg),*));
        made
    }};
}

pub(crate) use {call, made, ok};

/// Creates an emulator, and makes the primary context of device 0 current.
pub(crate) fn start(options: Options) -> Emulator {
    let gpu = Emulator::new(options);
    let mut context = CUcontext::NULL;
    ok!(gpu, cuInit(0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(gpu, cuCtxSetCurrent(context));
    gpu
}
