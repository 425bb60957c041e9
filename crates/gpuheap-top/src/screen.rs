//! Shows the screen: handles keys, messages and signals, and draws a frame after each change.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyEventKind, poll, read};
use gpuheap_doctor::Machine;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::{Handle, Signals};

use crate::draw::{Palette, frame};
use crate::reading::{self, Message, Options, Readers};
use crate::snapshot::Snapshot;
use crate::terminal::{self, Terminal};
use crate::view::{Action, View};

/// End of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A key ended the screen.
    Key,
    /// The process received this signal, so the screen ended.
    Signal(u8),
}

/// Maximum time between two checks for messages and signals.
const TICK: Duration = Duration::from_millis(100);

/// Shows the machine until a key or a signal ends the screen. Restores the terminal, also on a
/// panic.
///
/// # Errors
///
/// The process has no terminal, the terminal cannot be written, or a thread cannot be started.
pub fn run(machine: &Machine, options: Options) -> io::Result<End> {
    // Catches signals first, so that no signal leaves the terminal in raw mode.
    let signals = Catcher::start()?;
    let mut terminal = Terminal::enter()?;
    let readers = reading::start(machine, options)?;
    let mut screen = Screen { view: View::default(), readers, start: Instant::now() };
    screen.view.figures.take_snapshot(0, Snapshot::new(machine));
    screen.view.figures.take_programs(0, machine.programs.clone());
    screen.view.is_busy = true;
    screen.view.is_recording = options.is_recording;
    let palette = Palette { is_coloured: options.is_coloured };
    let mut is_changed = true;
    loop {
        for signal in signals.caught.try_iter() {
            match signal {
                SIGTSTP => terminal.suspend()?,
                SIGCONT => terminal.renew()?,
                signal => return Ok(End::Signal(u8::try_from(signal).unwrap_or(0))),
            }
            is_changed = true;
        }
        is_changed |= screen.take_messages()?;
        if std::mem::take(&mut is_changed) {
            terminal.show(frame(&screen.view, Terminal::area()?, palette))?;
        }
        if !poll(TICK)? {
            continue;
        }
        match read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                match screen.view.press(key) {
                    Some(Action::Quit) => return Ok(End::Key),
                    Some(Action::Suspend) => terminal.suspend()?,
                    Some(action) => drop(screen.readers.actions.send(action)),
                    None => {}
                }
                is_changed = true;
            }
            Event::Resize(..) => is_changed = true,
            _ => {}
        }
    }
}

/// Thread that catches signals.
struct Catcher {
    caught: Receiver<i32>,
    handle: Handle,
}

impl Catcher {
    /// Starts the thread. A closed terminal, or one stopped by Ctrl-S, may block the drawing thread
    /// forever. If drawing does not end within [`LONGEST_END`] of a signal, the started thread
    /// restores the terminal and ends the process.
    fn start() -> io::Result<Catcher> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGCONT])?;
        let handle = signals.handle();
        let (sender, caught) = channel();
        let work = move || {
            for signal in signals.forever() {
                let is_running = sender.send(signal).is_ok();
                if !is_running || matches!(signal, SIGTSTP | SIGCONT) {
                    continue;
                }
                thread::sleep(LONGEST_END);
                if sender.send(signal).is_ok() {
                    terminal::close();
                    std::process::exit(128 + signal);
                }
            }
        };
        thread::Builder::new().name("gpuheap-top-signals".to_owned()).spawn(work)?;
        Ok(Catcher { caught, handle })
    }
}

impl Drop for Catcher {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Maximum time that the screen may take to end after a signal.
const LONGEST_END: Duration = Duration::from_secs(1);

/// State of the screen with its readers.
struct Screen {
    view: View,
    readers: Readers,
    start: Instant,
}

impl Screen {
    /// Handles all waiting messages. Returns `true` if a message was waiting.
    fn take_messages(&mut self) -> io::Result<bool> {
        let mut is_changed = false;
        loop {
            let second = self.start.elapsed().as_secs();
            match self.readers.messages.try_recv() {
                Ok(Message::Snapshot(snapshot)) => {
                    self.view.figures.take_snapshot(second, snapshot);
                }
                Ok(Message::Programs(programs)) => {
                    self.view.figures.take_programs(second, programs);
                }
                Ok(Message::Examination(found)) => self.view.take_examination(*found),
                Ok(Message::Freed(text)) => {
                    self.view.is_busy = false;
                    self.view.show("Free", text);
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => return Ok(is_changed),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the threads that read the machine ended"));
                }
            }
            is_changed = true;
        }
    }
}
