//! Description of a device.

use std::fmt;

use gpuheap_driver::{CUdevice_attribute, CUuuid, Driver, check};

use crate::error::{Error, ErrorKind};
use crate::kind::MemoryKind;
use crate::size::Bytes;

/// Description of a device. Its text is one short line with the properties that distinguish
/// devices. The fields have all properties.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Name that [`Device::open`](crate::Device::open) takes: `cuda:0`, `emulated:t4`.
    pub name: String,
    /// Product name from the driver: `NVIDIA H200`.
    pub product: String,
    /// `true` if the device is emulated.
    pub is_emulated: bool,
    /// Identifier of the device's emulator in this process, from 1; `None` for a real device. It
    /// distinguishes two emulated devices in one message.
    pub emulator: Option<u64>,
    /// Reason why [`Device::open_default`](crate::Device::open_default) opened an emulated device
    /// instead of a GPU, with the places that were searched; `None` if it did not.
    pub fallback: Option<String>,
    /// Index of the device in the driver's order.
    pub ordinal: i32,
    /// Size of the device's memory in bytes.
    pub total_memory: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Address on the PCI bus, as `0000:01:00.0`.
    pub pci_bus_id: String,
    /// UUID, as `GPU-01234567-89ab-cdef-0123-456789abcdef`. A MIG
    /// instance has its device's UUID.
    pub uuid: String,
    /// The driver, and the file that it was loaded from.
    pub driver: String,
    /// Version of CUDA that the driver supports, as 1000 × major + 10 × minor.
    pub driver_version: i32,
    /// `true` if the device supports stream-ordered pools.
    pub memory_pools: bool,
    /// `true` if the device reports virtual memory management (`cuMemCreate`, `cuMemMap`).
    pub virtual_memory: bool,
    /// `true` if the device supports unified memory.
    pub managed_memory: bool,
    /// `true` if host and device may access unified memory at the same time.
    pub concurrent_managed_access: bool,
    /// `true` if the device reads the host's pageable memory in place.
    pub pageable_memory_access: bool,
    /// `true` if the device can map pinned host memory.
    pub can_map_host: bool,
    /// `true` if the device can register memory of the program.
    pub host_register: bool,
}

impl DeviceInfo {
    /// Reads a device's description from the driver, without a context.
    pub(super) fn read(
        driver: &dyn Driver,
        ordinal: i32,
        name: &str,
        emulator: Option<u64>,
    ) -> Result<DeviceInfo, Error> {
        let count = count(driver)?;
        if !(0..count).contains(&ordinal) {
            return Err(ErrorKind::NoDevice.error(format!(
                "there is no device cuda:{ordinal}; this machine has {count}, counted from cuda:0"
            )));
        }
        let (mut device, mut total, mut driver_version) = (0, 0, 0);
        let (mut product, mut pci_bus_id, mut uuid) = ([0; 128], [0; 32], CUuuid::default());
        // SAFETY: all results outlive the calls, and each length is the size of its buffer.
        unsafe {
            check("cuDeviceGet", driver.cuDeviceGet(&mut device, ordinal))?;
            let named = driver.cuDeviceGetName(product.as_mut_ptr(), product.len() as i32, device);
            check("cuDeviceGetName", named)?;
            check("cuDeviceTotalMem_v2", driver.cuDeviceTotalMem_v2(&mut total, device))?;
            let (id, length) = (pci_bus_id.as_mut_ptr(), pci_bus_id.len() as i32);
            check("cuDeviceGetPCIBusId", driver.cuDeviceGetPCIBusId(id, length, device))?;
            check("cuDeviceGetUuid", driver.cuDeviceGetUuid(&mut uuid, device))?;
            check("cuDriverGetVersion", driver.cuDriverGetVersion(&mut driver_version))?;
        }
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the driver writes one integer to the local `value`.
            let code = unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) };
            check("cuDeviceGetAttribute", code).map(|()| value)
        };
        let can = |property| attribute(property).map(|value| value != 0);
        type A = CUdevice_attribute;
        Ok(DeviceInfo {
            name: name.to_owned(),
            product: text(&product),
            is_emulated: emulator.is_some(),
            emulator,
            fallback: None,
            ordinal: device,
            total_memory: total as u64,
            compute_capability: (
                attribute(A::COMPUTE_CAPABILITY_MAJOR)?,
                attribute(A::COMPUTE_CAPABILITY_MINOR)?,
            ),
            pci_bus_id: text(&pci_bus_id).to_ascii_lowercase(),
            uuid: uuid.to_string(),
            driver: driver.describe(),
            driver_version,
            memory_pools: can(A::MEMORY_POOLS_SUPPORTED)?,
            virtual_memory: can(A::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            managed_memory: can(A::MANAGED_MEMORY)?,
            concurrent_managed_access: can(A::CONCURRENT_MANAGED_ACCESS)?,
            pageable_memory_access: can(A::PAGEABLE_MEMORY_ACCESS)?,
            can_map_host: can(A::CAN_MAP_HOST_MEMORY)?,
            host_register: can(A::HOST_REGISTER_SUPPORTED)?,
        })
    }
}

pub(super) fn count(driver: &dyn Driver) -> Result<i32, Error> {
    let mut count = 0;
    // SAFETY: the driver writes the number to the local `count`.
    check("cuDeviceGetCount", unsafe { driver.cuDeviceGetCount(&mut count) })?;
    Ok(count)
}

fn text(buffer: &[std::ffi::c_char]) -> String {
    buffer.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect()
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceInfo { name, product, driver_version, .. } = self;
        let (major, minor) = self.compute_capability;
        write!(
            f,
            "{name}: {product}, {}, compute capability {major}.{minor}, CUDA {}.{}",
            Bytes(self.total_memory),
            driver_version / 1000,
            driver_version % 1000 / 10
        )
    }
}

impl MemoryKind {
    /// Refuses a kind of memory that the device does not support.
    pub(crate) fn check(self, info: &DeviceInfo) -> Result<(), Error> {
        match self {
            MemoryKind::Unified if !info.managed_memory => {
                Err(ErrorKind::Unsupported.error(format!(
                    "{} has no unified memory; use device memory, and pinned memory for data \
                     that the host accesses",
                    info.name
                )))
            }
            MemoryKind::Registered => Err(ErrorKind::WrongMemory.error(
                "registered memory is the program's own and cannot be allocated; hand a vector to \
                 Target::register, or allocate pinned memory",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn unsupported_kind_is_refused_with_remedy() {
        let mut info = Device::open("emulated:1GiB").unwrap().describe();
        for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
            kind.check(&info).unwrap();
        }
        info.managed_memory = false;
        let error = MemoryKind::Unified.check(&info).unwrap_err().to_string();
        assert!(error.starts_with("emulated:1GiB has no unified memory; use device"), "{error}");
        MemoryKind::Pinned.check(&info).unwrap();
    }
}
