//! The emulated driver, if this process has loaded it.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use gpuheap_driver::{EMULATED_DEVICES, EmulatedDevice, EmulatedDevices};

/// Returns the description of device `ordinal` of the emulated driver in this process. `None` if no
/// emulated driver is loaded, or if it has no such device.
pub(crate) fn device(ordinal: usize) -> Option<EmulatedDevice> {
    let ordinal = i32::try_from(ordinal).ok()?;
    // SAFETY: the name is a C string. The flag keeps the call from loading anything.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the name ends with a zero, and the library is open.
    let function = unsafe { libc::dlsym(library, EMULATED_DEVICES.as_ptr().cast::<c_char>()) };
    let mut found = None;
    if !function.is_null() {
        // SAFETY: a symbol of that name has this type.
        let function: EmulatedDevices = unsafe { std::mem::transmute(function) };
        let mut device = MaybeUninit::uninit();
        // SAFETY: the pointer is valid for a write.
        if unsafe { function(ordinal, device.as_mut_ptr()) } == 1 {
            // SAFETY: the function returned 1, so it wrote the description.
            found = Some(unsafe { device.assume_init() });
        }
    }
    // SAFETY: the library was opened above, and the program still has it open.
    unsafe { libc::dlclose(library) };
    found
}

/// Returns all devices of the emulated driver in this process; empty without such a driver.
pub(crate) fn devices() -> Vec<EmulatedDevice> {
    (0..).map_while(device).collect()
}

/// Returns the name in a description.
pub(crate) fn name(device: &EmulatedDevice) -> String {
    let bytes = device.name.map(|byte| byte as u8);
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}
