//! The entries of a device's trace, and the blocks of its segments at the end.

use rustc_hash::FxHashMap;

use super::frames::Frames;
use super::heap::Heap;
use super::plain::{Path, Plain};
use super::value::Value;
use crate::Error;
use crate::model::{Segment, next_number};

/// Keys of an entry that are read.
pub(super) const KEYS: [&str; 9] = [
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "frames",
    "device_free",
    "pool_id",
    "segment_pool_id",
];
const ACTION: usize = 0;
const ADDR: usize = 1;
const SIZE: usize = 2;
const STREAM: usize = 3;
const TIME: usize = 4;
const FRAMES: usize = 5;
const DEVICE_FREE: usize = 6;
const POOL: usize = 7;
const SEGMENT_POOL: usize = 8;

/// The values of [`KEYS`].
pub(super) type Values = [Option<Value>; KEYS.len()];

/// One entry of `device_traces[i]`. Files hold millions of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Address; of a request that failed, what was free of the device.
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) time_us: u64,
    /// The number of the list of frames, or [`NO_FRAMES`](Self::NO_FRAMES).
    pub(super) frames: u32,
    /// The private pool, for [`Entries::pool`].
    pub(super) pool: u16,
    pub(super) action: Action,
    /// Which keys the entry has, for [`Heap::entry_keys`].
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
    /// A mark in the recording that moves no memory.
    Note,
}

/// Entries of all devices, by number.
#[derive(Default)]
pub(super) struct Entries {
    all: Vec<Entry>,
    pools: Vec<(u64, u64)>,
    pool_numbers: FxHashMap<(u64, u64), u16>,
}

/// A block of the final `segments` that still holds memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) stack: u32,
    /// Freed by the program, but a stream had not got past it.
    pub(super) pending: bool,
}

impl Entries {
    /// Bytes held.
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

    /// The private pool of an entry; `None` if the recording does not say.
    pub(super) fn pool(&self, entry: &Entry) -> Option<(u64, u64)> {
        let index = usize::from(entry.pool).checked_sub(1)?;
        self.pools.get(index).copied()
    }

