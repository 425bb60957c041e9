//! Functions that return the driver's versions, and functions that find devices.

use std::ffi::{c_char, c_int, c_uint};

use gpuheap_driver::export;

use crate::args::{Handle, Out, Text, write_text};
use crate::code::Code;
use crate::machine;

export! {
    fn nvmlErrorString(code: Code) -> *const c_char {
        code.text().as_ptr()
    }
}

functions! {
    fn nvmlSystemGetDriverVersion(nvml, version: Out<c_char>, length: c_uint) {
        write_text(version, length, &nvml.machine.driver)
    }

    // NVML's version consists of CUDA's major version and the driver's version.
    fn nvmlSystemGetNVMLVersion(nvml, version: Out<c_char>, length: c_uint) {
        let text = format!("{}.{}", nvml.machine.cuda / 1000, nvml.machine.driver);
        write_text(version, length, &text)
    }

    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2(
        nvml, version: Out<c_int>
    ) {
        version.write(nvml.machine.cuda)
    }

    fn nvmlSystemGetProcessName(nvml, pid: c_uint, name: Out<c_char>, length: c_uint) {
        let processes = nvml.machine.devices.iter().flat_map(|device| &device.processes);
        let mut described =
            processes.filter(|process| process.pid == pid).filter_map(|one| one.name.clone());
        let text = described.next().or_else(|| program(pid)).ok_or(Code::NOT_FOUND)?;
        // Leaves one byte for the null, and ends a long name at a character boundary.
        let most = (length as usize).checked_sub(1).ok_or(Code::INVALID_ARGUMENT)?;
        let ends = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        write_text(name, length, &text[..ends.unwrap_or(0)])
    }

    fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2(nvml, count: Out<c_uint>) {
        count.write(nvml.machine.devices.len() as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2(
        nvml, index: c_uint, device: Out<Handle>
    ) {
        let handle = Handle::new(index as usize, None);
        nvml.target(handle)?;
        device.write(handle)
    }

    fn nvmlDeviceGetHandleByUUID(nvml, uuid: Text, device: Out<Handle>) {
        let wanted = uuid.text()?;
        for (index, found) in nvml.machine.devices.iter().enumerate() {
            let mut instances = found.mig.iter().flatten();
            let instance = instances.position(|one| one.uuid.as_ref() == Some(&wanted));
            if instance.is_some() || found.uuid.as_ref() == Some(&wanted) {
                let handle = Handle::new(index, instance);
                nvml.target(handle)?;
                return device.write(handle);
            }
        }
        Err(Code::NOT_FOUND)
    }

    fn nvmlDeviceGetHandleBySerial(nvml, serial: Text, device: Out<Handle>) {
        let wanted = Some(serial.text()?);
        let index = nvml.machine.devices.iter().position(|found| found.serial == wanted);
        let handle = Handle::new(index.ok_or(Code::NOT_FOUND)?, None);
        nvml.target(handle)?;
        device.write(handle)
    }

    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2(
        nvml, address: Text, device: Out<Handle>
    ) {
        let wanted = machine::address(&address.text()?).ok_or(Code::INVALID_ARGUMENT)?;
        let is_it = |pci: &Option<String>| pci.as_deref().and_then(machine::address) == Some(wanted);
        let index = nvml.machine.devices.iter().position(|found| is_it(&found.pci));
        let handle = Handle::new(index.ok_or(Code::NOT_FOUND)?, None);
        nvml.target(handle)?;
        device.write(handle)
    }
}

/// Reads a process's command line and returns the name of the program.
fn program(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = line.split(|byte| *byte == 0).next().filter(|first| !first.is_empty())?;
    Some(String::from_utf8_lossy(first).into_owned())
}
