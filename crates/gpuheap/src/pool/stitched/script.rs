//! What was placed where, so that a program that does the same again gets the same places.
//!
//! A program that repeats itself asks for the same sizes in the same order. Placed where they were
//! the last time, its requests need the mappings that are there already; placed by best fit alone
//! they would need others each time, as each round begins with other free ranges.
//!
//! The log is followed from the last place where the last few sizes were the same. A place is taken
//! only if it is free: a wrong guess costs nothing but the look.

/// So many requests are remembered.
const LOG: usize = 1 << 17;
/// How many sizes in a row have to be the same before the log is followed.
const CONTEXT: u32 = 4;
/// So many entries may be passed over where a request of the last time is not made.
const AHEAD: usize = 8;
const TABLE: usize = 1 << 15;

/// Where a request was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At a home address.
    Home(u64),
    /// In a stitched range.
    Range(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    units: u32,
    range: u32,
    home: u64,
}

/// Not a stitched range.
const AT_HOME: u32 = u32::MAX;

/// How far a log is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    next: Option<usize>,
    began: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Script {
    /// A ring.
    log: Vec<Entry>,
    /// Requests ever noted.
    count: usize,
    /// The request that is the next one if the program goes on as it did.
    next: Option<usize>,
    /// The request that was the last one with nothing else live.
    began: Option<usize>,
    /// By the hash of the last sizes: the request after which they were these.
    table: Vec<u32>,
    /// The sizes before this one, hashed.
    hash: u64,
}

impl Script {
    /// Nothing is live: the program may begin as it did the last time that this was so.
    pub(super) fn begin(&mut self) {
        self.next = self.began.replace(self.count);
    }

    /// How far the log is followed, for a request that may be made once more.
    #[inline]
    pub(super) fn position(&self) -> Position {
        Position { next: self.next, began: self.began }
    }

    /// Follows the log from there: what was asked for since was not had.
    pub(super) fn back_to(&mut self, position: Position) {
        Position { next: self.next, began: self.began } = position;
    }

    /// Where this request was placed when the program did the same before.
    #[inline]
    pub(super) fn place(&mut self, bytes: u64) -> Option<Place> {
        let units = units(bytes);
        let at = match self.next {
            Some(at) if self.is(at, units) => Some(at),
            Some(at) => (at + 1..at + AHEAD).find(|at| self.is(*at, units)),
            None => None,
        };
        let at = at.or_else(|| self.look_up(units));
        self.next = at.map(|at| at + 1).or(self.next);
        let entry = self.log[at? % LOG];
        Some(if entry.range == AT_HOME {
            Place::Home(entry.home)
        } else {
            Place::Range(entry.range)
        })
    }

    /// Notes where a request was placed.
    #[inline]
    pub(super) fn note(&mut self, bytes: u64, place: Place) {
        let units = units(bytes);
        let entry = match place {
            Place::Home(home) => Entry { units, range: AT_HOME, home },
            Place::Range(range) => Entry { units, range, home: 0 },
        };
        if self.table.is_empty() {
            self.table = vec![u32::MAX; TABLE];
        }
        if self.log.len() < LOG {
            self.log.push(entry);
        } else {
            self.log[self.count % LOG] = entry;
        }
        self.hash = self.hash_with(units);
        self.table[slot(self.hash)] = self.count as u32;
        self.count += 1;
    }

    fn is(&self, at: usize, units: u32) -> bool {
        at < self.count && at + LOG > self.count && self.log[at % LOG].units == units
    }

    /// The last request before which there were the same sizes as before this one.
    fn look_up(&self, units: u32) -> Option<usize> {
        let at = *self.table.get(slot(self.hash_with(units)))? as usize;
        let same = self.is(at, units)
            && (1..CONTEXT as usize).all(|back| {
                at >= back
                    && self.count >= back
                    && self.is(at - back, self.log[(self.count - back) % LOG].units)
            });
        same.then_some(at)
    }

    /// The hash of the last few sizes, this one with them: what is older is shifted out.
    fn hash_with(&self, units: u32) -> u64 {
        let mixed = (u64::from(units).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 48;
        self.hash << (64 / CONTEXT) ^ mixed
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes / crate::pool::shelf::ROUNDING).unwrap_or(u32::MAX)
}

fn slot(hash: u64) -> usize {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as usize
}
