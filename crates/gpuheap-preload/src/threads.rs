//! Numbers threads, records when they end, and marks threads that are within this library.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use gpuheap_capture::{ProcessCapture, Time};

/// Implemented by the recorder, so that it is called when a thread ends.
pub(crate) trait ThreadEnds: Sync {
    /// Returns `false` in a forked child: the recorder belongs to the parent.
    fn is_current(&self) -> bool;

    /// Records the end of the thread with this number and name.
    fn thread_ended(&self, thread: u32, name: &str);
}

/// The recorder's threads by number, from 1. In the capture (the recorded file), threads have other
/// numbers.
#[derive(Default)]
pub(crate) struct Threads(Vec<Thread>);

struct Thread {
    id: u64,
    /// Name, until the thread is recorded.
    name: String,
    /// Number in the capture; 0 until the thread is recorded.
    number: u32,
}

impl Threads {
    /// Returns the calling thread's number. Adds the thread at its first call.
    pub(crate) fn number(&mut self, recorder: &'static dyn ThreadEnds) -> u32 {
        if let Some(known) = number() {
            return known;
        }
        self.0.push(Thread { id: id(), name: name(), number: 0 });
        let number = self.0.len() as u32;
        set_number(recorder, number);
        number
    }

    /// Returns the number that a thread has in the capture. Records the thread at its first call.
    pub(crate) fn recorded(
        &mut self,
        number: u32,
        time: Time,
        capture: &mut ProcessCapture,
    ) -> u32 {
        let Some(thread) = self.at(number) else { return 0 };
        if thread.number == 0 {
            thread.number = capture.thread(time, thread.id, &std::mem::take(&mut thread.name));
        }
        thread.number
    }

    /// Returns the number that an ended thread has in the capture; 0 if the thread is not recorded.
    pub(crate) fn ended(&mut self, number: u32) -> u32 {
        self.at(number).map_or(0, |thread| {
            thread.name = String::new();
            thread.number
        })
    }

    fn at(&mut self, number: u32) -> Option<&mut Thread> {
        self.0.get_mut((number as usize).checked_sub(1)?)
    }
}

/// Number that a recorder gave to a thread; 0 if it gave none.
#[derive(Clone, Copy)]
struct Numbered {
    recorder: Option<&'static dyn ThreadEnds>,
    number: u32,
}

thread_local! {
    /// `true` while the thread is within this library or in a call that it makes to the driver.
    static IS_WITHIN: Cell<bool> = const { Cell::new(false) };
    // The value has no destructor, because the program's destructors may free memory later.
    static NUMBER: Cell<Numbered> = const { Cell::new(Numbered { recorder: None, number: 0 }) };
}

/// Round of key destructors in which a thread's end is recorded. It is the second, because
/// destructors of the program's keys free memory in the first.
const ROUNDS: usize = 2;

/// Returns the key whose destructor records the ends of threads. Key destructors run last, and a
/// thread can set a key while its thread-local variables, or other keys, are destroyed.
fn end_key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the pointer is valid for a write, and the library with the function stays mapped.
        (unsafe { libc::pthread_key_create(&mut key, Some(key_ended)) } == 0).then_some(key)
    })
}

/// Sets the calling thread's value of [`end_key`] to the next round of destructors.
fn set_round(round: usize) {
    if let Some(key) = end_key() {
        // SAFETY: the key exists until the process ends. No code reads the value as a pointer.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(round)) };
    }
}

unsafe extern "C" fn key_ended(round: *mut c_void) {
    if round.addr() < ROUNDS {
        return set_round(round.addr() + 1);
    }
    without_panic(|| {
        // The first thread ends with the process.
        if id() != u64::from(std::process::id())
            && let Some(_guard) = Guard::enter()
            && let Some((recorder, number)) = numbered()
        {
            recorder.thread_ended(number, &name());
        }
    });
}

/// Returns the calling thread's recorder and number, if the recorder belongs to this process.
fn numbered() -> Option<(&'static dyn ThreadEnds, u32)> {
    let Numbered { recorder, number } = NUMBER.get();
    recorder.filter(|recorder| recorder.is_current()).map(|recorder| (recorder, number))
}

/// Returns the calling thread's number; `None` before [`set_number`].
fn number() -> Option<u32> {
    numbered().map(|(_, number)| number)
}

/// Sets the calling thread's number. The thread's end will be recorded.
fn set_number(recorder: &'static dyn ThreadEnds, number: u32) {
    NUMBER.set(Numbered { recorder: Some(recorder), number });
    set_round(1);
}

/// Returns the id that the system gave the calling thread.
fn id() -> u64 {
    // SAFETY: the call takes no arguments.
    u64::try_from(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap_or(0)
}

/// Returns the calling thread's name.
fn name() -> String {
    let mut name = [0 as c_char; 16];
    // SAFETY: the kernel writes at most 16 bytes. The last byte is zero.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let letters = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
    String::from_utf8_lossy(&letters.collect::<Vec<_>>()).into_owned()
}

unsafe extern "C" {
    /// `pthread_setcancelstate` of POSIX; crate libc has it only for other systems.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Guard that disables cancellation of the calling thread until the guard is dropped. A cancelled
/// thread unwinds from the next system call that waits, and unwinding through this library would
/// end the process. The thread ends at its next such call after the guard is dropped.
pub(crate) struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    pub(crate) fn enter() -> Uncancelled {
        /// `PTHREAD_CANCEL_DISABLE` of glibc.
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: the pointer is valid for a write.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state was the calling thread's. With null, libc does not return the state
        // before the call.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// Returns the result of `work`; the default if it panics. Neither a failure to record nor a
/// cancelled thread may end the program.
pub(crate) fn without_panic<T: Default>(work: impl FnOnce() -> T) -> T {
    let _uncancelled = Uncancelled::enter();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_default()
}

/// Guard that marks the calling thread as being within this library, until it is dropped.
pub(crate) struct Guard(());

impl Guard {
    /// Marks the thread. Returns `None` if the thread is already marked. The call then comes from
    /// the driver, from this library, or from a signal handler that interrupted them, and is not
    /// recorded.
    pub(crate) fn enter() -> Option<Guard> {
        if IS_WITHIN.replace(true) { None } else { Some(Guard(())) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        IS_WITHIN.set(false);
    }
}
