//! Table of the program's streams, keyed by handle.
//!
//! The driver is queried once for each handle. One query is enough, because the program announces
//! the end of a stream, and until then the handle belongs to no other stream. If streams may end
//! unannounced, the driver is queried at every use.
//!
//! A thread's own default stream is not in the table, because its handle means a different stream
//! on each thread. Each use makes an object for that stream, with one driver call.

use std::cell::Cell;
use std::ffi::c_void;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap::{Device, Error, Heap, Stream};
use gpuheap_driver::{CUstream, check};
use rustc_hash::FxHashMap;

pub(crate) struct Streams {
    known: Mutex<FxHashMap<CUstream, Arc<Stream>>>,
    /// Objects that `Heap::retire_all` retired, although the program still uses their streams.
    /// `known` has new objects for these. A retired object is kept because another thread may be
    /// reading it. Each `Heap::retire_all` adds one object for each stream that is used again.
    superseded: Mutex<Vec<Arc<Stream>>>,
    version: Version,
    /// `true` if streams may end unannounced.
    pub(crate) unannounced: bool,
}

/// Version of a table. No two tables of the process ever have the same version. The version changes
/// when a stream is removed. Every call of every thread reads it, so it has a separate cache line.
#[repr(align(128))]
struct Version(AtomicU64);

/// Number of streams that a thread caches in `FOUND`.
const RECENT: usize = 8;

thread_local! {
    /// Streams that this thread found recently, indexed by a hash of the handle.
    static FOUND: [Cell<Found>; RECENT] = const { [const { Cell::new(Found::NOTHING) }; RECENT] };
}

#[derive(Clone, Copy)]
struct Found {
    version: u64,
    raw: CUstream,
    /// The pointer is valid while the stream's table still has the version in `version`.
    stream: *const Stream,
}

pub(crate) enum Given<'a> {
    /// A stream of the table.
    Known(&'a Stream),
    /// A stream that is in no table. It is the calling thread's own default stream, or was first
    /// seen in a capture.
    Own(Stream),
}

impl Deref for Given<'_> {
    type Target = Stream;

    #[inline]
    fn deref(&self) -> &Stream {
        match self {
            Given::Known(stream) => stream,
            Given::Own(stream) => stream,
        }
    }
}

impl Found {
    const NOTHING: Found = Found { version: 0, raw: CUstream::NULL, stream: ptr::null() };
}

/// Handle of a stream. Callers of `new` guarantee that the stream lives while the handle is used.
#[derive(Clone, Copy)]
pub struct LiveStream(CUstream);

impl LiveStream {
    /// Takes the handle of a stream.
    ///
    /// # Safety
    ///
    /// While the result is in use, `raw` satisfies the contract of [`Device::foreign_stream`]. If
    /// the heap was opened with `unannounced_streams`, the contract of
    /// [`Device::unannounced_stream`] applies instead. In both cases, no thread calls
    /// `gpuheap_stream_ended` for the stream meanwhile.
    pub unsafe fn new(raw: *mut c_void) -> LiveStream {
        LiveStream(CUstream(raw as usize))
    }

    pub(crate) fn raw(self) -> CUstream {
        self.0
    }
}

impl Streams {
    pub(crate) fn new(unannounced: bool) -> Streams {
        let version = Version(AtomicU64::new(unused()));
        Streams { known: Mutex::default(), superseded: Mutex::default(), version, unannounced }
    }

