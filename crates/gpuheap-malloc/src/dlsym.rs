//! `dlsym` and `dlopen`, as the program calls them. For names in the table, `dlsym` returns this
//! library's functions. `dlopen` notes that the program loads the driver.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::loader::{Load, Search, loaders_load, loaders_search};
use crate::{missing_driver, real};

/// Answer to a search by `dlsym`.
#[repr(C)]
struct Answer {
    /// Function of this library that replaces the found one, or null.
    ours: *mut c_void,
    /// The loader's `dlsym`, for the searches that `ours` does not answer.
    loaders: Option<Search>,
}

/// Answers a search that the code at `caller` makes. `dlsym` calls this function. If the search is
/// not for a function of the table, `dlsym` then jumps to the loader's `dlsym`.
unsafe extern "C" fn answer(
    handle: *mut c_void,
    symbol: *const c_char,
    caller: *const c_void,
) -> Answer {
    let answer = Answer { ours: ptr::null_mut(), loaders: loaders_search() };
    let Some(dlsym) = answer.loaders else { return answer };
    // A library that searches with `RTLD_NEXT` wraps CUDA as this one does, so it gets the next
    // real function.
    if symbol.is_null() || handle == libc::RTLD_NEXT {
        return answer;
    }
    // SAFETY: not null, so a C string.
    let Ok(name) = unsafe { CStr::from_ptr(symbol) }.to_str() else { return answer };
    let Some(ours) = real::own_address(name) else { return answer };
    if library_of(caller) == library_of(answer_of_this_library()) {
        return answer;
    }
    // SAFETY: the caller keeps the contract of `dlsym`.
    let found = unsafe { dlsym(handle, symbol) };
    if found.is_null() {
        return answer;
    }
    // A search in all libraries finds this library's function even if CUDA is not loaded. The
    // program then gets the loader's error.
    if found == ours && !real::is_loaded(name) {
        // SAFETY: the search starts after this library, and only CUDA has a function of this name.
        unsafe { dlsym(libc::RTLD_NEXT, symbol) };
        return Answer { loaders: None, ..answer };
    }
    real::note(name, found);
    Answer { ours, ..answer }
}

fn answer_of_this_library() -> *const c_void {
    answer as *const c_void
}

/// Returns the load address of the library that contains an address; 0 if no library does.
fn library_of(address: *const c_void) -> usize {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the pointer is valid for a write, and zeros are valid if nothing is written.
    unsafe {
        libc::dladdr(address, found.as_mut_ptr());
        found.assume_init().dli_fbase as usize
    }
}

/// `dlsym`: returns this library's functions for the names of the table, except to searches by this
/// library.
///
/// For `RTLD_NEXT`, the loader's `dlsym` searches after the library that contains its return
/// address. This function therefore jumps to the loader's `dlsym`, with the arguments and the
/// return address of the program's call.
// SAFETY: the function has the type of `dlsym`, and answers as it does.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        // A call needs the stack at a multiple of 16.
        "sub rsp, 8",
        "mov rdx, [rsp + 24]",
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "test rdx, rdx",
        "je 2f",
        "jmp rdx",
        "2:",
        "ret",
        answer = sym answer,
    )
}

/// Answer to a load by `dlopen`.
#[repr(C)]
struct Loading {
    /// The loader's `dlopen`.
    loaders: Option<Load>,
    mode: c_int,
}

/// Notes that the code at `caller` loads a library. `dlopen` calls this function, then jumps to the
/// loader's `dlopen` with the returned mode.
unsafe extern "C" fn loads(file: *const c_char, mode: c_int, caller: *const c_void) -> Loading {
    let loading = Loading { loaders: loaders_load(), mode };
    // With RTLD_NOLOAD, the program only checks if the library is loaded.
    if file.is_null() || mode & libc::RTLD_NOLOAD != 0 {
        return loading;
    }
    // SAFETY: not null, so a C string.
    let file = unsafe { CStr::from_ptr(file) };
    if !missing_driver::is_driver(file)
        || library_of(caller) == library_of(answer_of_this_library())
    {
        return loading;
    }
    // A panic must not reach the program.
    let _ = catch_unwind(AssertUnwindSafe(|| missing_driver::note_load(file, caller)));
    // The driver stays loaded after the program closes it, so that it is not reported as missing at
    // the exit.
    Loading { mode: mode | libc::RTLD_NODELETE, ..loading }
}

/// `dlopen`: notes that the program loads the driver.
///
/// The loader's `dlopen` searches the folders that the calling library names, and finds that
/// library by the return address. This function therefore jumps to the loader's `dlopen`, with the
/// return address of the program's call and the mode that `loads` returns.
// SAFETY: the function has the type of `dlopen`, and answers as it does.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        // A call needs the stack at a multiple of 16.
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
