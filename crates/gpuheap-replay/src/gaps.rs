//! Gaps of a recording, and what they do to the figures.

use std::fmt;

use gpuheap_trace::SnapshotKeys;

use crate::models::torch::Version;
use crate::{Program, Reproduction};

/// Something that a recording does not say, and what that does to the figures.
///
/// [`Display`](fmt::Display) gives a sentence or two for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gap {
    /// Blocks were live before the first event: the recording began late, or its buffer was full
    /// and dropped the oldest events.
    Beginning {
        /// Blocks.
        blocks: u64,
        /// Bytes of the blocks, as requested.
        bytes: u64,
    },
    /// The snapshot has no settings of the allocator.
    Settings,
    /// The snapshot has no segments.
    Segments,
    /// The snapshot's keys are those of another release of PyTorch than the model was compared with.
    Version {
        /// Release whose rules are used.
        used: Version,
        /// Keys that differ.
        keys: SnapshotKeys,
    },
    /// Memory is collected above a part of a memory fraction, which no snapshot has.
    Fraction,
    /// The model does not take the segments that PyTorch took.
    Inexact(Reproduction),
}

impl Program {
    /// Returns what the recording does not say of the program. `memory_fraction` is that of the
    /// program, if it set one, and `device_memory` the bytes of the device that it ran on; no
    /// recording has these two.
    ///
    /// Runs the program once if the recording has segments.
    pub fn gaps(&self, memory_fraction: Option<f64>, device_memory: u64) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let (blocks, bytes) = self.live_before();
        if blocks > 0 {
            gaps.push(Gap::Beginning { blocks, bytes });
        }
        let Some((keys, used)) = self.snapshot_keys().zip(self.recorded_version()) else {
            return gaps;
        };
        let settings = self.recorded_settings();
        if settings.is_none() {
            gaps.push(Gap::Settings);
        }
        if self.recorded_driver_events().is_empty() {
            gaps.push(Gap::Segments);
        }
        if !keys.is_known() {
            gaps.push(Gap::Version { used, keys: keys.clone() });
        }
        let collects = settings.is_some_and(|settings| settings.collects_garbage());
        if collects && memory_fraction.is_none() {
            gaps.push(Gap::Fraction);
        }
        let reproduction = self.reproduction(memory_fraction, device_memory);
        gaps.extend(reproduction.filter(|found| !found.is_exact()).map(Gap::Inexact));
        gaps
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning { blocks, bytes } => write!(
                f,
                "{blocks} {} ({}) {} live before the first event: the recording began late, or \
                 its buffer (max_entries) was full. Requests before that are not known, so peaks \
                 are those of the recorded part",
                if *blocks == 1 { "block" } else { "blocks" },
                size(*bytes),
                if *blocks == 1 { "was" } else { "were" },
            ),
            Self::Settings => f.write_str(
                "the snapshot has no allocator_settings, so PyTorch's defaults are assumed. If \
                 the program set PYTORCH_CUDA_ALLOC_CONF, give its text: --pool torch:TEXT",
            ),
            Self::Segments => f.write_str(
                "the snapshot records no segments, so what PyTorch reserved is not known. What it \
                 would reserve follows from the requests",
            ),
            Self::Version { used, keys } => {
                let (age, verb, names) = match &keys.unknown[..] {
                    [] => ("an older", "lacks", &keys.missing),
                    _ => ("a newer", "has", &keys.unknown),
                };
                write!(
                    f,
                    "the snapshot is of {age} PyTorch than {}, or of another program: it {verb} \
                     {}. Rules of PyTorch {used} are used, which no recording was compared with; \
                     --pool torch:version:2.N chooses others",
                    Version::default(),
                    listed(names)
                )
            }
            Self::Fraction => f.write_str(
                "garbage_collection_threshold is set, but no snapshot has the memory fraction \
                 that it is a part of, so nothing is collected. Give it: --pool \
                 torch:per_process_memory_fraction:0.9",
            ),
            Self::Inexact(found) => {
                let Reproduction { recorded, recorded_peak, modelled_peak, .. } = *found;
                write!(
                    f,
                    "the model of PyTorch's allocator reserves {} where PyTorch reserved {} \
                     ({:+.1} %)",
                    size(modelled_peak),
                    size(recorded_peak),
                    100.0 * found.error()
                )?;
                if let Some(first) = found.first_difference {
                    write!(f, ", with other segments from segment {} of {recorded} on", first + 1)?;
                }
                f.write_str(
                    ". So figures of torch are approximate. No snapshot has CUDA graphs and MemPools \
                     that ended before it, the memory fraction, and other users of the device",
                )
            }
        }
    }
}

/// The first names of a list, and how many more there are.
fn listed(names: &[String]) -> String {
    const MOST: usize = 3;
    let (first, rest) = names.split_at(names.len().min(MOST));
    match rest.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// A size with two significant decimals.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.checked_ilog2().unwrap_or(0) / 10) as usize;
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{:.2} {}", bytes as f64 / (1_u64 << (10 * unit)) as f64, UNITS[unit]),
    }
}
