//! Writes messages to stderr.

use std::mem::MaybeUninit;
use std::ptr;

/// Writes a message to stderr with one call if possible. Takes no lock, because a fork during
/// another thread's write would leave the lock taken in the child.
pub fn write(text: &str) {
    let text = format!("gpuheap: {text}\n");
    without_signals(|| {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            // SAFETY: the slice is valid for reads.
            let written =
                unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(_) if is_interrupted() => {}
                // No channel is left to report a closed stderr.
                Err(_) => return,
            }
        }
    });
}

fn is_interrupted() -> bool {
    std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
}

/// Calls `write` with SIGPIPE and SIGXFSZ blocked, so that a failed write returns an error. By
/// default, each of these signals ends the program.
pub fn without_signals(write: impl FnOnce()) {
    let mut raised = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the sets are valid for reads and writes, and all zeros are an empty set. If `write`
    // fails, the kernel raises SIGPIPE or SIGXFSZ on this thread only. So `sigtimedwait` takes no
    // signal of another thread.
    unsafe {
        libc::sigpending(pending.as_mut_ptr());
        libc::sigemptyset(raised.as_mut_ptr());
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            if libc::sigismember(pending.as_ptr(), signal) != 1 {
                libc::sigaddset(raised.as_mut_ptr(), signal);
            }
        }
        let is_blocked =
            libc::pthread_sigmask(libc::SIG_BLOCK, raised.as_ptr(), before.as_mut_ptr()) == 0;
        write();
        if is_blocked {
            libc::sigtimedwait(raised.as_ptr(), ptr::null_mut(), &no_wait);
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        }
    }
}
