//! Choice of devices by `CUDA_VISIBLE_DEVICES`.

use crate::{Options, Profile};

impl Options {
    /// Makes the driver show only the devices that `list` names, in the order of the list, as the
    /// driver does for `CUDA_VISIBLE_DEVICES`. The other devices stay in the machine. Each device
    /// keeps its UUID and its PCI address.
    ///
    /// The list contains either ordinals or UUIDs, separated by commas. An ordinal is parsed like
    /// C's `atoi`: text after the digits is ignored. A UUID is `GPU-` and hexadecimal digits: all
    /// digits, or enough to distinguish the device from other devices. The list ends before the
    /// first entry that names no device, or whose form differs from the first entry's. An empty
    /// list shows no device. If the list names a device twice, `cuInit` fails with
    /// `CUDA_ERROR_INVALID_DEVICE`. Measured on one H200 with driver 580.
    pub fn with_visible_devices(mut self, list: &str) -> Options {
        let by_uuid = list.starts_with(UUID);
        let count = self.devices.len();
        let find = |entry: &str| match entry.strip_prefix(UUID) {
            Some(digits) if by_uuid => with_uuid(count, digits),
            None if !by_uuid => ordinal(entry).filter(|number| *number < count),
            _ => None,
        };
        self.visible = Some(list.split(',').map_while(find).collect());
        self
    }

    /// Returns the index in [`devices`](Options::devices) of each shown device.
    pub fn shown(&self) -> Vec<usize> {
        let all = || (0..self.devices.len()).collect();
        self.visible.clone().unwrap_or_else(all)
    }
}

/// Prefix of a device's UUID.
const UUID: &str = "GPU-";

/// Parses an ordinal like C's `atoi`: it keeps the low 32 bits.
fn ordinal(entry: &str) -> Option<usize> {
    let entry = entry.trim_start();
    let (negative, digits) = match entry.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, entry.strip_prefix('+').unwrap_or(entry)),
    };
    let end = digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len());
    let number = digits[..end].parse::<i64>().ok()? as i32;
    usize::try_from(if negative { number.wrapping_neg() } else { number }).ok()
}

/// Returns the index of the only device among `count` devices whose UUID begins with `digits`.
/// Digits beyond the length of a UUID are ignored.
fn with_uuid(count: usize, digits: &str) -> Option<usize> {
    let wanted = digits.replace('-', "").to_ascii_lowercase();
    if wanted.is_empty() {
        return None;
    }
    let has_it = |number: &usize| {
        let uuid = Profile::uuid(*number as i32);
        let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        digits.starts_with(wanted.get(..digits.len()).unwrap_or(&wanted))
    };
    let mut found = (0..count).filter(has_it);
    let number = found.next()?;
    found.next().is_none().then_some(number)
}
