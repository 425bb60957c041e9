//! The thread that makes progress while nobody calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Schedule;
use crate::emulator::{Shared, nanoseconds};

/// How long it sleeps between rounds while there is work that is not due.
const ROUND: Duration = Duration::from_millis(1);

/// Starts the thread; it ends when the emulator is dropped.
pub(crate) fn start(shared: &Arc<Shared>) {
    let weak = Arc::downgrade(shared);
    let body = move || {
        let mut last = Instant::now();
        while let Some(shared) = weak.upgrade() {
            let Some(mut call) = shared.call("worker") else { return };
            if call.state.closing {
                return;
            }
            if call.state.pending == 0 {
                // Waits for work with the emulator kept alive only for this long.
                shared.changed.wait_for(&mut call.state, 50 * ROUND);
                last = Instant::now();
                continue;
            }
            if let Schedule::Lag(_) = call.state.options.schedule {
                let now = call.state.clock.saturating_add(nanoseconds(last.elapsed()));
                last = Instant::now();
                call.advance_to(now);
            } else {
                call.run_one_round();
            }
            shared.changed.wait_for(&mut call.state, ROUND);
        }
    };
    // Without the thread waits still make progress; only a host that waits without calling does not.
    drop(std::thread::Builder::new().name("gpuheap-emu".to_owned()).spawn(body));
}