    #[inline]
    pub(crate) fn get(
        &self,
        device: &Device,
        heap: &Heap,
        handle: LiveStream,
    ) -> Result<Given<'_>, Error> {
        let LiveStream(raw) = handle;
        if raw == CUstream::PER_THREAD {
            // SAFETY: a thread's own default stream lives until the thread ends, and heaps detect
            // that end themselves.
            return unsafe { device.foreign_stream(raw) }.map(Given::Own);
        }
        if self.unannounced {
            return self.query(device, heap, handle);
        }
        if let Some(found) = self.lately(handle) {
            return Ok(Given::Known(found));
        }
        let found = match self.look_up(device, handle)? {
            Ok(found) => found,
            Err(in_capture) => return Ok(Given::Own(in_capture)),
        };
        FOUND.with(|recent| recent[place_of(raw)].set(found));
        // SAFETY: `look_up` took the pointer from the table, and no thread announces the stream's
        // end while the result is used.
        Ok(Given::Known(unsafe { &*found.stream }))
    }

    /// Returns the stream of a handle if this thread found it recently. Never returns a thread's
    /// own default stream, nor a stream that may have ended unannounced.
    #[inline]
    pub(crate) fn lately(&self, LiveStream(raw): LiveStream) -> Option<&Stream> {
        let version = self.version.0.load(Ordering::Acquire);
        let found = FOUND.with(|found| found[place_of(raw)].get());
        // SAFETY: the versions are equal, so the stream was found in this table and is still in it.
        // No thread announces the end of a `LiveStream` while the result is used.
        (found.version == version && found.raw == raw).then(|| unsafe { &*found.stream })
    }

    /// Returns the stream of a handle; `None` if the handle is not in the table.
    pub(crate) fn find(&self, raw: CUstream) -> Option<Arc<Stream>> {
        self.lock().get(&raw).cloned()
    }

    /// Removes the retired stream with the driver's `id` from the table, but keeps the object. The
    /// driver's stream still exists, and other threads may be about to read whether the object is
    /// retired.
    pub(crate) fn supersede(&self, raw: CUstream, id: u64) {
        let mut known = self.lock();
        if known.get(&raw).is_some_and(|stream| stream.id() == id && stream.is_retired()) {
            self.keep(known.remove(&raw));
            self.version.0.store(unused(), Ordering::Release);
        }
    }

    fn keep(&self, stream: Option<Arc<Stream>>) {
        self.superseded.lock().unwrap_or_else(PoisonError::into_inner).extend(stream);
    }

    /// Removes the stream with the driver's `id` from the table, because the driver may give its
    /// handle to a new stream after this call. If another thread removed it first, `raw` may
    /// already belong to a new stream, with another id. The new stream stays in the table. A
    /// default stream stays too, because its handle always means that stream.
    pub(crate) fn forget(&self, raw: CUstream, id: u64) {
        let mut known = self.lock();
        if !is_default(raw) && known.get(&raw).is_some_and(|stream| stream.id() == id) {
            known.remove(&raw);
            self.version.0.store(unused(), Ordering::Release);
        }
    }

    /// Queries the driver for the stream of a handle, and adds the stream to the table. A stream
    /// that is first seen in a capture is returned as the inner error and not added, because its id
    /// ends with the capture.
    #[cold]
    fn look_up(
        &self,
        device: &Device,
        LiveStream(raw): LiveStream,
    ) -> Result<Result<Found, Stream>, Error> {
        let mut known = self.lock();
        if !known.contains_key(&raw) {
            drop(known);
            // SAFETY: `look_up` is called only if `unannounced` is false. Then a `LiveStream`
            // satisfies the contract of `foreign_stream`.
            let stream = unsafe { device.foreign_stream(raw) }?;
            if stream.is_of_capture() {
                return Ok(Err(stream));
            }
            known = self.lock();
            known.entry(raw).or_insert_with(|| Arc::new(stream));
        }
        // The version changes only under this lock, so the value is current.
        let version = self.version.0.load(Ordering::Relaxed);
        let stream = Arc::as_ptr(&known[&raw]);
        Ok(Ok(Found { version, raw, stream }))
    }

    /// Returns the stream of a handle, in a table whose streams may end without
    /// `gpuheap_stream_ended`. Compares driver ids, because the handle may belong to a new stream.
    fn query(
        &self,
        device: &Device,
        heap: &Heap,
        LiveStream(raw): LiveStream,
    ) -> Result<Given<'_>, Error> {
        let mut known = self.lock();
        if let Some(stream) = known.get(&raw).filter(|stream| !stream.is_retired()) {
            // The id of a stream that is capturing a graph cannot be read, and the query would
            // break the capture.
            if !stream.is_capturing()? && id_of(device, raw)? == stream.id() {
                let stream = Arc::as_ptr(stream);
                // SAFETY: the table keeps the object while the handle belongs to this stream. The
                // stream is alive, so its handle belongs to no other stream.
                return Ok(Given::Known(unsafe { &*stream }));
            }
        }
        // SAFETY: `query` is called only if streams may end unannounced (`unannounced` is true).
        // Then a `LiveStream` satisfies the contract of `unannounced_stream`.
        let fresh = unsafe { device.unannounced_stream(raw) }?;
        if fresh.is_of_capture() {
            return Ok(Given::Own(fresh));
        }
        let fresh = Arc::new(fresh);
        let stream = Arc::as_ptr(&fresh);
        match known.insert(raw, fresh) {
            Some(retired) if retired.is_retired() => self.keep(Some(retired)),
            Some(ended) => heap.retire(&ended)?,
            None => {}
        }
        // SAFETY: the object was just added. The table drops it only after the handle has come to
        // belong to another stream. This stream is alive, so that has not happened.
        Ok(Given::Known(unsafe { &*stream }))
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<CUstream, Arc<Stream>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the index of a handle in `FOUND`.
#[inline]
fn place_of(raw: CUstream) -> usize {
    // Handles are aligned addresses: their lowest bits are equal, so the hash leaves them out.
    (raw.0 >> 4 ^ raw.0 >> 9) % RECENT
}

/// Returns `true` for the legacy default stream. It lives as long as the device.
fn is_default(raw: CUstream) -> bool {
    raw == CUstream::NULL || raw == CUstream::LEGACY
}

/// Returns a version that no table has had.
fn unused() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns the driver's id of a stream that is alive.
fn id_of(device: &Device, raw: CUstream) -> Result<u64, Error> {
    let mut id = 0;
    // SAFETY: the pointer is valid for the call, and the stream is alive.
    let asked = device.with_current(|driver| unsafe { driver.cuStreamGetId(raw, &mut id) })?;
    check("cuStreamGetId", asked)?;
    Ok(id)
}
