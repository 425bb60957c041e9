//! User objects: data of the program that graphs keep alive. Each object has a destructor.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpuheap_driver::{CUhostFn, CUstreamCallback};

use crate::state::clock::Clock;

/// A user object and the references that the program holds to it.
pub(crate) struct UserObject {
    pub(crate) kept: Arc<Kept>,
    pub(crate) references: u32,
}

/// Part of a user object that graphs and their launches share. When the last reference is dropped,
/// the object's destructor becomes due.
pub(crate) struct Kept {
    end: Mutex<Option<Callback>>,
    due: Due,
}

/// Destructors to call once the emulator's lock is released.
#[derive(Clone, Default)]
pub(crate) struct Due(Arc<DueList>);

#[derive(Default)]
struct DueList {
    /// `false` if the list is empty. Driver calls read this flag first, so that few calls take the
    /// list's lock.
    is_any: AtomicBool,
    list: Mutex<Vec<Callback>>,
}

impl Kept {
    pub(crate) fn new(end: Callback, due: Due) -> Kept {
        Kept { end: Mutex::new(Some(end)), due }
    }

    /// Orders the object's destructor after a launch of a graph that keeps the object. `clock` is
    /// the clock at the end of the launch.
    pub(crate) fn note_launch(&self, clock: Option<&Clock>) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(end), Some(clock)) = (&mut *end, clock) {
            end.clock.get_or_insert_default().join(clock);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let mut list = self.due.0.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.extend(end);
        self.due.0.is_any.store(true, Ordering::Release);
    }
}

impl Due {
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_any.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Vec<Callback> {
        let mut list = self.0.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.is_any.store(false, Ordering::Release);
        mem::take(&mut *list)
    }
}

/// One call of a function of the program.
#[derive(Clone)]
pub(crate) struct Callback {
    pub(crate) function: HostFunction,
    /// The caller's data, as an address.
    pub(crate) data: u64,
    /// Clock of all that happened before the callback, for the checks.
    pub(crate) clock: Option<Box<Clock>>,
}

#[derive(Clone, Copy)]
pub(crate) enum HostFunction {
    Plain(CUhostFn),
    /// Callback that receives the stream's handle and a status.
    WithStatus(CUstreamCallback, usize),
}
