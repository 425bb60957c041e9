//! An export that is not the driver's. The emulated NVML finds the devices by it.

use std::ffi::{c_char, c_int};

use gpuheap_driver::{CUresult, EmulatedDevice, EmulatedDevices};
use gpuheap_emu::{Profile, Usage};

use crate::process;

/// Checks that the export has the type that the emulated NVML looks up.
const _: EmulatedDevices = gpuheap_emulated_device;

/// Writes the description of the machine's device `ordinal` and returns 1, or returns 0 if there is
/// no such device, as in a child of `fork`. `CUDA_VISIBLE_DEVICES` hides no device from NVML. Needs
/// no `cuInit`.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_emulated_device(
    ordinal: c_int,
    description: *mut EmulatedDevice,
) -> c_int {
    let code = process::call(|emulator| {
        let options = emulator.options();
        let profile = usize::try_from(ordinal).ok().and_then(|at| options.devices.get(at));
        let Some(profile) = profile.filter(|_| !description.is_null()) else {
            return CUresult::ERROR_INVALID_DEVICE;
        };
        let shown = options.shown().into_iter().position(|number| number == ordinal as usize);
        let usage = shown.map_or(Usage::default(), |shown| emulator.usage(shown as c_int));
        let found = EmulatedDevice {
            name: c_text(&profile.name),
            uuid: Profile::uuid(ordinal),
            memory_bytes: profile.memory_bytes,
            used_bytes: usage.in_use(),
            compute_capability: profile.compute_capability.into(),
            clocks_khz: [profile.clock_khz, profile.memory_clock_khz],
            memory_bus_bits: profile.memory_bus_bits,
            driver_version: options.driver_version,
        };
        // SAFETY: not null, so valid for a write: the caller promises it.
        unsafe { description.write(found) };
        CUresult::SUCCESS
    });
    c_int::from(code.is_success())
}

/// Returns a text as a C string, shortened if it is too long for the array.
fn c_text<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut place = [0; LENGTH];
    for (to, from) in place.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *to = from as c_char;
    }
    place
}
