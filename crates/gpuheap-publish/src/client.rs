//! Questions to other processes.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::folder::{Socket, is_zombie, start_ticks};
use crate::kernel;
use crate::protocol::{
    Answer, Leaks, LibraryMemory, MOST_ANSWER, MOST_TEXT, OpenScope, Question, Site, Status,
    parse_answer, truncate,
};
use crate::text::Texts;
use crate::wire::{read_line, write_line};

/// Time that a client continues to wait for an answer after [`Question::limit`] has passed.
const MARGIN: Duration = Duration::from_secs(1);

/// Maximum number of threads of a survey.
const MOST_THREADS: usize = 64;

/// Maximum number of entries (heaps, and lines of code with their bytes) that a survey of processes
/// reads for each user. An entry takes at most 3 KB of memory.
const MOST_OF_USER: usize = 10_000;

/// Time after which a survey sends no more questions. The last answers arrive up to two seconds
/// later.
const SURVEY_LIMIT: Duration = Duration::from_secs(3);

/// Choice of lists that a survey requests. A Python program locks the interpreter while it makes a
/// list, so a survey requests only the lists that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Heaps alone.
    Heaps,
    /// Heaps, and the lines that hold memory.
    Lines,
    /// Heaps, lines, libraries and scopes.
    All,
}

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
    /// Scopes that have not ended, most bytes first.
    #[serde(default)]
    pub scopes: Vec<OpenScope>,
    /// Memory of libraries, most bytes first.
    #[serde(default)]
    pub libraries: Vec<LibraryMemory>,
    /// Reason for a missing answer.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub failure: Option<String>,
}

/// Returns the processes of these sockets, sorted by pid, without this process. Removes the sockets
/// of ended processes. Takes about five seconds at most. If sockets of a user were skipped, adds a
/// result for that user, whose `failure` states their number.
pub fn survey(sockets: &[Socket], detail: Detail) -> Vec<Published> {
    let is_other = |socket: &&Socket| socket.pid != std::process::id() || !is_running(socket);
    let sockets = in_turns(sockets.iter().filter(is_other));
    let end = Instant::now() + SURVEY_LIMIT;
    let surveyed = Mutex::new(Surveyed::default());
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(socket) = sockets.get(next.fetch_add(1, Ordering::Relaxed)) {
            if Instant::now() >= end || !lock(&surveyed).has_room(socket.uid) {
                lock(&surveyed).skipped.entry(socket.uid).or_default().push(socket.pid);
            } else if let Some(published) = published(socket, detail, end) {
                lock(&surveyed).add(socket, published);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..sockets.len().min(MOST_THREADS) {
            // If a thread does not start, the other threads do its work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let Surveyed { mut found, skipped, .. } = std::mem::take(&mut *lock(&surveyed));
    found.sort_by_key(|(path, _)| *path);
    let skipped = skipped.into_iter().map(|(uid, pids)| {
        let (count, seconds) = (pids.len(), SURVEY_LIMIT.as_secs());
        let text = format!(
            "not asked: user {uid} has {count} more sockets after {seconds} s or {MOST_OF_USER} \
             heaps and lines"
        );
        Published { pid: pids.first().copied(), uid, failure: Some(text), ..Published::default() }
    });
    merged(found.into_iter().map(|(_, published)| published).chain(skipped))
}

#[derive(Default)]
struct Surveyed<'a> {
    /// Answers of processes, by socket.
    found: Vec<(&'a PathBuf, Published)>,
    /// Number of entries in `found`, by user. An entry is a heap, or a line of code with its bytes.
    entries: BTreeMap<u32, usize>,
    /// Pids of the processes whose sockets were skipped, by user.
    skipped: BTreeMap<u32, Vec<u32>>,
}

impl<'a> Surveyed<'a> {
    /// Returns `true` if the user has fewer than [`MOST_OF_USER`] entries.
    fn has_room(&self, uid: u32) -> bool {
        self.entries.get(&uid).is_none_or(|entries| *entries < MOST_OF_USER)
    }

    fn add(&mut self, socket: &'a Socket, published: Published) {
        let heaps = published.status.as_ref().map_or(0, |status| status.heaps.len());
        *self.entries.entry(socket.uid).or_default() += heaps + published.leaks.sites.len();
        self.found.push((&socket.path, published));
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(|error| error.into_inner())
}

/// Returns the first socket of each user, then the second socket of each user, and so on. This way,
/// a user with many silent sockets does not delay other users' answers.
fn in_turns<'a>(sockets: impl Iterator<Item = &'a Socket>) -> Vec<&'a Socket> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    let turn = |socket: &'a Socket| {
        let count = counts.entry(socket.uid).or_default();
        *count += 1;
        (*count, socket)
    };
    let mut turns: Vec<(usize, &Socket)> = sockets.map(turn).collect();
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, socket)| socket).collect()
}

/// Sends a question to a process. Returns the process's pid in this process's PID namespace, if
/// any, and its answer.
///
/// # Errors
///
/// The process has ended, belongs to another user, or does not answer in time.
pub fn ask(socket: &Socket, question: &Question) -> io::Result<(Option<u32>, Answer)> {
    let (stream, pid) = connect(socket)?;
    Ok((pid, exchange(&stream, question)?))
}

/// Sends a question, and reads the answer.
fn exchange(stream: &UnixStream, question: &Question) -> io::Result<Answer> {
    let limit = question.limit() + MARGIN;
    let end = Instant::now() + limit;
    write_line(stream, &question.to_line(), end)?;
    let line = read_line(stream, MOST_ANSWER, end).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => io::Error::new(
            ErrorKind::TimedOut,
            format!("no answer within {} s; the program may be stopped", limit.as_secs()),
        ),
        _ => error,
    })?;
    if line.is_empty() {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "it ended before its answer"));
    }
    parse_answer(&line).map_err(|reason| {
        io::Error::new(ErrorKind::InvalidData, format!("its answer cannot be read: {reason}"))
    })
}

