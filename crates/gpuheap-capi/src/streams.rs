//! The program's streams, by handle.
//!
//! The driver is asked once what a handle stands for. That is allowed because the program says when
//! a stream ends: until then its handle means nothing else. Where it need not say so, the driver is
//! asked at every use.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap::{Device, Error, Heap, Stream};
use gpuheap_driver::{CUstream, check};
use rustc_hash::FxHashMap;

/// The streams of one heap.
pub(crate) struct Streams {
    known: Mutex<FxHashMap<CUstream, Arc<Stream>>>,
    /// Streams that were retired while the program goes on with them: another thread may be using
    /// the object. One for each stream that is used again after a `Heap::retire_all`.
    superseded: Mutex<Vec<Arc<Stream>>>,
    version: Version,
    /// Streams end unannounced.
    pub(crate) unannounced: bool,
}

/// Which streams are known: a number that no table had before, and this one only until a stream of it
/// is forgotten. Threads read it at every call, so its cache line is its own.
#[repr(align(128))]
struct Version(AtomicU64);

/// Number of streams that a thread remembers.
const RECENT: usize = 8;

thread_local! {
    /// Streams that this thread has found lately, by handle.
    static FOUND: [Cell<Found>; RECENT] = const { [const { Cell::new(Found::NOTHING) }; RECENT] };
}

#[derive(Clone, Copy)]
struct Found {
    version: u64,
    raw: CUstream,
    /// There while its table has that version.
    stream: *const Stream,
}

impl Found {
    const NOTHING: Found = Found { version: 0, raw: CUstream::NULL, stream: ptr::null() };
}

impl Streams {
    pub(crate) fn new(unannounced: bool) -> Streams {
        let version = Version(AtomicU64::new(unused()));
        Streams { known: Mutex::default(), superseded: Mutex::default(), version, unannounced }
    }

    /// The stream of a handle.
    ///
    /// # Safety
    ///
    /// As [`Device::foreign_stream`], or [`Device::unannounced_stream`] where streams end so. The stream
    /// is not [forgotten](Streams::forget) while the result is used.
    #[inline]
    pub(crate) unsafe fn get(
        &self,
        device: &Device,
        heap: &Heap,
        raw: CUstream,
    ) -> Result<&Stream, Error> {
        if self.unannounced {
            // SAFETY: the caller keeps this function's contract.
            return unsafe { self.ask(device, heap, raw) };
        }
        let version = self.version.0.load(Ordering::Acquire);
        // Handles are addresses.
        let place = (raw.0 >> 4 ^ raw.0 >> 9) % RECENT;
        let found = FOUND.with(|found| found[place].get());
        if found.version == version && found.raw == raw {
            // SAFETY: this table's, by its version, and still there, for it has that version now; the
            // caller says that it stays.
            return Ok(unsafe { &*found.stream });
        }
        // SAFETY: the caller keeps this function's contract.
        let found = unsafe { self.search(device, raw) }?;
        FOUND.with(|recent| recent[place].set(found));
        // SAFETY: just found, and the caller says that it stays.
        Ok(unsafe { &*found.stream })
    }

    /// The stream of a handle, if it was ever used here.
    pub(crate) fn find(&self, raw: CUstream) -> Option<Arc<Stream>> {
        self.lock().get(&raw).cloned()
    }

    /// Forgets the retired stream with the driver's `id`, and keeps the object: the stream itself
    /// goes on, and other threads may be about to ask whether it is retired.
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

    /// From now on the handle may mean another stream than that with the driver's `id`, and may
    /// do so already, where another thread said so too. A default stream always means the same.
    pub(crate) fn forget(&self, raw: CUstream, id: u64) {
        let mut known = self.lock();
        if !is_default(raw) && known.get(&raw).is_some_and(|stream| stream.id() == id) {
            known.remove(&raw);
            self.version.0.store(unused(), Ordering::Release);
        }
    }

    /// # Safety
    ///
    /// As [`Device::foreign_stream`].
    #[cold]
    unsafe fn search(&self, device: &Device, raw: CUstream) -> Result<Found, Error> {
        let mut known = self.lock();
        if !known.contains_key(&raw) {
            drop(known);
            // SAFETY: the caller keeps this function's contract.
            let stream = unsafe { device.foreign_stream(raw) }?;
            known = self.lock();
            known.entry(raw).or_insert_with(|| Arc::new(stream));
        }
        // With the lock held, under which the version changes.
        let version = self.version.0.load(Ordering::Relaxed);
        let stream = Arc::as_ptr(&known[&raw]);
        Ok(Found { version, raw, stream })
    }

    /// # Safety
    ///
    /// As [`Device::unannounced_stream`].
    unsafe fn ask(&self, device: &Device, heap: &Heap, raw: CUstream) -> Result<&Stream, Error> {
        let mut known = self.lock();
        if let Some(stream) = known.get(&raw).filter(|stream| !stream.is_retired()) {
            // One that captures a graph does not say its number, and the question breaks the capture.
            if !stream.is_capturing()? && id_of(device, raw)? == stream.id() {
                let stream = Arc::as_ptr(stream);
                // SAFETY: as below.
                return Ok(unsafe { &*stream });
            }
        }
        // SAFETY: the caller keeps this function's contract.
        let fresh = Arc::new(unsafe { device.unannounced_stream(raw) }?);
        let stream = Arc::as_ptr(&fresh);
        match known.insert(raw, fresh) {
            Some(retired) if retired.is_retired() => self.keep(Some(retired)),
            Some(ended) => heap.retire(&ended)?,
            None => {}
        }
        // SAFETY: it stays until its handle means another stream, and the caller says that it is alive.
        Ok(unsafe { &*stream })
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<CUstream, Arc<Stream>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A default stream is there as long as the device.
fn is_default(raw: CUstream) -> bool {
    raw == CUstream::NULL || raw == CUstream::LEGACY
}

/// A version that no table has had.
fn unused() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The driver's number for a stream that is alive.
fn id_of(device: &Device, raw: CUstream) -> Result<u64, Error> {
    let mut id = 0;
    // SAFETY: the pointer is valid for the call, the stream alive.
    let asked = device.with_current(|driver| unsafe { driver.cuStreamGetId(raw, &mut id) })?;
    check("cuStreamGetId", asked)?;
    Ok(id)
}
