//! Emulated devices with the figures of a card.

use gpuheap_replay::cards::{Card, Source};

/// Emulated device: a card of the catalogue, perhaps with another size of memory. Sizes are bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// The card.
    pub card: &'static Card,
    /// Total memory that the driver reports.
    pub total_bytes: u64,
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
            context_bytes: card.total_bytes - card.usable_bytes,
            is_resized: memory.is_some(),
        }
    }

    /// Returns the memory that programs can take: the total without the context's.
    pub fn usable_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.context_bytes)
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
            self.total_bytes,
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
    fn given_memory_is_the_drivers_total() {
        let device = Device::new(cards::find("H200 141GB").unwrap(), Some(8 << 30));
        assert_eq!(device.usable_bytes(), (8 << 30) - 552_402_944);
        assert!(device.describe(1).starts_with("name=NVIDIA H200;memory=8589934592;"));
    }
}
