//! Stores each place in code that allocates, with its outstanding allocations.

use crate::Caller;
use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::stack::{self, CallStack};
use super::{MemoryKind, Tracking};

/// A place in code. It is a line or, with backtraces, a line and the stack that led to it.
pub(super) struct Site {
    pub(super) at: Caller,
    pub(super) kind: MemoryKind,
    pub(super) stack: CallStack,
}

/// Key of a site. It has line, kind and stack in one slice, so that one look-up finds a site.
pub(super) struct SiteKey {
    words: [usize; 2 + stack::DEPTH],
    len: usize,
    is_cut: bool,
}

impl SiteKey {
    pub(super) fn capture(at: Caller, kind: MemoryKind, tracking: Tracking) -> SiteKey {
        let mut words = [0; 2 + stack::DEPTH];
        words[0] = std::ptr::from_ref(at).addr();
        words[1] = kind as usize;
        let (frames, is_cut) = match tracking {
            Tracking::Backtraces => stack::capture(&mut words[2..]),
            _ => (0, false),
        };
        SiteKey { words, len: 2 + frames, is_cut }
    }

    /// Makes a key that differs from the key of every stack.
    #[cfg(test)]
    pub(super) fn from_number(number: usize) -> SiteKey {
        let mut words = [0; 2 + stack::DEPTH];
        words[0] = number;
        SiteKey { words, len: 2, is_cut: false }
    }

    fn words(&self) -> &[usize] {
        &self.words[..self.len]
    }

    pub(super) fn addresses(&self) -> &[usize] {
        &self.words[2..self.len]
    }
}

/// The sites of a tracker.
pub(super) struct Sites {
    by_key: FxHashMap<Box<[usize]>, u32>,
    /// The first address seen for each line. The compiler may store copies of one `Location`.
    lines: FxHashMap<Location<'static>, Caller>,
    all: Vec<SiteEntry>,
    vacant: Vec<u32>,
    /// At this number of sites, sites without outstanding allocations are removed.
    sweep_at: usize,
}

struct SiteEntry {
    site: Arc<Site>,
    allocations: u64,
    bytes: u64,
}

const LEAST_SWEEP: usize = 4096;

impl Default for Sites {
    fn default() -> Sites {
        Sites {
            by_key: FxHashMap::default(),
            lines: FxHashMap::default(),
            all: Vec::new(),
            vacant: Vec::new(),
            sweep_at: LEAST_SWEEP,
        }
    }
}

impl Sites {
    /// Counts an allocation of the key's site.
    pub(super) fn allocated(
        &mut self,
        key: &SiteKey,
        at: Caller,
        kind: MemoryKind,
        bytes: u64,
    ) -> u32 {
        let index = match self.by_key.get(key.words()) {
            Some(index) => *index,
            None => self.add(key, at, kind),
        };
        let entry = &mut self.all[index as usize];
        entry.allocations += 1;
        entry.bytes += bytes;
        index
    }

    pub(super) fn freed(&mut self, index: u32, bytes: u64) {
        let entry = &mut self.all[index as usize];
        entry.allocations -= 1;
        entry.bytes -= bytes;
    }

    pub(super) fn get(&self, index: u32) -> &Arc<Site> {
        &self.all[index as usize].site
    }

    /// Returns the sites with outstanding allocations, each with the number and the bytes of these
    /// allocations.
    pub(super) fn outstanding(&self) -> Vec<(Arc<Site>, u64, u64)> {
        let busy = self.all.iter().filter(|entry| entry.allocations > 0);
        busy.map(|entry| (entry.site.clone(), entry.allocations, entry.bytes)).collect()
    }

    /// Returns the number of known sites.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.vacant.len()
    }

    #[cold]
    fn add(&mut self, key: &SiteKey, at: Caller, kind: MemoryKind) -> u32 {
        if self.by_key.len() >= self.sweep_at {
            self.sweep();
        }
        let line: Caller = self.lines.entry(*at).or_insert(at);
        let mut words: Box<[usize]> = key.words().into();
        if !std::ptr::eq(line, at) {
            // The compiler may store copies of one `Location`. The site has the first address as
            // its key, and gets the address `at` as a second key.
            words[0] = std::ptr::from_ref(line).addr();
            if let Some(&index) = self.by_key.get(&words) {
                self.by_key.insert(key.words().into(), index);
                return index;
            }
        }
        let stack = CallStack::new(line, key.addresses(), key.is_cut);
        let site = Arc::new(Site { at: line, kind, stack });
        let entry = SiteEntry { site, allocations: 0, bytes: 0 };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.all[index as usize] = entry;
                index
            }
            None => {
                self.all.push(entry);
                (self.all.len() - 1) as u32
            }
        };
        if !std::ptr::eq(line, at) {
            self.by_key.insert(key.words().into(), index);
        }
        self.by_key.insert(words, index);
        index
    }

    /// Removes sites without outstanding allocations. Otherwise a program whose stacks never repeat
    /// would fill the memory with sites. A site in a snapshot stays, because a comparison with a
    /// later snapshot needs it.
    fn sweep(&mut self) {
        let all = &self.all;
        let mut gone = vec![false; all.len()];
        self.by_key.retain(|_, index| {
            let entry = &all[*index as usize];
            let keep = entry.allocations > 0 || Arc::strong_count(&entry.site) > 1;
            gone[*index as usize] |= !keep;
            keep
        });
        self.vacant.extend((0_u32..).zip(&gone).filter(|(_, gone)| **gone).map(|(index, _)| index));
        self.sweep_at = LEAST_SWEEP.max(2 * self.by_key.len());
    }
}
