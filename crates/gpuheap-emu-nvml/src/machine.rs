//! The emulated machine: its devices, and the processes on them at the time of a call.

use gpuheap_driver::{CUuuid, EmulatedDevice};
use gpuheap_emu::{Account, Profile};

use crate::description::{Bar1, Clocks, ComputeMode, Description, Device, List};
use crate::driver;
use crate::settings::Settings;

/// Default driver version. The emulator was compared with an H200 that used this driver.
const DRIVER: &str = "580.95.05";

/// Default CUDA version, 1000 × major + 10 × minor. The emulated driver has the same default.
const CUDA: i32 = 13_000;

/// The emulated machine.
pub(crate) struct Machine {
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    /// Version of the driver.
    pub(crate) driver: String,
    /// Version of CUDA, as 1000 × major + 10 × minor.
    pub(crate) cuda: i32,
}

/// A process on a device.
pub(crate) struct Row {
    pub(crate) pid: u32,
    /// Memory that the process uses, in bytes; `None` if the driver reports none.
    pub(crate) bytes: Option<u64>,
    pub(crate) list: List,
    /// Index of the MIG instance that the process uses; `None` if it uses no instance.
    pub(crate) instance: Option<usize>,
}

impl Machine {
    /// Creates the machine that the settings describe.
    pub(crate) fn new(mut settings: Settings) -> Result<Machine, String> {
        let loaded = driver::devices();
        let driver_version = loaded.first().map(|device| device.driver_version);
        let devices = match settings.description.devices.take() {
            Some(described) => described,
            None if loaded.is_empty() => settings.profiles.iter().map(from_profile).collect(),
            None => loaded.iter().map(from_driver).collect(),
        };
        let devices =
            devices.into_iter().enumerate().map(|(index, device)| complete(index, device));
        Ok(Machine {
            devices: devices.collect::<Result<_, _>>()?,
            driver: settings.description.driver.take().unwrap_or_else(|| DRIVER.to_owned()),
            cuda: settings.cuda.or(driver_version).unwrap_or(CUDA),
            settings,
        })
    }

    pub(crate) fn description(&self) -> &Description {
        &self.settings.description
    }

    /// Returns the processes on a device: first the processes of the user's description, then the
    /// processes that use the emulated device now.
    pub(crate) fn rows(&self, index: usize) -> Vec<Row> {
        let described = self.devices[index].processes.iter().map(|process| Row {
            pid: process.pid,
            bytes: process.bytes,
            list: process.list,
            instance: process.instance,
        });
        let using = self.using(index).into_iter().filter(|(_, bytes)| *bytes > 0);
        let using = using.map(|(pid, bytes)| Row {
            pid,
            bytes: Some(bytes),
            list: List::Compute,
            instance: None,
        });
        described.chain(using).collect()
    }

    /// Returns the process ids that use an emulated device, and the bytes that each process uses.
    fn using(&self, index: usize) -> Vec<(u32, u64)> {
        match &self.settings.account {
            // If the file is missing, no process uses the account yet.
            Some(path) => Account::read(path)
                .unwrap_or_default()
                .into_iter()
                .map(|entry| (entry.pid, entry.bytes.get(index).copied().unwrap_or(0)))
                .collect(),
            None => driver::device(index)
                .map(|device| (std::process::id(), device.used_bytes))
                .into_iter()
                .collect(),
        }
    }
}

fn from_profile(profile: &Profile) -> Device {
    let max_clocks = clocks(profile.clock_khz, profile.memory_clock_khz);
    let mut device = Device {
        name: Some(profile.name.clone()),
        compute_capability: Some(profile.compute_capability),
        max_clocks,
        ..Device::default()
    };
    device.memory.total = profile.memory_bytes;
    device
}

fn from_driver(found: &EmulatedDevice) -> Device {
    let [major, minor] = found.compute_capability;
    let mut device = Device {
        name: Some(driver::name(found)),
        uuid: Some(uuid_text(found.uuid)),
        compute_capability: Some((major, minor)),
        max_clocks: clocks(found.clocks_khz[0], found.clocks_khz[1]),
        ..Device::default()
    };
    device.memory.total = found.memory_bytes;
    device
}

fn clocks(multiprocessors_khz: i32, memory_khz: i32) -> Clocks {
    let mhz = |khz: i32| u32::try_from(khz / 1000).ok();
    let sm = mhz(multiprocessors_khz);
    Clocks { graphics: sm, sm, memory: mhz(memory_khz), video: None }
}

