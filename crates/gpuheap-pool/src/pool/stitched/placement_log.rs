//! Logs placements, so that a program gets the same places again if it repeats its requests.
//!
//! Such a program requests equal sizes in equal order. If blocks get the places of the previous
//! round, the existing mappings fit. With best fit alone, each round would begin with other free
//! ranges and need other mappings.
//!
//! The log is followed from the newest position at which the last few sizes occurred before. A
//! place is taken only if it is free, so a wrong guess costs only the look-up.

/// Number of requests that the log contains.
const LOG: usize = 1 << 17;
/// Number of consecutive sizes, the present request's size being the last, that a look-up compares
/// with earlier requests. If all match, the log is followed from the earlier request on.
const CONTEXT: u32 = 4;
/// Number of log entries, from the next one on, that are searched for the size of a request. The
/// program may have left out some requests of the previous round.
const AHEAD: usize = 8;
/// Number of consecutive requests without a match in the log, after which only about one request in
/// [`SAMPLED`] is looked up. For random sizes, each look-up misses the processor's cache. The
/// misses took a sixth of the time of a program with random sizes.
const MISSES: u32 = 256;
const SAMPLED: u64 = 8;
/// Divisor of the peak of live bytes. If the live bytes fall to the quotient, a new round may
/// begin: the program repeats its requests. Zero bytes would be too strict a bound, because a
/// thread's cache may serve the first request of the round. With zero, two of five requests in the
/// second pass of `gpt_train` got their places of the first pass; with this value, three of four.
const LITTLE: u64 = 64;
/// Number of entries in the look-up table. Under Miri, filling a large table takes seconds, so the
/// table is small. The table is made when first needed.
const TABLE: usize = if cfg!(miri) { 1 << 8 } else { 1 << 15 };

/// Place of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Address and key of a block that was not stitched. The block may no longer exist.
    Primary(u64, u32),
    /// Number of a stitched range.
    Range(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    units: u32,
    /// Key of the block that the request got; for a stitched range, the number of the range.
    name: u32,
    /// Primary address of the block; [`IN_RANGE`] if the request got a stitched range.
    primary: u64,
}

/// Entry of the look-up table: the number of a request, and bits of the hash of the last few sizes
/// up to that request. If the present request has other bits, it cannot match, and the log is not
/// read. The log is megabytes large, so each read misses the processor's cache. For random sizes,
/// these misses took a fifth of the time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    check: u32,
    at: u32,
}

/// Value of [`Entry::primary`] for a stitched range.
const IN_RANGE: u64 = u64::MAX;

/// Position in the log, to restore after a failed request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    next: Option<usize>,
    began: Option<usize>,
    has_little: bool,
}

#[derive(Debug, Default)]
pub(super) struct PlacementLog {
    /// Entries, in a ring: request number `n` is at index `n % LOG`.
    log: Vec<Entry>,
    /// Number of requests ever noted.
    count: usize,
    /// Number of the earlier request that should match the next one, if the program repeats itself.
    next: Option<usize>,
    /// Number of the request that began the current round. While nothing is live, each request
    /// begins a round. If little is live, only the first request does.
    began: Option<usize>,
    /// `true` if the live bytes before the last request were at most their peak divided by
    /// [`LITTLE`].
    has_little: bool,
    /// Latest request for each hash of a few sizes: its own size and the sizes just before it.
    table: Vec<Mark>,
    /// Number of consecutive requests up to now that matched no earlier request.
    misses: u32,
    /// Hash of the last few sizes.
    hash: u64,
    /// `true` if the last request got the place of the earlier request that it matched.
    followed: bool,
}

impl PlacementLog {
    /// Notes the live bytes before a request, to find the start of a new round of repetition. A
    /// round begins if nothing is live, or if the live bytes have just fallen to their peak divided
    /// by [`LITTLE`]. The next requests are matched with the start of the previous round.
    #[inline]
    pub(super) fn note_live(&mut self, live: u64, peak: u64) {
        let had_little = std::mem::replace(&mut self.has_little, live <= peak / LITTLE);
        if live == 0 || self.has_little && !had_little {
            self.next = self.began.replace(self.count);
        }
    }

    /// Returns the current position, for [`return_to`](PlacementLog::return_to) if the request
    /// fails and is repeated.
    #[inline]
    pub(super) fn position(&self) -> Position {
        Position { next: self.next, began: self.began, has_little: self.has_little }
    }

    /// Returns to an earlier position of the log, because the requests made since then failed.
    pub(super) fn return_to(&mut self, position: Position) {
        let Position { next, began, has_little } = position;
        (self.next, self.began, self.has_little) = (next, began, has_little);
    }

    /// Returns the place of the earlier request that matches this one. First searches the next few
    /// requests of the previous round for this size. If none has it, looks up the last few sizes.
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

    /// Returns `true` if the last request got the place of the earlier request that it matched.
    #[inline]
    pub(super) fn is_followed(&self) -> bool {
        self.followed
    }

    /// Appends a request and its place. `followed` is `true` if
    /// [`find_place`](PlacementLog::find_place) returned this place.
    #[inline]
    pub(super) fn append(&mut self, bytes: u64, place: Place, followed: bool) {
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

    /// Returns the number of the latest request with this size, if the few requests before it had
    /// the same sizes as the few before this request.
    fn look_up(&self, units: u32) -> Option<usize> {
        let hash = self.hash_with(units);
        if self.misses >= MISSES && !hash.is_multiple_of(SAMPLED) {
            return None;
        }
        let (slot, check) = slot(hash);
        let mark = self.table.get(slot).filter(|mark| mark.check == check)?;
        // A mark contains only the low 32 bits of the request's number, enough for the requests in
        // the log.
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

    /// Returns the hash of the last few sizes, including this one. Older sizes are shifted out of
    /// the hash.
    fn hash_with(&self, units: u32) -> u64 {
        let mixed = (u64::from(units).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 48;
        self.hash << (64 / CONTEXT) ^ mixed
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes / crate::pool::kind::ROUNDING).unwrap_or(u32::MAX)
}

/// Returns the table index of a hash, and bits that distinguish hashes with the same index.
fn slot(hash: u64) -> (usize, u32) {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = TABLE.ilog2();
    ((mixed >> (u64::BITS - bits)) as usize, (mixed >> (u32::BITS - bits)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a loop of requests ten times. Returns the number of requests that find their place in
    /// the log. Each round begins without an expected next request.
    fn known(placement_log: &mut PlacementLog) -> usize {
        let mut known = 0;
        for _ in 0..10 {
            placement_log.next = None;
            for size in 0..100 {
                let bytes = (size + 7) * 512 * 13;
                known +=
                    usize::from(placement_log.find_place(bytes) == Some(Place::Primary(bytes, 0)));
                placement_log.append(bytes, Place::Primary(bytes, 0), true);
            }
        }
        known
    }

    #[test]
    #[cfg_attr(miri, ignore = "it fills a log of 131,072 entries")]
    fn loop_stays_known_after_counter_wraps() {
        let mut placement_log = PlacementLog::default();
        (0..LOG).for_each(|_| placement_log.append(512, Place::Primary(1, 0), true));
        let first = known(&mut placement_log);
        assert!(first > 800, "{first} of 1000");
        // Simulates many more requests. The count grows by a multiple of the ring's length, so the
        // position in the ring stays the same.
        placement_log.count += ((1 << 32) - 50) / LOG * LOG;
        for _ in 0..LOG / 1000 + 1 {
            let later = known(&mut placement_log);
            assert!(later > 800, "{later} of 1000, after {} requests", placement_log.count);
        }
    }
}
