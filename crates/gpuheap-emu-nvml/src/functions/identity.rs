//! Functions that return a device's names, addresses and links.

use std::ffi::{c_char, c_int, c_uint};

use crate::args::{Handle, Out, write_text};
use crate::code::Code;
use crate::machine;
use crate::types::PciInfo;

functions! {
    // Emulated machines have no NVLink, and driver models exist only on Windows. So these functions
    // return "not supported".
    unsupported {
        nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo_v2
        nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetDriverModel nvmlDeviceGetDriverModel_v2
    }
    figures {
        nvmlDeviceGetMinorNumber: |device| device.minor;
        nvmlDeviceGetNumaNodeId: |device| device.numa_node;
    }

    fn nvmlDeviceGetName(nvml, device: Handle, name: Out<c_char>, length: c_uint) {
        let target = nvml.target(device)?;
        let whole = target.device.name.as_deref().unwrap_or_default();
        match target.instance {
            None => write_text(name, length, whole),
            Some((_, instance)) => write_text(name, length, &format!("{whole} MIG {}", instance.size)),
        }
    }

    fn nvmlDeviceGetUUID(nvml, device: Handle, uuid: Out<c_char>, length: c_uint) {
        let target = nvml.target(device)?;
        let found = match target.instance {
            None => &target.device.uuid,
            Some((_, instance)) => &instance.uuid,
        };
        write_text(uuid, length, found.as_deref().unwrap_or_default())
    }

    fn nvmlDeviceGetIndex(nvml, device: Handle, index: Out<c_uint>) {
        let target = nvml.target(device)?;
        index.write(target.instance.map_or(target.index, |(at, _)| at) as c_uint)
    }

    fn nvmlDeviceGetSerial(nvml, device: Handle, serial: Out<c_char>, length: c_uint) {
        let found = nvml.device(device)?.serial.as_deref().ok_or(Code::NOT_SUPPORTED)?;
        write_text(serial, length, found)
    }

    fn nvmlDeviceGetPciInfo_v3(nvml, device: Handle, info: Out<PciInfo>) {
        let pci = nvml.device(device)?.pci.as_deref().unwrap_or_default();
        let (domain, bus, device) = machine::address(pci).ok_or(Code::NOT_SUPPORTED)?;
        info.write(PciInfo {
            bus_id_legacy: c_text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
            domain,
            bus,
            device,
            // Combines NVIDIA's vendor ID with device ID 0. No NVIDIA device has device ID 0.
            device_id: 0x10de,
            subsystem_id: 0,
            bus_id: c_text(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
        })
    }

    fn nvmlDeviceGetCudaComputeCapability(
        nvml, device: Handle, major: Out<c_int>, minor: Out<c_int>
    ) {
        let (high, low) =
            nvml.target(device)?.device.compute_capability.ok_or(Code::NOT_SUPPORTED)?;
        major.write(high)?;
        minor.write(low)
    }
}

/// Returns `text` as a C string, truncated to `LENGTH` bytes including the null.
fn c_text<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut place = [0; LENGTH];
    for (to, from) in place.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *to = from as c_char;
    }
    place
}
