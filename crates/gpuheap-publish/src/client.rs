//! Questions to other processes.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::folder::{Socket, start_ticks};
use crate::protocol::{Answer, Leaks, MOST_ANSWER, Question, Site, Status, parse_answer};
use crate::wire::{read_line, write_line};

/// Time for an answer, in addition to the time that the program takes at most.
const MARGIN: Duration = Duration::from_secs(1);

/// Most threads of a survey. Programs that hang then delay it by some seconds at most.
const MOST_THREADS: usize = 64;

/// A process that publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Pid of the process, as this process sees it; `None` if the process is in another PID
    /// namespace.
    pub pid: Option<u32>,
    /// User of the process.
    pub uid: u32,
    /// The heaps; `None` if the process did not answer.
    pub status: Option<Status>,
    /// Outstanding allocations by line.
    pub leaks: Leaks,
    /// Reason for a missing answer.
    pub failure: Option<String>,
}

/// Returns the processes of these sockets, with their heaps and lines, by pid. Removes the sockets
/// of ended processes. Leaves out this process. A process that does not answer takes two seconds;
/// 64 processes are queried at a time.
pub fn survey(sockets: &[Socket]) -> Vec<Published> {
    let is_other = |socket: &&Socket| socket.pid != std::process::id();
    let sockets: Vec<&Socket> = sockets.iter().filter(is_other).collect();
    let found = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..sockets.len().min(MOST_THREADS) {
            let work = || {
                while let Some(socket) = sockets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(published) = published(socket) {
                        let mut found = found.lock().unwrap_or_else(|error| error.into_inner());
                        found.push((socket.path.clone(), published));
                    }
                }
            };
            // Without a thread, the others do its part.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
    });
    let mut found = found.into_inner().unwrap_or_else(|error| error.into_inner());
    found.sort_by(|one, other| one.0.cmp(&other.0));
    merged(found.into_iter().map(|(_, published)| published))
}

/// Asks a process one question. Returns the answer, and the pid of the process as this process sees
/// it; `None` if the process is in another PID namespace.
///
/// # Errors
///
/// The process has ended, belongs to another user, or does not answer in time.
pub fn ask(socket: &Socket, question: &Question) -> io::Result<(Option<u32>, Answer)> {
    let limit = question.limit() + MARGIN;
    let end = Instant::now() + limit;
    let (stream, pid) = connect(socket)?;
    write_line(&stream, &question.to_line(), end)?;
    let line = read_line(&stream, MOST_ANSWER, end).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => io::Error::new(
            ErrorKind::TimedOut,
            format!("no answer within {} s; the program may be stopped", limit.as_secs()),
        ),
        _ => error,
    })?;
    if line.is_empty() {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "it ended before its answer"));
    }
    let answer = parse_answer(&line).map_err(|reason| {
        io::Error::new(ErrorKind::InvalidData, format!("its answer cannot be read: {reason}"))
    })?;
    Ok((pid, answer))
}

/// Connects to the process of a socket, and checks the process.
fn connect(socket: &Socket) -> io::Result<(UnixStream, Option<u32>)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let end = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Does not block: if the queue of a stopped process is full, the call fails.
    rustix::net::connect(&end, &SocketAddrUnix::new(&socket.path)?).map_err(
        |error| match error {
            rustix::io::Errno::AGAIN => io::Error::new(
                ErrorKind::TimedOut,
                "its queue of questions is full; the program may be stopped",
            ),
            error => error.into(),
        },
    )?;
    let stream = UnixStream::from(end);
    stream.set_nonblocking(false)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if peer.uid.as_raw() != socket.uid {
        let text = format!("its socket was bound by user {}", peer.uid.as_raw());
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    // Zero for a process without a pid in this namespace.
    let pid = u32::try_from(peer.pid.as_raw_pid()).ok().filter(|pid| *pid != 0);
    if pid == Some(socket.pid) && !is_running(socket) {
        // A forked child of the ended process holds the socket, and does not answer for it.
        return Err(io::Error::new(ErrorKind::ConnectionRefused, "it has ended"));
    }
    Ok((stream, pid))
}

/// Returns a process with its heaps and lines; `None` if it has ended.
fn published(socket: &Socket) -> Option<Published> {
    let mut found = Published { pid: Some(socket.pid), uid: socket.uid, ..Published::default() };
    match ask(socket, &Question::Status) {
        Ok((pid, Answer::Status(status))) => (found.pid, found.status) = (pid, Some(status)),
        Ok((pid, Answer::Refused(refusal))) => {
            (found.pid, found.failure) = (pid, Some(refusal.text));
        }
        Ok(_) => found.failure = Some("its answer is to another question".to_owned()),
        Err(error) if has_ended(&error) => {
            // A socket that was just bound refuses clients for a moment too.
            if !is_running(socket) {
                socket.remove();
            }
            return None;
        }
        Err(error) => found.failure = Some(error.to_string()),
    }
    if found.status.is_some()
        && let Ok((_, Answer::Leaks(leaks))) = ask(socket, &Question::Leaks)
    {
        found.leaks = leaks;
    }
    Some(found)
}

/// Returns `true` while the process that the socket is named after lives.
fn is_running(socket: &Socket) -> bool {
    start_ticks(&socket.pid.to_string()) == Some(socket.start_ticks)
}

fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}

/// Joins the answers of a process that has several sockets.
fn merged(all: impl Iterator<Item = Published>) -> Vec<Published> {
    let mut by_pid: BTreeMap<u32, Published> = BTreeMap::new();
    let mut elsewhere = Vec::new();
    for one in all {
        match one.pid.and_then(|pid| by_pid.get_mut(&pid)) {
            Some(known) => known.join(one),
            None => match one.pid {
                Some(pid) => drop(by_pid.insert(pid, one)),
                None => elsewhere.push(one),
            },
        }
    }
    by_pid.into_values().chain(elsewhere).collect()
}

impl Published {
    fn join(&mut self, other: Published) {
        match (&mut self.status, other.status) {
            (Some(own), Some(other)) => {
                own.access = own.access.max(other.access);
                own.left_out += other.left_out;
                own.heaps.extend(other.heaps);
            }
            (own, other) => *own = own.take().or(other),
        }
        self.leaks.is_tracked |= other.leaks.is_tracked;
        self.leaks.left_out += other.leaks.left_out;
        self.leaks.sites.extend(other.leaks.sites);
        self.leaks.sites.sort_by_key(|site: &Site| std::cmp::Reverse(site.bytes));
        self.failure = self.failure.take().or(other.failure);
    }
}
