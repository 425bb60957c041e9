//! Threads: whether one is within this library, their numbers, and their ends.

use std::cell::Cell;
use std::ffi::c_char;

/// Receiver of the ends of threads: the recorder.
pub(crate) trait ThreadEnds: Sync {
    /// Returns `true` while this recorder is the process's: until a fork.
    fn is_current(&self) -> bool;

    /// Records the end of the thread with a number and a name.
    fn thread_ended(&self, thread: u32, name: &str);
}

/// Number of a thread, given by a recorder. 0 is no number.
#[derive(Clone, Copy)]
struct Numbered {
    recorder: Option<&'static dyn ThreadEnds>,
    number: u32,
}

thread_local! {
    /// `true` while the thread is within this library or within a call of the driver for it.
    static IS_WITHIN: Cell<bool> = const { Cell::new(false) };
    // Without a destructor: destructors of the program may free memory after this library's.
    static NUMBER: Cell<Numbered> = const { Cell::new(Numbered { recorder: None, number: 0 }) };
    static END: End = const { End(()) };
}

/// Value whose destructor runs at the thread's end.
struct End(());

impl Drop for End {
    fn drop(&mut self) {
        // The first thread ends with the process.
        if id() != u64::from(std::process::id())
            && let Some(_guard) = Guard::enter()
            && let Some((recorder, number)) = numbered()
        {
            recorder.thread_ended(number, &name());
        }
    }
}

/// Returns the calling thread's recorder and number, if it has one of this process.
fn numbered() -> Option<(&'static dyn ThreadEnds, u32)> {
    let Numbered { recorder, number } = NUMBER.get();
    recorder.filter(|recorder| recorder.is_current()).map(|recorder| (recorder, number))
}

/// Returns the calling thread's number; `None` before [`set_number`].
pub(crate) fn number() -> Option<u32> {
    numbered().map(|(_, number)| number)
}

/// Sets the calling thread's number. Its end will be recorded.
pub(crate) fn set_number(recorder: &'static dyn ThreadEnds, number: u32) {
    NUMBER.set(Numbered { recorder: Some(recorder), number });
    // While the thread ends, no more destructors can be registered.
    let _ = END.try_with(|_| ());
}

/// Returns the id that the system gave the calling thread.
pub(crate) fn id() -> u64 {
    // SAFETY: the call takes no arguments.
    u64::try_from(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap_or(0)
}

/// Returns the calling thread's name.
pub(crate) fn name() -> String {
    let mut name = [0 as c_char; 16];
    // SAFETY: the kernel writes at most 16 bytes, the last of them zero.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let letters = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
    String::from_utf8_lossy(&letters.collect::<Vec<_>>()).into_owned()
}

/// Mark of the calling thread, until it is dropped.
pub(crate) struct Guard(());

impl Guard {
    /// Marks the thread. Returns `None` if it is marked: the call comes from the driver, from this
    /// library, or from a signal handler that interrupted one of them. Such calls are not recorded.
    pub(crate) fn enter() -> Option<Guard> {
        if IS_WITHIN.replace(true) { None } else { Some(Guard(())) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        IS_WITHIN.set(false);
    }
}
