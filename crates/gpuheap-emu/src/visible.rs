//! Choice of devices by `CUDA_VISIBLE_DEVICES`.

use crate::{Options, Profile};

impl Options {
    /// Shows the devices that `list` names, in its order, as the driver does for the value of
    /// `CUDA_VISIBLE_DEVICES`. The others stay in the machine. Each keeps its UUID and its place on
    /// the PCI bus.
    ///
    /// The list has ordinals or UUIDs, with commas between them. A UUID is `GPU-` and hexadecimal
    /// digits: all of them, or as many as tell the device from the others. The first entry that
    /// names no device, or a device that is already shown, ends the list. An empty list shows none.
    pub fn with_visible_devices(mut self, list: &str) -> Options {
        let mut shown = Vec::new();
        for entry in list.split(',') {
            match find(self.devices.len(), entry.trim()) {
                Some(number) if !shown.contains(&number) => shown.push(number),
                _ => break,
            }
        }
        self.visible = Some(shown);
        self
    }

    /// Returns the number in [`devices`](Options::devices) of each device that is shown.
    pub fn shown(&self) -> Vec<usize> {
        let all = || (0..self.devices.len()).collect();
        self.visible.clone().unwrap_or_else(all)
    }
}

/// Returns the number of the one device of `count` that an entry names.
fn find(count: usize, entry: &str) -> Option<usize> {
    let Some(wanted) = entry.strip_prefix("GPU-") else {
        return entry.parse().ok().filter(|number| *number < count);
    };
    let wanted = wanted.replace('-', "").to_ascii_lowercase();
    if wanted.is_empty() {
        return None;
    }
    let has_it = |number: &usize| {
        let uuid = Profile::uuid(*number as i32);
        let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        digits.starts_with(&wanted)
    };
    let mut found = (0..count).filter(has_it);
    let number = found.next()?;
    found.next().is_none().then_some(number)
}
