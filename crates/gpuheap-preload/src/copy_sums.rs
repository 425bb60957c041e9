//! Sums each site's copies. Counts bytes and time, and detects repeated uploads of the same data.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use gpuheap_capture::{CopyDirection, CopyMemory, MemoryKind, Record, Time};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::settings;

/// Maximum number of bytes that are hashed in an upload, to bound the work per copy. A longer
/// upload is hashed in equally spaced pieces.
const HASHED: usize = 64 << 10;

/// Number of pieces of a long upload that are hashed.
const PIECES: usize = 16;

/// Maximum number of hashes that are kept for a site. Data is recognised as repeated only if its
/// hash was kept.
const HASHES: usize = 256;

/// Minimum interval at which the sums of all sites are recorded, in nanoseconds. If the program is
/// killed, copies since the last record are lost. Each record of a site takes 20 to 40 bytes.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Divisor of the recording's duration so far. The quotient is the least interval between two
/// records of all sums. So each site has only about 500 records in a day.
const PART: u64 = 64;

/// Copy that succeeded.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) direction: CopyDirection,
    /// Memory on the host's side.
    pub(crate) memory: CopyMemory,
    pub(crate) bytes: u64,
    /// Time in the call.
    pub(crate) call_ns: u64,
    pub(crate) is_async: bool,
    /// Hash of an upload's data; `None` if the data is not compared.
    pub(crate) hash: Option<u64>,
}

/// Copies of a process, by site.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Pinned, registered and managed memory by address. The value has the memory's end and kind.
    host: BTreeMap<u64, (u64, MemoryKind)>,
    sums: FxHashMap<Key, Sum>,
    /// Time at which the sums of all sites were last recorded, in nanoseconds.
    written_ns: u64,
}

/// Key of a sum: the direction, the kind of host memory, `true` if asynchronous, and the stack.
type Key = (CopyDirection, CopyMemory, bool, u32);

#[derive(Debug, Default)]
struct Sum {
    count: u64,
    bytes: u64,
    call_ns: u64,
    repeated: u64,
    repeated_bytes: u64,
    /// Value of `count` when this sum was last recorded.
    written: u64,
    seen: FxHashSet<u64>,
}

impl Copies {
    /// Notes new memory, if the host may access it.
    pub(crate) fn allocated(&mut self, kind: MemoryKind, address: u64, bytes: u64) {
        if (kind.is_host() || kind == MemoryKind::Managed) && settings::get().copies {
            self.host.insert(address, (address.saturating_add(bytes), kind));
        }
    }

    pub(crate) fn freed(&mut self, kind: MemoryKind, address: u64) {
        if kind.is_host() || kind == MemoryKind::Managed {
            self.host.remove(&address);
        }
    }

    /// Adds a copy. Returns the sums that must be recorded now. A site's sum is recorded at its
    /// 1st, 2nd, 4th copy and so on, and all sums at intervals.
    pub(crate) fn add(&mut self, copy: &Copy, stack: u32, time: Time) -> Vec<Record<'static>> {
        let key = (copy.direction, copy.memory, copy.is_async, stack);
        let sum = self.sums.entry(key).or_default();
        sum.count += 1;
        sum.bytes = sum.bytes.saturating_add(copy.bytes);
        sum.call_ns = sum.call_ns.saturating_add(copy.call_ns);
        if let Some(hash) = copy.hash {
            if sum.seen.contains(&hash) {
                sum.repeated += 1;
                sum.repeated_bytes = sum.repeated_bytes.saturating_add(copy.bytes);
            } else if sum.seen.len() < HASHES {
                sum.seen.insert(hash);
            }
        }
        if time.0 >= self.written_ns.saturating_add((time.0 / PART).max(INTERVAL_NS)) {
            return self.unwritten(time);
        }
        sum.count.is_power_of_two().then(|| sum.record(key, time)).into_iter().collect()
    }

    /// Returns the sums that changed after their last record.
    pub(crate) fn unwritten(&mut self, time: Time) -> Vec<Record<'static>> {
        self.written_ns = time.0;
        let changed = self.sums.iter_mut().filter(|(_, sum)| sum.written < sum.count);
        changed.map(|(key, sum)| sum.record(*key, time)).collect()
    }

    /// Returns the recorded kind of the memory at an address; `None` if no kind is recorded.
    pub(crate) fn memory(&self, address: u64) -> Option<CopyMemory> {
        let (_, (end, kind)) = self.host.range(..=address).next_back()?;
        (address < *end).then_some(match kind {
            MemoryKind::Pinned => CopyMemory::Pinned,
            MemoryKind::Registered => CopyMemory::Registered,
            _ => CopyMemory::Managed,
        })
    }
}

impl Sum {
    fn record(&mut self, key: Key, time: Time) -> Record<'static> {
        self.written = self.count;
        let (direction, memory, is_async, stack) = key;
        let &mut Sum { count, bytes, call_ns, repeated, repeated_bytes, .. } = self;
        Record::Copies {
            time,
            direction,
            memory,
            is_async: is_async.into(),
            stack,
            count,
            bytes,
            call_ns,
            repeated,
            repeated_bytes,
        }
    }
}

/// Returns a hash of the data of an upload.
///
/// # Safety
/// The host can read `bytes` bytes at the address.
pub(crate) unsafe fn hash(address: u64, bytes: usize) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_usize(bytes);
    let mut add = |start: usize, length: usize| {
        let place = std::ptr::with_exposed_provenance::<u8>(address as usize + start);
        // SAFETY: the place is within the memory that the caller names.
        hasher.write(unsafe { std::slice::from_raw_parts(place, length) });
    };
    if bytes <= HASHED {
        add(0, bytes);
    } else {
        let piece = HASHED / PIECES;
        (0..PIECES).for_each(|at| add((bytes - piece) / (PIECES - 1) * at, piece));
    }
    hasher.finish()
}
