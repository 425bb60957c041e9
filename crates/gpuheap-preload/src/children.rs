//! Keeps this library in the list `LD_PRELOAD` that a program sets for its children.
//!
//! `execve`, `execv` and `execvp` may run in a forked child, so they allocate nothing and take no
//! lock. `posix_spawn` and `posix_spawnp` take the loader's lock. `execl`, `execlp`, `execle`,
//! `execvpe`, `fexecve`, `system` and `popen` are not replaced.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;

use gpuheap_catch::loader;

/// Length of the copy of the environment variables on the stack, with the null at the end.
const VARIABLES: usize = 1024;
/// Maximum number of bytes of `LD_PRELOAD` in that copy.
const BYTES: usize = 4096;

const LIST: &[u8] = b"LD_PRELOAD=";
const OWN: &[u8] = b"GPUHEAP_RUN_LIBRARY=";

type Strings = *const *const c_char;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> c_int;

unsafe extern "C" {
    static environ: Strings;
}

/// `execve`: keeps this library in `LD_PRELOAD`.
// SAFETY: the function has the signature and the effect of `execve`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    // SAFETY: the program keeps the contract of `execve`. Other libraries that replace `execve`
    // come before this library and have run already, so this calls the kernel directly.
    unsafe {
        with_own(variables, |variables| {
            libc::syscall(libc::SYS_execve, path, arguments, variables) as c_int
        })
    }
}

/// `execv`: keeps this library in `LD_PRELOAD`.
// SAFETY: the function has the signature and the effect of `execv`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program keeps the contract of `execv`.
    unsafe { execve(path, arguments, environ) }
}

/// `execvp`: keeps this library in `LD_PRELOAD`.
// SAFETY: the function has the signature and the effect of `execvp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program keeps the contract of `execvp`.
    unsafe { with_own(environ, |variables| libc::execvpe(file, arguments, variables)) }
}

macro_rules! spawns {
    ($($name:ident)*) => {$(
        /// Starts a child, and keeps this library in the child's `LD_PRELOAD`.
        // SAFETY: the function has the signature and the effect of the function in `spawn.h`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            child: *mut libc::pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Strings,
            variables: Strings,
        ) -> c_int {
            const NAME: &str = concat!(stringify!($name), "\0");
            let name = CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or_default();
            let Some(found) = loader::next(name) else { return libc::ENOSYS };
            // SAFETY: libc's function of this name has this type.
            let spawn = unsafe { mem::transmute::<*mut c_void, Spawn>(found) };
            // SAFETY: the program keeps the contract of the function.
            unsafe {
                with_own(variables, |variables| {
                    spawn(child, path, actions, attributes, arguments, variables)
                })
            }
        }
    )*};
}

spawns!(posix_spawn posix_spawnp);

/// Calls `call` with the environment variables. If `LD_PRELOAD` is set and lacks this library,
/// appends this library to the list. An empty list stays empty.
///
/// # Safety
///
/// `variables` is null or an array of C strings that ends with null.
unsafe fn with_own(variables: Strings, call: impl FnOnce(Strings) -> c_int) -> c_int {
    let mut all = [std::ptr::null(); VARIABLES];
    let (mut list, mut own, mut count) = (None, None, 0);
    loop {
        // SAFETY: the array is not null, and its end was not reached.
        let next = if variables.is_null() { break } else { unsafe { *variables.add(count) } };
        if next.is_null() {
            break;
        }
        // The last place is for the null at the end.
        match all.get_mut(count) {
            Some(place) if count + 1 < VARIABLES => *place = next,
            _ => return call(variables),
        }
        // SAFETY: the array's elements are C strings.
        let text = unsafe { CStr::from_ptr(next) }.to_bytes();
        if let Some(value) = text.strip_prefix(LIST) {
            list = Some((count, value));
        }
        own = text.strip_prefix(OWN).or(own);
        count += 1;
    }
    let mut bytes = [0_u8; BYTES];
    let (Some((at, value)), Some(own)) = (list, own) else { return call(variables) };
    let is_there =
        value.is_empty() || value.split(|byte| b": ".contains(byte)).any(|one| one == own);
    let parts = [LIST, value, b":", own];
    // The last of the bytes stays zero.
    if is_there || parts.iter().map(|part| part.len()).sum::<usize>() >= BYTES {
        return call(variables);
    }
    let text = parts.iter().copied().flatten();
    bytes.iter_mut().zip(text).for_each(|(place, byte)| *place = *byte);
    all[at] = bytes.as_ptr().cast();
    call(all.as_ptr())
}
