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
/// Made when it is first needed, which takes an interpreter seconds.
const TABLE: usize = if cfg!(miri) { 1 << 8 } else { 1 << 15 };

/// Where a request was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At a primary address, in the block with a key, if that is still there.
    Primary(u64, u32),
    /// In a stitched range.
    Range(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    units: u32,
    /// The key of a block or the number of a range.
    name: u32,
    /// [`IN_RANGE`] for a range.
    primary: u64,
}

/// Where in the log a few sizes in a row were, and more of their hash than their place in the table
/// says: a program that does not repeat itself is spared a look at the log, which is megabytes
/// apart (a fifth of the time of random sizes).
#[derive(Clone, Copy, Debug)]
struct Mark {
    check: u32,
    at: u32,
}

/// No primary address.
const IN_RANGE: u64 = u64::MAX;

/// How far a log is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    next: Option<usize>,
    began: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct PlacementLog {
    /// A ring.
    log: Vec<Entry>,
    /// Requests ever noted.
    count: usize,
    /// The request that is the next one if the program goes on as it did.
    next: Option<usize>,
    /// The request that was the last one with nothing else live.
    began: Option<usize>,
    /// By the hash of the last sizes: the request with which they were these.
    table: Vec<Mark>,
    /// The sizes before this one, hashed.
    hash: u64,
    /// `true` if the last request got the place that it had before.
    followed: bool,
}

impl PlacementLog {
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
        Some(match entry.primary {
            IN_RANGE => Place::Range(entry.name),
            primary => Place::Primary(primary, entry.name),
        })
    }

    /// Returns `true` if the program does what it did before.
    #[inline]
    pub(super) fn is_followed(&self) -> bool {
        self.followed
    }

    /// Notes where a request was placed, and whether that is where it was before.
    #[inline]
    pub(super) fn note(&mut self, bytes: u64, place: Place, followed: bool) {
        self.followed = followed;
        let units = units(bytes);
        let entry = match place {
            Place::Primary(primary, name) => Entry { units, name, primary },
            Place::Range(name) => Entry { units, name, primary: IN_RANGE },
        };
        if self.table.is_empty() {
            self.table = vec![Mark { check: 0, at: u32::MAX }; TABLE];
        }
        if self.log.len() < LOG {
            self.log.push(entry);
        } else {
            self.log[self.count % LOG] = entry;
        }
        self.hash = self.hash_with(units);
        let (slot, check) = slot(self.hash);
        self.table[slot] = Mark { check, at: self.count as u32 };
        self.count += 1;
    }

    fn is(&self, at: usize, units: u32) -> bool {
        at < self.count && at + LOG > self.count && self.log[at % LOG].units == units
    }

    /// The last request before which there were the same sizes as before this one.
    fn look_up(&self, units: u32) -> Option<usize> {
        let (slot, check) = slot(self.hash_with(units));
        let mark = self.table.get(slot).filter(|mark| mark.check == check)?;
        // The count goes on past what a mark holds; only the last of it are in the log.
        let back = (self.count as u32).wrapping_sub(mark.at) as usize;
        let at = self.count.checked_sub(back)?;
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
    u32::try_from(bytes / crate::pool::size_bins::ROUNDING).unwrap_or(u32::MAX)
}

/// The place of a hash in the table, and what tells it from others there.
fn slot(hash: u64) -> (usize, u32) {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = TABLE.ilog2();
    ((mixed >> (u64::BITS - bits)) as usize, (mixed >> (u32::BITS - bits)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of a loop's requests are known, where another program comes between its rounds.
    fn known(placement_log: &mut PlacementLog) -> usize {
        let mut known = 0;
        for _ in 0..10 {
            placement_log.next = None;
            for size in 0..100 {
                let bytes = (size + 7) * 512 * 13;
                known += usize::from(placement_log.place(bytes) == Some(Place::Primary(bytes, 0)));
                placement_log.note(bytes, Place::Primary(bytes, 0), true);
            }
        }
        known
    }

    #[test]
    #[cfg_attr(miri, ignore = "it fills a log of 131,072 entries")]
    fn a_loop_is_known_after_four_billion_requests() {
        let mut placement_log = PlacementLog::default();
        (0..LOG).for_each(|_| placement_log.note(512, Place::Primary(1, 0), true));
        let first = known(&mut placement_log);
        assert!(first > 800, "{first} of 1000");
        // As after so many more requests: the log is a ring, whose place stays.
        placement_log.count += ((1 << 32) - 50) / LOG * LOG;
        for _ in 0..LOG / 1000 + 1 {
            let later = known(&mut placement_log);
            assert!(later > 800, "{later} of 1000, after {} requests", placement_log.count);
        }
    }
}
