//! Segments at the end of a recording, with the blocks in use.

use super::frames::Frames;
use super::plain::{Path, Plain};
use super::value::Value;
use crate::Error;
use crate::model::Segment;

/// Blocks and segments of all devices at the end, each with its device.
#[derive(Default)]
pub(super) struct AtEnd {
    pub(super) blocks: Vec<(u64, Block)>,
    pub(super) segments: Vec<(u64, Segment)>,
}

/// Block of the final `segments` that is live or pending.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) stack: u32,
    /// `true` if the program freed the block, and a stream still used it.
    pub(super) pending: bool,
}

/// Reads the blocks that are live or pending at the end, and the segments.
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
        // Older snapshots lack this key.
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

/// Reads the id of a private pool, which is a pair.
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
    /// `None` if the block is cached.
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
            // Older snapshots lack the address and the requested size. Their blocks lie side by
            // side.
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
