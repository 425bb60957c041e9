//! Runs the threads that read the machine while frames are drawn.
//!
//! Devices, programs and the doctor's facts each have a thread. So if a program does not answer,
//! the devices' figures are not delayed.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_doctor::free::{self, Orphan};
use gpuheap_doctor::{Here, Machine};
use gpuheap_publish::{Detail, Published};

use crate::snapshot::{Examination, Snapshot};
use crate::view::Action;

/// Options of the screen.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Time between two readings.
    pub interval: Duration,
    /// `false` if the terminal has no colours, or `NO_COLOR` is set.
    pub is_coloured: bool,
    /// `true` if the machine is a recording. Its pids may belong to other processes on this
    /// machine, so no process is flushed or ended.
    pub is_recording: bool,
}

/// Result of a thread.
pub(crate) enum Message {
    /// Devices and processes.
    Snapshot(Snapshot),
    /// Programs that publish.
    Programs(Vec<Published>),
    /// The doctor's facts.
    Examination(Box<Examination>),
    /// Text that says how a request to free memory ended.
    Freed(String),
}

/// Minimum time between two rounds of questions to programs. A round locks each heap twice.
const LEAST_ROUND: Duration = Duration::from_secs(1);

/// Time between two examinations. An examination of 200 processes takes seconds of CPU time.
const EXAMINED_EVERY: Duration = Duration::from_secs(300);

pub(crate) struct Readers {
    pub(crate) messages: Receiver<Message>,
    /// Takes [`Action::Examine`], [`Action::Flush`] and [`Action::End`].
    pub(crate) actions: Sender<Action>,
}

/// Starts the threads. Once the result is dropped, each thread ends after its current read.
pub(crate) fn start(machine: &Machine, options: Options) -> io::Result<Readers> {
    let Options { interval, is_recording, .. } = options;
    let (sender, messages) = channel();
    let (actions, taken) = channel();
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        thread::Builder::new().name(format!("gpuheap-top-{name}")).spawn(work).map(drop)
    };
    let (mut devices, to) = (machine.clone(), sender.clone());
    start(
        "devices",
        Box::new(move || {
            let _nvml = (!is_recording).then(|| Here.keep_nvml());
            repeat(interval, || {
                devices.refresh();
                to.send(Message::Snapshot(Snapshot::new(&devices))).is_ok()
            });
        }),
    )?;
    let (mut programs, to) = (machine.clone(), sender.clone());
    start(
        "programs",
        Box::new(move || {
            repeat(interval.max(LEAST_ROUND), || {
                programs.read_programs(Detail::All);
                to.send(Message::Programs(programs.programs.clone())).is_ok()
            });
        }),
    )?;
    let machine = machine.clone();
    start("doctor", Box::new(move || examine(&machine, &taken, &sender)))?;
    Ok(Readers { messages, actions })
}

/// Calls `work` at each interval, until `work` returns `false`.
fn repeat(interval: Duration, mut work: impl FnMut() -> bool) {
    loop {
        let begin = Instant::now();
        if !work() {
            return;
        }
        thread::sleep(interval.saturating_sub(begin.elapsed()));
    }
}

/// Examines the machine at the start, on request and every five minutes. Also carries out requests
/// to free memory.
fn examine(machine: &Machine, actions: &Receiver<Action>, to: &Sender<Message>) {
    let mut action = Action::Examine;
    loop {
        let message = match action {
            Action::Flush(cache) => match free::flush(&cache) {
                (_, text) if text.is_empty() => {
                    Message::Freed("nothing was flushed: the program has ended\n".to_owned())
                }
                (_, text) => Message::Freed(text),
            },
            Action::End(orphan) => Message::Freed(end(machine, &orphan)),
            _ => {
                Message::Examination(Box::new(Examination::new(&mut machine.reread(Detail::Heaps))))
            }
        };
        if to.send(message).is_err() {
            return;
        }
        action = match actions.recv_timeout(EXAMINED_EVERY) {
            Ok(action) => action,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Action::Examine,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
        };
    }
}

/// Reads the machine again, and ends the process if it is still an orphan. Returns the result in
/// words.
fn end(machine: &Machine, orphan: &Orphan) -> String {
    let mut later = machine.reread(Detail::Heaps);
    later.examine();
    let mut plan = free::plan(&later);
    plan.orphans.retain(|one| one == orphan);
    if plan.orphans.is_empty() {
        return "nothing was ended: a second look did not find the same; try again\n".to_owned();
    }
    match free::end(orphan) {
        Ok(()) => format!("ended pid {} ({})\n", orphan.pid, orphan.command),
        Err(reason) => format!("{reason}\n"),
    }
}
