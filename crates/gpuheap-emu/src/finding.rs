//! Findings of the checks.

use std::fmt;

/// Misuse that the checks found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Kind of misuse.
    pub kind: FindingKind,
    /// Message that names the call, addresses, sizes, streams, and a remedy.
    pub text: String,
}

/// Kind of misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// A second free of the same memory.
    DoubleFree,
    /// A free of a pointer that is not the start of an allocation, or a free with the wrong
    /// function.
    WrongFree,
    /// A copy, fill or kernel that uses memory after its free.
    UseAfterFree,
    /// A copy, fill or kernel that extends beyond the allocation in which it starts.
    OutOfBounds,
    /// A copy, fill or kernel that uses an address without memory, or memory that it may not
    /// access.
    WildPointer,
    /// A copy to the host, or a computation in a kernel, that reads device memory that was never
    /// written.
    Uninitialised,
    /// Memory that was live when its context was destroyed.
    Leak,
    /// Unordered uses of the same bytes by two streams, if one use is a write. Also memory that a
    /// heap hands to a stream while another stream may still use it.
    Unordered,
    /// A block that a heap hands out although it overlaps a live block.
    OverlappingBlocks,
    /// A module with a kernel that is not gpuheap's. The emulator does not run the kernel.
    KernelRefused,
    /// A call of the driver from one of its callbacks.
    CalledFromCallback,
    /// Marker after the kept findings, with the number of dropped findings.
    Dropped(usize),
}

/// Maximum number of kept findings, which bounds host memory. A program that repeats one mistake
/// makes millions of findings, and the first findings suffice to find the mistake.
const FINDINGS: usize = 1000;

/// The first [`FINDINGS`] findings of an emulator about the program, and the number of later
/// findings that were dropped.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    dropped: usize,
}

impl Findings {
    /// Keeps a finding. If [`FINDINGS`] findings are kept already, drops the new finding.
    pub(crate) fn add(&mut self, finding: Finding) {
        if self.kept.len() < FINDINGS { self.kept.push(finding) } else { self.dropped += 1 }
    }

    /// Returns the number of findings so far, including dropped findings.
    pub(crate) fn count(&self) -> usize {
        self.kept.len() + self.dropped
    }

    /// Forgets all findings after the first `count + 1`.
    pub(crate) fn keep_one_after(&mut self, count: usize) {
        let left = self.count().min(count + 1);
        self.kept.truncate(left);
        self.dropped = left - self.kept.len();
    }

    /// Returns the kept findings. If findings were dropped, appends a marker with their number.
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
