//! Structures of NVML, laid out as in NVML's header.

use std::ffi::{c_char, c_int, c_uint};

/// Combines a structure's size and `number` into the value of the structure's version field.
const fn version<T>(number: c_uint) -> c_uint {
    size_of::<T>() as c_uint | number << 24
}

/// `nvmlMemory_t`, in bytes. Reserved memory counts as used.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct MemoryV1 {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`, in bytes. Reserved memory does not count as used.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: c_uint,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

impl MemoryV2 {
    pub(crate) const VERSION: c_uint = version::<MemoryV2>(2);
}

/// `nvmlBAR1Memory_t`, in bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Bar1Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: c_uint,
    pub(crate) bytes: u64,
}

/// `nvmlProcessInfo_v2_t`. Current drivers call the same structure `nvmlProcessInfo_t`, and
/// functions with the suffix `_v3` take it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessInfoV2 {
    pub(crate) pid: c_uint,
    pub(crate) bytes: u64,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

/// `nvmlPciInfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_legacy: [c_char; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    pub(crate) device_id: c_uint,
    pub(crate) subsystem_id: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

/// `nvmlUtilization_t`, percent.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UtilizationRates {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
}

/// `nvmlTemperature_v1_t`, degrees Celsius.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Temperature {
    pub(crate) version: c_uint,
    pub(crate) sensor: c_uint,
    pub(crate) temperature: c_int,
}

impl Temperature {
    pub(crate) const VERSION: c_uint = version::<Temperature>(1);
}

/// `nvmlFieldValue_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    pub(crate) code: c_uint,
    value: u64,
}

const _: () = assert!(MemoryV2::VERSION == 0x0200_0028 && Temperature::VERSION == 0x0100_000c);
const _: () = assert!(size_of::<ProcessInfoV2>() == 24 && size_of::<FieldValue>() == 40);
