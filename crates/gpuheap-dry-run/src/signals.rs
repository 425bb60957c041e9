//! Passes the command's signals on to the programs that it runs.

use std::io::{self, IsTerminal, stdin};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals as Incoming};
use signal_hook::low_level::emulate_default_handler;

/// Handler that passes signals to the running programs until it is dropped.
pub(crate) struct Signals {
    shared: Arc<Shared>,
    handle: Option<Handle>,
}

#[derive(Default)]
struct Shared {
    /// Process ids of the running programs.
    programs: Mutex<Vec<Pid>>,
    is_interrupted: AtomicBool,
    /// `true` after a signal that ends programs. Ctrl-C does not set this flag, because an
    /// interpreter may handle Ctrl-C and continue.
    is_ending: AtomicBool,
    /// `true` once a program has ended, and its verdict can be reported.
    has_results: AtomicBool,
}

impl Signals {
    pub(crate) fn new() -> Signals {
        let shared = Arc::new(Shared::default());
        // If no handler can be registered, signals end the command as they end any program.
        let Ok(mut incoming) = Incoming::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP]) else {
            return Signals { shared, handle: None };
        };
        let handle = incoming.handle();
        let passing = Arc::clone(&shared);
        thread::spawn(move || incoming.forever().for_each(|signal| passing.pass(signal)));
        Signals { shared, handle: Some(handle) }
    }

    /// Starts a program, and passes signals to it until the returned [`Running`] is dropped.
    ///
    /// A signal that arrives during the start is passed on after the start.
    pub(crate) fn start(&self, command: &mut Command) -> io::Result<(Child, Running<'_>)> {
        let mut programs = self.shared.programs();
        let child = command.spawn()?;
        let program = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        programs.extend(program);
        Ok((child, Running { signals: self, program }))
    }

    /// Returns `true` after a signal that ends the command.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.shared.is_interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.close();
        }
    }
}

/// A program that signals are passed to.
pub(crate) struct Running<'s> {
    signals: &'s Signals,
    program: Option<Pid>,
}

impl Running<'_> {
    /// Returns `true` after the command got a signal that ends programs.
    pub(crate) fn is_ending(&self) -> bool {
        self.signals.shared.is_ending.load(Ordering::Relaxed)
    }

    /// Sends SIGTERM to the program, or SIGKILL if `is_forced`.
    pub(crate) fn end(&self, is_forced: bool) {
        let signal = if is_forced { Signal::KILL } else { Signal::TERM };
        if let Some(program) = self.program {
            let _ = kill_process(program, signal);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let shared = &self.signals.shared;
        shared.has_results.store(true, Ordering::Relaxed);
        shared.programs().retain(|&one| Some(one) != self.program);
    }
}

impl Shared {
    fn programs(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, signal: i32) {
        let is_first = !self.is_interrupted.swap(true, Ordering::Relaxed);
        if !matches!(signal, SIGINT | SIGQUIT) {
            self.is_ending.store(true, Ordering::Relaxed);
        }
        let programs = self.programs();
        // If no program runs, a signal ends the command. But the first signal does not if a run has
        // ended, because the command must still report the verdict.
        if programs.is_empty() && !(is_first && self.has_results.load(Ordering::Relaxed)) {
            let _ = emulate_default_handler(signal);
        }
        let signal = match signal {
            // A terminal also sends these signals to the program, so they are not passed on.
            SIGINT | SIGQUIT if stdin().is_terminal() => return,
            SIGINT => Signal::INT,
            SIGQUIT => Signal::QUIT,
            SIGHUP => Signal::HUP,
            _ => Signal::TERM,
        };
        for &program in programs.iter() {
            let _ = kill_process(program, signal);
        }
    }
}
