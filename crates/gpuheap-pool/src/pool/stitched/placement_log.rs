//! Log of placements: a program that repeats itself gets the same places again.
//!
//! Such a program requests equal sizes in equal order. With its blocks at their earlier places, the
//! existing mappings fit. With best fit alone, each round would need other mappings, because it
//! begins with other free ranges.
//!
//! The log is followed from the last position where the last few sizes were equal. A place is taken
//! only if it is free: a wrong guess costs only the look-up.

/// Number of requests that are remembered.
const LOG: usize = 1 << 17;
/// Number of sizes in a row that have to be equal before the log is followed.
const CONTEXT: u32 = 4;
/// Number of entries that may be skipped if an earlier request is not made this time.
const AHEAD: usize = 8;
/// Number of requests in a row without an earlier place after which the log is given up, and only
/// one size in [`SAMPLED`] is looked up. Each look-up of random sizes misses the cache, a sixth of
/// the time of such a program.
const MISSES: u32 = 256;
const SAMPLED: u64 = 8;
/// Divisor of the peak of live bytes up to which little is live. A program rarely begins again with
/// nothing live: a thread's cache may serve its first request. The second pass of `gpt_train` then
/// found two places in five free, and finds three in four.
const LITTLE: u64 = 64;
/// Number of entries in the look-up table. Under Miri a table takes seconds to make, so it is small
/// there, and is made only when first needed.
const TABLE: usize = if cfg!(miri) { 1 << 8 } else { 1 << 15 };

/// Place of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A primary address, and the key of the block there, if that block still exists.
    Primary(u64, u32),
    /// A stitched range.
    Range(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    units: u32,
    /// Key of the block or number of the range.
    name: u32,
    /// Primary address, or [`IN_RANGE`] for a stitched range.
    primary: u64,
}

/// Position in the log at which a few sizes in a row occurred, and more bits of the sizes' hash.
/// The log is megabytes large, and reading it misses the cache. If the bits differ, the log is not
/// read: for random sizes reading it took a fifth of the time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    check: u32,
    at: u32,
}

/// Stands for no primary address.
const IN_RANGE: u64 = u64::MAX;

/// Position up to which the log is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    next: Option<usize>,
    began: Option<usize>,
    has_little: bool,
}

#[derive(Debug, Default)]
pub(super) struct PlacementLog {
    /// Entries, as a ring.
    log: Vec<Entry>,
    /// Number of requests ever noted.
    count: usize,
    /// Request that comes next if the program goes on as before.
    next: Option<usize>,
    /// Last request made while nothing else was live, or first one while little was.
    began: Option<usize>,
    /// `true` if little was live before the last request.
    has_little: bool,
    /// Last request for each hash of a few sizes in a row.
    table: Vec<Mark>,
    /// Number of requests in a row that had no earlier place.
    misses: u32,
    /// Hash of the sizes before this request.
    hash: u64,
    /// `true` if the last request got its earlier place.
    followed: bool,
}

impl PlacementLog {
    /// Notes how much is live before a request. If it is nothing, or has become little, the program
    /// may begin as it did the last time when so little was live.
    #[inline]
    pub(super) fn note_live(&mut self, live: u64, peak: u64) {
        let had_little = std::mem::replace(&mut self.has_little, live <= peak / LITTLE);
        if live == 0 || self.has_little && !had_little {
            self.next = self.began.replace(self.count);
        }
    }

    /// Returns the current position, to return to if the request is repeated.
    #[inline]
    pub(super) fn position(&self) -> Position {
        Position { next: self.next, began: self.began, has_little: self.has_little }
    }

    /// Returns to an earlier position of the log, because the requests made since then failed.
    pub(super) fn return_to(&mut self, position: Position) {
        let Position { next, began, has_little } = position;
        (self.next, self.began, self.has_little) = (next, began, has_little);
    }

    /// Returns the place that this request had when the program did the same before.
    #[inline]
    pub(super) fn find_place(&mut self, bytes: u64) -> Option<Place> {
        let units = units(bytes);
        let at = match self.next {
            Some(at) if self.has_size(at, units) => Some(at),
            Some(at) => (at + 1..at + AHEAD).find(|at| self.has_size(*at, units)),
            None => None,
        };
        let at = at.or_else(|| self.look_up(units));
        match at {
            Some(at) => (self.next, self.misses) = (Some(at + 1), 0),
            None if self.misses < MISSES => self.misses += 1,
            None => self.next = None,
        }
        let entry = self.log[at? % LOG];
        Some(match entry.primary {
            IN_RANGE => Place::Range(entry.name),
            primary => Place::Primary(primary, entry.name),
        })
    }

    /// Returns `true` if the program repeats its earlier requests.
    #[inline]
    pub(super) fn is_followed(&self) -> bool {
        self.followed
    }

    /// Notes the place of a request, and whether it is its earlier place.
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

    fn has_size(&self, at: usize, units: u32) -> bool {
        at < self.count && at + LOG > self.count && self.log[at % LOG].units == units
    }

    /// Returns the last request that came after the same sizes as this one.
    fn look_up(&self, units: u32) -> Option<usize> {
        let hash = self.hash_with(units);
        if self.misses >= MISSES && !hash.is_multiple_of(SAMPLED) {
            return None;
        }
        let (slot, check) = slot(hash);
        let mark = self.table.get(slot).filter(|mark| mark.check == check)?;
        // A mark holds only the low half of the count: enough for the last requests in the
        // log.
        let back = (self.count as u32).wrapping_sub(mark.at) as usize;
        let at = self.count.checked_sub(back)?;
        let same = self.has_size(at, units)
            && (1..CONTEXT as usize).all(|back| {
                at >= back
                    && self.count >= back
                    && self.has_size(at - back, self.log[(self.count - back) % LOG].units)
            });
        same.then_some(at)
    }

    /// Returns the hash of the last few sizes, this one included; older ones are shifted out.
    fn hash_with(&self, units: u32) -> u64 {
        let mixed = (u64::from(units).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 48;
        self.hash << (64 / CONTEXT) ^ mixed
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes / crate::pool::kind::ROUNDING).unwrap_or(u32::MAX)
}

/// Returns the table index of a hash, and the bits that distinguish it from other hashes there.
fn slot(hash: u64) -> (usize, u32) {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = TABLE.ilog2();
    ((mixed >> (u64::BITS - bits)) as usize, (mixed >> (u32::BITS - bits)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many requests of a loop are recognised if another program runs between its
    /// rounds.
    fn known(placement_log: &mut PlacementLog) -> usize {
        let mut known = 0;
        for _ in 0..10 {
            placement_log.next = None;
            for size in 0..100 {
                let bytes = (size + 7) * 512 * 13;
                known +=
                    usize::from(placement_log.find_place(bytes) == Some(Place::Primary(bytes, 0)));
                placement_log.note(bytes, Place::Primary(bytes, 0), true);
            }
        }
        known
    }

    #[test]
    #[cfg_attr(miri, ignore = "it fills a log of 131,072 entries")]
    fn loop_stays_known_after_counter_wraps() {
        let mut placement_log = PlacementLog::default();
        (0..LOG).for_each(|_| placement_log.note(512, Place::Primary(1, 0), true));
        let first = known(&mut placement_log);
        assert!(first > 800, "{first} of 1000");
        // Simulates many more requests: the log is a ring, whose position stays.
        placement_log.count += ((1 << 32) - 50) / LOG * LOG;
        for _ in 0..LOG / 1000 + 1 {
            let later = known(&mut placement_log);
            assert!(later > 800, "{later} of 1000, after {} requests", placement_log.count);
        }
    }
}
