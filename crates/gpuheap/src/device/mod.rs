//! Devices. Real devices need the machine's driver, and emulated devices need no driver.

mod captures;
mod context;
#[cfg(feature = "emulator")]
mod emulated;
mod gate;
mod granules;
mod holders;
mod info;
mod machine;
mod turn;
mod virtual_memory;

use std::fmt;
use std::sync::Arc;

use gpuheap_driver::Driver;

pub(crate) use captures::{CaptureStream, Membership, NO_STREAM, is_of_capture};
#[cfg(feature = "arithmetic")]
pub(crate) use context::Attachment;
pub(crate) use context::{Aside, Context, ContextError};
#[cfg(feature = "emulator")]
pub use emulated::profile;
#[cfg(doc)]
pub(crate) use holders::Holders;
pub(crate) use holders::{Holder, Visited, is_visiting};
pub use info::DeviceInfo;
pub(crate) use turn::ReclaimTurn;
pub(crate) use virtual_memory::{NoVirtualMemory, VirtualMemory};

use crate::error::{Error, ErrorKind};
#[cfg(feature = "emulator")]
use crate::logging;

/// A device, real or emulated, with its primary context held.
///
/// Cheap to clone: clones are the same device. A real device that is opened again while it is open
/// is the same device too.
#[derive(Clone)]
pub struct Device {
    context: Arc<Context>,
}

impl Device {
    /// Opens a device by its name: `cuda:0` (a real GPU by ordinal), `emulated` (an emulated H200),
    /// `emulated:16GiB`, `emulated:t4`. Blocks while the driver makes the context, about 0.1 s.
    ///
    /// # Errors
    ///
    /// The name has another form; the profile is unknown; the size is below 2 MiB; there is no
    /// driver or no such device. The error's text lists the names that work.
    pub fn open(name: &str) -> Result<Device, Error> {
        match Name::parse(name)? {
            Name::Real(ordinal) => Ok(Device::from(machine::context(ordinal)?)),
            #[cfg(feature = "emulator")]
            Name::Emulated(profile) => Device::from_profile(name, profile, None),
        }
    }

    /// Lists the devices that [`open`](Device::open) can open: the real devices, then the emulated
    /// device, if gpuheap was built with its feature `emulator`. Makes no context. Blocks while the
    /// driver starts: up to seconds if it was not started before.
    ///
    /// # Errors
    ///
    /// A driver is installed but does not work; the error has the reason.
    pub fn list() -> Result<Vec<DeviceInfo>, Error> {
        let mut devices = Vec::new();
        if let Ok(driver) = machine::driver_if_any()? {
            for ordinal in 0..info::count(&*driver)? {
                devices.push(DeviceInfo::read(
                    &*driver,
                    ordinal,
                    &format!("cuda:{ordinal}"),
                    None,
                )?);
            }
        }
        #[cfg(feature = "emulator")]
        devices.push(emulated::describe_default()?);
        Ok(devices)
    }

    /// Returns the name that [`open`](Device::open) takes: `cuda:0`, `emulated:t4`. Devices made of
    /// [options](Device::emulated_with) or of a profile are named `emulated`.
    pub fn name(&self) -> &str {
        &self.context.info().name
    }

    /// Returns the description of the device, as read when it was opened.
    pub fn describe(&self) -> DeviceInfo {
        self.context.info().clone()
    }

    /// Returns `true` if the device is emulated.
    pub fn is_emulated(&self) -> bool {
        self.context.info().is_emulated
    }

    /// Blocks until all work of the device's context has completed.
    ///
    /// # Errors
    ///
    /// The error of that work.
    pub fn synchronize(&self) -> Result<(), Error> {
        Ok(self.context.synchronize()?)
    }

    /// Returns `true` if work on this device can access memory of `other`. Two devices need peer
    /// access for that. If peer access is possible, the first call enables it permanently.
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn can_reach(&self, other: &Device) -> Result<bool, Error> {
        Ok(self.context.can_reach(&other.context, &mut Visited::new())?)
    }

    /// Ends the device's primary context with everything that this process has in it, and opens the
    /// device afresh. Use it after an error that made the context unusable, and at the end of
    /// tests. Blocks until the device's work has completed.
    ///
    /// Heaps first give back their host memory. Objects that were made on the device before
    /// (clones, streams, events, heaps, blocks) return an error from now on. The error names the
    /// reset. These objects free nothing when they are dropped.
    ///
    /// Live memory of a heap with the `driver` pool belongs to that pool: it stays taken until the
    /// process ends (H200, driver 580). Drop that memory before the reset.
    ///
    /// # Safety
    ///
    /// The primary context belongs to the whole process. The caller guarantees:
    ///
    /// * No other library of the process (cuBLAS, another runtime) uses objects that it made on the
    ///   device before: its memory, streams, modules and handles are destroyed too.
    /// * No other thread uses the device until this returns.
    /// * No code, not even on the host, refers to pinned or unified memory of the device. No raw
    ///   address or handle from before is used again.
    ///
    /// # Errors
    ///
    /// A driver error. If the driver refuses the reset, the device stays usable. If opening afresh
    /// fails, the device's context has ended.
    pub unsafe fn reset(self) -> Result<Device, Error> {
        let old = self.context;
        // SAFETY: this function has the same requirements, which the caller keeps.
        unsafe { old.reset() }?;
        #[cfg(feature = "emulator")]
        if let Some(emulator) = old.emulator() {
            let info = old.info();
            return Device::from_emulator(
                emulator,
                old.ordinal(),
                &info.name,
                info.fallback.clone(),
            );
        }
        Ok(Device::from(machine::context(old.ordinal())?))
    }

