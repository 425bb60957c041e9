//! The length of a report.

/// How much of a verdict is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// As much as fits on a screen of 24 lines.
    #[default]
    Screen,
    /// Every remedy, card and holder.
    Full,
}
