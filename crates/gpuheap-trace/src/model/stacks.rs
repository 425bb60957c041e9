//! Call stacks, each stored once.

use std::sync::Arc;

use gpuheap_text::printable;
use rustc_hash::FxHashMap;

use super::ids::next_number;
use crate::Error;

/// Frame of a call stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function's name.
    pub function: Arc<str>,
    /// The source file.
    pub file: Arc<str>,
    /// The line in the file.
    pub line: u32,
}

/// Maximum number of characters of a text. Longer texts, such as names of C++ templates, are cut.
/// Each use of a frame searches the frame's texts. A hostile file took hours, because all its
/// frames had one name of half a megabyte.
const LONGEST: usize = 1000;

/// Distinct stacks of a file. Number 0 is the empty stack.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    frames: Vec<Frame>,
    stacks: Vec<Box<[u32]>>,
    /// File name of each stack's innermost native code, keyed by stack. Empty if the format does
    /// not record files.
    modules: FxHashMap<u32, Arc<str>>,
}

impl Stacks {
    pub(super) fn module(&self, stack: u32) -> Option<&str> {
        self.modules.get(&stack).map(|name| &**name)
    }

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
    texts: Vec<Arc<str>>,
    text_numbers: FxHashMap<Arc<str>, u32>,
    // Keys contain numbers of texts and not the texts, because a hostile file may have a million
    // frames with one name of a megabyte.
    frame_numbers: FxHashMap<(u32, u32, u32), u32>,
    stack_numbers: FxHashMap<Box<[u32]>, u32>,
}

impl StackInterner {
    /// Stores a text without its control characters, and returns the number of the stored text.
    pub(crate) fn text(&mut self, text: &str) -> Result<u32, Error> {
        let end = if text.len() > LONGEST { text.char_indices().nth(LONGEST) } else { None };
        let text = printable(end.map_or(text, |(end, _)| &text[..end]));
        if let Some(&number) = self.text_numbers.get(&*text) {
            return Ok(number);
        }
        let number = next_number(self.texts.len())?;
        let text = Arc::<str>::from(text);
        self.texts.push(Arc::clone(&text));
        self.text_numbers.insert(text, number);
        Ok(number)
    }

    /// Returns the number of a frame, new or known. `function` and `file` are numbers of texts.
    pub(crate) fn frame(&mut self, function: u32, file: u32, line: u32) -> Result<u32, Error> {
        if let Some(&number) = self.frame_numbers.get(&(function, file, line)) {
            return Ok(number);
        }
        let number = next_number(self.stacks.frames.len())?;
        let text = |number: u32| Arc::clone(&self.texts[number as usize]);
        self.stacks.frames.push(Frame { function: text(function), file: text(file), line });
        self.frame_numbers.insert((function, file, line), number);
        Ok(number)
    }

    /// Returns the number of the stack with these frames, innermost first.
    pub(crate) fn stack(&mut self, frames: Vec<u32>) -> Result<u32, Error> {
        if frames.is_empty() {
            return Ok(0);
        }
        let frames = frames.into_boxed_slice();
        if let Some(&number) = self.stack_numbers.get(&frames) {
            return Ok(number);
        }
        let number = next_number(self.stacks.stacks.len())? + 1;
        self.stacks.stacks.push(frames.clone());
        self.stack_numbers.insert(frames, number);
        Ok(number)
    }

    /// Returns a text by its number. `None` if no text has this number.
    pub(crate) fn text_of(&self, number: u32) -> Option<Arc<str>> {
        self.texts.get(number as usize).cloned()
    }

    /// Sets the file of a stack's innermost code, unless it is already set.
    pub(crate) fn set_module(&mut self, stack: u32, name: &Arc<str>) {
        self.stacks.modules.entry(stack).or_insert_with(|| Arc::clone(name));
    }

    pub(crate) fn finish(self) -> Stacks {
        self.stacks
    }
}
