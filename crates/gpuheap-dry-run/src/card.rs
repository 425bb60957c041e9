//! Describes emulated devices by the memory sizes and properties of a card.

use gpuheap_replay::cards::{Card, Source};

/// Share of a card's memory that `--find-batch` leaves free by default. A fit that leaves less free
/// gets a note. Of 37 programs that were run beside an H200, three requested more than that above
/// their dry runs (docs/dry-run.md, "How right it is").
pub const MARGIN: f64 = 0.03;

/// Emulated device. Its memory may differ from the memory of its card. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// The card.
    pub card: &'static Card,
    /// Total memory of the card.
    pub total_bytes: u64,
    /// Memory of the card that must stay free. The emulated driver reports the total without this
    /// memory, so the program cannot take it.
    pub margin_bytes: u64,
    /// Memory that CUDA's context takes.
    pub context_bytes: u64,
    /// `true` if the options set the size of memory.
    pub is_resized: bool,
}

impl Device {
    /// Returns the device of a card. If `memory` is given, it replaces the card's size of memory.
    pub fn new(card: &'static Card, memory: Option<u64>) -> Device {
        Device {
            card,
            total_bytes: memory.unwrap_or(card.total_bytes),
            margin_bytes: 0,
            context_bytes: card.total_bytes - card.usable_bytes,
            is_resized: memory.is_some(),
        }
    }

    /// Returns the device with a share of its memory left free.
    pub fn with_margin(mut self, share: f64) -> Device {
        // Whole MiB: drivers report no other sizes.
        let bytes = (self.total_bytes as f64 * share.clamp(0.0, 1.0)) as u64;
        self.margin_bytes = bytes >> 20 << 20;
        self
    }

    /// Returns the memory that programs can take: the total without margin and context.
    pub fn usable_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.margin_bytes + self.context_bytes)
    }

    /// Returns `true` if the total or the usable memory is an estimate, and not read from a device.
    pub fn is_estimated(&self) -> bool {
        !self.card.usable_is_measured
            && (self.is_resized || self.card.total_source != Source::Measured)
    }

    /// Returns `true` if Windows manages the device, as under WSL2. Managed memory then cannot
    /// exceed the device's memory.
    pub(crate) fn is_of_windows(&self) -> bool {
        self.card.name.ends_with(" WSL2")
    }

    /// Returns `true` if both devices have the same compute capability, so that programs run the
    /// same kernels on both.
    pub(crate) fn is_alike(&self, other: &Device) -> bool {
        self.card.capability == other.card.capability
    }

    /// Returns the value of `GPUHEAP_EMULATED_DEVICE` for `count` devices like this one.
    pub(crate) fn describe(&self, count: u32) -> String {
        let Card { capability: (major, minor), sms, vmm, pools, .. } = self.card;
        let one = format!(
            "name={};memory={};context={};capability={major}.{minor};sms={sms};vmm={};pools={}",
            self.card.driver_names.first().unwrap_or(&self.card.name),
            self.total_bytes.saturating_sub(self.margin_bytes),
            self.context_bytes,
            u8::from(*vmm),
            u8::from(*pools),
        );
        vec![one; count as usize].join(",")
    }
}

#[cfg(test)]
mod tests {
    use gpuheap_replay::cards;

    use super::*;

    #[test]
    fn description_has_all_catalogue_figures() {
        let device = Device::new(cards::find("RTX 3090").unwrap(), None);
        let one = "name=RTX 3090;memory=25436356608;context=257949696;capability=8.6;sms=82;vmm=1;\
                   pools=1";
        assert_eq!(device.describe(1), one);
        assert_eq!(device.describe(2), format!("{one},{one}"));
        assert_eq!(device.usable_bytes(), 25_436_356_608 - 257_949_696);
    }

    #[test]
    fn margin_is_left_out_of_memory() {
        let device = Device::new(cards::find("H200 141GB").unwrap(), Some(8 << 30));
        let device = device.with_margin(0.03);
        assert_eq!(device.margin_bytes, 245 << 20);
        assert!(device.describe(1).contains(&format!("memory={};", (8 << 30) - (245_u64 << 20))));
        assert_eq!(device.usable_bytes(), (8 << 30) - (245 << 20) - 552_402_944);
    }

    #[test]
    fn given_memory_is_the_drivers_total() {
        let device = Device::new(cards::find("H200 141GB").unwrap(), Some(8 << 30));
        assert_eq!(device.usable_bytes(), (8 << 30) - 552_402_944);
        assert!(device.describe(1).starts_with("name=NVIDIA H200;memory=8589934592;"));
    }
}