    /// Returns the driver of the device.
    pub fn driver(&self) -> &dyn Driver {
        self.context.driver()
    }

    /// Returns the device's index in the driver's order.
    pub fn ordinal(&self) -> i32 {
        self.context.ordinal()
    }

    /// Returns the size of the device's memory in bytes.
    pub fn total_memory(&self) -> u64 {
        self.context.total_memory()
    }

    /// Runs `work` with the device's context current on this thread.
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn with_current<R>(&self, work: impl FnOnce(&dyn Driver) -> R) -> Result<R, Error> {
        let _current = self.context.enter()?;
        Ok(work(self.context.driver()))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Opens the first real GPU, or an emulated device if there is no GPU.
    pub(crate) fn open_first() -> Result<Device, Error> {
        match machine::driver_if_any()? {
            Ok(_) => Device::open("cuda:0"),
            Err(reason) => Device::fall_back(reason),
        }
    }

    /// Opens an emulated device in place of a GPU that was not found, for `reason`.
    #[cfg(feature = "emulator")]
    fn fall_back(reason: String) -> Result<Device, Error> {
        logging::warn(
            logging::DEVICE,
            format_args!(
                "Device::open_default opens an emulated device: {reason}; set GPUHEAP_DEVICE to \
                 choose another one"
            ),
        );
        Device::from_profile(EMULATED, gpuheap_emu::Profile::h200(), Some(reason))
    }

    #[cfg(not(feature = "emulator"))]
    fn fall_back(reason: String) -> Result<Device, Error> {
        Err(ErrorKind::NoDevice.error(format!(
            "{reason}; install NVIDIA's driver, or build with gpuheap's feature `emulator`, which is a \
             default one, to have an emulated device"
        )))
    }
}

impl From<Arc<Context>> for Device {
    fn from(context: Arc<Context>) -> Device {
        Device { context }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}

const EMULATED: &str = "emulated";

/// The parts of a device's name.
enum Name {
    Real(i32),
    #[cfg(feature = "emulator")]
    Emulated(gpuheap_emu::Profile),
}

impl Name {
    fn parse(name: &str) -> Result<Name, Error> {
        let unknown =
            || ErrorKind::BadSetting.error(format!("'{name}' is not a device; write {}", names()));
        if let Some(ordinal) = name.strip_prefix("cuda:") {
            return Ok(Name::Real(ordinal.parse().map_err(|_| unknown())?));
        }
        match name.strip_prefix(EMULATED) {
            #[cfg(feature = "emulator")]
            Some("") => Ok(Name::Emulated(gpuheap_emu::Profile::h200())),
            #[cfg(feature = "emulator")]
            Some(rest) if rest.starts_with(':') => {
                Ok(Name::Emulated(emulated::usable_profile(name, &rest[1..])?))
            }
            #[cfg(not(feature = "emulator"))]
            Some(rest) if rest.is_empty() || rest.starts_with(':') => {
                Err(ErrorKind::Unsupported.error(format!(
                    "'{name}' is an emulated device, and gpuheap was built without the emulator; build \
                     it with its feature `emulator`, which is a default one, or write {}",
                    names()
                )))
            }
            _ => Err(unknown()),
        }
    }
}

/// Refuses a name that [`Device::open`] does not accept.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    Name::parse(name).map(|_| ())
}

/// Returns the names that [`Device::open`] accepts.
#[cfg(feature = "emulator")]
pub(crate) fn names() -> String {
    let profiles = gpuheap_emu::Profile::NAMES.join(", ");
    format!("cuda:0, emulated, emulated:16GiB or emulated:PROFILE with a profile of {profiles}")
}

/// Returns the names that [`Device::open`] accepts.
#[cfg(not(feature = "emulator"))]
pub(crate) fn names() -> String {
    "cuda:0, with the number of the GPU".to_owned()
}

#[cfg(test)]
#[cfg(not(feature = "emulator"))]
mod tests {
    use super::*;

    #[test]
    fn open_default_without_gpu_names_emulator() {
        // On a machine with a GPU, the call opens that GPU.
        let Err(error) = Device::open_default() else { return };
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::NoDevice, "{text}");
        for part in ["libcuda.so.1", "/dev/nvidiactl", "/dev/dxg", "feature `emulator`"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn emulated_names_without_emulator_are_refused() {
        for name in ["emulated", "emulated:16GiB"] {
            let error = Device::open(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("feature `emulator`"), "{error}");
        }
        assert_eq!(Device::open("emulator").unwrap_err().kind(), ErrorKind::BadSetting);
    }

    #[test]
    fn list_has_no_emulated_device() {
        assert!(Device::list().unwrap().iter().all(|device| !device.is_emulated));
    }
}
