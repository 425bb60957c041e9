//! Count of the forks that lead to this process.
//!
//! CUDA does not survive a fork without exec. The child has a copy of the driver's state and none
//! of its threads. A lock that another thread of the parent held is never released there.
//!
//! A library keeps the result of [`watch`] when it opens a device, and compares it with [`count`]
//! before it takes a lock.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process in which [`watch`] was first called and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Begins to count forks, once in a process, and returns the count so far. Takes no lock after the
/// first call.
///
/// A process id would serve too, but costs a system call at every question. The count is one load.
pub fn watch() -> u32 {
    #[cfg(unix)]
    unix::register();
    count()
}

/// Returns the count so far. In a process that was forked off since [`watch`], it differs from the
/// result of [`watch`].
#[inline]
pub fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

#[cfg(unix)]
mod unix {
    use std::sync::Once;

    use super::{FORKS, Ordering};

    pub(super) fn register() {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler only adds to one atomic. That is allowed in a forked child. If
            // it cannot be registered, for lack of memory, forks go unnoticed.
            let _: libc::c_int = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
    }

    unsafe extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
}