    /// The entry that has these values. `None` if they are not those of an entry that is known.
    pub(super) fn read(&mut self, heap: &Heap, values: &Values) -> Option<Entry> {
        let number = |index: usize| heap.whole(values[index]?);
        // Those may be missing, but not be something else.
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
            // Not in the oldest snapshots; the order is that of the list anyhow.
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

    /// The number of a pool; 0 if the value is no pair of numbers.
    fn pool_number(&mut self, heap: &Heap, value: Option<Value>) -> u16 {
        let Some(Value::Tuple(pair) | Value::List(pair)) = value else { return 0 };
        let &[first, second] = heap.sequence(pair) else { return 0 };
        let whole = (heap.whole(first.value()), heap.whole(second.value()));
        let (Some(first), Some(second)) = whole else { return 0 };
        let pools = &mut self.pools;
        if let Some(&known) = self.pool_numbers.get(&(first, second)) {
            return known;
        }
        // Of the pools that are too many, the recording does not say.
        let Ok(number) = u16::try_from(pools.len() + 1) else { return 0 };
        pools.push((first, second));
        self.pool_numbers.insert((first, second), number);
        number
    }
}

impl Entry {
    /// In place of an address: the snapshot does not say what was free of the device.
    pub(super) const UNKNOWN_FREE: u64 = u64::MAX;
    /// In place of a list: the entry has no frames.
    pub(super) const NO_FRAMES: u32 = u32::MAX;
    /// A mark that moves no memory.
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

/// Reads an entry whose dict was kept as it is. Of one that is of no known kind, adds a mark and
/// gives the kind.
pub(super) fn read_dict<'h>(
    plain: &Plain<'h>,
    entries: &mut Entries,
    value: Value,
    path: &Path<'_>,
) -> Result<(u32, Option<&'h [u8]>), Error> {
    let fields = plain.fields(value, path, KEYS)?;
    if let Some(entry) = entries.read(plain.heap(), fields.values()) {
        return Ok((entries.add(entry)?, None));
    }
    let text = fields.text(plain, ACTION)?;
    let Some(action) = known_action(text) else {
        return Ok((entries.add(Entry::NOTE)?, Some(text)));
    };
    // What is wrong with it, in the order of the keys.
    match action {
        Action::OutOfMemory => fields.optional_number(plain, DEVICE_FREE).map(drop)?,
        _ => fields.number(plain, ADDR).map(drop)?,
    }
    fields.number(plain, SIZE)?;
    fields.number(plain, STREAM)?;
    fields.optional_number(plain, TIME)?;
    plain.list(fields.required(FRAMES)?, &fields.path(FRAMES))?;
    Ok((entries.add(Entry::NOTE)?, None))
}

fn known_action(text: &[u8]) -> Option<Action> {
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

/// Blocks and segments of all devices at the end, each with its device.
#[derive(Default)]
pub(super) struct AtEnd {
    pub(super) blocks: Vec<(u64, Block)>,
    pub(super) segments: Vec<(u64, Segment)>,
}

/// The blocks that hold memory at the end, and the segments.
pub(super) fn read_at_end(
    plain: &Plain<'_>,
    frames: &mut Frames,
    segments: Value,
    path: &Path<'_>,
) -> Result<AtEnd, Error> {
    const DEVICE: usize = 0;
    const ADDRESS: usize = 1;
    const STREAM: usize = 2;
    const BLOCKS: usize = 3;
    const BYTES: usize = 4;
    const KIND: usize = 5;
    const EXPANDABLE: usize = 6;
    const POOL: usize = 7;
    let keys = [
        "device",
        "address",
        "stream",
        "blocks",
        "total_size",
        "segment_type",
        "is_expandable",
        "segment_pool_id",
    ];
    let mut found = AtEnd::default();
    for (index, segment) in plain.list(segments, path)?.iter().enumerate() {
        let path = path.index(index);
        let fields = plain.fields(segment.value(), &path, keys)?;
        let device = fields.number(plain, DEVICE)?;
        let stream = fields.number(plain, STREAM)?;
        let mut address = fields.number(plain, ADDRESS)?;
        // Older snapshots have fewer keys.
        if let Some(bytes) = fields.optional(BYTES) {
            let kind = fields.optional(KIND).map(|kind| plain.text(kind, &fields.path(KIND)));
            let grows = fields.optional(EXPANDABLE);
            let grows = grows.map(|value| plain.truth(value, &fields.path(EXPANDABLE)));
            let segment = Segment {
                address,
                bytes: plain.number(bytes, &fields.path(BYTES))?,
                stream,
                is_small: kind.transpose()? == Some(b"small"),
                is_expandable: grows.transpose()?.unwrap_or(false),
                pool: match fields.optional(POOL) {
                    Some(pool) => read_pool(plain, pool, &fields.path(POOL))?,
                    None => (0, 0),
                },
            };
            found.segments.push((device, segment));
        }
        let blocks_path = fields.path(BLOCKS);
        let blocks = plain.list(fields.required(BLOCKS)?, &blocks_path)?;
        for (index, block) in blocks.iter().enumerate() {
            let path = blocks_path.index(index);
            let block = FinalBlock::read(plain, frames, block.value(), &path, address)?;
            address = block.address.saturating_add(block.size);
            if let Some(pending) = block.pending {
                let FinalBlock { address, bytes, stack, .. } = block;
                found.blocks.push((device, Block { address, bytes, stream, stack, pending }));
            }
        }
    }
    Ok(found)
}

/// The number of a private pool, a pair.
fn read_pool(plain: &Plain<'_>, pool: Value, path: &Path<'_>) -> Result<(u64, u64), Error> {
    match *plain.items(pool, path)? {
        [first, second] => {
            Ok((plain.number(first.value(), path)?, plain.number(second.value(), path)?))
        }
        _ => Ok((0, 0)),
    }
}

struct FinalBlock {
    address: u64,
    size: u64,
    bytes: u64,
    stack: u32,
    /// `None`: the block is cached.
    pending: Option<bool>,
}

impl FinalBlock {
    fn read(
        plain: &Plain<'_>,
        frames: &mut Frames,
        value: Value,
        path: &Path<'_>,
        expected_address: u64,
    ) -> Result<Self, Error> {
        const ADDRESS: usize = 0;
        const SIZE: usize = 1;
        const REQUESTED: usize = 2;
        const STATE: usize = 3;
        const FRAMES: usize = 4;
        let keys = ["address", "size", "requested_size", "state", "frames"];
        let fields = plain.fields(value, path, keys)?;
        let size = fields.number(plain, SIZE)?;
        Ok(Self {
            // Older snapshots leave out the address and the requested size: blocks lie side by side.
            address: match fields.optional(ADDRESS) {
                Some(_) => fields.number(plain, ADDRESS)?,
                None => expected_address,
            },
            size,
            bytes: match fields.optional(REQUESTED) {
                Some(_) => fields.number(plain, REQUESTED)?,
                None => size,
            },
            stack: match fields.optional(FRAMES) {
                Some(value) => frames.stack(plain, value, &fields.path(FRAMES))?,
                None => 0,
            },
            pending: match fields.text(plain, STATE)? {
                b"active_allocated" => Some(false),
                state if state.starts_with(b"active") => Some(true),
                _ => None,
            },
        })
    }
}
