//! System calls that rustix does not cover.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

/// Process at the other end of a socket.
pub(crate) struct Peer {
    /// Pid as this process sees it; `None` if the process is in another PID namespace.
    pub(crate) pid: Option<u32>,
    /// User of the process.
    pub(crate) uid: u32,
}

/// Returns the process at the other end of `stream`. Does not use rustix: for a process in another
/// PID namespace, the kernel writes pid 0, which rustix's type cannot hold.
#[allow(unsafe_code)]
pub(crate) fn peer(stream: &UnixStream) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let to = (&raw mut found).cast();
    // SAFETY: the kernel writes at most `size` bytes to `found`, and any bytes are a valid value.
    if unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, to, &mut size) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = u32::try_from(found.pid).ok().filter(|pid| *pid != 0);
    Ok(Peer { pid, uid: found.uid })
}

/// Calls `spawn` with signals blocked. Threads that `spawn` starts do not receive the program's
/// signals, except for signals of their own faults such as SIGSEGV.
#[allow(unsafe_code)]
pub(crate) fn with_signals_blocked<T>(spawn: impl FnOnce() -> T) -> T {
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the sets are valid for reads and writes, and all zeros are an empty set.
    let is_blocked = unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(blocked.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr()) == 0
    };
    let value = spawn();
    if is_blocked {
        // SAFETY: the call above filled in `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    value
}
