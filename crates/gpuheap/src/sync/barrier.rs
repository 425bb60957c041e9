//! A barrier that one side gets nearly for free, because the other side pays for both.
//!
//! Two threads that each write one place and then read the other's need a full barrier between the
//! two on both sides, else each may miss what the other wrote. It costs 11 ns and more on the host of
//! an H200, which is half of what a whole pair of a free and an allocation may cost. So the side that
//! runs at every call keeps the compiler's order alone, and the other side, which runs when memory is
//! short, has the kernel make every thread of the process pass a full barrier (`membarrier`, Linux
//! 4.14). Where there is no such call both sides pay.

#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
mod imp {
    #[cfg(loom)]
    use loom::sync::atomic::{Ordering, fence};
    #[cfg(not(loom))]
    use std::sync::atomic::{Ordering, fence};

    #[inline]
    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
mod imp {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};

    use crate::fork;

    /// `true` if the other side pays. It is set before any thread has something to order.
    static IS_ONE_SIDED: AtomicBool = AtomicBool::new(false);

    #[inline]
    pub(crate) fn light() {
        if IS_ONE_SIDED.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
        if !IS_ONE_SIDED.load(Ordering::Relaxed) {
            return;
        }
        // Once registered it fails for a moment's want of memory, if at all.
        for _ in 0..1000 {
            if call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
                return;
            }
            std::thread::yield_now();
        }
        // A filter that forbids it since: to go on would hand blocks out twice.
        std::process::abort();
    }

    /// Asks the kernel for it, once a process: a forked child has to ask for itself. Takes no lock,
    /// which another thread of the parent might have held; twice is harmless.
    pub(crate) fn prepare() {
        static PREPARED: AtomicU64 = AtomicU64::new(0);
        let process = u64::from(fork::count()) + 1;
        if PREPARED.load(Ordering::Acquire) == process {
            return;
        }
        let there = call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        IS_ONE_SIDED.store(there, Ordering::SeqCst);
        PREPARED.store(process, Ordering::Release);
    }

    fn call(command: libc::c_int) -> bool {
        // SAFETY: the call takes two numbers and touches no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

/// The cheap side's barrier, at every call.
#[inline]
pub(crate) fn light() {
    imp::light();
}

/// The other side's: whatever a thread wrote before its last [`light`] is seen after this, and
/// whatever is read after a thread's next `light` sees what was written before this. A few
/// microseconds.
pub(crate) fn heavy() {
    imp::heavy();
}

/// To be called before the first of the others.
pub(crate) fn prepare() {
    #[cfg(all(target_os = "linux", not(loom), not(miri)))]
    imp::prepare();
}
