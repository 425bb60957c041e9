//! Growth: sites that hold more and more memory in the course of a recording.

use gpuheap_trace::{Op, Trace};

use crate::ledger::Ledger;

/// Number of parts that a recording is divided into, with equally many events in each. A training
/// run of five epochs still has a rise in most parts. With more parts, a part of a short recording
/// is less than one step, and the floor of a site that is freed in each step would not be zero.
pub const PARTS: usize = 8;
/// Number of parts at the start that do not count, because programs load their model there.
pub const WARM_UP: usize = 2;
/// Least number of rises of a site that grows steadily, of `PARTS - WARM_UP`.
const STEADY: usize = 4;

/// A site whose memory grew. The floor of a part is the least memory that the site held there:
/// memory that comes and goes with each step of a program is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// Name of the site.
    pub site: String,
    /// Floor of the site in each part of the recording, bytes.
    pub floors: [u64; PARTS],
}

impl Growth {
    /// Returns the floor at the end of the warm-up, bytes.
    pub fn first(&self) -> u64 {
        self.floors[WARM_UP - 1]
    }

    /// Returns the floor at the end, bytes. A program may free everything at its end, so the larger
    /// floor of the last two parts counts.
    pub fn last(&self) -> u64 {
        self.floors[PARTS - 1].max(self.floors[PARTS - 2])
    }

    /// Returns the bytes that the site gained after the warm-up.
    pub fn bytes(&self) -> u64 {
        self.last().saturating_sub(self.first())
    }

    /// Returns the number of parts after the warm-up whose floor is above the part before.
    pub fn rises(&self) -> usize {
        self.floors[WARM_UP - 1..].windows(2).filter(|pair| pair[1] > pair[0]).count()
    }

    /// Returns `true` if the site grew in most parts after the warm-up and shrank in none but the
    /// last.
    pub fn is_steady(&self) -> bool {
        let before_the_end = &self.floors[WARM_UP - 1..PARTS - 1];
        self.rises() >= STEADY && before_the_end.is_sorted()
    }
}

/// Returns the sites that grew after the warm-up: steady ones first, then by bytes.
pub(crate) fn growing(trace: &Trace, ledger: &Ledger) -> Vec<Growth> {
    let events = trace.events();
    let first = trace.reconstructed_events();
    let count = events.len() - first;
    if count < PARTS {
        return Vec::new();
    }
    let mut live = vec![0_u64; ledger.sites.len()];
    let mut floors = vec![[0_u64; PARTS]; ledger.sites.len()];
    let mut part = 0;
    for (index, event) in events.iter().enumerate() {
        while index >= first + count * part / PARTS {
            for (floors, &live) in floors.iter_mut().zip(&live) {
                floors[part] = live;
            }
            part += 1;
            if part == PARTS {
                break;
            }
        }
        let now = part.saturating_sub(1);
        let (allocation, is_allocated) = match event.op {
            Op::Allocate { allocation, .. } => (allocation, true),
            Op::Free { allocation } => (allocation, false),
            _ => continue,
        };
        let block = &ledger.blocks[allocation as usize];
        let site = block.site as usize;
        if is_allocated {
            live[site] = live[site].saturating_add(block.bytes);
        } else {
            live[site] = live[site].saturating_sub(block.bytes);
            floors[site][now] = floors[site][now].min(live[site]);
        }
    }
    let mut found: Vec<Growth> = floors
        .into_iter()
        .enumerate()
        .map(|(site, floors)| Growth { site: ledger.sites[site].clone(), floors })
        .filter(|growth| growth.bytes() > 0)
        .collect();
    found.sort_by(|one, other| {
        let key = |growth: &Growth| (growth.is_steady(), growth.bytes());
        key(other).cmp(&key(one)).then_with(|| one.site.cmp(&other.site))
    });
    found
}
