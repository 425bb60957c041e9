//! State by which the checks judge.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

use crate::state::blocks::Blocks;
use crate::state::clock::{Clock, Lane};
use crate::state::ranges::Ranges;
use crate::state::space::Kind;
use crate::state::stream::StreamKind;

/// Bounds the freed allocations in quarantine, and with them host memory. The quarantine
/// distinguishes a use after free from a wild pointer.
const QUARANTINED: usize = 1 << 16;

/// State of the checks. The emulator's state has `None` if they are off.
pub(crate) struct Checker {
    /// Clock of all that happened before the host's next step.
    pub(crate) host: Clock,
    /// Lane of each stream and the clock of all that happened before its next work, by the stream's
    /// index.
    pub(crate) streams: FxHashMap<u32, (Lane, Clock)>,
    /// Clocks of the work of destroyed streams, by context.
    pub(crate) gone: FxHashMap<u32, Clock>,
    /// Name of each lane in findings.
    pub(crate) names: Vec<String>,
    pub(crate) ranges: Ranges,
    pub(crate) blocks: Blocks,
    /// Freed allocations whose addresses were not allocated again, by base.
    pub(crate) quarantine: BTreeMap<u64, Quarantined>,
    /// Bases in quarantine, oldest first.
    quarantine_order: VecDeque<u64>,
}

/// A freed allocation in quarantine.
#[derive(Clone, Copy)]
pub(crate) struct Quarantined {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) freed_by: &'static str,
}

impl Default for Checker {
    fn default() -> Checker {
        Checker {
            host: Clock::default(),
            streams: FxHashMap::default(),
            gone: FxHashMap::default(),
            names: vec!["the host".to_owned()],
            ranges: Ranges::default(),
            blocks: Blocks::default(),
            quarantine: BTreeMap::new(),
            quarantine_order: VecDeque::new(),
        }
    }
}

impl Checker {
    pub(crate) fn stream(&mut self, stream: u32, id: u64, kind: StreamKind) -> &mut (Lane, Clock) {
        let names = &mut self.names;
        self.streams.entry(stream).or_insert_with(|| {
            names.push(match kind {
                StreamKind::Legacy => format!("the default stream ({id})"),
                StreamKind::PerThread => format!("a thread's default stream ({id})"),
                StreamKind::Created => format!("stream {id}"),
            });
            (names.len() - 1, Clock::default())
        })
    }

    /// Puts a freed allocation in quarantine. If there are more than [`QUARANTINED`], the oldest
    /// leaves.
    pub(crate) fn quarantine(&mut self, base: u64, freed: Quarantined) {
        self.quarantine.insert(base, freed);
        self.quarantine_order.push_back(base);
        if self.quarantine_order.len() > QUARANTINED
            && let Some(oldest) = self.quarantine_order.pop_front()
        {
            self.quarantine.remove(&oldest);
        }
    }
}
