//! The device that replays run on.

use std::time::Duration;

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Error};

use crate::cards::Card;
use crate::recorded::Recorded;

/// Choice of a device.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The device of the recorded run, or an H200 if its memory is not known. If a request failed
    /// in the recording, the memory is derived from the failure, unless the options have a limit.
    #[default]
    Default,
    /// A profile of the emulator. The usable memory is the profile's memory less its CUDA context.
    Profile(Profile),
    /// A profile with the user's amount of memory in place of the profile's own. The program can
    /// use the whole amount, because no CUDA context is subtracted.
    Memory {
        /// The profile; if `None`, an H200.
        profile: Option<Profile>,
        /// Memory, in bytes.
        bytes: u64,
        /// The amount as the user wrote it.
        typed: String,
    },
    /// A GPU model from the list of cards. The emulated device is an H200 with the card's memory.
    /// It has virtual memory management and pools only if the card has them.
    Card(&'static Card),
    /// A real device.
    Real(Device),
}

/// The device of a replay.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceUsed {
    /// Name of the device.
    pub name: String,
    /// Name of the profile or the card; `None` for a real device and for the device of the run.
    pub profile: Option<String>,
    /// Memory as the driver reports it, in bytes. The memory fraction is relative to this figure.
    pub total: u64,
    /// Memory that a program can use, in bytes.
    pub usable: u64,
    /// Amount of memory as the user wrote it.
    pub typed: Option<String>,
    /// `true` if the driver has virtual memory management. `expandable_segments` needs it.
    pub has_vmm: bool,
    /// `true` if the usable memory is estimated.
    pub is_estimated: bool,
    /// `true` if the device is emulated.
    pub is_emulated: bool,
    /// `true` if `total` and `usable` were derived from a request that failed in the recording.
    pub is_recorded: bool,
    /// `true` if the recording names the device and its memory.
    pub is_of_run: bool,
}

impl DeviceChoice {
    /// Returns `true` if the user chose a device.
    pub fn is_given(&self) -> bool {
        !matches!(self, Self::Default)
    }

    /// Returns the device for a trace, given the facts `recorded`. A limit in the options replaces
    /// the memory of the recorded run.
    pub(crate) fn resolve(&self, recorded: &Recorded, is_limited: bool) -> DeviceUsed {
        let of = |profile: &Profile| DeviceUsed {
            name: real_name(&profile.name),
            profile: Some(real_name(&profile.name)),
            total: profile.memory_bytes,
            usable: profile.memory_bytes.saturating_sub(profile.context_bytes),
            typed: None,
            has_vmm: profile.vmm,
            is_estimated: false,
            is_emulated: true,
            is_recorded: false,
            is_of_run: false,
        };
        match self {
            Self::Default => match &recorded.limit {
                Some(limit) if !is_limited => DeviceUsed {
                    name: "the memory of the run".to_owned(),
                    profile: None,
                    total: limit.least,
                    usable: limit.least,
                    is_recorded: true,
                    ..of(&Profile::h200())
                },
                _ => match &recorded.device {
                    Some(device) => DeviceUsed {
                        name: real_name(&device.name),
                        profile: None,
                        total: device.total,
                        usable: device.total - device.used_before,
                        is_of_run: true,
                        ..of(&Profile::h200())
                    },
                    None => of(&Profile::h200()),
                },
            },
            Self::Profile(profile) => of(profile),
            Self::Memory { profile, bytes, typed } => DeviceUsed {
                total: *bytes,
                usable: *bytes,
                typed: Some(typed.clone()),
                ..of(&profile.clone().unwrap_or_else(Profile::h200))
            },
            Self::Card(card) => DeviceUsed {
                name: card.name.to_owned(),
                profile: Some(card.name.to_owned()),
                total: card.total_bytes,
                usable: card.usable_bytes,
                has_vmm: card.vmm,
                is_estimated: !card.usable_is_measured,
                ..of(&Profile::h200())
            },
            Self::Real(device) => DeviceUsed {
                name: device.to_string(),
                profile: None,
                total: device.total_memory(),
                usable: device.total_memory(),
                is_emulated: false,
                ..of(&Profile::h200())
            },
        }
    }

    pub(super) fn machine(&self, used: &DeviceUsed, delay: Option<Duration>) -> Machine {
        let profile = match self {
            Self::Real(device) => return Machine::Real(device.clone()),
            Self::Default | Self::Memory { profile: None, .. } => Profile::h200(),
            Self::Card(card) => Profile { vmm: card.vmm, pools: card.pools, ..Profile::h200() },
            Self::Profile(profile) | Self::Memory { profile: Some(profile), .. } => profile.clone(),
        };
        let profile = profile.memory_bytes(used.usable).without_context();
        Machine::Emulated { profile, delay }
    }
}

/// Device that a replay runs on.
#[derive(Clone)]
pub(super) enum Machine {
    /// A fresh emulated device for each replay. Its context takes no memory.
    Emulated {
        profile: Profile,
        /// Time by which streams lag the host.
        delay: Option<Duration>,
    },
    /// A real device.
    Real(Device),
}

impl Machine {
    /// Returns an emulated machine with `bytes` of memory. Returns a real device unchanged.
    pub(super) fn with_memory(&self, bytes: u64) -> Self {
        match self {
            Self::Real(_) => self.clone(),
            Self::Emulated { profile, delay } => {
                let profile = Profile { memory_bytes: bytes, ..profile.clone() };
                Self::Emulated { profile, delay: *delay }
            }
        }
    }

    pub(super) fn open(&self) -> Result<Device, Error> {
        match self {
            Machine::Real(device) => Ok(device.clone()),
            Machine::Emulated { profile, delay } => {
                let schedule = delay.map_or(Schedule::Immediate, Schedule::Lag);
                let options = Options::with_device(profile.clone());
                Device::emulated_with(Options { schedule, checks: false, ..options })
            }
        }
    }
}

/// Returns the name of the real device that a profile stands for.
fn real_name(name: &str) -> String {
    name.trim_start_matches("emulated ").to_owned()
}
