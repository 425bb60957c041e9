//! Entries of the devices' traces.

use rustc_hash::FxHashMap;

use super::heap::Heap;
use super::shapes::{
    ACTION, ADDR, DEVICE_FREE, FRAMES, POOL, SEGMENT_POOL, SIZE, STREAM, TIME, Values,
};
use super::value::Value;
use crate::Error;
use crate::model::next_number;

/// Entry of `device_traces[i]`: one event of a device. Files contain millions of entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Address of the block or segment. For a failed request, the device's free bytes instead.
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) time_us: u64,
    /// Index of the list of frames in the [`Heap`], or [`NO_FRAMES`](Self::NO_FRAMES).
    pub(super) frames: u32,
    /// Number of the private pool, for [`Entries::pool`].
    pub(super) pool: u16,
    pub(super) action: Action,
    /// Number of the list of this entry's keys. [`Heap::entry_keys`] returns that list.
    pub(super) shape: u8,
}

const _: () = assert!(size_of::<Entry>() == 40);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    OutOfMemory,
    SegmentTaken,
    SegmentGivenBack,
    /// Mark in the recording. It changes no memory.
    Note,
}

#[derive(Default)]
pub(super) struct Entries {
    all: Vec<Entry>,
    pools: Vec<(u64, u64)>,
    pool_numbers: FxHashMap<(u64, u64), u16>,
}

impl Entries {
    /// Returns the bytes held.
    pub(super) fn held(&self) -> usize {
        size_of_val(&self.all[..])
    }

    pub(super) fn add(&mut self, entry: Entry) -> Result<u32, Error> {
        let number = next_number(self.all.len())?;
        self.all.push(entry);
        Ok(number)
    }

    pub(super) fn get(&self, number: u32) -> &Entry {
        &self.all[number as usize]
    }

    /// Returns the private pool of an entry; `None` if the recording does not name it.
    pub(super) fn pool(&self, entry: &Entry) -> Option<(u64, u64)> {
        let index = usize::from(entry.pool).checked_sub(1)?;
        self.pools.get(index).copied()
    }

    /// Returns the entry with these values; `None` if the values do not form a known entry.
    pub(super) fn read(&mut self, heap: &Heap, values: &Values) -> Option<Entry> {
        let number = |index: usize| heap.whole(values[index]?);
        // These keys may be missing. If a key exists, its value must be a number.
        let optional = |index: usize, without: u64| match values[index] {
            Some(value) => heap.whole(value),
            None => Some(without),
        };
        let Value::Text(text) = values[ACTION]? else { return None };
        let action = known_action(heap.text(text))?;
        if action == Action::Note {
            return Some(Entry::NOTE);
        }
        Some(Entry {
            address: match action {
                Action::OutOfMemory => optional(DEVICE_FREE, Entry::UNKNOWN_FREE)?,
                _ => number(ADDR)?,
            },
            bytes: number(SIZE)?,
            stream: number(STREAM)?,
            // The oldest snapshots have no times. The order of the list then gives the order of the
            // events.
            time_us: optional(TIME, 0)?,
            frames: match values[FRAMES] {
                Some(Value::List(list)) => list,
                Some(_) => return None,
                None => Entry::NO_FRAMES,
            },
            pool: self.pool_number(heap, values[POOL].or(values[SEGMENT_POOL])),
            action,
            shape: 0,
        })
    }

    /// Returns the number of a pool; 0 if the value is not a pair of numbers.
    fn pool_number(&mut self, heap: &Heap, value: Option<Value>) -> u16 {
        let Some(Value::Tuple(pair) | Value::List(pair)) = value else { return 0 };
        let &[first, second] = heap.sequence(pair) else { return 0 };
        let whole = (heap.whole(first.value()), heap.whole(second.value()));
        let (Some(first), Some(second)) = whole else { return 0 };
        let pools = &mut self.pools;
        if let Some(&known) = self.pool_numbers.get(&(first, second)) {
            return known;
        }
        // If a pool's number exceeds 16 bits, the pool counts as unnamed.
        let Ok(number) = u16::try_from(pools.len() + 1) else { return 0 };
        pools.push((first, second));
        self.pool_numbers.insert((first, second), number);
        number
    }
}

impl Entry {
    /// Value of `address` for a failed request: the free bytes of the device are unknown.
    pub(super) const UNKNOWN_FREE: u64 = u64::MAX;
    /// Value of `frames` for an entry without frames.
    pub(super) const NO_FRAMES: u32 = u32::MAX;
    /// Mark that changes no memory.
    pub(super) const NOTE: Self = Self {
        address: 0,
        bytes: 0,
        stream: 0,
        time_us: 0,
        frames: Self::NO_FRAMES,
        pool: 0,
        action: Action::Note,
        shape: 0,
    };
}

/// Returns the action with this name; `None` if the name is not known.
pub(super) fn known_action(text: &[u8]) -> Option<Action> {
    Some(match text {
        b"alloc" => Action::Alloc,
        b"free_requested" => Action::FreeRequested,
        b"free_completed" => Action::FreeCompleted,
        b"oom" => Action::OutOfMemory,
        b"segment_alloc" | b"segment_map" => Action::SegmentTaken,
        b"segment_free" | b"segment_unmap" => Action::SegmentGivenBack,
        b"snapshot" | b"user_defined" => Action::Note,
        _ => return None,
    })
}
