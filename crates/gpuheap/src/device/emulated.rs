//! Makes emulated devices from a profile or from options.

use std::sync::Arc;

use gpuheap_driver::{Driver, check};
use gpuheap_emu::{Emulator, Options, Profile};
use gpuheap_pool::GRANULE;

use super::context::{Context, DeviceOrigin};
use super::info::{self, DeviceInfo};
use super::{Device, EMULATED};
use crate::error::{Error, ErrorKind};
use crate::size::{Bytes, Size};

impl Device {
    /// Makes an emulated device with the properties of `profile`. Its work completes immediately,
    /// and the emulator's checks are off.
    ///
    /// # Errors
    ///
    /// The profile's memory is too small for a context.
    pub fn emulated(profile: Profile) -> Result<Device, Error> {
        Device::emulated_with(without_checks(profile))
    }

    /// Makes the first device of an emulator with these options.
    ///
    /// # Errors
    ///
    /// The options make a driver call fail.
    pub fn emulated_with(options: Options) -> Result<Device, Error> {
        Device::from_emulator(&start(options)?, 0, EMULATED, None)
    }

    /// Makes all devices of one emulator with these options, in the emulator's order. They can
    /// access each other's memory, like devices of one machine.
    ///
    /// # Errors
    ///
    /// The options make a driver call fail.
    pub fn emulated_devices(options: Options) -> Result<Vec<Device>, Error> {
        let emulator = start(options)?;
        let count = info::count(&*emulator)?;
        (0..count)
            .map(|ordinal| Device::from_emulator(&emulator, ordinal, EMULATED, None))
            .collect()
    }

    /// Returns the emulator of an emulated device; `None` for a real device.
    pub fn emulator(&self) -> Option<&Arc<Emulator>> {
        self.context.emulator()
    }

    /// Makes an emulated device named `name` with a profile. If the device is used because no GPU
    /// can be, `fallback` has the reason.
    pub(super) fn from_profile(
        name: &str,
        profile: Profile,
        fallback: Option<String>,
    ) -> Result<Device, Error> {
        Device::from_emulator(&start(without_checks(profile))?, 0, name, fallback)
    }

    pub(super) fn from_emulator(
        emulator: &Arc<Emulator>,
        ordinal: i32,
        name: &str,
        fallback: Option<String>,
    ) -> Result<Device, Error> {
        let origin = DeviceOrigin { emulator: Some(emulator.clone()), fallback };
        Ok(Device::from(Context::retain(emulator.clone(), origin, ordinal, name)?))
    }
}

/// Describes the device that [`Device::open`] opens for the name `emulated`. Makes no context.
pub(super) fn describe_default() -> Result<DeviceInfo, Error> {
    let emulator = start(without_checks(Profile::h200()))?;
    DeviceInfo::read(&*emulator, 0, EMULATED, Some(emulator.number()))
}

fn without_checks(profile: Profile) -> Options {
    Options { checks: false, ..Options::with_device(profile) }
}

fn start(options: Options) -> Result<Arc<Emulator>, Error> {
    let emulator = Arc::new(Emulator::new(options));
    // SAFETY: the call takes no pointers.
    check("cuInit", unsafe { emulator.cuInit(0) })?;
    Ok(emulator)
}

/// Parses the description of an emulated device: a profile's name or a size.
///
/// # Errors
///
/// The text is neither; the error lists the profiles.
pub fn profile(text: &str) -> Result<Profile, Error> {
    if let Some(profile) = Profile::named(text) {
        return Ok(profile);
    }
    match Size::parse(text) {
        Ok(Size::Bytes(bytes)) => Ok(Profile::with_memory(bytes)),
        _ => Err(ErrorKind::BadSetting.error(format!(
            "'{text}' is neither a profile nor a size; the profiles are {}, a size is like 16GiB",
            Profile::NAMES.join(", ")
        ))),
    }
}

/// Parses the profile `text` of the device `name`. Refuses a device too small for a heap.
pub(super) fn usable_profile(name: &str, text: &str) -> Result<Profile, Error> {
    let profile = profile(text)?;
    match profile.memory_bytes {
        GRANULE.. => Ok(profile),
        // Most likely a forgotten unit.
        bytes => Err(ErrorKind::BadSetting.error(format!(
            "'{name}' is a device of {}, and memory is handed out in steps of {}; write a larger size \
             with its unit, as in emulated:16GiB",
            Bytes(bytes),
            Bytes(GRANULE)
        ))),
    }
}
