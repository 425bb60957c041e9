//! Choice of devices by `CUDA_VISIBLE_DEVICES`.

use crate::{Options, Profile};

impl Options {
    /// Shows the devices that `list` names, in its order, as the driver does for the value of
    /// `CUDA_VISIBLE_DEVICES`. The others stay in the machine. Each keeps its UUID and its place on
    /// the PCI bus.
    ///
    /// The list has either ordinals or UUIDs, with commas between them. An ordinal is read as C's
    /// `atoi` reads it: text after its digits is ignored. A UUID is `GPU-` and hexadecimal digits:
    /// all of them, or enough to distinguish the device from the others. The first entry that names
    /// no device, or is not of the first entry's form, ends the list. An empty list shows none. If
    /// the list names a device twice, `cuInit` fails with `CUDA_ERROR_INVALID_DEVICE`. Measured on
    /// one H200 with driver 580.
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

    /// Returns the number in [`devices`](Options::devices) of each device that is shown.
    pub fn shown(&self) -> Vec<usize> {
        let all = || (0..self.devices.len()).collect();
        self.visible.clone().unwrap_or_else(all)
    }
}

/// Prefix of a device's UUID.
const UUID: &str = "GPU-";

/// Parses an ordinal as C's `atoi`: it keeps the low 32 bits.
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

/// Returns the number of the one device of `count` whose UUID begins with `digits`. Digits beyond
/// characters of a UUID are ignored.
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
