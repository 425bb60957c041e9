//! C functions that describe the machine's devices. Their documentation goes into the header.
//! Pointers follow the preconditions that `calls.rs` states.
#![allow(
    clippy::missing_safety_doc,
    unsafe_op_in_unsafe_fn,
    reason = "the pointers are the caller's, under the preconditions of calls.rs"
)]

use std::ffi::c_char;
use std::mem::size_of;

use gpuheap::{Device, DeviceInfo};

use crate::entry::{Failure, enter, gpuheap_status, write};
use crate::handle::gpuheap_heap;
use crate::sized::{size_of_result, sized, write_result};
use crate::texts::cut;

/// Description of a device. Set size to sizeof(gpuheap_device) before calling gpuheap_get_device.
/// Texts end with a null. A text that is too long is cut. Later versions add fields at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct gpuheap_device {
    /// sizeof(gpuheap_device).
    pub size: usize,
    /// Size of the device's memory, in bytes.
    pub total_memory: u64,
    /// Name that gpuheap_open takes: "cuda:0", "emulated".
    pub name: [c_char; 64],
    /// Product name from the driver: "NVIDIA H200".
    pub product: [c_char; 128],
    /// Address on the PCI bus: "0000:01:00.0".
    pub pci_bus_id: [c_char; 32],
    /// UUID: "GPU-01234567-89ab-cdef-0123-456789abcdef".
    pub uuid: [c_char; 48],
    /// Index of the device in the driver's order. cudaSetDevice takes the same index.
    pub ordinal: i32,
    /// 1 if the device is emulated, else 0.
    pub is_emulated: i32,
    /// Major part of the compute capability.
    pub compute_capability_major: i32,
    /// Minor part of the compute capability.
    pub compute_capability_minor: i32,
    /// 1 if the device supports stream-ordered pools, which the pool "driver" needs, else 0.
    pub memory_pools: i32,
    /// 1 if the device supports virtual memory management, which the pool "stitched" needs, else 0.
    pub virtual_memory: i32,
    /// 1 if GPUHEAP_KIND_UNIFIED can be allocated, else 0.
    pub managed_memory: i32,
    /// 1 if host and device may access unified memory at the same time, else 0.
    pub concurrent_managed_access: i32,
}

sized!(gpuheap_device, concurrent_managed_access: i32, "description of the device");

impl gpuheap_device {
    fn new(info: &DeviceInfo) -> gpuheap_device {
        let (major, minor) = info.compute_capability;
        gpuheap_device {
            size: size_of::<gpuheap_device>(),
            total_memory: info.total_memory,
            name: cut(&info.name),
            product: cut(&info.product),
            pci_bus_id: cut(&info.pci_bus_id),
            uuid: cut(&info.uuid),
            ordinal: info.ordinal,
            is_emulated: info.is_emulated.into(),
            compute_capability_major: major,
            compute_capability_minor: minor,
            memory_pools: info.memory_pools.into(),
            virtual_memory: info.virtual_memory.into(),
            managed_memory: info.managed_memory.into(),
            concurrent_managed_access: info.concurrent_managed_access.into(),
        }
    }
}

/// Counts the devices that gpuheap_open can open: the real devices, then one emulated device. Makes
/// no context. If the driver has not started yet, blocks while it starts. This may take seconds.
///
/// count: receives the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_count_devices(count: *mut usize) -> gpuheap_status {
    enter("gpuheap_count_devices", || {
        write(count, "where the number of devices goes", 0)?;
        write(count, "where the number of devices goes", Device::list()?.len())
    })
}

/// Describes one of the devices that gpuheap_count_devices counts. Makes no context. Blocks as
/// gpuheap_count_devices does. To use the device, pass its name to gpuheap_open.
///
/// index: from 0. For a real device, the index is its ordinal. device: receives the description.
/// Set device->size before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_get_device(
    index: usize,
    device: *mut gpuheap_device,
) -> gpuheap_status {
    enter("gpuheap_get_device", || {
        let size = size_of_result(device)?;
        let devices = Device::list()?;
        let info = devices.get(index).ok_or_else(|| {
            Failure::refused(format!(
                "there is no device {index}; gpuheap_count_devices says {}, and they are counted from 0",
                devices.len()
            ))
        })?;
        write_result(gpuheap_device::new(info), device, size);
        Ok(())
    })
}

/// Describes the device of a heap. Does not wait.
///
/// device: receives the description. Set device->size before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_get_heap_device(
    heap: *mut gpuheap_heap,
    device: *mut gpuheap_device,
) -> gpuheap_status {
    enter("gpuheap_get_heap_device", || {
        let size = size_of_result(device)?;
        let info = gpuheap_heap::get(heap)?.device().describe();
        write_result(gpuheap_device::new(&info), device, size);
        Ok(())
    })
}
