//! Limits the time of probes that may block.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::facts::{Skipped, Source, Why};

/// Runs `probe` on a separate thread, and waits for its result until `limit`. A late probe
/// continues until the probe or the program ends.
pub(super) fn limited<T: Send + 'static>(
    source: &Arc<dyn Source>,
    limit: Duration,
    probe: impl FnOnce(&dyn Source) -> T + Send + 'static,
) -> Result<T, Skipped> {
    let (sender, receiver) = channel();
    let source = source.clone();
    std::thread::Builder::new()
        .name("gpuheap-probe".to_owned())
        .spawn(move || {
            // After the time limit, no receiver is left.
            let _ = sender.send(probe(&*source));
        })
        .map_err(|error| Skipped::new(Why::Failed, error.to_string()))?;
    receiver.recv_timeout(limit).map_err(|error| match error {
        std::sync::mpsc::RecvTimeoutError::Timeout => {
            Skipped::new(Why::TimedOut, format!("no answer within {} s", limit.as_secs_f64()))
        }
        std::sync::mpsc::RecvTimeoutError::Disconnected => Skipped::new(Why::Failed, "it panicked"),
    })
}

/// A probe that is called again and again. If a call exceeds its time limit, its thread may stay
/// blocked. Until that call returns, further calls fail immediately, because each of them could
/// block one more thread. This also holds for calls of clones.
#[derive(Debug, Clone, Default)]
pub(super) struct Repeated(Arc<Mutex<Weak<()>>>);

impl Repeated {
    pub(super) fn limited<T: Send + 'static>(
        &self,
        source: &Arc<dyn Source>,
        limit: Duration,
        probe: impl FnOnce(&dyn Source) -> T + Send + 'static,
    ) -> Result<T, Skipped> {
        let late = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if late().strong_count() > 0 {
            return Err(Skipped::new(Why::TimedOut, "an earlier call has not returned yet"));
        }
        let running = Arc::new(());
        let call = Arc::downgrade(&running);
        let result = limited(source, limit, move |source| {
            let _running = running;
            probe(source)
        });
        if result.is_err() {
            *late() = call;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Recording;

    #[test]
    fn blocked_probe_times_out() {
        let source: Arc<dyn Source> = Arc::new(Recording::default());
        let (_open, closed) = channel::<()>();
        let look = move |_: &dyn Source| closed.recv().is_ok();
        let skipped = limited(&source, Duration::from_millis(20), look).unwrap_err();
        assert_eq!(skipped.why, Why::TimedOut);
        assert_eq!(limited(&source, Duration::from_secs(60), |_| 7), Ok(7));
    }
    #[test]
    fn late_probe_is_not_repeated() {
        let source: Arc<dyn Source> = Arc::new(Recording::default());
        let (open, closed) = channel::<()>();
        let probe = Repeated::default();
        let late = move |_: &dyn Source| closed.recv().is_ok();
        probe.limited(&source, Duration::from_millis(20), late).unwrap_err();
        let again = || probe.clone().limited(&source, Duration::from_secs(60), |_| 7);
        assert_eq!(again().unwrap_err().why, Why::TimedOut);
        open.send(()).unwrap();
        // The message unblocks `late`, the first call. The thread of `late` needs some time to end.
        while again().is_err() {}
        assert_eq!(again(), Ok(7));
    }
}
