//! The process's socket, shared by all members.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::member::{Member, Members};
use crate::protocol::Access;
use crate::server::{self, Stop};

/// Publishes the memory of a member (a heap or recorder) on the process's socket. With
/// [`Access::Control`], clients may also change the member. The first member binds the socket and
/// starts the thread that answers.
///
/// A forked child does not answer for its parent. It gets its own socket when a member joins in it.
///
/// # Errors
///
/// No folder can be used for the socket, or the thread cannot be started.
pub fn join(member: Arc<dyn Member>, access: Access) -> io::Result<Membership> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let mut current = lock_publisher()?;
    let pid = std::process::id();
    // In a forked child, the publisher's socket and thread belong to the parent.
    if let Some(of_parent) = current.take_if(|publisher| publisher.pid != pid) {
        std::mem::forget(of_parent);
    }
    let publisher = match &*current {
        Some(publisher) => publisher,
        None => current.insert(Publisher::start(pid)?),
    };
    publisher.members.add(number, access, Arc::downgrade(&member));
    let path = publisher.path.clone();
    Ok(Membership { pid, number, path, _member: member })
}

/// Membership of a heap or recorder. It ends when dropped. The last membership removes the socket.
#[must_use = "the membership ends when this is dropped"]
pub struct Membership {
    pid: u32,
    number: u64,
    path: PathBuf,
    /// Keeps the member alive, because the list of members holds a weak reference.
    _member: Arc<dyn Member>,
}

impl Membership {
    /// Returns the path of the process's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // In a forked child, a lock may stay locked forever, because a thread of the parent held it
        // during the fork.
        if self.pid != std::process::id() {
            return;
        }
        let Ok(mut current) = lock_publisher() else { return };
        let Some(publisher) = &*current else { return };
        if publisher.members.remove(self.number)
            && let Some(publisher) = current.take()
        {
            publisher.end();
        }
    }
}

/// State of a process that publishes its memory: the socket, and the members (heaps and recorders).
struct Publisher {
    /// Pid of the process that bound the socket. A forked child's copy has its parent's pid.
    pid: u32,
    path: PathBuf,
    stop: Stop,
    members: Arc<Members>,
}

/// Publisher of this process.
static PUBLISHER: Mutex<Option<Publisher>> = Mutex::new(None);

impl Publisher {
    fn start(pid: u32) -> io::Result<Publisher> {
        let members = Arc::<Members>::default();
        let (path, stop) = server::start(members.clone())?;
        Ok(Publisher { pid, path, stop, members })
    }

    fn end(self) {
        self.members.has_ended.store(true, Ordering::Release);
        // Another process may have removed the socket.
        let _ = std::fs::remove_file(&self.path);
        self.stop.stop();
    }
}

/// Locks the publisher. Gives up after a second, because in a forked child the lock stays locked if
/// a thread of the parent held it during the fork.
fn lock_publisher() -> io::Result<MutexGuard<'static, Option<Publisher>>> {
    let start = Instant::now();
    loop {
        match PUBLISHER.try_lock() {
            Ok(locked) => return Ok(locked),
            Err(TryLockError::Poisoned(locked)) => return Ok(locked.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() < Duration::from_secs(1) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(
                    "the parent of this forked process held the lock of its socket",
                ));
            }
        }
    }
}
