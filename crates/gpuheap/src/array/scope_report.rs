//! Report of a scope's end, with the arrays that it freed and the arrays that were kept.

use std::fmt;
use std::panic::Location;

use crate::Caller;
use crate::error::Error;
use crate::kind::MemoryKind;
use crate::size::Bytes;

/// Report of a scope's end. Its text has at most 80 columns.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScopeReport {
    /// Line of the program where the scope began.
    pub began: &'static Location<'static>,
    /// Number of arrays that the scope's end freed. Arrays that were dropped before do not count.
    pub freed: u64,
    /// Bytes of the arrays that the scope's end freed.
    pub freed_bytes: u64,
    /// Arrays that were moved out and still exist, in the order of their moves.
    pub kept: Vec<Kept>,
    /// Errors of frees that failed, one for each array.
    pub failed: Vec<Error>,
}

/// An array that was moved out of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// Address on the device; 0 for zero bytes.
    pub address: u64,
    /// Size of the array's memory in bytes.
    pub bytes: u64,
    /// Kind of memory.
    pub kind: MemoryKind,
    /// Line of the program that made the array.
    pub made: &'static Location<'static>,
}

impl fmt::Display for ScopeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScopeReport { began, freed, freed_bytes, kept, failed } = self;
        let bytes: u64 = kept.iter().map(|kept| kept.bytes).sum();
        writeln!(f, "scope that began at {}", ShortLocation(began, 60))?;
        write!(
            f,
            "  freed {freed} ({}), kept {} ({})",
            Bytes(*freed_bytes),
            kept.len(),
            Bytes(bytes)
        )?;
        for Kept { address, bytes, kind, made } in kept {
            let what = format!("{address:#x}: {}, {kind}, made at ", Bytes(*bytes));
            let left = 76_usize.saturating_sub(what.len());
            write!(f, "\n    {what}{}", ShortLocation(made, left))?;
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

/// Wraps words into lines of at most 80 columns, if no word is longer.
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

/// A line of the program, displayed in at most the given number of columns. If the path is too
/// long, its end is kept, because the end identifies the file best.
struct ShortLocation(Caller, usize);

impl fmt::Display for ShortLocation {
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