/// Returns the sockets of process `pid`, a pid in this process's PID namespace. The pid in a
/// socket's name may differ, because the process may run in a container. If the process accepts no
/// connection, the socket's name decides.
pub fn of_process(mut sockets: Vec<Socket>, pid: u32) -> Vec<Socket> {
    sockets.retain(|socket| match connect(socket) {
        Ok((_, found)) => found == Some(pid),
        Err(_) => socket.pid == pid && is_running(socket),
    });
    sockets
}

/// Connects to a socket. Checks that its process belongs to the expected user and has not ended.
fn connect(socket: &Socket) -> io::Result<(UnixStream, Option<u32>)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let end = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // A blocking call would wait for a stopped process whose queue is full.
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
    let kernel::Peer { pid, uid } = kernel::peer(&stream)?;
    if uid != socket.uid {
        let text = format!("its socket was bound by user {uid}");
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    if pid == Some(socket.pid) && !is_running(socket) {
        // The process has ended, but its forked child keeps the socket open and does not answer.
        return Err(io::Error::new(ErrorKind::ConnectionRefused, "it has ended"));
    }
    Ok((stream, pid))
}

/// Returns a process's heaps, and the lists of `detail` that can be requested before `end`; `None`
/// if the process has ended.
fn published(socket: &Socket, detail: Detail, end: Instant) -> Option<Published> {
    let pid = is_running(socket).then_some(socket.pid);
    let mut found = Published { pid, uid: socket.uid, ..Published::default() };
    let answer = connect(socket).and_then(|(stream, pid)| {
        found.pid = pid;
        exchange(&stream, &Question::Status)
    });
    match answer {
        Ok(Answer::Status(status)) => {
            found.status = Some(status);
            found.ask_lists(socket, detail, end);
        }
        Ok(Answer::Refused(refusal)) => found.failure = Some(refusal.text),
        Ok(_) => found.failure = Some("its answer is to another question".to_owned()),
        Err(error) if has_ended(&error) => {
            // A refused connection does not prove that the process has ended. A live process
            // refuses clients too, between its calls to `bind` and `listen`.
            if !is_running(socket) || is_zombie(socket.pid) {
                socket.remove();
            }
            return None;
        }
        Err(error) => found.failure = Some(error.to_string()),
    }
    Some(found)
}

/// Returns `true` if the process that the socket's name identifies is running.
fn is_running(socket: &Socket) -> bool {
    start_ticks(&socket.pid.to_string()) == Some(socket.start_ticks)
}

fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}

/// Merges the results of each process that has several sockets.
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
    /// Requests the lists that `detail` includes. Stops at `end`, or at the first list that the
    /// process does not send, because it would not send the next list either.
    fn ask_lists(&mut self, socket: &Socket, detail: Detail, end: Instant) {
        let lists = [Question::Leaks, Question::Libraries, Question::Scopes];
        let count = match detail {
            Detail::Heaps => 0,
            Detail::Lines => 1,
            Detail::All => lists.len(),
        };
        for question in &lists[..count] {
            match (Instant::now() < end).then(|| ask(socket, question)) {
                Some(Ok((_, Answer::Leaks(leaks)))) => self.leaks = leaks,
                Some(Ok((_, Answer::Libraries(libraries)))) => self.libraries = libraries,
                Some(Ok((_, Answer::Scopes(scopes)))) => self.scopes = scopes,
                _ => return,
            }
        }
    }

    fn join(&mut self, other: Published) {
        match (&mut self.status, other.status) {
            (Some(own), Some(other)) => {
                own.access = own.access.max(other.access);
                own.left_out = own.left_out.saturating_add(other.left_out);
                own.heaps.extend(other.heaps);
                truncate(&mut own.heaps, &mut own.left_out);
            }
            (own, other) => *own = own.take().or(other),
        }
        self.leaks.is_tracked |= other.leaks.is_tracked;
        self.leaks.left_out = self.leaks.left_out.saturating_add(other.leaks.left_out);
        self.leaks.sites.extend(other.leaks.sites);
        self.leaks.sites.sort_by_key(|site: &Site| std::cmp::Reverse(site.bytes));
        truncate(&mut self.leaks.sites, &mut self.leaks.left_out);
        self.scopes.extend(other.scopes);
        self.libraries.extend(other.libraries);
        self.failure = self.failure.take().or(other.failure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_user_are_bounded() {
        let socket = Socket { path: PathBuf::new(), pid: 1, start_ticks: 0, uid: 7 };
        let leaks = Leaks { sites: vec![Site::default(); 100], ..Leaks::default() };
        let mut surveyed = Surveyed::default();
        let added = (0..1000).take_while(|_| {
            surveyed.add(&socket, Published { leaks: leaks.clone(), ..Published::default() });
            surveyed.has_room(7)
        });
        assert_eq!(added.count(), 99);
        assert!(surveyed.has_room(8));
    }

    #[test]
    fn users_sockets_take_turns() {
        let socket = |(pid, uid)| Socket { path: PathBuf::new(), pid, start_ticks: 0, uid };
        let all = [(1, 7), (2, 7), (3, 7), (4, 8), (5, 9), (6, 8)].map(socket);
        let order: Vec<u32> = in_turns(all.iter()).iter().map(|socket| socket.pid).collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
    }
}
