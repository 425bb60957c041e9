//! Counts the forks that lead from the process that first called [`watch`] to this process.
//!
//! CUDA does not survive a fork without exec. The child has a copy of the driver's state, but only
//! the thread that forked. In the child, a lock that another thread of the parent held is never
//! released.
//!
//! When a library opens a device, it stores the result of [`watch`]. Before it takes a lock, it
//! compares that result with [`count`].

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process in which [`watch`] was first called and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks that lead from the process of the first call to this process. The
/// first call registers the handler that counts forks. Later calls take no lock.
///
/// Comparing process ids would serve too, but would cost a system call each time. Reading the count
/// is one load.
pub fn watch() -> u32 {
    #[cfg(unix)]
    unix::register();
    count()
}

/// Returns the same number as [`watch`], but registers no handler. In a process that was forked off
/// after a call of [`watch`], the number differs from the result of that call.
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
            // `pthread_atfork` fails for lack of memory, forks are not counted.
            let _: libc::c_int = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
    }

    unsafe extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
}
