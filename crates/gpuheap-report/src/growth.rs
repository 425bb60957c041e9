//! Finds growth: sites that hold more and more memory in the course of a recording.

use gpuheap_trace::{Op, Trace};
use rustc_hash::FxHashMap;

use crate::calls::Calls;
use crate::holders::thread_name;
use crate::ledger::{Block, Ledger};

/// Number of parts into which a recording is divided, each with equally many events. With 8 parts,
/// memory that leaks in each epoch still rises in most parts of a run of five epochs. With more
/// parts, a part could be shorter than a step, and memory that each step frees would count as
/// growth.
pub const PARTS: usize = 8;
/// Number of the [`PARTS`] of a recording that are ignored at its start, because programs load
/// their model then.
pub const WARM_UP: usize = 2;
/// Minimum number of parts after the warm-up in which the least memory of a site rises, if its
/// growth is steady.
const STEADY: usize = 4;

/// A site whose memory grew, with its floor in each part of the recording. The floor is the least
/// memory that the site held during the part, so memory that each step frees is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// Name of the site.
    pub site: String,
    /// Thread whose blocks and events determine [`floors`](Self::floors); `None` if all threads do.
    pub thread: Option<String>,
    /// Frames of the stack that gained the most bytes at this site, innermost first. Leaves out
    /// frames of libraries. Empty if the recording has no stacks.
    pub frames: Vec<String>,
    /// Floor of the site in each part of the recording, in bytes.
    pub floors: [u64; PARTS],
    /// `true` if the site grew in most parts of the recording after the warm-up, and shrank in none
    /// but the last. Never `true` if the recording has a pool's segments and not its blocks.
    pub is_steady: bool,
}

impl Growth {
    /// Returns the least memory that the site held in the last part of the warm-up, in bytes.
    /// Growth is counted from this amount.
    pub fn first(&self) -> u64 {
        self.floors[WARM_UP - 1]
    }

    /// Returns the site's floor at the end of the recording, in bytes. This is the larger floor of
    /// the last two parts, because a program may free everything at its end.
    pub fn last(&self) -> u64 {
        last(&self.floors)
    }

    /// Returns the bytes that the site gained after the warm-up.
    pub fn bytes(&self) -> u64 {
        gained(&self.floors)
    }

    /// Returns the number of times that the site's least memory rose from one part of the recording
    /// to the next, after the warm-up.
    pub fn rises(&self) -> usize {
        rises(&self.floors)
    }
}

/// Least memory that a site or call held in each part of the recording, in bytes.
type Floors = [u64; PARTS];

fn last(floors: &Floors) -> u64 {
    floors[PARTS - 1].max(floors[PARTS - 2])
}

fn gained(floors: &Floors) -> u64 {
    last(floors).saturating_sub(floors[WARM_UP - 1])
}

fn rises(floors: &Floors) -> usize {
    floors[WARM_UP - 1..].windows(2).filter(|pair| pair[1] > pair[0]).count()
}

fn is_steady(floors: &Floors) -> bool {
    rises(floors) >= STEADY && floors[WARM_UP - 1..PARTS - 1].is_sorted()
}

