//! Exports `dlsym` and `dlopen`. For names in the table, `dlsym` returns this library's functions.
//! `dlopen` notes that the program loads the driver.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpuheap_catch::export_dlsym;
use gpuheap_catch::loader::{Load, library_of, loaders_load};

use crate::missing_driver;
use crate::real::CATCHER;

export_dlsym!(CATCHER);

/// Result of [`loads`], for `dlopen`.
#[repr(C)]
struct Loading {
    /// The loader's `dlopen`.
    loaders: Option<Load>,
    mode: c_int,
}

/// If the code at `caller` loads the driver, notes the load and keeps the driver loaded. `dlopen`
/// calls this function, then jumps to the loader's `dlopen` with the returned mode.
unsafe extern "C" fn loads(file: *const c_char, mode: c_int, caller: *const c_void) -> Loading {
    let loading = Loading { loaders: loaders_load(), mode };
    // With RTLD_NOLOAD, the program only checks whether the library is loaded.
    if file.is_null() || mode & libc::RTLD_NOLOAD != 0 {
        return loading;
    }
    // SAFETY: `file` is not null, so it is a C string.
    let file = unsafe { CStr::from_ptr(file) };
    if !missing_driver::is_driver(file) || library_of(caller) == library_of(loads as *const c_void)
    {
        return loading;
    }
    // A panic must not reach the program.
    let _ = catch_unwind(AssertUnwindSafe(|| missing_driver::note_load(file, caller)));
    // Keeps the driver loaded after the program closes it. Otherwise the driver would be reported
    // as missing at the exit.
    Loading { mode: mode | libc::RTLD_NODELETE, ..loading }
}

/// Exported `dlopen`. Notes that the program loads the driver.
///
/// The loader's `dlopen` identifies the calling library by the return address, and searches the
/// folders that this library names. The exported function therefore jumps to the loader's `dlopen`,
/// with the return address of the program's call and the mode that `loads` returns.
// SAFETY: the function has the signature and the contract of `dlopen`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        // Aligns the stack to 16 bytes for the call.
        "sub rsp, 8",
        "mov rdx, [rsp + 24]",
        "call {loads}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "mov esi, edx",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        loads = sym loads,
    )
}
