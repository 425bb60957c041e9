//! Length of a report.

/// Length of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// At most one screen of 24 lines.
    #[default]
    Screen,
    /// All remedies, cards and holders.
    Full,
}
