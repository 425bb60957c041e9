//! Finds the gaps of a recording, and describes their effect on the figures.

use std::fmt;

use gpuheap_trace::SnapshotKeys;

use crate::models::torch::Version;
use crate::text::Amount;
use crate::{Program, Reproduction};

/// Fact that a recording lacks, and the effect on the figures.
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
    /// The snapshot's keys differ from the keys of the PyTorch release whose allocator was compared
    /// with the model. So another release of PyTorch wrote the snapshot.
    Version {
        /// Release whose rules are used.
        used: Version,
        /// Keys that differ.
        keys: SnapshotKeys,
    },
    /// A garbage collection threshold is set. The threshold is relative to the memory fraction, and
    /// snapshots do not contain that fraction.
    Fraction {
        /// The recorded settings, in the form of `PYTORCH_CUDA_ALLOC_CONF`.
        settings: String,
    },
    /// The model does not take the segments that PyTorch took.
    Inexact(Reproduction),
    /// A request failed, and the recording does not say how much memory the device had.
    Device,
}

impl Gap {
    /// Returns the word that names the missing fact in the JSON report.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Beginning { .. } => "beginning",
            Self::Settings => "settings",
            Self::Segments => "segments",
            Self::Version { .. } => "version",
            Self::Fraction { .. } => "fraction",
            Self::Inexact(_) => "inexact",
            Self::Device => "device",
        }
    }
}

impl Program {
    /// Returns the facts about the program that the recording lacks.
    ///
    /// `memory_fraction` is the fraction that the program set. `device_memory` is the memory of the
    /// device that the program ran on, in bytes. Recordings contain neither.
    ///
    /// If the recording has segments, runs the program once through the model of PyTorch's
    /// allocator, to compare the segments.
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
        if let Some(settings) = settings.filter(|settings| settings.collects_garbage())
            && memory_fraction.is_none()
        {
            gaps.push(Gap::Fraction { settings: settings.to_alloc_conf() });
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
                 its buffer (max_entries) was full. Peaks are those of the recorded part; earlier \
                 ones are not known",
                if *blocks == 1 { "block" } else { "blocks" },
                Amount(*bytes),
                if *blocks == 1 { "was" } else { "were" },
            ),
            Self::Settings => f.write_str(
                "the snapshot has no allocator_settings: PyTorch's defaults are assumed. If the \
                 program set PYTORCH_CUDA_ALLOC_CONF, give its text: --pool torch:TEXT",
            ),
            Self::Segments => f.write_str(
                "the snapshot has no segments: what PyTorch reserved is not known, what it would \
                 reserve follows from the requests",
            ),
            Self::Version { used, keys } => {
                let (age, verb, names) = match &keys.unknown[..] {
                    [] => ("an older", "lacks", &keys.missing),
                    _ => ("a newer", "has", &keys.unknown),
                };
                write!(
                    f,
                    "the snapshot is of {age} PyTorch than {}, or of another program: it {verb} \
                     {}. Requests are known; rules of PyTorch {used} are used, which no recording \
                     was compared with. --pool torch:version:2.N chooses others",
                    Version::default(),
                    listed(names)
                )
            }
            Self::Fraction { settings } => write!(
                f,
                "garbage_collection_threshold is a part of the memory fraction, which no snapshot \
                 has: without it nothing is collected. Give it: --pool \
                 torch:{settings},per_process_memory_fraction:0.9",
            ),
            Self::Inexact(found) => {
                let Reproduction { recorded, recorded_peak, modelled_peak, .. } = *found;
                write!(
                    f,
                    "the model of PyTorch's allocator reserves {} where PyTorch reserved {} \
                     ({:+.1} %)",
                    Amount(modelled_peak),
                    Amount(recorded_peak),
                    100.0 * found.error()
                )?;
                if let Some(first) = found.first_difference {
                    write!(f, ", with other segments from segment {} of {recorded} on", first + 1)?;
                }
                f.write_str(
                    ": figures of torch are approximate. No snapshot has CUDA graphs and MemPools \
                     that ended before it, the memory fraction, and other users of the device",
                )
            }
            Self::Device => f.write_str(
                "the recording does not name its device: what is needed at least is known, and not \
                 what there was. Name the device: --card \"T4 16GB\" (--card list has all)",
            ),
        }
    }
}

/// Returns a text with the first names of a list, and with the number of names left out.
fn listed(names: &[String]) -> String {
    const MOST: usize = 3;
    let (first, rest) = names.split_at(names.len().min(MOST));
    match rest.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
