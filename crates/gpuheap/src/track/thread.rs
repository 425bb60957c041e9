//! Threads that allocate, and what they leave behind at their end.

use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Weak};

use serde::Serialize;

use super::Tracker;
use super::report::{Leaks, ThreadShare};
use crate::program::Callback;
use crate::{fork, program};

/// What is called with what a thread left behind.
pub(crate) type ThreadEndHandler = Arc<Callback<Box<dyn Fn(&ThreadEnd) + Send + Sync>>>;

/// What a thread that ended had allocated and not freed.
///
/// Another thread may own it by now, and free it later: that is not known here. What the
/// thread-local variables of the thread itself free at its end may be part of it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ThreadEnd {
    /// The thread's name, as the system knows it: of a longer one the first 15 bytes. A thread without
    /// one has that of the thread that started it, or is `unnamed`.
    pub name: String,
    /// What the system knows it by; `None` where that cannot be told.
    pub id: Option<u64>,
    /// What it left, by site.
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

/// File with the name that threads have unless they or a thread that started them are given one.
const PROGRAM: &str = "/proc/self/comm";

/// A thread's names.
#[derive(Debug)]
struct Identity {
    name: String,
    id: Option<u64>,
    is_main: bool,
}

impl Identity {
    fn of_this_thread() -> Identity {
        // `/proc/thread-self` leads to `PID/task/TID`.
        let task = std::fs::read_link("/proc/thread-self").ok();
        let id = task.and_then(|task| task.file_name()?.to_str()?.parse().ok());
        let is_main = id == Some(u64::from(std::process::id()));
        // The system's names: `std::thread::current` panics in destructors that run after those of
        // thread-local variables, such as a pthread key's.
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

/// The threads of one tracker.
#[derive(Default)]
pub(super) struct Threads {
    all: Vec<Place>,
    vacant: Vec<u32>,
}

struct Place {
    /// `None` for a thread that allocates when its thread-local variables are gone.
    thread: Option<Arc<Identity>>,
    /// The allocations that are outstanding, and one for the thread until its end was reported: at
    /// zero the place is used again.
    holds: u64,
    ended: bool,
}

impl Threads {
    fn enter(&mut self, thread: Option<Arc<Identity>>) -> u32 {
        let (holds, ended) = (u64::from(thread.is_some()), thread.is_none());
        let place = Place { thread, holds, ended };
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

    /// Counts an allocation of the thread in that place.
    pub(super) fn allocated(&mut self, place: Option<u32>) -> u32 {
        let index = place.unwrap_or_else(|| self.enter(None));
        self.all[index as usize].holds += 1;
        index
    }

    pub(super) fn freed(&mut self, index: u32) {
        self.leave(index);
    }

    /// Its thread is at its end. Whether something of it is outstanding.
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

    /// That a thread has this much of something.
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

    /// How many places there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// This thread's place in a tracker, from its first allocation there until its end. `None` when its
/// thread-local variables are gone already.
pub(super) fn place_in(tracker: &Tracker) -> Option<u32> {
    THREAD.try_with(|guard| guard.place_in(tracker)).ok()
}

thread_local! {
    static THREAD: Guard = Guard {
        thread: Arc::new(Identity::of_this_thread()),
        places: RefCell::default(),
        forks: fork::count(),
    };
}

/// Dropped at the thread's end.
struct Guard {
    thread: Arc<Identity>,
    places: RefCell<Vec<(Weak<Tracker>, u32)>>,
    /// The count of forks when it was made.
    forks: u32,
}

impl Guard {
    fn place_in(&self, tracker: &Tracker) -> u32 {
        let mut places = self.places.borrow_mut();
        // A weak pointer keeps its address from being used again.
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
            // The trackers are the parent's, and another thread of it may have held their locks.
            std::mem::forget(self.places.take());
            return;
        }
        for (tracker, place) in self.places.take() {
            let Some(tracker) = tracker.upgrade() else { continue };
            // The main thread's end is the program's: what it holds then was not left behind.
            if tracker.lock().threads.end(place) && !self.thread.is_main {
                report(&tracker, &self.thread, place);
            }
            tracker.lock().threads.leave(place);
        }
    }
}

/// Tells what is outstanding of an ended thread. Others may have freed all of it by now.
fn report(tracker: &Tracker, thread: &Identity, place: u32) {
    let leaks = tracker.leaks_of(Some(place));
    if leaks.is_empty() {
        return;
    }
    let end = ThreadEnd { name: thread.name.clone(), id: thread.id, leaks };
    let Some(handler) = tracker.lock().on_thread_end.clone() else {
        return say(&end.to_string());
    };
    // A panic that left a destructor of a thread-local variable would end the process.
    let told = program::run(|| handler.get().map_or((), |handler| handler(&end)));
    if let Err(text) = told {
        say(&format!(
            "the handler given to Heap::on_thread_end panicked with \"{text}\"; the report that it \
             was given:\n{end}"
        ));
    }
}

/// Writes to stderr. A closed stderr is no reason to fail.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("gpuheap: {text}\n").as_bytes());
}
