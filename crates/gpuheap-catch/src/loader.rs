//! Finds the addresses of symbols in loaded libraries.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Type of `dlopen`.
pub type Load = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// Type of `dlsym`.
pub type Search = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns the first function `symbol` that the loader finds after this library.
pub fn next(symbol: &CStr) -> Option<*mut c_void> {
    search(libc::RTLD_NEXT, symbol)
}

/// Returns `symbol` from the program or the first library that contains it. Skips libraries that
/// were loaded with `RTLD_LOCAL`.
pub fn global(symbol: &CStr) -> Option<*mut c_void> {
    search(libc::RTLD_DEFAULT, symbol)
}

/// Returns the function `symbol` from a library, if the library is already loaded.
pub fn in_loaded(library: &CStr, symbol: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string. With RTLD_NOLOAD nothing is loaded.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    // The handle is not closed, so that the address stays valid.
    if handle.is_null() { None } else { search(handle, symbol) }
}

/// Returns `true` if a library is loaded.
pub fn is_loaded(library: &CStr) -> bool {
    // SAFETY: the name is a C string. With RTLD_NOLOAD nothing is loaded.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        // Closes the handle that `dlopen` opened above. The library stays loaded for the program.
        !handle.is_null() && libc::dlclose(handle) == 0
    }
}

/// Loads a library for the rest of the process. Returns the loader's error if loading fails.
pub fn load(library: &CStr) -> Result<(), String> {
    // SAFETY: the name is a C string. The library's initialisers run as they would in the program's
    // own call of `dlopen`.
    unsafe {
        if !libc::dlopen(library.as_ptr(), libc::RTLD_NOW).is_null() {
            return Ok(());
        }
        let reason = libc::dlerror();
        if reason.is_null() {
            return Err(format!("{} does not load", library.to_string_lossy()));
        }
        Err(CStr::from_ptr(reason).to_string_lossy().into_owned())
    }
}

/// Returns `dladdr`'s result for an address. If no file contains the address, all fields are zero.
fn facts_of(address: *const c_void) -> libc::Dl_info {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the pointer is valid for a write, and zeros are valid if nothing is written.
    unsafe {
        libc::dladdr(address, found.as_mut_ptr());
        found.assume_init()
    }
}

/// Returns the name of the file that contains an address, as the loader knows it.
fn name_of(address: *const c_void) -> Option<&'static CStr> {
    let name = facts_of(address).dli_fname;
    // SAFETY: the name is not null, and the loader's names are C strings.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

/// Returns the file of the library or program that contains an address. Returns an empty path if no
/// file contains the address.
pub fn file_of(address: *const c_void) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(name_of(address).unwrap_or_default().to_bytes()))
}

/// Returns the base address of the library that contains `address`, or 0 outside all libraries.
pub fn library_of(address: *const c_void) -> usize {
    facts_of(address).dli_fbase as usize
}

/// Returns `true` if a library with a file name of NVIDIA's driver contains the address.
pub(crate) fn is_in_driver(address: *const c_void) -> bool {
    let file = file_of(address);
    let name = file.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"libcuda.so") || name.starts_with(b"libnvidia-")
}

/// Returns `true` if an address is the start of an exported symbol.
pub(crate) fn is_symbol(address: *const c_void) -> bool {
    std::ptr::eq(facts_of(address).dli_saddr, address)
}

pub(crate) fn in_library_of(address: *const c_void, symbol: &CStr) -> Option<*mut c_void> {
    in_loaded(name_of(address)?, symbol)
}

/// Prevents the unloading of the library that contains `address`.
pub fn pin(address: *mut c_void) {
    if let Some(name) = name_of(address) {
        // SAFETY: the name is a C string. With RTLD_NOLOAD nothing is loaded.
        unsafe {
            libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE)
        };
    }
}

fn search(handle: *mut c_void, symbol: &CStr) -> Option<*mut c_void> {
    let dlsym = loaders_search()?;
    // SAFETY: the handle is valid for `dlsym`, and the name is a C string.
    let found = unsafe { dlsym(handle, symbol.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns the loader's `dlopen`.
pub fn loaders_load() -> Option<Load> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Relaxed);
    if found.is_null() {
        found = next(c"dlopen").unwrap_or(ptr::null_mut());
        FOUND.store(found, Ordering::Relaxed);
    }
    // SAFETY: the address is null or the loader's `dlopen`. A null becomes `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<Load>>(found) }
}

/// Returns the loader's `dlsym`.
pub fn loaders_search() -> Option<Search> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Relaxed);
    // The version of the symbol `dlsym` differs between machines and releases of glibc.
    for version in [c"GLIBC_2.2.5", c"GLIBC_2.17", c"GLIBC_2.34"] {
        if found.is_null() {
            // SAFETY: both arguments are C strings.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        }
    }
    FOUND.store(found, Ordering::Relaxed);
    // SAFETY: the address is null or the loader's `dlsym`. A null becomes `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<Search>>(found) }
}
