//! Reads the stacks of a snapshot. Many entries share a frame list, so each list is read once.

use rustc_hash::FxHashMap;

use super::heap::Items;
use super::plain::{Path, Plain};
use super::value::Value;
use crate::Error;
use crate::model::{StackInterner, Stacks};

/// Reader of frame lists. It gives each list a stack number.
#[derive(Default)]
pub(super) struct Frames {
    interner: StackInterner,
    texts: FxHashMap<u32, u32>,
    frames: FxHashMap<u32, u32>,
    /// Stack number of each list of frames. The key is the place where the heap stores the list's
    /// items. Equal lists have the same place.
    stacks: FxHashMap<Items, u32>,
}

impl Frames {
    /// Returns the stack number of a list of frames, innermost first.
    pub(super) fn stack(
        &mut self,
        plain: &Plain<'_>,
        value: Value,
        path: &Path<'_>,
    ) -> Result<u32, Error> {
        if let Some(number) = self.known(plain, value) {
            return Ok(number);
        }
        let frames = plain
            .list(value, path)?
            .iter()
            .enumerate()
            .map(|(index, frame)| self.frame(plain, frame.value(), &path.index(index)))
            .collect::<Result<Vec<_>, _>>()?;
        let number = self.interner.stack(frames)?;
        if let Some(place) = plain.place(value) {
            self.stacks.insert(place, number);
        }
        Ok(number)
    }

    /// Returns the number of a stack that [`stack`](Self::stack) read before.
    pub(super) fn known(&self, plain: &Plain<'_>, value: Value) -> Option<u32> {
        self.stacks.get(&plain.place(value)?).copied()
    }

    pub(super) fn finish(self) -> Stacks {
        self.interner.finish()
    }

    fn frame(&mut self, plain: &Plain<'_>, value: Value, path: &Path<'_>) -> Result<u32, Error> {
        if let Value::Dict(dict) = value
            && let Some(&number) = self.frames.get(&dict)
        {
            return Ok(number);
        }
        let [name, file, line] = plain.fields(value, path, ["name", "filename", "line"])?;
        let function = self.text(plain, name.required()?, &name.path())?;
        let file = self.text(plain, file.required()?, &file.path())?;
        // No file has line numbers beyond 32 bits. A larger number, in a damaged file, is clamped.
        let line = u32::try_from(line.number()?).unwrap_or(u32::MAX);
        let number = self.interner.frame(function, file, line)?;
        if let Value::Dict(dict) = value {
            self.frames.insert(dict, number);
        }
        Ok(number)
    }

    fn text(&mut self, plain: &Plain<'_>, value: Value, path: &Path<'_>) -> Result<u32, Error> {
        if let Value::Text(text) = value
            && let Some(&number) = self.texts.get(&text)
        {
            return Ok(number);
        }
        let number = self.interner.text(&String::from_utf8_lossy(plain.text(value, path)?))?;
        if let Value::Text(text) = value {
            self.texts.insert(text, number);
        }
        Ok(number)
    }
}
