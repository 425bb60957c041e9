//! Runs two threads in a program that publishes its memory. The first thread reads the questions of
//! clients. The second thread calls the members (heaps and recorders) for the answers.
//!
//! A member may wait for a lock of the program. The first thread waits for the second thread only
//! for a limited time, so that a client gets an answer even if a member hangs.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::Shutdown;

use crate::folder::{self, own_uid};
use crate::kernel;
use crate::member::{Member, Members};
use crate::protocol::{
    Access, Answer, Leaks, LibraryMemory, MOST_QUESTION, MOST_TEXT, Question, Recorded, Refusal,
    RefusalKind, Status, parse_question,
};
use crate::wire::{read_line, write_line};

/// Maximum time that a client may take to send its question, and to read the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(1);

/// Interval at which the first thread refuses waiting clients while the worker prepares an answer.
/// It waits up to this long for the question of a client that it refuses. So a client that sends no
/// question delays the worker's answer.
const BUSY_STEP: Duration = Duration::from_millis(50);

/// Pause after `accept` fails, for example while the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Stack size of a thread, in bytes. The second thread may resolve the names of stack frames.
const STACK: usize = 1 << 20;

/// Ends the thread that waits for clients.
pub(crate) struct Stop(UnixListener);

impl Stop {
    pub(crate) fn stop(self) {
        // Wakes the thread from its wait.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}

/// Binds the socket and starts the thread that answers clients' questions about `members`.
pub(crate) fn start(members: Arc<Members>) -> io::Result<(PathBuf, Stop)> {
    let (listener, path) = folder::bind()?;
    let stop = Stop(listener.try_clone()?);
    let name = "gpuheap-publish".to_owned();
    let serve = move || {
        // A panic would be a bug of this crate. It ends only this thread, not the program.
        let _ = catch_unwind(AssertUnwindSafe(|| serve(&listener, &members)));
    };
    let thread = thread::Builder::new().name(name).stack_size(STACK);
    // The new thread inherits the blocked signals, and so does the worker thread that it starts.
    match kernel::with_signals_blocked(|| thread.spawn(serve)) {
        Ok(_) => Ok((path, stop)),
        Err(error) => {
            let _ = std::fs::remove_file(&path);
            Err(error)
        }
    }
}

fn serve(listener: &UnixListener, members: &Arc<Members>) {
    let mut worker: Option<Worker> = None;
    loop {
        let accepted = listener.accept();
        if members.has_ended.load(Ordering::Acquire) {
            return;
        }
        let Ok((client, _)) = accepted else {
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let end = Instant::now() + CLIENT_LIMIT;
        let answer = match question(&client, end) {
            Asked::Question(question) => answer(&mut worker, members, question, listener),
            Asked::Refused(refusal) => Answer::Refused(refusal),
            Asked::Nothing => continue,
        };
        // Ignores the error of a client that does not read its answer in time.
        let _ = write_line(&client, &answer.to_line(), Instant::now() + CLIENT_LIMIT);
    }
}

/// Refuses the question of a waiting client, because the program is busy with another question.
fn refuse_waiting(listener: &UnixListener) {
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    let accepted = listener.accept();
    // If this fails, the next accept fails too, and the thread pauses.
    let _ = listener.set_nonblocking(false);
    let Ok((client, _)) = accepted else { return };
    let answer = match question(&client, Instant::now() + BUSY_STEP) {
        Asked::Question(_) => {
            let text = "the program works on the question of another client; ask again";
            Refusal::new(RefusalKind::Busy, text)
        }
        Asked::Refused(refusal) => refusal,
        Asked::Nothing => return,
    };
    let line = Answer::Refused(answer).to_line();
    let _ = write_line(&client, &line, Instant::now() + BUSY_STEP);
}

/// Question of a client.
enum Asked {
    Question(Question),
    Refused(Refusal),
    /// The client sent no question in time, or closed its connection.
    Nothing,
}

/// Reads a question, and checks the client's right to an answer.
fn question(client: &UnixStream, end: Instant) -> Asked {
    let refused = |text: &str| Asked::Refused(Refusal::new(RefusalKind::NotAllowed, text));
    let Ok(kernel::Peer { uid, .. }) = kernel::peer(client) else { return Asked::Nothing };
    let own = own_uid();
    if uid != own && uid != 0 {
        return refused("the program belongs to another user");
    }
    let line = match read_line(client, MOST_QUESTION, end) {
        Ok(line) if line.is_empty() => return Asked::Nothing,
        Ok(line) => line,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Asked::Refused(Refusal::new(RefusalKind::Malformed, error.to_string()));
        }
        Err(_) => return Asked::Nothing,
    };
    match parse_question(&line) {
        Ok(question) if question.is_change() && uid != own => {
            refused("only the program's own user may change it, and root may not")
        }
        Ok(question) => Asked::Question(question),
        Err(refusal) => Asked::Refused(refusal),
    }
}

/// Returns the worker's answer. Starts the worker at the first question.
fn answer(
    worker: &mut Option<Worker>,
    members: &Arc<Members>,
    question: Question,
    listener: &UnixListener,
) -> Answer {
    let worker = match worker {
        Some(worker) => worker,
        None => match Worker::start(members.clone()) {
            Ok(started) => worker.insert(started),
            Err(error) => return failed(format!("no thread for the answer: {error}")),
        },
    };
    worker.ask(question, listener)
}

/// The thread that calls the members (heaps and recorders) to prepare answers. After this value is
/// dropped, the thread ends as soon as its call returns.
struct Worker {
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    /// `true` if the thread still prepares an answer although the question's time limit has passed.
    is_late: bool,
}

impl Worker {
    fn start(members: Arc<Members>) -> io::Result<Worker> {
        let (questions, asked) = channel::<Question>();
        let (answered, answers) = channel();
        let name = "gpuheap-answer".to_owned();
        thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
            for question in asked {
                let work = || members.answer(&question);
                let answer = catch_unwind(AssertUnwindSafe(work));
                let answer = answer.unwrap_or_else(|_| failed("the answer panicked".to_owned()));
                if answered.send(answer).is_err() {
                    return;
                }
            }
        })?;
        Ok(Worker { questions, answers, is_late: false })
    }

