//! An asymmetric barrier: nearly free for one side, because the other side pays for both.
//!
//! Suppose two threads each write one place and then read the other's. Both need a full barrier
//! between the two, or each may miss the other's write. A full barrier costs 11 ns and more on the
//! host of an H200, half of what a pair of a free and an allocation may cost. Here, the side that
//! runs at every call keeps only the compiler's order. The other side runs when memory is short. It
//! makes the kernel execute a full barrier on every thread of the process (`membarrier`, Linux
//! 4.14). Without that call, both sides pay.

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

    /// `true` if the other side pays. Set before any thread has accesses to order.
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
        // After registration it fails only for a momentary lack of memory, if at all.
        for _ in 0..1000 {
            if call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
                return;
            }
            std::thread::yield_now();
        }
        // A filter forbids the call since: to go on would hand blocks out twice.
        std::process::abort();
    }

    /// Registers with the kernel, once a process; a forked child registers itself. Takes no lock,
    /// which another thread of the parent might have held. A second call is harmless.
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
        // SAFETY: the call takes two numbers and accesses no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

/// Barrier of the cheap side, at every call.
#[inline]
pub(crate) fn light() {
    imp::light();
}

/// Barrier of the expensive side. Writes of a thread before its last [`light`] are visible after
/// this. Reads of a thread after its next `light` see all writes before this. Costs a few
/// microseconds.
pub(crate) fn heavy() {
    imp::heavy();
}

/// Prepares the barriers. Call it before the first of the others.
pub(crate) fn prepare() {
    #[cfg(all(target_os = "linux", not(loom), not(miri)))]
    imp::prepare();
}
