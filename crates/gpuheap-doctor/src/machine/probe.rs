//! Time limits of what may block.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::source::{Skipped, Source, Why};

/// Runs `look` on a thread of its own and waits at most `limit` for it. A look that takes longer
/// goes on by itself until it ends or the program does.
///
/// # Errors
///
/// No answer in time, or a thread that cannot be started or panicked.
pub(super) fn limited<T: Send + 'static>(
    source: &Arc<dyn Source>,
    limit: Duration,
    look: impl FnOnce(&dyn Source) -> T + Send + 'static,
) -> Result<T, Skipped> {
    let (sender, receiver) = channel();
    let source = source.clone();
    std::thread::Builder::new()
        .name("gpuheap-probe".to_owned())
        .spawn(move || {
            // The receiver is gone if the time is over.
            let _ = sender.send(look(&*source));
        })
        .map_err(|error| Skipped::new(Why::Failed, error.to_string()))?;
    receiver.recv_timeout(limit).map_err(|error| match error {
        std::sync::mpsc::RecvTimeoutError::Timeout => {
            Skipped::new(Why::TimedOut, format!("no answer within {} s", limit.as_secs_f64()))
        }
        std::sync::mpsc::RecvTimeoutError::Disconnected => Skipped::new(Why::Failed, "it panicked"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Recording;

    #[test]
    fn look_that_blocks_is_skipped_with_its_reason() {
        let source: Arc<dyn Source> = Arc::new(Recording::default());
        let (_open, closed) = channel::<()>();
        let look = move |_: &dyn Source| closed.recv().is_ok();
        let skipped = limited(&source, Duration::from_millis(20), look).unwrap_err();
        assert_eq!(skipped.why, Why::TimedOut);
        assert_eq!(limited(&source, Duration::from_secs(60), |_| 7), Ok(7));
    }
}
