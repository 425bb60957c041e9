//! Lists each block of a trace, with its site and the events that allocated and freed it.

use gpuheap_text::Amount;
use gpuheap_trace::{Op, Trace};
use rustc_hash::FxHashMap;

/// Kind of the sites of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteKind {
    /// Lines of the program, from recorded stacks.
    Line,
    /// Sizes of blocks, because at most a tenth of the allocated bytes have stacks.
    Size,
}

impl SiteKind {
    /// Returns a short stable name: `line`, `size`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Size => "size",
        }
    }
}

/// A block of a trace. After `n` events, the block is live if `from < n && n <= until`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) bytes: u64,
    /// Index into [`Ledger::sites`].
    pub(crate) site: u32,
    pub(crate) thread: u32,
    /// Index of the event that allocated the block.
    pub(crate) from: u32,
    /// Index of the event that freed the block; [`NEVER`] for a block that is live at the end.
    pub(crate) until: u32,
}

/// Sites are lines of the program if more than `1 / LEAST_STACKS` of the allocated bytes have
/// stacks. Otherwise, sites are sizes of blocks.
const LEAST_STACKS: u128 = 10;

/// [`Block::until`] of a block that is never freed.
pub(crate) const NEVER: u32 = u32::MAX;

impl Block {
    /// Returns `true` if the block is live after the first `events` events.
    pub(crate) fn is_live(&self, events: u32) -> bool {
        self.from < events && events <= self.until
    }
}

/// All blocks of a trace, by allocation.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) blocks: Vec<Block>,
    /// Site of each item of [`Trace::folded`].
    pub(crate) folded_sites: Vec<u32>,
    pub(crate) sites: Vec<String>,
    pub(crate) kind: SiteKind,
}

impl Ledger {
    pub(crate) fn new(trace: &Trace) -> Self {
        let kind = site_kind(trace);
        let mut sites = Sites::default();
        let mut blocks = Vec::with_capacity(trace.allocations() as usize);
        let mut site = |stack: u32, bytes: u64| match kind {
            SiteKind::Line if stack != 0 => sites.of_stack(trace, stack),
            SiteKind::Line => sites.of_size(bytes, ", no stack"),
            SiteKind::Size => sites.of_size(bytes, ""),
        };
        // The number of events fits in 32 bits.
        for (index, event) in (0_u32..).zip(trace.events()) {
            match event.op {
                Op::Allocate { bytes, .. } => blocks.push(Block {
                    bytes,
                    site: site(event.stack, bytes),
                    thread: event.thread,
                    from: index,
                    until: NEVER,
                }),
                Op::Free { allocation } => blocks[allocation as usize].until = index,
                _ => {}
            }
        }
        let folded = trace.folded().iter();
        let folded_sites = folded.map(|one| site(one.stack, one.largest_bytes)).collect();
        Self { blocks, folded_sites, sites: sites.names, kind }
    }

    /// Returns the blocks that are live after the first `events` events.
    pub(crate) fn live(&self, events: u32) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| block.is_live(events))
    }
}

/// Returns `Line` if more than a tenth of the allocated bytes have stacks. Half is too much to
/// require: PyTorch runs the backward pass in a native thread, without a Python stack.
fn site_kind(trace: &Trace) -> SiteKind {
    let (mut all, mut with_stack) = (0_u128, 0_u128);
    for event in trace.events() {
        if let Op::Allocate { bytes, .. } = event.op {
            all += u128::from(bytes);
            with_stack += if event.stack == 0 { 0 } else { u128::from(bytes) };
        }
    }
    if with_stack * LEAST_STACKS > all { SiteKind::Line } else { SiteKind::Size }
}

#[derive(Default)]
struct Sites {
    names: Vec<String>,
    numbers: FxHashMap<String, u32>,
    of_stacks: FxHashMap<u32, u32>,
    of_sizes: FxHashMap<u64, u32>,
}

impl Sites {
    fn of_stack(&mut self, trace: &Trace, stack: u32) -> u32 {
        if let Some(&site) = self.of_stacks.get(&stack) {
            return site;
        }
        let site = self.named(trace.site(stack));
        self.of_stacks.insert(stack, site);
        site
    }

    fn of_size(&mut self, bytes: u64, note: &str) -> u32 {
        if let Some(&site) = self.of_sizes.get(&bytes) {
            return site;
        }
        let site = self.named(format!("blocks of {}{note}", Amount(bytes)));
        self.of_sizes.insert(bytes, site);
        site
    }

    fn named(&mut self, name: String) -> u32 {
        // There are at most as many sites as allocations, so their number fits in 32 bits.
        let next = self.names.len() as u32;
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }
}
