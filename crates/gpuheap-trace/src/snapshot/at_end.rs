//! Reads the segments at the end of a recording, with the blocks in use.

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

/// Block that is live or pending at the end, from the snapshot's list `segments`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) stack: u32,
    /// `true` if the program freed the block while a stream still used it.
    pub(super) pending: bool,
}

/// Reads the blocks that are live or pending at the end, and the segments.
pub(super) fn read_at_end(
    plain: &Plain<'_>,
    frames: &mut Frames,
    segments: Value,
    path: &Path<'_>,
) -> Result<AtEnd, Error> {
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
        let [device, address, stream, blocks, bytes, kind, expandable, pool] =
            plain.fields(segment.value(), &path, keys)?;
        let (device, stream) = (device.number()?, stream.number()?);
        let mut address = address.number()?;
        // Older snapshots lack this key.
        if let Some(bytes) = bytes.optional(Plain::number)? {
            let segment = Segment {
                address,
                bytes,
                stream,
                is_small: kind.optional(Plain::text)? == Some(b"small"),
                is_expandable: expandable.optional(Plain::truth)?.unwrap_or(false),
                pool: pool.optional(read_pool)?.unwrap_or((0, 0)),
            };
            found.segments.push((device, segment));
        }
        let blocks_path = blocks.path();
        for (index, block) in blocks.list()?.iter().enumerate() {
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

/// Reads the id of a private pool. The id is a pair.
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
        let keys = ["address", "size", "requested_size", "state", "frames"];
        let [address, size, requested, state, stack] = plain.fields(value, path, keys)?;
        let size = size.number()?;
        Ok(Self {
            // Older snapshots lack the address and the requested size. Their blocks are adjacent.
            address: address.optional(Plain::number)?.unwrap_or(expected_address),
            size,
            bytes: requested.optional(Plain::number)?.unwrap_or(size),
            stack: stack
                .optional(|plain, value, path| frames.stack(plain, value, path))?
                .unwrap_or(0),
            pending: match state.text()? {
                b"active_allocated" => Some(false),
                state if state.starts_with(b"active") => Some(true),
                _ => None,
            },
        })
    }
}
