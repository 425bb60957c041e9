//! Results of commands that ran to their end.

/// Result of a command that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No findings: exit code 0.
    Fine,
    /// Findings of the kind that the command looks for: exit code 1.
    Findings,
    /// No findings as far as is known, which the text limits: exit code 4. A
    /// [`Failure`](crate::failure::Failure) has codes 2 and 3.
    AsFarAsKnown,
    /// A program that the command ran ended with this exit code, which is the command's too.
    Status(u8),
}

impl Verdict {
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Verdict::Fine => 0,
            Verdict::Findings => 1,
            Verdict::AsFarAsKnown => 4,
            Verdict::Status(code) => code,
        }
    }
}