/// Returns the sites that grew after the warm-up: steady sites, then other sites, sorted by gained
/// bytes. If one thread gained at least half of a site's bytes, steadily over its own events, the
/// site is judged by that thread's memory alone. Otherwise, threads that run one after another
/// would each grow in only a few parts of the recording. If `has_blocks` is `false`, the recording
/// has segments of a pool in place of its blocks, and no site is steady.
pub(crate) fn growing(
    trace: &Trace,
    ledger: &Ledger,
    calls: &Calls<'_>,
    has_blocks: bool,
) -> Vec<Growth> {
    let of_site = |block: &Block| Some(block.site);
    // Floors of each site, and the thread for which they are counted (`None`: all threads).
    let mut found: FxHashMap<u32, (Option<u32>, Floors)> = series(trace, ledger, false, of_site)
        .into_iter()
        .map(|series| (series.key, (None, series.floors)))
        .filter(|(_, (_, floors))| gained(floors) > 0)
        .collect();
    if found.is_empty() {
        return Vec::new();
    }
    if trace.threads().is_some_and(|all| all.len() > 1) {
        for Series { key, thread, floors } in series(trace, ledger, true, of_site) {
            let Some(known) = found.get_mut(&key) else { continue };
            let is_most = match known.0 {
                Some(_) => gained(&floors) > gained(&known.1),
                None => gained(&floors) >= gained(&known.1) / 2,
            };
            if is_steady(&floors) && is_most {
                *known = (Some(thread), floors);
            }
        }
    }
    let mut site_of = vec![0; calls.len()];
    for block in &ledger.blocks {
        if let Some(call) = calls.of(block) {
            site_of[call as usize] = block.site;
        }
    }
    // Call that gained the most bytes at each site, together with these bytes.
    let mut best: FxHashMap<u32, (u64, u32)> = FxHashMap::default();
    for by_thread in [false, true] {
        if found.values().any(|(thread, _)| thread.is_some() == by_thread) {
            for Series { key: call, thread, floors } in
                series(trace, ledger, by_thread, |block| calls.of(block))
            {
                let site = site_of[call as usize];
                let thread = by_thread.then_some(thread);
                if found.get(&site).is_some_and(|(of, _)| *of == thread) {
                    let most = best.entry(site).or_default();
                    *most = (*most).max((gained(&floors), call));
                }
            }
        }
    }
    let growth = |(site, (thread, floors)): (u32, (Option<u32>, Floors))| {
        let call = best.get(&site).filter(|(bytes, _)| *bytes > 0);
        Growth {
            site: ledger.sites[site as usize].clone(),
            thread: thread.map(|thread| thread_name(trace, thread, 0)),
            frames: call.map_or_else(Vec::new, |(_, call)| calls.frames(*call)),
            floors,
            is_steady: has_blocks && is_steady(&floors),
        }
    };
    let mut found: Vec<Growth> = found.into_iter().map(growth).collect();
    found.sort_by(|one, other| {
        let key = |growth: &Growth| (growth.is_steady, growth.bytes());
        key(other).cmp(&key(one)).then_with(|| one.site.cmp(&other.site))
    });
    found
}

/// Least memory that the blocks of one key (a site or a call) took in each part of the recording.
struct Series {
    key: u32,
    /// Index of the thread; 0 for all threads.
    thread: u32,
    floors: Floors,
}

/// Progress of a thread, or of all threads, through the events.
#[derive(Clone, Default)]
struct Clock {
    events: usize,
    seen: usize,
    /// Number of parts that began.
    part: usize,
    /// Indices of the series with this clock.
    series: Vec<usize>,
}

impl Clock {
    /// Counts an event. If the event begins a part of the recording, the part's floor is first set
    /// to the bytes that are live now.
    fn advance(&mut self, live: &[u64], found: &mut [Series]) {
        while self.part < PARTS
            && self.events >= PARTS
            && self.seen >= self.events * self.part / PARTS
        {
            for &index in &self.series {
                found[index].floors[self.part] = live[index];
            }
            self.part += 1;
        }
        self.seen += 1;
    }
}

/// Returns the least memory in each part of the recording, for each key, or for each key and thread
/// if `by_thread` is set. Returns zeros if there are fewer events than parts.
fn series(
    trace: &Trace,
    ledger: &Ledger,
    by_thread: bool,
    key: impl Fn(&Block) -> Option<u32>,
) -> Vec<Series> {
    let clock_of = |thread: u32| if by_thread { thread } else { 0 };
    let mut clocks = vec![Clock::default(); trace.threads().map_or(1, <[u64]>::len).max(1)];
    let first = trace.reconstructed_events();
    for event in &trace.events()[first..] {
        clocks[clock_of(event.thread) as usize].events += 1;
    }
    let mut found: Vec<Series> = Vec::new();
    let mut numbers: FxHashMap<(u32, u32), usize> = FxHashMap::default();
    let of_block = |block: &Block| {
        let (key, thread) = (key(block)?, clock_of(block.thread));
        Some(*numbers.entry((key, thread)).or_insert_with(|| {
            found.push(Series { key, thread, floors: [0; PARTS] });
            clocks[thread as usize].series.push(found.len() - 1);
            found.len() - 1
        }))
    };
    let of_blocks: Vec<Option<usize>> = ledger.blocks.iter().map(of_block).collect();
    let mut live = vec![0_u64; found.len()];
    for (index, event) in trace.events().iter().enumerate() {
        if index >= first {
            clocks[clock_of(event.thread) as usize].advance(&live, &mut found);
        }
        let (allocation, is_allocated) = match event.op {
            Op::Allocate { allocation, .. } => (allocation as usize, true),
            Op::Free { allocation } => (allocation as usize, false),
            _ => continue,
        };
        let Some(at) = of_blocks[allocation] else { continue };
        let bytes = ledger.blocks[allocation].bytes;
        if is_allocated {
            live[at] = live[at].saturating_add(bytes);
        } else {
            live[at] = live[at].saturating_sub(bytes);
            let Series { thread, floors, .. } = &mut found[at];
            let floor = &mut floors[clocks[*thread as usize].part.saturating_sub(1)];
            *floor = (*floor).min(live[at]);
        }
    }
    found
}
