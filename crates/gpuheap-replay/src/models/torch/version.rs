//! Releases of PyTorch with different rules.

use std::fmt;
use std::str::FromStr;

use gpuheap_trace::SnapshotKeys;

use crate::models::SettingError;
use crate::text::quoted;

/// Release of PyTorch, from 2.6 to 2.15.
///
/// Two rules differ between releases. From 2.13 on, a memory fraction of 1 is no limit, so it does
/// not cause garbage collection. In earlier releases, a fraction of 1 limits PyTorch to the whole
/// device. The setting `large_segment_size_mb` exists from 2.13 on.
///
/// ```
/// use gpuheap_replay::models::torch::{Settings, Version};
///
/// let settings: Settings = "version:2.6,expandable_segments:True".parse()?;
/// assert_eq!(settings.version().to_string(), "2.6");
/// assert!(!settings.version().is_measured());
/// assert!(Version::default().is_measured());
/// # Ok::<(), gpuheap_replay::models::SettingError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    minor: u32,
}

impl Version {
    /// Release of PyTorch whose recordings on a GPU were compared with the model.
    const MEASURED: Self = Self { minor: 11 };
    /// First release of PyTorch with `large_segment_size_mb`. From this release on, a memory
    /// fraction of 1 sets no limit.
    pub(super) const LARGE_SEGMENTS: Self = Self { minor: 13 };
    /// Minor numbers of the PyTorch 2 releases whose allocator this crate models.
    const KNOWN: std::ops::RangeInclusive<u32> = 6..=15;

    /// Returns `true` if the model was compared with recordings of this release of PyTorch. For
    /// such a release, the model is exact to the byte. The rules of other releases were only read
    /// from their source.
    pub fn is_measured(self) -> bool {
        self == Self::MEASURED
    }

    /// Returns the release of PyTorch that writes these keys. If several releases write them,
    /// returns the release that was compared with the model, or the release nearest to it.
    pub(crate) fn from_keys(keys: &SnapshotKeys) -> Self {
        let has = |name: &str| keys.unknown.iter().any(|key| key == name);
        let minor = match (keys.missing.is_empty(), keys.unknown.is_empty()) {
            _ if has("host_segments") || has("host_traces") => 14,
            (_, false) => 12,
            (false, true) => 10,
            (true, true) => return Self::MEASURED,
        };
        Self { minor }
    }

    /// Returns `true` if this release takes a memory fraction of 1 as a limit: the device's memory.
    /// From 2.13 on, PyTorch takes a fraction of 1 as no limit.
    pub(super) fn limits_to_whole_device(self) -> bool {
        self < Self::LARGE_SEGMENTS
    }
}

impl Default for Version {
    /// Returns 2.11, the release of PyTorch that was compared with the model.
    fn default() -> Self {
        Self::MEASURED
    }
}

impl FromStr for Version {
    type Err = SettingError;

    /// Reads `2.6` or `2.6.1`.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        let mut parts = text.split('.').map(|part| part.parse::<u32>().ok());
        let (major, minor) = (parts.next().flatten(), parts.next().flatten());
        match (major, minor) {
            (Some(2), Some(minor)) if Self::KNOWN.contains(&minor) => Ok(Self { minor }),
            _ => Err(SettingError::new(
                format!("version has the value {}", quoted(text)),
                format!(
                    "give a release of PyTorch from 2.{} to 2.{}, for example version:2.6",
                    Self::KNOWN.start(),
                    Self::KNOWN.end()
                ),
            )),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "2.{}", self.minor)
    }
}
