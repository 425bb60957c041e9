//! Reads the devices of the emulated driver, if this process has loaded that driver.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use gpuheap_driver::{EMULATED_DEVICES, EmulatedDevice, EmulatedDevices};

/// Describes device `ordinal` of the emulated driver. Returns `None` if this process has loaded no
/// emulated driver, or if the driver has no such device.
pub(crate) fn device(ordinal: usize) -> Option<EmulatedDevice> {
    let ordinal = i32::try_from(ordinal).ok()?;
    // SAFETY: the name is a C string. With `RTLD_NOLOAD`, the call loads no library.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the name ends with a null, and the library is open.
    let function = unsafe { libc::dlsym(library, EMULATED_DEVICES.as_ptr().cast::<c_char>()) };
    let mut found = None;
    if !function.is_null() {
        // SAFETY: only gpuheap's emulated driver exports this symbol, with this type.
        let function: EmulatedDevices = unsafe { std::mem::transmute(function) };
        let mut device = MaybeUninit::uninit();
        // SAFETY: the pointer is valid for a write.
        if unsafe { function(ordinal, device.as_mut_ptr()) } == 1 {
            // SAFETY: the function returned 1, so it wrote the description.
            found = Some(unsafe { device.assume_init() });
        }
    }
    // SAFETY: closes only the handle opened above, so the library stays loaded.
    unsafe { libc::dlclose(library) };
    found
}

/// Returns all devices of the emulated driver in this process; empty if no such driver is loaded.
pub(crate) fn devices() -> Vec<EmulatedDevice> {
    (0..).map_while(device).collect()
}

/// Returns the device's name from a description.
pub(crate) fn name(device: &EmulatedDevice) -> String {
    let bytes = device.name.map(|byte| byte as u8);
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}
