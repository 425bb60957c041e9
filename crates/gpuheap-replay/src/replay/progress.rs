//! Progress of replays, as a caller sees it.

/// Receiver of progress. It is called from several threads.
pub trait Progress: Sync {
    /// Names the step that begins now.
    fn now(&self, step: &str);
    /// Adds to the number of steps that are expected.
    fn expect(&self, steps: u64);
    /// Reports steps as done.
    fn advance(&self, steps: u64);
}

/// Progress that is not shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn now(&self, _step: &str) {}
    fn expect(&self, _steps: u64) {}
    fn advance(&self, _steps: u64) {}
}
