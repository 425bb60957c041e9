//! Finds devices by name. A device has its memory, the part that a program can use, and the
//! features of its driver.
//!
//! ```
//! use gpuheap_replay::cards;
//!
//! let card = cards::find("rtx4060")?;
//! assert_eq!(card.name, "RTX 4060 8GB");
//! assert!(card.usable_bytes < card.total_bytes);
//!
//! // A name that several devices share is an error. The error lists these devices.
//! let error = cards::find("A100").unwrap_err();
//! assert_eq!(error.candidates(), ["A100 40GB", "A100 80GB"]);
//! # Ok::<(), cards::UnknownCard>(())
//! ```

mod name;

use std::fmt;
use std::sync::OnceLock;

use name::Name;

use crate::text::{distance, quoted};

/// Data file. The comment at its top describes the columns and the estimates.
const FILE: &str = include_str!("cards.csv");
const MIB: f64 = 1_048_576.0;

/// Device that programs run on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Card {
    /// Name of the device. If the device was sold with several memory sizes, the name includes the
    /// size: `A100 40GB`.
    pub name: &'static str,
    /// Kind of device.
    pub class: Class,
    /// Memory by the vendor's figure, GB.
    pub vendor_gb: u32,
    /// Memory that the driver reports, in bytes. PyTorch's memory fraction is relative to it.
    pub total_bytes: u64,
    /// Source of `total_bytes`.
    pub total_source: Source,
    /// Memory that a program can allocate, in bytes. It is `total_bytes` less CUDA's own context.
    pub usable_bytes: u64,
    /// `true` if `usable_bytes` was measured on the device, `false` if estimated.
    pub usable_is_measured: bool,
    /// Number of multiprocessors.
    pub sms: u32,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// `true` if the driver has virtual memory management. `expandable_segments` needs it.
    pub vmm: bool,
    /// `true` if the driver has stream-ordered pools (`cudaMallocAsync`).
    pub pools: bool,
    /// Other names that the driver gives the device.
    pub driver_names: Vec<&'static str>,
}

/// Kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// A graphics card for consumers.
    Consumer,
    /// A graphics card for workstations.
    Workstation,
    /// A device for data centres.
    DataCentre,
    /// A part of a data-centre device that the driver presents as a separate device.
    MigSlice,
}

impl Class {
    const ALL: [Self; 4] = [Self::Consumer, Self::Workstation, Self::DataCentre, Self::MigSlice];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Consumer => "consumer",
            Self::Workstation => "workstation",
            Self::DataCentre => "data centre",
            Self::MigSlice => "MIG slice",
        })
    }
}

/// Origin of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Read from a device.
    Measured,
    /// From error messages that users published.
    Reported,
    /// Derived from other devices.
    Estimated,
}

/// Returns all known devices: consumer cards, workstation cards, data-centre devices, MIG slices.
pub fn all() -> &'static [Card] {
    static CARDS: OnceLock<Vec<Card>> = OnceLock::new();
    CARDS.get_or_init(|| rows().filter_map(Card::parse).collect())
}

fn names() -> &'static [(&'static Card, Name)] {
    static NAMES: OnceLock<Vec<(&'static Card, Name)>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let of_card = |card: &'static Card| {
            let known = std::iter::once(&card.name).chain(&card.driver_names);
            let known = known.map(|name| (*name).to_owned()).chain(card.sized_name());
            known.map(move |name| (card, Name::parse(&name)))
        };
        all().iter().flat_map(of_card).collect()
    })
}

/// Finds the device that a user names: `A100 40GB`, `rtx4060`, `h100 pcie`, `Tesla T4`. Case,
/// blanks, dashes and the vendor's name are ignored. Words may be left out as long as only one
/// device fits.
///
/// # Errors
/// Returns an error if no device or several devices fit. The error lists the nearest devices, or
/// all that fit.
pub fn find(text: &str) -> Result<&'static Card, UnknownCard> {
    let asked = Name::parse(text);
    let rules: [fn(&Name, &Name) -> bool; 3] =
        [Name::equals, Name::equals_but_memory, Name::is_part];
    for rule in rules {
        let fitting = names().iter().filter(|(_, name)| rule(&asked, name));
        let mut fitting: Vec<&Card> = fitting.map(|(card, _)| *card).collect();
        fitting.dedup();
        match fitting[..] {
            [] => {}
            [card] => return Ok(card),
            _ => return Err(UnknownCard::new(text, true, &fitting)),
        }
    }
    const SHOWN: usize = 3;
    let mut nearest: Vec<&Card> = all().iter().collect();
    nearest.sort_by_cached_key(|card| distance(asked.joined(), Name::parse(card.name).joined()));
    nearest.truncate(SHOWN);
    Err(UnknownCard::new(text, false, &nearest))
}

