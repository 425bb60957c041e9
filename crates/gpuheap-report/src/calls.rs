//! Reduces allocation stacks to calls: stacks with only the frames of the program's own code.

use gpuheap_trace::{Frame, Op, Trace};
use rustc_hash::FxHashMap;

use crate::ledger::Block;

/// Distinct calls of a trace. Stacks that differ only in frames of libraries are one call.
#[derive(Debug)]
pub(crate) struct Calls<'t> {
    trace: &'t Trace,
    frames: Vec<Vec<&'t Frame>>,
    of_stack: FxHashMap<u32, u32>,
}

impl<'t> Calls<'t> {
    pub(crate) fn new(trace: &'t Trace) -> Self {
        let mut frames: Vec<Vec<&Frame>> = Vec::new();
        // Each frame of a trace is stored once, so its address identifies it.
        let mut numbers: FxHashMap<Vec<usize>, u32> = FxHashMap::default();
        let mut of_stack: FxHashMap<u32, u32> = FxHashMap::default();
        let allocations =
            trace.events().iter().filter(|event| matches!(event.op, Op::Allocate { .. }));
        let folded = trace.folded().iter().map(|folded| folded.stack);
        let stacks = allocations.map(|event| event.stack).chain(folded);
        for stack in stacks.filter(|stack| *stack != 0) {
            of_stack.entry(stack).or_insert_with(|| {
                let own = trace.own_frames(stack);
                let places = own.iter().map(|frame| std::ptr::from_ref(*frame).addr());
                *numbers.entry(places.collect()).or_insert_with(|| {
                    frames.push(own);
                    // The number of stacks fits in 32 bits.
                    frames.len() as u32 - 1
                })
            });
        }
        Self { trace, frames, of_stack }
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns the index of the call that allocated a block; `None` if the block has no stack.
    pub(crate) fn of(&self, block: &Block) -> Option<u32> {
        self.of_stack(self.trace.events()[block.from as usize].stack)
    }

    /// Returns the index of the call that a stack belongs to; `None` for stack 0, the empty stack.
    pub(crate) fn of_stack(&self, stack: u32) -> Option<u32> {
        self.of_stack.get(&stack).copied()
    }

    /// Returns the frames of a call, innermost first.
    pub(crate) fn frames(&self, call: u32) -> Vec<String> {
        self.frames[call as usize].iter().map(ToString::to_string).collect()
    }
}
