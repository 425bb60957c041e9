//! Finds the holders and the layout of the recorded program's memory at one moment.

use std::collections::BTreeMap;

use gpuheap_trace::{Holder, Op, Taken, Trace};
use rustc_hash::FxHashMap;

use self::PieceState::{Free, Live, Pending};
use crate::Program;
use crate::models::torch::Settings;
use crate::text::Amount;

/// Largest rest, in bytes, that stays in a large block when a request uses the block's front
/// (PyTorch's `kSmallSize`). A larger rest becomes a free block.
const LARGEST_REST: u64 = 1 << 20;
/// Size of PyTorch's segments for small blocks. Blocks in these segments are always split.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Distance above which blocks belong to different ranges, if the recording has no segments.
const FAR: u64 = 32 << 20;

/// Memory of the recorded program between two events. Sizes are bytes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Moment {
    /// Number of the last event before this moment. If the next event is a failed request, the
    /// request's number is used instead.
    pub event: u64,
    /// Nanoseconds since the first recorded event.
    pub time_ns: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Live bytes, without rounding.
    pub live: u64,
    /// Freed bytes that other streams still use, without rounding.
    pub pending: u64,
    /// Lines of the program that hold the most memory, or sizes of blocks if the recording has no
    /// stacks. Most bytes first.
    pub holders: Vec<Holder>,
    /// `true` if `holders` has lines of the program, `false` if it has sizes of blocks.
    pub has_stacks: bool,
    /// Memory of each stream, ordered by handle.
    pub streams: Vec<OnStream>,
    /// Memory of the recorded allocator; `None` if the recording has no segments.
    pub held: Option<Held>,
    /// Live, pending and free ranges of addresses, in order.
    pub(crate) pieces: Vec<Piece>,
}

/// Memory of one stream, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnStream {
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// Live bytes, without rounding.
    pub live: u64,
    /// Freed bytes that other streams still use, without rounding.
    pub pending: u64,
    /// Bytes taken from the driver; 0 if the recording has no segments.
    pub reserved: u64,
    /// Free bytes.
    pub free: u64,
}

/// Memory of the recorded allocator, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Bytes taken from the driver.
    pub reserved: u64,
    /// Bytes of blocks in addition to the requested bytes.
    pub rounding: u64,
    /// Free bytes, of all streams.
    pub free: u64,
    /// Number of free pieces that the request's stream may use.
    pub pieces: u64,
    /// Largest free piece that the request's stream may use, in bytes.
    pub largest: u64,
    /// Free bytes in segments of other streams.
    pub other_streams: u64,
}

/// A range of addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) state: PieceState,
    /// `true` if a gap precedes the range.
    pub(crate) is_start: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceState {
    Live,
    Pending,
    Free,
}

#[derive(Debug, Clone, Copy)]
struct HeldBlock {
    requested: u64,
    stream: u64,
    stack: u32,
    is_pending: bool,
}

impl Moment {
    /// Returns the state of the memory after the first `events` events. If the next event is a
    /// failed request, only counts free pieces that the stream of that request may use.
    pub fn after(trace: &Trace, program: &Program, events: usize) -> Self {
        let all = trace.events();
        let events = events.min(all.len());
        let next = all.get(events).filter(|event| matches!(event.op, Op::Fail { .. }));
        let last = next.or_else(|| all[..events].last());
        let handle = |index: u32| trace.streams()[index as usize].handle;
        let blocks = blocks_after(trace, events);
        let mut moment = Self {
            event: last.map_or(0, |event| event.number.into()),
            time_ns: last.map_or(0, |event| event.time_ns),
            ..Self::default()
        };
        let mut streams: BTreeMap<u64, OnStream> = BTreeMap::new();
        for block in blocks.values().flatten() {
            let of = streams.entry(block.stream).or_default();
            let (total, own) = match block.is_pending {
                true => (&mut moment.pending, &mut of.pending),
                false => (&mut moment.live, &mut of.live),
            };
            *total = total.saturating_add(block.requested);
            *own = own.saturating_add(block.requested);
            moment.live_blocks += u64::from(!block.is_pending);
        }
        moment.find_holders(trace, &blocks);
        let settings = program.recorded_settings().unwrap_or_default();
        let stream = next.map(|event| handle(event.stream));
        match Taken::after(trace, events) {
            Some(taken) => moment.lay_out(&taken, &blocks, &settings, stream, &mut streams),
            None => moment.lay_out_blocks(&blocks),
        }
        moment.streams =
            streams.into_iter().map(|(stream, of)| OnStream { stream, ..of }).collect();
        moment
    }

    fn find_holders(&mut self, trace: &Trace, blocks: &Blocks) {
        let live = || blocks.values().flatten().filter(|block| !block.is_pending);
        let with_stack: u128 =
            live().filter(|block| block.stack != 0).map(|block| u128::from(block.requested)).sum();
        self.has_stacks = with_stack * 2 > u128::from(self.live);
        self.holders = match self.has_stacks {
            true => Holder::sums(live().map(|block| (block.stack, block.requested)), |stack| {
                trace.site(stack)
            }),
            false => {
                Holder::sums(live().map(|block| (block.requested, block.requested)), |bytes| {
                    Amount(bytes).to_string()
                })
            }
        };
    }

