//! Messages of the library to the program's logger, by crate `log`.
//!
//! Called off the hot path, and with no lock of the library held: a logger is code of the program,
//! and may allocate on the very heap that has something to say.

use std::cell::Cell;
use std::fmt;

use log::Level;

use crate::{fork, program};

/// Target of messages about devices that are opened.
#[cfg(feature = "emulator")]
pub(crate) const DEVICE: &str = "gpuheap::device";
/// Target of messages about variables of the environment.
pub(crate) const ENVIRONMENT: &str = "gpuheap::environment";
/// Target of messages about heaps that are opened and closed, and the pools that they get.
pub(crate) const HEAP: &str = "gpuheap::heap";
/// Target of messages about memory that is given back or waited for.
pub(crate) const RECLAIM: &str = "gpuheap::reclaim";

/// Warns of a mistake in what the program or its environment asked for.
pub(crate) fn warn(target: &str, text: fmt::Arguments<'_>) {
    say(Level::Warn, target, text);
}

/// Tells of a decision of the library.
pub(crate) fn debug(target: &str, text: fmt::Arguments<'_>) {
    say(Level::Debug, target, text);
}

/// Returns `true` if some logger wants [`debug`] messages, for figures that cost something to find.
pub(crate) fn is_wanted() -> bool {
    Level::Debug <= log::max_level()
}

thread_local! {
    /// `true` while this thread's logger is at work. Without a destructor, so that it is there at
    /// the thread's end too.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Hands a message to the logger. Does nothing if no logger wants the level, if the logger itself
/// called the library, or in a forked child, in which another thread of the parent may have held
/// the logger's locks. A panic of the logger ends here: a destructor may be what called.
#[cold]
fn say(level: Level, target: &str, text: fmt::Arguments<'_>) {
    if level > log::max_level() || fork::count() != 0 || BUSY.replace(true) {
        return;
    }
    let _ = program::run(|| log::log!(target: target, level, "{text}"));
    BUSY.set(false);
}
