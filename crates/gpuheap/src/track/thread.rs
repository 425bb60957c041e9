//! Tracks threads that allocate, and reports what they have not freed when they end.

use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Weak};

use serde::Serialize;

use super::Tracker;
use super::recorder::Recorder;
use super::report::{Leaks, ThreadShare};
use crate::program::Callback;
use crate::{fork, program};

/// Handler that is called with the outstanding allocations of an ended thread.
pub(crate) type ThreadEndHandler = Arc<Callback<Box<dyn Fn(&ThreadEnd) + Send + Sync>>>;

/// Allocations that a thread made and had not freed when it ended.
///
/// Another thread may own them and free them later. Memory that the thread's own thread-local
/// variables free at its end may be included.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ThreadEnd {
    /// The thread's name in the operating system, at most 15 bytes. A thread without a name
    /// inherits the name of the thread that started it, or is `unnamed`.
    pub name: String,
    /// The thread's id in the operating system; `None` if it is unknown.
    pub id: Option<u64>,
    /// Outstanding allocations, by site.
    pub leaks: Leaks,
}

impl fmt::Display for ThreadEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread '{}'", self.name)?;
        if let Some(id) = self.id {
            write!(f, " ({id})")?;
        }
        write!(f, " ended and left behind or handed on:\n{}", self.leaks)
    }
}

/// File with the process's name. A thread inherits this name unless the thread, or a thread that
/// started it, was given another name.
const PROGRAM: &str = "/proc/self/comm";

/// Name and id of a thread.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) id: Option<u64>,
    is_main: bool,
}

impl Identity {
    fn current() -> Identity {
        // `/proc/thread-self` links to `PID/task/TID`.
        let task = std::fs::read_link("/proc/thread-self").ok();
        let id = task.and_then(|task| task.file_name()?.to_str()?.parse().ok());
        let is_main = id == Some(u64::from(std::process::id()));
        // Reads the name from /proc: `std::thread::current` panics in destructors that run after
        // the thread-local variables were destroyed, such as the destructors of pthread keys.
        let name = |of| std::fs::read(of).ok();
        let own = name("/proc/thread-self/comm").filter(|own| Some(own) != name(PROGRAM).as_ref());
        let name = match own {
            _ if is_main => "main".to_owned(),
            Some(own) => String::from_utf8_lossy(own.trim_ascii_end()).into_owned(),
            None => "unnamed".to_owned(),
        };
        Identity { name, id, is_main }
    }
}

/// The threads of a tracker.
#[derive(Default)]
pub(super) struct Threads {
    all: Vec<ThreadEntry>,
    vacant: Vec<u32>,
}

struct ThreadEntry {
    /// `None` for a thread that allocates after its thread-local variables were destroyed.
    thread: Option<Arc<Identity>>,
    /// Number of outstanding allocations, plus one until the thread's end is reported. At zero,
    /// another thread reuses this entry.
    holds: u64,
    ended: bool,
}

impl Threads {
    fn enter(&mut self, thread: Option<Arc<Identity>>) -> u32 {
        let (holds, ended) = (u64::from(thread.is_some()), thread.is_none());
        let place = ThreadEntry { thread, holds, ended };
        match self.vacant.pop() {
            Some(index) => {
                self.all[index as usize] = place;
                index
            }
            None => {
                self.all.push(place);
                (self.all.len() - 1) as u32
            }
        }
    }

    /// Counts an allocation of the thread with the index `place`, and returns the index. If `place`
    /// is `None`, adds a thread without a name.
    pub(super) fn allocated(&mut self, place: Option<u32>) -> u32 {
        let index = place.unwrap_or_else(|| self.enter(None));
        self.all[index as usize].holds += 1;
        index
    }

    pub(super) fn freed(&mut self, index: u32) {
        self.leave(index);
    }

    /// Marks the thread as ended. Returns `true` if it has outstanding allocations.
    fn end(&mut self, index: u32) -> bool {
        let place = &mut self.all[index as usize];
        place.ended = true;
        place.holds > 1
    }

    fn leave(&mut self, index: u32) {
        let place = &mut self.all[index as usize];
        place.holds -= 1;
        if place.holds == 0 {
            self.vacant.push(index);
        }
    }