    /// Divides the addresses of the segments into live, pending and free ranges.
    fn lay_out(
        &mut self,
        taken: &Taken,
        blocks: &Blocks,
        settings: &Settings,
        stream: Option<u64>,
        streams: &mut BTreeMap<u64, OnStream>,
    ) {
        let mut held = Held::default();
        let is_growing = settings.expandable_segments();
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for (start, end, of) in taken.ranges() {
            match runs.last_mut() {
                Some((_, last_end, last_of))
                    if is_growing && *last_end == start && *last_of == of =>
                {
                    *last_end = end;
                }
                _ => runs.push((start, end, of)),
            }
        }
        for (start, end, of) in runs {
            held.reserved += end - start;
            let on_stream = streams.entry(of).or_default();
            on_stream.reserved += end - start;
            let is_large = !is_growing && end - start > SMALL_SEGMENT;
            let (mut at, mut is_start, mut is_after_block) = (start, true, false);
            let mut add = |bytes: u64, state| {
                if bytes > 0 {
                    self.pieces.push(Piece { bytes, stream: of, state, is_start });
                    is_start = false;
                }
            };
            let mut gap =
                |bytes: u64, is_after_block: bool, add: &mut dyn FnMut(u64, PieceState)| {
                    if is_large && is_after_block && bytes <= LARGEST_REST {
                        held.rounding += bytes;
                        add(bytes, Live);
                        return;
                    }
                    held.free += bytes;
                    on_stream.free += bytes;
                    add(bytes, Free);
                    if stream.is_none_or(|stream| stream == of) {
                        held.pieces += u64::from(bytes > 0);
                        held.largest = held.largest.max(bytes);
                    } else {
                        held.other_streams += bytes;
                    }
                };
            let mut rounding = 0;
            for (&address, here) in blocks.range(start..end) {
                let Some(block) = here.iter().max_by_key(|block| block.requested) else { continue };
                let place = address.max(at);
                gap(place - at, is_after_block, &mut add);
                let block_end = place.saturating_add(settings.rounded(block.requested)).min(end);
                add(block_end - place, if block.is_pending { Pending } else { Live });
                rounding += (block_end - place).saturating_sub(block.requested);
                (at, is_after_block) = (block_end, true);
            }
            gap(end - at, is_after_block, &mut add);
            held.rounding += rounding;
        }
        self.held = Some(held);
    }

    /// Places the blocks of a recording without segments. If the gap between two blocks is at most
    /// `FAR`, the gap counts as free memory. After a larger gap, a new segment begins.
    fn lay_out_blocks(&mut self, blocks: &Blocks) {
        let mut at = 0_u64;
        for (&address, here) in blocks {
            let Some(block) = here.iter().max_by_key(|block| block.requested) else { continue };
            if block.requested == 0 {
                continue;
            }
            let distance = address.saturating_sub(at);
            let is_start = at == 0 || distance > FAR;
            let HeldBlock { stream, .. } = *block;
            if !is_start && distance > 0 {
                let state = Free;
                self.pieces.push(Piece { bytes: distance, stream, state, is_start: false });
            }
            let state = if block.is_pending { Pending } else { Live };
            self.pieces.push(Piece { bytes: block.requested, stream, state, is_start });
            at = at.max(address.saturating_add(block.requested));
        }
    }
}

/// Blocks, keyed by address. Several blocks of zero bytes may share one address.
type Blocks = BTreeMap<u64, Vec<HeldBlock>>;

fn blocks_after(trace: &Trace, events: usize) -> Blocks {
    let completes = trace.format().records_completion();
    let mut found: FxHashMap<u32, HeldBlock> = FxHashMap::default();
    for event in &trace.events()[..events] {
        match event.op {
            Op::Allocate { allocation, bytes } => {
                let stream = trace.streams()[event.stream as usize].handle;
                let stack = event.stack;
                found.insert(
                    allocation,
                    HeldBlock { requested: bytes, stream, stack, is_pending: false },
                );
            }
            Op::Free { allocation } => match found.get_mut(&allocation) {
                Some(block) if completes => block.is_pending = true,
                _ => {
                    found.remove(&allocation);
                }
            },
            Op::FreeCompleted { allocation } => {
                found.remove(&allocation);
            }
            _ => {}
        }
    }
    let mut blocks = Blocks::new();
    for (allocation, block) in found {
        blocks.entry(trace.addresses()[allocation as usize]).or_default().push(block);
    }
    blocks
}

/// Returns the peak of reserved bytes in the first `events` events, and the bytes reserved after
/// these events. `None` if the recording has no segments.
pub(crate) fn reserved_until(trace: &Trace, events: usize) -> Option<(u64, u64)> {
    let sum = |taken: &Taken| taken.ranges().map(|(start, end, _)| end - start).sum::<u64>();
    let mut now = sum(&Taken::after(trace, 0)?);
    let mut most = now;
    for event in &trace.events()[..events] {
        match event.op {
            Op::SegmentTaken { bytes, .. } => now = now.saturating_add(bytes),
            Op::SegmentGivenBack { bytes, .. } => now = now.saturating_sub(bytes),
            _ => {}
        }
        most = most.max(now);
    }
    Some((most, now))
}
