//! Call stacks, each kept once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ids::next;
use crate::Error;

/// One frame of a call stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function's name.
    pub function: Arc<str>,
    /// The source file.
    pub file: Arc<str>,
    /// The line in it.
    pub line: u32,
}

/// The distinct stacks of a file; number 0 is the empty one.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    frames: Vec<Frame>,
    stacks: Vec<Box<[u32]>>,
}

impl Stacks {
    pub(super) fn frames(&self, stack: u32) -> impl ExactSizeIterator<Item = &Frame> {
        let of_stack = (stack as usize).checked_sub(1).and_then(|index| self.stacks.get(index));
        of_stack
            .map_or(&[] as &[u32], |stack| stack)
            .iter()
            .map(|&frame| &self.frames[frame as usize])
    }
}

/// Builds [`Stacks`].
#[derive(Debug, Default)]
pub(crate) struct StackInterner {
    stacks: Stacks,
    frame_numbers: FxHashMap<Frame, u32>,
    stack_numbers: FxHashMap<Box<[u32]>, u32>,
}

impl StackInterner {
    pub(crate) fn frame(&mut self, frame: Frame) -> Result<u32, Error> {
        if let Some(&number) = self.frame_numbers.get(&frame) {
            return Ok(number);
        }
        let number = next(self.stacks.frames.len())?;
        self.stacks.frames.push(frame.clone());
        self.frame_numbers.insert(frame, number);
        Ok(number)
    }

    /// The number of the stack of these frames, innermost first.
    pub(crate) fn stack(&mut self, frames: Vec<u32>) -> Result<u32, Error> {
        if frames.is_empty() {
            return Ok(0);
        }
        let frames = frames.into_boxed_slice();
        if let Some(&number) = self.stack_numbers.get(&frames) {
            return Ok(number);
        }
        let number = next(self.stacks.stacks.len())? + 1;
        self.stacks.stacks.push(frames.clone());
        self.stack_numbers.insert(frames, number);
        Ok(number)
    }

    pub(crate) fn finish(self) -> Stacks {
        self.stacks
    }
}
