//! What a scope freed at its end.

use std::fmt;
use std::panic::Location;

use crate::error::Error;
use crate::kind::MemoryKind;
use crate::size::Bytes;

/// What the end of a scope found. Its text has at most 80 columns.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScopeReport {
    /// Where in the program the scope began.
    pub began: &'static Location<'static>,
    /// How many arrays its end freed; those that were dropped before are not counted.
    pub freed: u64,
    /// Their bytes.
    pub freed_bytes: u64,
    /// [Peak](Scope::peak) of the scope, bytes. `None` if the device was reset, and in a forked child.
    pub peak: Option<u64>,
    /// What was moved out and is still there, in the order in which it was moved.
    pub kept: Vec<Kept>,
    /// Why arrays could not be freed, one error each.
    pub failed: Vec<Error>,
}

/// An array that was moved out of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// Where the device sees it; zero for no bytes.
    pub address: u64,
    /// The bytes of its memory.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Where in the program it was made.
    pub made: &'static Location<'static>,
}

impl fmt::Display for ScopeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScopeReport { began, freed, freed_bytes, peak, kept, failed } = self;
        let bytes: u64 = kept.iter().map(|kept| kept.bytes).sum();
        writeln!(f, "scope that began at {}", Place(began, 60))?;
        write!(
            f,
            "  freed {freed} ({}), kept {} ({})",
            Bytes(*freed_bytes),
            kept.len(),
            Bytes(bytes)
        )?;
        if let Some(peak) = peak {
            write!(f, "\n  peak of device memory {} above its start", Bytes(*peak))?;
        }
        for Kept { address, bytes, kind, made } in kept {
            let what = format!("{address:#x}: {}, {kind}, made at ", Bytes(*bytes));
            let left = 76_usize.saturating_sub(what.len());
            write!(f, "\n    {what}{}", Place(made, left))?;
        }
        match failed.first() {
            None => Ok(()),
            Some(first) => {
                write!(f, "\n  failed to free {}; the first because", failed.len())?;
                wrapped(f, &first.to_string())
            }
        }
    }
}

/// Words in lines of at most 80 columns, where they are no longer than that.
fn wrapped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let mut column = usize::MAX;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column.saturating_add(length + 1) > 80 {
            f.write_str("\n   ")?;
            column = 3;
        }
        write!(f, " {word}")?;
        column += length + 1;
    }
    Ok(())
}

/// A place in the program in that many columns: the end of its path says most.
struct Place(&'static Location<'static>, usize);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}:{}", self.0.file(), self.0.line());
        let length = text.chars().count();
        if length <= self.1 {
            return f.write_str(&text);
        }
        f.write_str("…")?;
        f.write_str(&text.chars().skip(length + 1 - self.1.max(1)).collect::<String>())
    }
}