/// Error for a text that matches no device, or several devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownCard {
    given: String,
    is_ambiguous: bool,
    candidates: Vec<&'static str>,
}

impl UnknownCard {
    fn new(given: &str, is_ambiguous: bool, cards: &[&'static Card]) -> Self {
        let candidates = cards.iter().map(|card| card.name).collect();
        Self { given: quoted(given), is_ambiguous, candidates }
    }

    /// Returns `true` if several devices match the text.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// Returns the names of the devices that match the text, or else the nearest names.
    pub fn candidates(&self) -> &[&'static str] {
        &self.candidates
    }
}

impl fmt::Display for UnknownCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { given, candidates, .. } = self;
        let candidates = candidates.join(", ");
        if self.is_ambiguous {
            write!(f, "{given} is the name of several cards; give one of {candidates}")
        } else {
            write!(f, "there is no card {given}; the nearest known ones are {candidates}")
        }
    }
}

impl std::error::Error for UnknownCard {}

/// Returns the rows of the data file.
fn rows() -> impl Iterator<Item = &'static str> {
    FILE.lines().filter(|line| !line.starts_with('#')).skip(1)
}

impl Card {
    /// Returns the name with the vendor's memory size, as `RTX 4070 12GB`; `None` if the name
    /// already has a size.
    fn sized_name(&self) -> Option<String> {
        let has_memory = self.name.to_ascii_lowercase().contains("gb");
        (!has_memory).then(|| format!("{} {}GB", self.name, self.vendor_gb))
    }

