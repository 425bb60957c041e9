//! Settings that are to be tried.

/// A setting that is to be tried.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) setting: String,
    pub(super) python: Option<String>,
    pub(super) model: String,
}
