//! Results of commands that ran to their end.

/// Result of a command that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No findings: exit code 0.
    Fine,
    /// Findings of the kind that the command looks for: exit code 1.
    Findings,
    /// A program that the command ran ended with this exit code, which is the command's.
    Status(u8),
}
