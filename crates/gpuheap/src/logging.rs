//! Sends messages to the program's logger through crate `log`.
//!
//! Messages are sent off the hot path, with no lock of the library held, because the program's
//! logger may allocate from the heap that logs.

use std::cell::Cell;
use std::fmt;

use log::Level;

use crate::{fork, program};

/// Target of messages about opened devices.
#[cfg(feature = "emulator")]
pub(crate) const DEVICE: &str = "gpuheap::device";
/// Target of messages about environment variables.
pub(crate) const ENVIRONMENT: &str = "gpuheap::environment";
/// Target of messages about opened and closed heaps, and their pools.
pub(crate) const HEAP: &str = "gpuheap::heap";
/// Target of messages about reclaim steps and idle trims.
pub(crate) const RECLAIM: &str = "gpuheap::reclaim";

/// Warns of a mistake in the program's request or environment.
pub(crate) fn warn(target: &str, text: fmt::Arguments<'_>) {
    send(Level::Warn, target, text);
}

/// Logs a decision of the library.
pub(crate) fn debug(target: &str, text: fmt::Arguments<'_>) {
    send(Level::Debug, target, text);
}

/// Returns `true` if a logger accepts [`debug`] messages. If not, the caller need not compute
/// figures.
pub(crate) fn is_wanted() -> bool {
    Level::Debug <= log::max_level()
}

thread_local! {
    /// `true` while this thread's logger runs. The variable has no destructor, so it can still be
    /// used while the thread ends.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Passes a message to the logger. Does nothing if no logger wants the level, or if the logger
/// itself called the library. Does nothing in a forked child either, because another thread of the
/// parent may have held the logger's locks. A panic of the logger is caught, because the caller may
/// be a destructor.
#[cold]
fn send(level: Level, target: &str, text: fmt::Arguments<'_>) {
    if level > log::max_level() || fork::count() != 0 || BUSY.replace(true) {
        return;
    }
    let _ = program::run(|| log::log!(target: target, level, "{text}"));
    BUSY.set(false);
}