    /// Sends a question to the thread, and waits for the answer within the question's time limit.
    fn ask(&mut self, question: Question, listener: &UnixListener) -> Answer {
        let limit = question.limit();
        let end = Instant::now() + limit;
        let busy = || {
            let text = format!(
                "no answer within {} s: a lock of the heap is held, or its work takes longer",
                limit.as_secs()
            );
            Answer::Refused(Refusal::new(RefusalKind::Busy, text))
        };
        if self.is_late {
            match self.receive(end, listener) {
                Err(RecvTimeoutError::Timeout) => return busy(),
                _ => self.is_late = false,
            }
        }
        if self.questions.send(question).is_err() {
            return failed("the thread of the answers has ended".to_owned());
        }
        match self.receive(end, listener) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.is_late = true;
                busy()
            }
            Err(RecvTimeoutError::Disconnected) => {
                failed("the thread of the answers has ended".to_owned())
            }
        }
    }

    /// Waits for an answer until `end`. After a second, also answers waiting clients, because a
    /// client gives up after two seconds.
    fn receive(&self, end: Instant, listener: &UnixListener) -> Result<Answer, RecvTimeoutError> {
        let mut step = CLIENT_LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left.min(step)) {
                Err(RecvTimeoutError::Timeout) if left > step => refuse_waiting(listener),
                received => return received,
            }
            step = BUSY_STEP;
        }
    }
}

