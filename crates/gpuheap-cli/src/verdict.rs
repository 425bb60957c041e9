//! Results of commands that ran to their end.

/// Result of a command that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing to say beyond what was printed: exit code 0.
    Fine,
    /// The command found what it was asked to look for: exit code 1.
    Findings,
}