    /// Returns the entry of a report for the thread `index` and its sums of allocations.
    pub(super) fn share(&self, index: u32, allocations: u64, bytes: u64) -> ThreadShare {
        let place = &self.all[index as usize];
        let thread = place.thread.as_deref();
        ThreadShare {
            name: thread.map_or("unnamed", |thread| &thread.name).to_owned(),
            id: thread.and_then(|thread| thread.id),
            ended: place.ended,
            allocations,
            bytes,
        }
    }

    /// Returns the number of places.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// Returns this thread's index in a tracker. The index is valid from the thread's first allocation
/// in the tracker to the thread's end. Returns `None` if the thread-local variables were destroyed.
pub(super) fn place_in(tracker: &Tracker) -> Option<u32> {
    THREAD.try_with(|guard| guard.place_in(tracker)).ok()
}

/// Returns the identity of this thread, whose end `recorder` will record. Returns `None` if the
/// thread-local variables were destroyed.
pub(super) fn identity_for(recorder: &Arc<Recorder>) -> Option<Arc<Identity>> {
    let identity = |guard: &Guard| {
        guard.add(recorder);
        guard.thread.clone()
    };
    THREAD.try_with(identity).ok()
}

thread_local! {
    static THREAD: Guard = Guard {
        thread: Arc::new(Identity::current()),
        places: RefCell::default(),
        recorders: RefCell::default(),
        forks: fork::count(),
    };
}

/// A thread-local value whose drop reports the thread's end.
struct Guard {
    thread: Arc<Identity>,
    places: RefCell<Vec<(Weak<Tracker>, u32)>>,
    /// Recorders of this thread's calls. They may outlive the heaps that the thread used.
    recorders: RefCell<Vec<Weak<Recorder>>>,
    /// Number of forks before the guard was made.
    forks: u32,
}

impl Guard {
    fn add(&self, recorder: &Arc<Recorder>) {
        let mut known = self.recorders.borrow_mut();
        // The weak pointer reserves the address, so equal addresses mean the same recorder.
        if !known.iter().any(|one| std::ptr::eq(one.as_ptr(), Arc::as_ptr(recorder))) {
            known.retain(|one| one.strong_count() > 0);
            known.push(Arc::downgrade(recorder));
        }
    }

    fn place_in(&self, tracker: &Tracker) -> u32 {
        let mut places = self.places.borrow_mut();
        // The weak pointer reserves the address, so equal addresses mean the same tracker.
        let known = places.iter().find(|(other, _)| std::ptr::eq(other.as_ptr(), tracker));
        if let Some((_, place)) = known {
            return *place;
        }
        places.retain(|(other, _)| other.strong_count() > 0);
        let place = tracker.lock().threads.enter(Some(self.thread.clone()));
        places.push((tracker.this.clone(), place));
        place
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.forks != fork::count() {
            // The trackers and recorders belong to the parent, and another thread of the parent may
            // have held their locks.
            std::mem::forget((self.places.take(), self.recorders.take()));
            return;
        }
        for recorder in self.recorders.take().iter().filter_map(Weak::upgrade) {
            if !self.thread.is_main {
                recorder.thread_ended(&self.thread);
            }
        }
        for (tracker, place) in self.places.take() {
            let Some(tracker) = tracker.upgrade() else { continue };
            // The main thread's end is the end of the program, so it is not reported.
            if tracker.lock().threads.end(place) && !self.thread.is_main {
                report(&tracker, &self.thread, place);
            }
            tracker.lock().threads.leave(place);
        }
    }
}

/// Reports the outstanding allocations of an ended thread, unless other threads have freed all of
/// them meanwhile.
fn report(tracker: &Tracker, thread: &Identity, place: u32) {
    let leaks = tracker.leaks_by_thread(Some(place));
    if leaks.is_empty() {
        return;
    }
    let end = ThreadEnd { name: thread.name.clone(), id: thread.id, leaks };
    let Some(handler) = tracker.lock().on_thread_end.clone() else {
        return print(&end.to_string());
    };
    // A panic out of a destructor of a thread-local variable would end the process.
    let told = program::run(|| handler.get().map_or((), |handler| handler(&end)));
    if let Err(text) = told {
        print(&format!(
            "the handler given to Heap::on_thread_end panicked with \"{text}\"; the report that it \
             was given:\n{end}"
        ));
    }
}

/// Writes to stderr. A closed stderr is ignored.
fn print(text: &str) {
    let _ = std::io::stderr().write_all(format!("gpuheap: {text}\n").as_bytes());
}