    /// Reads a row. Returns `None` if the row is malformed.
    fn parse(row: &'static str) -> Option<Self> {
        let mut fields = row.split(',');
        let mut next = || fields.next();
        let name = next()?;
        let class = next()?;
        let class = Class::ALL.into_iter().find(|known| known.to_string() == class)?;
        let vendor_gb = next()?.parse().ok()?;
        let total_mib: f64 = next()?.parse().ok()?;
        let total_source = match next()? {
            "measured" => Source::Measured,
            "reported" => Source::Reported,
            "estimated" => Source::Estimated,
            _ => return None,
        };
        let context = next()?;
        let sms = next()?.parse().ok()?;
        let (major, minor) = next()?.split_once('.')?;
        let capability = (major.parse().ok()?, minor.parse().ok()?);
        let (vmm, pools) = (flag(next()?)?, flag(next()?)?);
        let driver_names = next()?.split(';').filter(|name| !name.is_empty()).collect();
        let context_mib = match context {
            "" => estimated_context_mib(sms, capability),
            measured => measured.parse().ok()?,
        };
        let total_bytes = (total_mib * MIB) as u64;
        Some(Self {
            name,
            class,
            vendor_gb,
            total_bytes,
            total_source,
            usable_bytes: total_bytes.saturating_sub((context_mib * MIB) as u64),
            usable_is_measured: total_source == Source::Measured && !context.is_empty(),
            sms,
            capability,
            vmm,
            pools,
            driver_names,
        })
    }
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Returns the memory in MiB that a context takes, by the rule at the top of `cards.csv`.
fn estimated_context_mib(sms: u32, capability: (u32, u32)) -> f64 {
    const LEAST: f64 = 64.0;
    let of_each = if capability >= (9, 0) { 4.0 } else { 3.0 };
    (f64::from(sms) * of_each).max(LEAST)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_cards_with_distinct_names() {
        let malformed: Vec<_> = rows().filter(|row| Card::parse(row).is_none()).collect();
        assert!(malformed.is_empty(), "{malformed:?}");
        assert!(all().len() >= 40, "{}", all().len());
        let names: BTreeSet<_> = all().iter().map(|card| card.name).collect();
        assert_eq!(names.len(), all().len());
        for class in Class::ALL {
            assert!(all().iter().any(|card| card.class == class), "{class}");
        }
    }

    #[test]
    fn usable_total_vendor_memory_ascend() {
        for card in all() {
            let name = card.name;
            assert!(card.usable_bytes < card.total_bytes, "{name}");
            // A vendor's GB is a GiB for graphics cards. For some other devices, it is 1e9 bytes,
            // so 128 GB are 119 GiB.
            let vendor = f64::from(card.vendor_gb) * 1_073_741_824.0;
            assert!(card.total_bytes as f64 <= vendor, "{name}");
            assert!(card.usable_bytes as f64 >= 0.85 * vendor, "{name}");
        }
    }

    #[test]
    fn card_is_found_by_its_names() {
        for card in all() {
            for name in std::iter::once(&card.name).chain(&card.driver_names) {
                for text in [
                    (*name).to_owned(),
                    name.to_lowercase(),
                    name.replace(' ', ""),
                    name.replace(' ', "-"),
                    format!("NVIDIA {name}"),
                    format!("  {} ", name.to_uppercase()),
                ] {
                    assert_eq!(find(&text).map(|card| card.name), Ok(card.name), "{text}");
                }
            }
        }
    }

    #[test]
    fn partial_name_finds_the_only_card() {
        for (text, name) in [
            ("RTX 4060", "RTX 4060 8GB"),
            ("NVIDIA GeForce RTX 4060", "RTX 4060 8GB"),
            ("4060", "RTX 4060 8GB"),
            ("rtx4060 wsl2", "RTX 4060 8GB WSL2"),
            ("wsl2-rtx4060", "RTX 4060 8GB WSL2"),
            ("4060ti 16gb", "RTX 4060 Ti 16GB"),
            ("4070 ti super", "RTX 4070 Ti Super"),
            ("4090", "RTX 4090"),
            ("RTX 4070 12GB", "RTX 4070"),
            ("rtx4090 24gb", "RTX 4090"),
            ("Tesla T4", "T4 16GB"),
            ("a10", "A10 24GB"),
            ("h100 pcie", "H100 PCIe 80GB"),
            ("h100-sxm", "H100 SXM 80GB"),
            ("A100 40 GB", "A100 40GB"),
            ("a100-40g", "A100 40GB"),
            ("h200", "H200 141GB"),
            ("a30", "A30 24GB"),
            ("6000 Ada", "RTX 6000 Ada"),
            ("1g.5gb", "A100 40GB MIG 1g.5gb"),
            ("A100 3g.20gb", "A100 40GB MIG 3g.20gb"),
        ] {
            assert_eq!(find(text).map(|card| card.name), Ok(name), "{text}");
        }
    }

    #[test]
    fn ambiguous_name_lists_its_cards() {
        for (text, names) in [
            ("A100", &["A100 40GB", "A100 80GB"][..]),
            ("H100", &["H100 PCIe 80GB", "H100 SXM 80GB", "H100 NVL 94GB"]),
            ("v100", &["V100 16GB", "V100 32GB"]),
            ("RTX 4060 Ti", &["RTX 4060 Ti 8GB", "RTX 4060 Ti 16GB"]),
        ] {
            let error = find(text).unwrap_err();
            assert!(error.is_ambiguous(), "{text}");
            assert_eq!(error.candidates(), names, "{text}");
            assert!(error.to_string().contains(names[1]), "{error}");
        }
    }

    #[test]
    fn unknown_name_gives_the_nearest() {
        for (text, near) in [
            ("RTX 4095", "RTX 4090"),
            ("RTX 4070 16GB", "RTX 4070"),
            ("A101 40GB", "A100 40GB"),
            ("RTX 4060 16GB", "RTX 4060 8GB"),
            ("", "T4 16GB"),
        ] {
            let error = find(text).unwrap_err();
            assert!(!error.is_ambiguous(), "{text}");
            assert!(error.to_string().contains(near), "{error}");
        }
        let error = find(&"x\n".repeat(1000)).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.len() < 200, "{error}");
    }
}