/// Sets the missing values that every device must have.
fn complete(index: usize, mut device: Device) -> Result<Device, String> {
    let wrong = |text: String| format!("devices[{index}]: {text}");
    if let Some(text) = &device.profile {
        let profiles = Profile::list(text).unwrap_or_default();
        let [profile] = profiles.as_slice() else {
            let names = Profile::NAMES.join(", ");
            return Err(wrong(format!(
                "profile {text:?} is not one of {names}, or bytes as 16GiB"
            )));
        };
        let base = from_profile(profile);
        device.name = device.name.or(base.name);
        device.compute_capability = device.compute_capability.or(base.compute_capability);
        let max = &mut device.max_clocks;
        max.graphics = max.graphics.or(base.max_clocks.graphics);
        max.sm = max.sm.or(base.max_clocks.sm);
        max.memory = max.memory.or(base.max_clocks.memory);
        if device.memory.total == 0 {
            device.memory.total = base.memory.total;
        }
    }
    if device.memory.total == 0 {
        return Err(wrong("give memory.total in bytes, or a profile such as h200".to_owned()));
    }
    let instances = device.mig.as_ref().map_or(0, Vec::len);
    if let Some(process) =
        device.processes.iter().find(|process| process.instance.is_some_and(|at| at >= instances))
    {
        let pid = process.pid;
        return Err(wrong(format!(
            "process {pid} is on an instance, of which mig has {instances}"
        )));
    }
    let ordinal = i32::try_from(index).unwrap_or(i32::MAX);
    let uuid = uuid_text(Profile::uuid(ordinal));
    for (at, instance) in device.mig.iter_mut().flatten().enumerate() {
        instance.uuid.get_or_insert_with(|| format!("MIG-{}{at:02}", &uuid[4..uuid.len() - 2]));
    }
    device.uuid.get_or_insert(uuid);
    device.name.get_or_insert_with(|| "emulated device".to_owned());
    device.pci.get_or_insert_with(|| format!("00000000:{:02X}:00.0", index + 1));
    if address(device.pci.as_deref().unwrap_or_default()).is_none() {
        return Err(wrong("pci is not like 00000000:01:00.0".to_owned()));
    }
    device.minor.get_or_insert(u32::try_from(index).unwrap_or(u32::MAX));
    device.persistence.get_or_insert(false);
    device.compute_mode.get_or_insert(ComputeMode::Default);
    device.display.get_or_insert(false);
    // Rounds BAR1 up to a power of two, as on an H200: 256 GiB for 140.4 GiB of memory.
    let total = device.memory.total.checked_next_power_of_two().unwrap_or(u64::MAX);
    device.bar1.get_or_insert(Bar1 { total, used: 0 });
    Ok(device)
}

/// Formats a UUID like NVML: `GPU-67707568-6561-702d-656d-750000000000`.
fn uuid_text(bytes: [u8; 16]) -> String {
    CUuuid { bytes }.to_string()
}

/// Parses a PCI address into domain, bus and device. The function number at the end is optional.
pub(crate) fn address(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    let device = device.split('.').next()?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    parts.next().is_none().then_some((number(domain)?, number(bus)?, number(device)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_address_parses_both_domain_widths() {
        assert_eq!(address("00000000:1A:00.0"), Some((0, 26, 0)));
        assert_eq!(address("0000:1a:00.0"), Some((0, 26, 0)));
        for wrong in ["", "1A:00.0", "0000:xx:00.0", "0000:00:00.0:1"] {
            assert_eq!(address(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn impossible_devices_are_refused() {
        let refused = |text: &str| {
            let device = serde_json::from_str(text).unwrap();
            complete(3, device).unwrap_err()
        };
        assert!(refused("{}").contains("devices[3]: give memory.total"));
        assert!(refused("{\"profile\": \"h2000\"}").contains("rtx4090"));
        assert!(refused("{\"profile\": \"t4\", \"pci\": \"1\"}").contains("00000000:01:00.0"));
        let process = "{\"profile\": \"t4\", \"processes\": [{\"pid\": 7, \"instance\": 0}]}";
        assert!(refused(process).contains("process 7"));
    }

    #[test]
    fn identity_is_the_driver_s() {
        assert_eq!(uuid_text(Profile::uuid(1)), "GPU-67707568-6561-702d-656d-750000000001");
    }
}
