//! Sums of copies by site: bytes, time, and uploads of data that was uploaded before.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use gpuheap_capture::{CopyDirection, CopyMemory, MemoryKind, Record, Time};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::settings;

/// Most bytes of an upload that are hashed, so that the work for a copy is bounded. Of a longer
/// upload, pieces in equal distances are hashed.
const HASHED: usize = 64 << 10;

/// Pieces of a long upload that are hashed.
const PIECES: usize = 16;

/// Most hashes that are kept of a site. Later data of the site is not compared with data that has
/// no place.
const HASHES: usize = 256;

/// Copy that succeeded.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) direction: CopyDirection,
    /// Address on the host; `None` for a copy within devices.
    pub(crate) host: Option<u64>,
    pub(crate) bytes: u64,
    /// Time in the call.
    pub(crate) call_ns: u64,
    pub(crate) is_async: bool,
}

/// Copies of a process, by site.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Pinned, registered and managed memory: its end and kind, by address.
    host: BTreeMap<u64, (u64, MemoryKind)>,
    sums: FxHashMap<Key, Sum>,
}

/// Copies that are summed up: direction, memory on the host, whether the call waits, and the stack.
type Key = (CopyDirection, CopyMemory, bool, u32);

#[derive(Debug, Default)]
struct Sum {
    count: u64,
    bytes: u64,
    call_ns: u64,
    repeated: u64,
    repeated_bytes: u64,
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

    /// Adds a copy. Returns the sum of its site if it is to be recorded: at its 1st, 2nd, 4th copy
    /// and so on.
    pub(crate) fn add(&mut self, copy: &Copy, stack: u32, time: Time) -> Option<Record<'static>> {
        let memory = copy.host.map_or(CopyMemory::None, |address| self.memory(address));
        let key = (copy.direction, memory, copy.is_async, stack);
        let sum = self.sums.entry(key).or_default();
        sum.count += 1;
        sum.bytes = sum.bytes.saturating_add(copy.bytes);
        sum.call_ns = sum.call_ns.saturating_add(copy.call_ns);
        // Where host and device cannot access managed memory at once, reading it would be a fault.
        let is_readable =
            copy.direction == CopyDirection::ToDevice && memory != CopyMemory::Managed;
        if let Some(address) = copy.host.filter(|_| is_readable) {
            let hash = hash(address, copy.bytes as usize);
            if sum.seen.contains(&hash) {
                sum.repeated += 1;
                sum.repeated_bytes = sum.repeated_bytes.saturating_add(copy.bytes);
            } else if sum.seen.len() < HASHES {
                sum.seen.insert(hash);
            }
        }
        sum.count.is_power_of_two().then(|| sum.record(key, time))
    }

    /// Returns the sums of all sites.
    pub(crate) fn all(&self, time: Time) -> Vec<Record<'static>> {
        self.sums.iter().map(|(key, sum)| sum.record(*key, time)).collect()
    }

    fn memory(&self, address: u64) -> CopyMemory {
        let found = self.host.range(..=address).next_back();
        match found.filter(|(_, (end, _))| address < *end) {
            Some((_, (_, MemoryKind::Pinned))) => CopyMemory::Pinned,
            Some((_, (_, MemoryKind::Registered))) => CopyMemory::Registered,
            Some(_) => CopyMemory::Managed,
            None => CopyMemory::Pageable,
        }
    }
}

impl Sum {
    fn record(&self, key: Key, time: Time) -> Record<'static> {
        let (direction, memory, is_async, stack) = key;
        let &Sum { count, bytes, call_ns, repeated, repeated_bytes, .. } = self;
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

/// Returns a hash of the data of an upload that has just succeeded.
fn hash(address: u64, bytes: usize) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_usize(bytes);
    let mut add = |start: usize, length: usize| {
        let place = std::ptr::with_exposed_provenance::<u8>(address as usize + start);
        // SAFETY: the driver has read this memory of the program for the copy, and the program
        // keeps it until the call returns.
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
