//! Threads' own default streams (`CU_STREAM_PER_THREAD`).
//!
//! The driver has one handle for all these streams. It means the stream of the calling thread, so
//! no other thread can name this stream. To order work before or after the stream's work, other
//! threads use the legacy default stream. Work on the legacy default stream begins after all
//! earlier work of the thread's stream. Later work of the thread's stream begins after the work on
//! the legacy default stream. Recording an event counts as work. These rules also hold for the rest
//! of the work of an ended thread (H200, driver 580).
//!
//! A thread's stream may wait for work on the legacy default stream. A query of the thread's
//! stream, or a wait of the host for it, does not cover that work. An event recorded on the
//! thread's stream covers it, and so does a query of the legacy default stream (H200, driver 580).
//! The library notes completion only from such an event or such a query.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use gpuheap_driver::{CUstream, check};
use gpuheap_pool::{Completed, StreamHandle};

use crate::device::Context;
use crate::error::{Error, ErrorKind};
use crate::sync::this_thread;

/// A thread with its own default stream. This object lives until the thread has ended and the last
/// [`Stream`](crate::Stream) of its default stream was dropped.
pub(crate) struct OwnerThread {
    /// Identifier of the thread. No other thread ever has it.
    pub(crate) thread: u64,
}

/// The calling thread's own default stream in one context.
#[derive(Clone)]
pub(crate) enum ThreadStream {
    Known {
        owner: Arc<OwnerThread>,
        id: u64,
        /// Progress of the stream, shared by all objects for it.
        completed: Arc<Completed>,
    },
    /// The stream is capturing a graph. Until the capture ends, the driver does not return the id.
    Capturing(Arc<OwnerThread>),
}

/// State of a thread that has used its own default stream.
struct Here {
    owner: Arc<OwnerThread>,
    /// The streams that were used, keyed by context.
    streams: RefCell<Vec<(Weak<Context>, ThreadStream)>>,
}

thread_local! {
    /// State of this thread. The driver's state is created earlier, so it is destroyed later.
    static HERE: Here = Here {
        owner: Arc::new(OwnerThread { thread: this_thread() }),
        streams: RefCell::default(),
    };
}

/// Returns the handle by which the calling thread enqueues work for the default stream of a thread.
/// For its own stream, the handle is `PER_THREAD`, and for another thread's stream it is the legacy
/// default stream. An ending thread gets the legacy default stream, because its own may be
/// destroyed.
pub(crate) fn handle(thread: u64) -> CUstream {
    if thread == this_thread() && HERE.try_with(|_| ()).is_ok() {
        CUstream::PER_THREAD
    } else {
        CUstream::LEGACY
    }
}

/// Returns the calling thread's own default stream.
pub(crate) fn current(context: &Arc<Context>) -> Result<ThreadStream, Error> {
    let _current = context.enter_aside()?;
    // With this call, the driver makes its thread-local state. `HERE` is made after that state, so
    // that the destructor of `HERE` runs before the driver's.
    let is_capturing = context.is_capturing_inside(CUstream::PER_THREAD)?;
    if !is_capturing {
        context.captures.note_outside(StreamHandle::from_thread(this_thread()));
    }
    let known = HERE.try_with(|here| {
        let streams = here.streams.borrow();
        let same = |of: &Weak<Context>| std::ptr::eq(of.as_ptr(), Arc::as_ptr(context));
        let own = streams.iter().find(|(of, _)| same(of)).map(|(_, own)| own.clone());
        own.or_else(|| is_capturing.then(|| ThreadStream::Capturing(here.owner.clone())))
    });
    match known {
        Ok(Some(own)) => return Ok(own),
        Ok(None) => {}
        Err(_) => return Err(refuse_ending()),
    }
    let mut id = 0;
    // SAFETY: `id` outlives the call, and every thread has this stream.
    let code = unsafe { context.driver().cuStreamGetId(CUstream::PER_THREAD, &mut id) };
    check("cuStreamGetId", code)?;
    let made = HERE.try_with(|here| {
        let own = ThreadStream::Known { owner: here.owner.clone(), id, completed: Arc::default() };
        let mut streams = here.streams.borrow_mut();
        streams.retain(|(of, _)| of.strong_count() > 0);
        streams.push((Arc::downgrade(context), own.clone()));
        own
    });
    made.map_err(|_| refuse_ending())
}

#[cold]
fn refuse_ending() -> Error {
    ErrorKind::StreamUnusable.error(
        "the thread is ending, and its own default stream (CU_STREAM_PER_THREAD) with it; use 0, \
         the legacy default stream, in destructors of thread-local variables"
            .to_owned(),
    )
}
