//! Progress of replays, as a caller sees it.

/// Receives what is being done. Called from several threads.
pub trait Progress: Sync {
    /// Names the step that begins.
    fn now(&self, step: &str);
    /// Adds steps to those that are known.
    fn expect(&self, steps: u64);
    /// Reports steps as done.
    fn advance(&self, steps: u64);
}

/// Shows no progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn now(&self, _step: &str) {}
    fn expect(&self, _steps: u64) {}
    fn advance(&self, _steps: u64) {}
}
