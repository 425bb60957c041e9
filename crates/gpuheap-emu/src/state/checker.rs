//! State that the checks use.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

use crate::state::blocks::Blocks;
use crate::state::clock::{Clock, Lane};
use crate::state::ranges::Ranges;
use crate::state::space::Kind;
use crate::state::stream::StreamKind;

/// Maximum number of freed allocations in quarantine, which bounds host memory. The quarantine
/// distinguishes a use after free from a wild pointer.
const QUARANTINED: usize = 1 << 16;

/// State of the checks. It is absent from the emulator's state if the checks are off.
pub(crate) struct Checker {
    /// Vector clock of everything that happened before the host's next step.
    pub(crate) host: Clock,
    /// Lane of each stream (its index in vector clocks), and the clock of everything that happened
    /// before the stream's next work. The key is the stream's index.
    pub(crate) streams: FxHashMap<u32, (Lane, Clock)>,
    /// Vector clock of the work of all destroyed streams, keyed by context.
    pub(crate) gone: FxHashMap<u32, Clock>,
    /// Names of the host and the streams, as findings print them, indexed by lane.
    pub(crate) names: Vec<String>,
    pub(crate) ranges: Ranges,
    pub(crate) blocks: Blocks,
    /// Freed allocations whose addresses were not allocated again, keyed by base address.
    pub(crate) quarantine: BTreeMap<u64, Quarantined>,
    /// Base addresses in quarantine, oldest first.
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

    /// Puts a freed allocation in quarantine. If the quarantine then exceeds [`QUARANTINED`]
    /// allocations, removes the oldest allocation.
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
