//! Growth: sites that hold more and more memory in the course of a recording.

use gpuheap_trace::{Op, Trace};
use rustc_hash::FxHashMap;

use crate::calls::Calls;
use crate::ledger::{Block, Ledger};

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
    /// Stack that gained the most at this site: its frames in the program's own code, innermost
    /// first. Empty without stacks.
    pub frames: Vec<String>,
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
pub(crate) fn growing(trace: &Trace, ledger: &Ledger, calls: &Calls<'_>) -> Vec<Growth> {
    let of_sites = floors(trace, ledger, ledger.sites.len(), |block| Some(block.site));
    let mut found: Vec<Growth> = of_sites
        .into_iter()
        .enumerate()
        .map(|(site, floors)| Growth {
            site: ledger.sites[site].clone(),
            frames: Vec::new(),
            floors,
        })
        .collect();
    if found.iter().any(|growth| growth.bytes() > 0) {
        // The call with the most bytes of each site.
        let mut best: FxHashMap<u32, (u64, u32)> = FxHashMap::default();
        let of_calls = floors(trace, ledger, calls.len(), |block| calls.of(block));
        let mut site_of = vec![0; calls.len()];
        for block in &ledger.blocks {
            if let Some(call) = calls.of(block) {
                site_of[call as usize] = block.site;
            }
        }
        for (call, floors) in (0_u32..).zip(of_calls) {
            let bytes = Growth { site: String::new(), frames: Vec::new(), floors }.bytes();
            let most = best.entry(site_of[call as usize]).or_default();
            if bytes > most.0 {
                *most = (bytes, call);
            }
        }
        for (site, (bytes, call)) in best {
            if bytes > 0 {
                found[site as usize].frames = calls.frames(call);
            }
        }
    }
    found.retain(|growth| growth.bytes() > 0);
    found.sort_by(|one, other| {
        let key = |growth: &Growth| (growth.is_steady(), growth.bytes());
        key(other).cmp(&key(one)).then_with(|| one.site.cmp(&other.site))
    });
    found
}

/// Returns the floors of each group of blocks. Empty if the recording has fewer events than parts.
fn floors(
    trace: &Trace,
    ledger: &Ledger,
    groups: usize,
    group: impl Fn(&Block) -> Option<u32>,
) -> Vec<[u64; PARTS]> {
    let events = trace.events();
    let first = trace.reconstructed_events();
    let count = events.len() - first;
    if count < PARTS {
        return Vec::new();
    }
    let mut live = vec![0_u64; groups];
    let mut floors = vec![[0_u64; PARTS]; groups];
    let mut part = 0;
    for (index, event) in events.iter().enumerate() {
        while part < PARTS && index >= first + count * part / PARTS {
            for (floors, &live) in floors.iter_mut().zip(&live) {
                floors[part] = live;
            }
            part += 1;
        }
        let now = part.saturating_sub(1);
        let (allocation, is_allocated) = match event.op {
            Op::Allocate { allocation, .. } => (allocation, true),
            Op::Free { allocation } => (allocation, false),
            _ => continue,
        };
        let block = &ledger.blocks[allocation as usize];
        let Some(group) = group(block) else { continue };
        let live = &mut live[group as usize];
        if is_allocated {
            *live = live.saturating_add(block.bytes);
        } else {
            *live = live.saturating_sub(block.bytes);
            let floor = &mut floors[group as usize][now];
            *floor = (*floor).min(*live);
        }
    }
    floors
}
