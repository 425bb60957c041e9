//! Describes an emulated driver's devices to the emulated NVML in the same process.

use std::ffi::{c_char, c_int};

/// Name (with a final null) of a function that an emulated `libcuda.so.1` exports. The function has
/// the type [`EmulatedDevices`] and describes the devices. It is not part of the driver API.
pub const EMULATED_DEVICES: &str = "gpuheap_emulated_device\0";

/// Type of the function [`EMULATED_DEVICES`]. Arguments: ordinal, description to write. Returns 1
/// if it wrote the description, 0 if no device has that ordinal.
pub type EmulatedDevices = unsafe extern "C" fn(c_int, *mut EmulatedDevice) -> c_int;

/// Description of an emulated device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EmulatedDevice {
    /// Name, as a C string.
    pub name: [c_char; 96],
    /// UUID, as `cuDeviceGetUuid` returns it.
    pub uuid: [u8; 16],
    /// Memory of the device, in bytes.
    pub memory_bytes: u64,
    /// Memory that this process uses, in bytes.
    pub used_bytes: u64,
    /// Compute capability, major and minor.
    pub compute_capability: [c_int; 2],
    /// Clocks of the multiprocessors and of the memory, kHz.
    pub clocks_khz: [c_int; 2],
    /// Width of the memory bus, bits.
    pub memory_bus_bits: c_int,
    /// Version of CUDA that the driver supports, as 1000 × major + 10 × minor.
    pub driver_version: c_int,
}
