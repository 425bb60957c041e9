//! Findings of the checks.

use std::fmt;

/// One misuse that the checks found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Kind of misuse.
    pub kind: FindingKind,
    /// Text for people: the call, addresses, sizes, streams, and what to do.
    pub text: String,
}

/// A kind of misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// Memory was freed that had been freed before.
    DoubleFree,
    /// A pointer was freed that no allocation starts at, or by the wrong function.
    WrongFree,
    /// A copy, fill or kernel uses memory after its free.
    UseAfterFree,
    /// A copy, fill or kernel goes beyond the allocation it starts in.
    OutOfBounds,
    /// A copy, fill or kernel uses an address where nothing is, or that it may not use.
    WildPointer,
    /// The host reads device memory that was never written, or a kernel computes with it.
    Uninitialised,
    /// Memory was live when its context was destroyed.
    Leak,
    /// Two streams use the same bytes, one of them writes, and nothing orders them; or a heap hands
    /// memory to a stream while another may still use it.
    Unordered,
    /// A heap hands out a block over one that is live.
    OverlappingBlocks,
    /// A kernel was to be loaded that is not gpuheap's own: the emulator runs no other.
    KernelRefused,
    /// The driver was called from one of its callbacks.
    CalledFromCallback,
    /// Mark after the findings that are kept: this many more were dropped.
    Dropped(usize),
}

/// Bounds the findings that are kept, and with them host memory. A program that repeats one mistake makes
/// millions of them, and the first ones are those to mend.
const FINDINGS: usize = 1000;

/// The first findings of an emulator, and the number of findings dropped after them.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    dropped: usize,
}

impl Findings {
    /// Keeps a finding, or drops it if [that many](FINDINGS) are kept.
    pub(crate) fn add(&mut self, finding: Finding) {
        if self.kept.len() < FINDINGS { self.kept.push(finding) } else { self.dropped += 1 }
    }

    /// Returns the number of findings so far, dropped ones included.
    pub(crate) fn count(&self) -> usize {
        self.kept.len() + self.dropped
    }

    /// Forgets all findings but the first `count` and one more.
    pub(crate) fn keep_one_after(&mut self, count: usize) {
        let left = self.count().min(count + 1);
        self.kept.truncate(left);
        self.dropped = left - self.kept.len();
    }

    /// Returns the findings that are kept, and one mark for those that were dropped, if any were.
    pub(crate) fn all(&self) -> Vec<Finding> {
        let dropped = (self.dropped > 0).then(|| Finding {
            kind: FindingKind::Dropped(self.dropped),
            text: format!(
                "dropped {} findings after the first {FINDINGS}; mend those and run again",
                self.dropped
            ),
        });
        self.kept.iter().cloned().chain(dropped).collect()
    }
}

/// Error of [`Emulator::findings`](crate::Emulator::findings) on an emulator whose checks are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksOff;

impl fmt::Display for ChecksOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the emulator's checks are off, so nothing was looked for; make it with Options { checks: true, .. }",
        )
    }
}

impl std::error::Error for ChecksOff {}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