impl Members {
    /// Answers a question. May wait for locks of the program.
    fn answer(&self, question: &Question) -> Answer {
        let readable = self.with(Access::Read);
        match question {
            Question::Status => Answer::Status(Status {
                program: program(),
                access: self.access(),
                heaps: self.heaps(),
                left_out: 0,
            }),
            Question::Leaks => {
                let mut all = Leaks::default();
                for leaks in readable.iter().filter_map(|member| member.leaks()) {
                    all.is_tracked |= leaks.is_tracked;
                    all.left_out = all.left_out.saturating_add(leaks.left_out);
                    all.sites.extend(leaks.sites);
                }
                all.sites.sort_by(|a, b| (b.bytes, &a.line).cmp(&(a.bytes, &b.line)));
                Answer::Leaks(all)
            }
            Question::Held => {
                let mut all: Vec<_> = readable.iter().flat_map(|member| member.held()).collect();
                all.sort_by_key(|held| std::cmp::Reverse(held.bytes));
                Answer::Held(all)
            }
            Question::Scopes => {
                let mut all: Vec<_> = readable.iter().flat_map(|member| member.scopes()).collect();
                all.sort_by_key(|scope| std::cmp::Reverse(scope.live));
                Answer::Scopes(all)
            }
            Question::Libraries => {
                let libraries = readable.iter().flat_map(|member| member.libraries());
                let mut all: Vec<LibraryMemory> = libraries.collect();
                all.sort_by(|a, b| (b.live, &b.name, &b.device).cmp(&(a.live, &a.name, &a.device)));
                // Each heap in Python reports the libraries' own pools, so these entries are
                // repeated.
                all.dedup_by(|a, b| a == b && (a.is_own || a.failure.is_some()));
                Answer::Libraries(all)
            }
            Question::Flush
            | Question::Limit { .. }
            | Question::StartRecording
            | Question::StopRecording => self.change(question),
        }
    }

    /// Applies a change, such as a flush, to the members that joined with [`Access::Control`].
    fn change(&self, question: &Question) -> Answer {
        let members = self.with(Access::Control);
        if members.is_empty() {
            let text =
                "no heap of the program allows changes; start it with GPUHEAP_PUBLISH=control";
            return Answer::Refused(Refusal::new(RefusalKind::NotAllowed, text));
        }
        let members = members.iter();
        match question {
            Question::Limit { device, bytes } => {
                let (set, reason) = split(members.map(|member| member.set_limit(device, *bytes)));
                match reason {
                    Some(reason) => failed(reason),
                    None if set.is_empty() => {
                        failed("the program has no heap on that device".to_owned())
                    }
                    None => Answer::GivenBack(sum(&set)),
                }
            }
            Question::StartRecording => {
                match split(members.map(|member| start_recording(&**member))) {
                    (started, reason) if started.is_empty() => failed(
                        reason.unwrap_or_else(|| "the program has no heap to record".to_owned()),
                    ),
                    (started, _) => Answer::Recordings(started),
                }
            }
            Question::StopRecording => {
                let stopped: Vec<_> =
                    members.filter_map(|member| member.stop_recording()).collect();
                match stopped.is_empty() {
                    true => failed("no recording was started from outside".to_owned()),
                    false => Answer::Recordings(stopped),
                }
            }
            _ => match split(members.map(|member| member.flush().map(Some))) {
                (flushed, Some(reason)) if sum(&flushed) == 0 => failed(reason),
                // Reports the bytes that were flushed, even if another heap failed to flush.
                (flushed, _) => Answer::GivenBack(sum(&flushed)),
            },
        }
    }
}

/// Returns the values, and the reason of the first failure.
fn split<T>(results: impl Iterator<Item = Result<Option<T>, String>>) -> (Vec<T>, Option<String>) {
    let (mut values, mut reason) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(value) => values.extend(value),
            Err(failure) => reason = reason.or(Some(failure)),
        }
    }
    (values, reason)
}

fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Starts to record the allocations of a heap or recorder, in the first usable folder.
fn start_recording(member: &dyn Member) -> Result<Option<Recorded>, String> {
    let mut failure = "no folder can be used for a recording".to_owned();
    for file in folder::recordings() {
        match member.start_recording(&file) {
            Err(reason) => failure = reason,
            started => return started,
        }
    }
    Err(failure)
}

fn failed(text: String) -> Answer {
    Answer::Refused(Refusal::new(RefusalKind::Failed, text))
}

/// Returns the beginning of the command line, without the folder of the program's file.
fn program() -> String {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let words = line.trim_end_matches('\0').replace('\0', " ");
    let (file, arguments) = words.split_once(' ').unwrap_or((&words, ""));
    let name = file.rsplit('/').next().unwrap_or_default();
    format!("{name} {arguments}").trim_end().chars().take(MOST_TEXT).collect()
}
