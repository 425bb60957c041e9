//! Defines the handle by which C code uses a heap, and the open heap that a handle points to.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::{Block, Device, Error, Heap, MemoryKind, PageLock, Reclaimer, Stream};
use gpuheap_driver::{CUstream, check, fork};
use rustc_hash::FxHashMap;

use crate::blocks::Blocks;
use crate::entry::{Failure, gpuheap_status};
use crate::scope::{self, Scope};
use crate::side_table::SideTable;
use crate::streams::{Given, LiveStream, Streams};

/// A heap for the memory of one device. gpuheap_open makes a heap, and gpuheap_close ends it.
///
/// 128 bytes of a closed heap stay allocated, so that a later use returns an error and does not
/// crash.
// The handle has separate cache lines, because every call of every thread reads it.
#[repr(align(128))]
pub struct gpuheap_heap {
    /// The open heap; null once the handle is closed.
    open: AtomicPtr<Open>,
    closed_before: AtomicPtr<gpuheap_heap>,
    /// Parts of a heap that was closed in a forked child or after a reset of the device. This
    /// pointer keeps the parts reachable, so that leak checkers do not report it.
    left_behind: AtomicPtr<LeftBehind>,
    /// `true` if the handle was closed by a reset of its device.
    was_reset: AtomicBool,
}

/// Last closed handle. The list of closed handles keeps them reachable, so that leak checkers do
/// not report them.
static CLOSED: AtomicPtr<gpuheap_heap> = AtomicPtr::new(ptr::null_mut());

/// The open heap of a [`gpuheap_heap`], with tables that find allocations by address and streams by
/// handle. Rust code that replaces a C allocator uses `Open` itself.
pub struct Open {
    blocks: Blocks<Block>,
    side: SideTable,
    streams: Streams,
    heap: Heap,
    device: Device,
    handle: AtomicPtr<gpuheap_heap>,
    /// Registered memory of the program, keyed by address.
    registered: Mutex<FxHashMap<u64, PageLock>>,
    /// Function by which the program frees memory when the heap is short of memory.
    reclaimer: Mutex<Option<Reclaimer>>,
    /// Value of `fork::count` in the process that opened the heap.
    forks: u32,
}

/// Parts of a closed heap that cannot be freed.
#[expect(dead_code, reason = "kept, and not looked at")]
enum LeftBehind {
    /// The whole heap, if a forked child closed it. A thread of the parent may have been changing
    /// the heap during the fork, so the child must not drop it.
    All(Box<Open>),
    /// Only the heap, if the device was reset. The handle's tables of blocks and streams were
    /// dropped. The heap stays, because its thread caches still count blocks as live.
    Heap(Heap),
}

impl gpuheap_heap {
    /// Makes a handle for C over a heap of `device`. [`gpuheap_close`](crate::gpuheap_close) ends
    /// the handle.
    ///
    /// Closing the handle retires all foreign streams of the heap ([`Heap::retire_all`]), including
    /// streams that other owners of the heap use. These stream objects then refuse work. The caller
    /// that closes the handle ensures that no more work on the heap's memory is enqueued on the
    /// driver's streams.
    pub fn new(device: &Device, heap: &Heap) -> *mut gpuheap_heap {
        gpuheap_heap::with_streams(device, heap, false)
    }

    /// Makes a handle as [`new`](gpuheap_heap::new) does, for streams that may end `unannounced`
    /// ([`Device::unannounced_stream`]).
    pub fn with_streams(device: &Device, heap: &Heap, unannounced: bool) -> *mut gpuheap_heap {
        let open = Box::into_raw(Box::new(Open::new(device, heap, unannounced)));
        let handle = Box::into_raw(Box::new(gpuheap_heap {
            open: AtomicPtr::new(open),
            closed_before: AtomicPtr::default(),
            left_behind: AtomicPtr::default(),
            was_reset: AtomicBool::new(false),
        }));
        // SAFETY: `open` was made above, and no other thread has the pointer.
        unsafe { &*open }.handle.store(handle, Ordering::Relaxed);
        handle
    }

    /// Returns the device and the heap of the handle; `None` if the handle is closed.
    pub fn inside(&self) -> Option<(Device, Heap)> {
        self.open().map(|open| (open.device.clone(), open.heap.clone()))
    }

    #[inline]
    fn open(&self) -> Option<&Open> {
        // SAFETY: `open` is null or made by `with_streams`, and no thread closes the handle during
        // its use.
        unsafe { self.open.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the open heap of a handle that C code passed. In a forked child, returns an error
    /// before any lock is taken, because a thread of the parent may have held the lock.
    ///
    /// # Safety
    ///
    /// `heap` is null or from [`new`](gpuheap_heap::new), and is not closed during `'a`. It may
    /// have been closed before.
    #[inline]
    pub(crate) unsafe fn get<'a>(heap: *const gpuheap_heap) -> Result<&'a Open, Failure> {
        // SAFETY: `heap` is null or a handle, and handles are never freed.
        let heap = unsafe { heap.as_ref() };
        let heap = heap.ok_or_else(no_heap)?;
        let open = heap.open().ok_or_else(|| heap.closed())?;
        open.heap.check_alive()?;
        Ok(open)
    }

    /// Closes the heap. Waits for the device, then frees all live allocations, in no stream order.
    ///
    /// # Safety
    ///
    /// `heap` is null or from [`new`](gpuheap_heap::new), and no other thread uses the heap during
    /// the call.
    pub(crate) unsafe fn close(heap: *mut gpuheap_heap) -> Result<(), Failure> {
        // SAFETY: no other thread uses `heap`, so this thread may end it.
        match unsafe { gpuheap_heap::take(heap) }? {
            Some(open) => open.close(),
            None => Ok(()),
        }
    }

    /// Resets the heap's device, and closes the heap. The reset ends all memory of the device.
    ///
    /// # Safety
    ///
    /// The caller keeps the contracts of [`close`](gpuheap_heap::close) and [`Device::reset`].
    pub(crate) unsafe fn reset(heap: *mut gpuheap_heap) -> Result<(), Failure> {
        // SAFETY: `heap` may already be closed. No other thread uses the heap or its device. All
        // users of the device's memory have ended, as `Device::reset` requires.
        let (open, reset) = unsafe {
            gpuheap_heap::get(heap)?;
            let Some(open) = gpuheap_heap::take(heap)? else { return Ok(()) };
            let reset = open.device.clone().reset();
            (open, reset)
        };
        match reset {
            // The reset has freed the device memory. `end` frees only the heap's host memory.
            Ok(_) => {
                // SAFETY: `get` found an open heap, so `heap` is a handle. Handles are never freed.
                unsafe { &*heap }.was_reset.store(true, Ordering::Relaxed);
                open.end();
            }
            Err(_) => open.close()?,
        }
        Ok(reset.map(drop)?)
    }

    #[cold]
    fn closed(&self) -> Failure {
        let text = match self.was_reset.load(Ordering::Relaxed) {
            true => {
                "the device was reset through this heap (gpuheap_reset_device), so the heap is closed and \
                 its memory is gone; open another heap"
            }
            false => {
                "the heap was closed, by gpuheap_close or by the end of its gpuheap::heap; use it \
                 before that, or open another one"
            }
        };
        Failure::new(gpuheap_status::Gone, text)
    }

    fn leave_behind(&self, left: LeftBehind) {
        self.left_behind.store(Box::into_raw(Box::new(left)), Ordering::Relaxed);
    }

    /// Removes the open heap from its handle and returns it; `None` for a null heap.
    ///
    /// # Safety
    ///
    /// The caller keeps the contract of [`close`](gpuheap_heap::close).
    unsafe fn take(heap: *mut gpuheap_heap) -> Result<Option<Box<Open>>, Failure> {
        // SAFETY: `heap` is null or a handle, and handles are never freed.
        let Some(handle) = (unsafe { heap.as_ref() }) else { return Ok(None) };
        let open = handle.open.swap(ptr::null_mut(), Ordering::AcqRel);
        if open.is_null() {
            return Err(handle.closed());
        }
        let mut last = CLOSED.load(Ordering::Relaxed);
        loop {
            handle.closed_before.store(last, Ordering::Relaxed);
            match CLOSED.compare_exchange_weak(last, heap, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => last = now,
            }
        }
        // SAFETY: `open` was made by `with_streams`, and the exchange left this thread as its only
        // owner.
        Ok(Some(unsafe { Box::from_raw(open) }))
    }
}

impl Open {
    /// Makes the tables of a heap of `device`. With `unannounced`, streams may end without
    /// [`stream_ended`](Open::stream_ended).
    pub fn new(device: &Device, heap: &Heap, unannounced: bool) -> Open {
        // The heap finds no requester by this function, so it reports nothing to `gpuheap dry-run`.
        // `entry::reported` makes the reports instead.
        gpuheap::find_requesters_by(|| None);
        Open {
            blocks: Blocks::new(),
            side: SideTable::default(),
            streams: Streams::new(unannounced),
            heap: heap.clone(),
            device: device.clone(),
            handle: AtomicPtr::default(),
            registered: Mutex::default(),
            reclaimer: Mutex::default(),
            forks: fork::watch(),
        }
    }

    /// Returns the requested bytes of the live allocation that begins at `address`; `None` if no
    /// allocation begins there.
    pub fn bytes_at(&self, address: u64) -> Option<u64> {
        self.blocks.bytes(address)
    }

    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Allocates memory for use on a stream. For zero bytes, returns a null address.
    #[inline]
    pub fn allocate(&self, bytes: u64, stream: LiveStream) -> Result<u64, Failure> {
        // This path is separate from `allocate_otherwise` and has no destructor, so that the block
        // moves from registers directly to its place in the table. Moving it through memory took
        // another 20 ns.
        if !scope::any()
            && let Some(found) = self.streams.lately(stream)
            && let Some(block) = self.heap.allocate_cached(bytes, found)
        {
            let address = block.address();
            self.blocks.put(address, bytes, block);
            return Ok(address);
        }
        self.allocate_otherwise(bytes, stream)
    }

    /// Allocates memory if the fast path of [`allocate`](Open::allocate) cannot, as with an open
    /// scope or for a stream that this thread has not used recently.
    #[inline(never)]
    fn allocate_otherwise(&self, bytes: u64, stream: LiveStream) -> Result<u64, Failure> {
        let found = self.stream(stream)?;
        match self.heap.allocate(bytes, &found) {
            Ok(block) => Ok(self.enter(block, bytes)),
            Err(error) => self.allocate_anew(bytes, stream, &found, error),
        }
    }

    /// Allocates again if the failure came from a retired stream. Returns any other failure.
    #[cold]
    #[inline(never)]
    fn allocate_anew(
        &self,
        bytes: u64,
        stream: LiveStream,
        found: &Stream,
        error: Error,
    ) -> Result<u64, Failure> {
        if !found.is_retired() {
            return Err(error.into());
        }
        let anew = self.stream_anew(stream, found.id())?;
        Ok(self.enter(self.heap.allocate(bytes, &anew)?, bytes))
    }

    /// Allocates memory of a kind by the rules of [`allocate`](Open::allocate).
    pub(crate) fn allocate_kind(
        &self,
        kind: MemoryKind,
        bytes: u64,
        stream: LiveStream,
    ) -> Result<u64, Failure> {
        let stream = self.live_stream(stream)?;
        Ok(self.enter(self.heap.allocate_kind(kind, bytes, &stream)?, bytes))
    }

    /// Adds a block of `bytes` to the table of live allocations, and returns its address.
    #[inline]
    fn enter(&self, block: Block, bytes: u64) -> u64 {
        let address = block.address();
        if address != 0 {
            if scope::any() {
                self.enter_scope(address, bytes);
            }
            self.blocks.put(address, bytes, block);
        }
        address
    }

    /// Adds an allocation to the innermost scope of this thread and this heap.
    #[cold]
    fn enter_scope(&self, address: u64, bytes: u64) {
        if let Some(scope) = scope::innermost(self.handle.load(Ordering::Relaxed) as usize) {
            scope.enter(address, bytes);
            self.side.change(address, |entry| entry.scope = Some(scope));
        }
    }

    /// Frees the allocation at an address, in the order of its stream and of all streams that use
    /// it.
    #[inline]
    pub fn free(&self, address: *mut c_void) -> Result<(), Failure> {
        if !self.side.is_empty() {
            return self.free_listed(address);
        }
        // SAFETY: the table drops the block afterwards.
        let freed = self.blocks.use_up(address as u64, |block| unsafe { block.free_in_place() });
        freed.ok_or_else(|| unknown(address))?.map_err(Failure::after_free)
    }

    #[cold]
    fn free_listed(&self, address: *mut c_void) -> Result<(), Failure> {
        let block = self.take(address)?;
        self.free_in_order(address as u64, block).map_err(Failure::after_free)
    }

    /// Frees a block that was removed from the table, ordered after the work on all streams that
    /// use the block.
    fn free_in_order(&self, address: u64, block: Block) -> Result<(), Error> {
        match self.side.take(address) {
            None => block.free(),
            Some(entry) => entry.free(block, &self.device),
        }
    }

    /// Frees the allocation at an address, in the order of `stream` alone.
    ///
    /// # Safety
    ///
    /// The caller keeps the contract of [`Block::free_on_unchecked`].
    #[inline]
    pub(crate) unsafe fn free_on(
        &self,
        address: *mut c_void,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let block = self.take(address)?;
        drop(self.side.take(address as u64));
        // SAFETY: the caller ordered `stream` after all work on the block.
        unsafe { block.free_on_unchecked(stream) }.map_err(Failure::after_free)
    }

    /// Frees the allocation at an address, ordered only after the work of `stream`. If no
    /// [`Stream`] object can be made for the handle, the allocation stays live.
    ///
    /// # Safety
    ///
    /// The caller keeps the contract of [`Block::free_on_unchecked`].
    pub unsafe fn free_on_live(
        &self,
        address: *mut c_void,
        stream: LiveStream,
    ) -> Result<(), Failure> {
        let stream = self.live_stream(stream)?;
        // SAFETY: the caller ordered the stream after all other work on the memory.
        unsafe { self.free_on(address, &stream) }
    }

    /// Frees all live allocations of a scope, even if some frees fail. Returns the first failure.
    pub(crate) fn free_scope(&self, scope: &Scope) -> Result<(), Failure> {
        let mut first = Ok(());
        for (address, block) in scope.take_all(|address| self.blocks.take(address)) {
            let freed = self.free_in_order(address, block);
            first = first.and(freed.map_err(Failure::after_free));
        }
        first
    }

    /// Orders the free of an allocation after the work of `stream` too. Other threads must not free
    /// the allocation during the call.
    pub(crate) fn use_on(&self, address: *mut c_void, stream: &Stream) -> Result<(), Failure> {
        self.bytes(address)?;
        self.side.change(address as u64, |entry| entry.use_on(stream));
        Ok(())
    }

    /// Removes an allocation from its scope, so that the allocation outlives the scope. Other
    /// threads must not free the allocation during the call.
    pub(crate) fn keep(&self, address: *mut c_void) -> Result<(), Failure> {
        self.bytes(address)?;
        let mut scope = None;
        self.side.change(address as u64, |entry| scope = entry.scope.take());
        if let Some(scope) = scope {
            scope.leave(address as u64);
        }
        Ok(())
    }

    /// Page-locks memory of the program, and returns the device's address of this memory.
    ///
    /// # Safety
    ///
    /// The memory stays valid until it is unregistered or the heap is closed.
    pub(crate) unsafe fn register(&self, memory: *mut c_void, bytes: u64) -> Result<u64, Failure> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let stream = self.device.default_stream()?;
        // SAFETY: the memory stays valid until `unregister` drops the lock, or the heap's end.
        let lock = unsafe { self.heap.lock_pages(memory, size, &stream) }?;
        let device = lock.device_address();
        self.registered().insert(memory as u64, lock);
        Ok(device)
    }

    /// Waits for all work of the device, then unpins memory of the program.
    pub(crate) fn unregister(&self, memory: *mut c_void) -> Result<(), Failure> {
        let lock = self.registered().remove(&(memory as u64));
        let lock = lock.ok_or_else(|| {
            Failure::new(
                gpuheap_status::UnknownAddress,
                format!(
                    "no memory is registered at {memory:p}: unregister the address that \
                     gpuheap_register was called with, once"
                ),
            )
        })?;
        lock.unlock().map_err(Failure::after_free)
    }

    fn registered(&self) -> MutexGuard<'_, FxHashMap<u64, PageLock>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the block at an address from the table.
    fn take(&self, address: *mut c_void) -> Result<Block, Failure> {
        self.blocks.take(address as u64).ok_or_else(|| unknown(address))
    }

    /// Fills a part of an allocation with a byte, in the order of `stream`.
    pub(crate) fn fill(
        &self,
        address: *mut c_void,
        offset: u64,
        bytes: u64,
        byte: u8,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let size = self.bytes(address)?;
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(Failure::refused(format!(
                "{bytes} bytes at offset {offset} are outside the allocation at {address:p}, which \
                 has {size} bytes"
            )));
        }
        let at = address as u64 + offset;
        let filled = self.device.with_current(|driver| {
            // SAFETY: the bytes belong to a live allocation of this heap, and the stream is alive.
            unsafe { driver.cuMemsetD8Async(at, byte, bytes as usize, stream.raw()) }
        });
        check("cuMemsetD8Async", filled?).map_err(|error| Failure::from(Error::from(error)))
    }

    /// Sets the function that frees memory when the heap is short of memory.
    pub(crate) fn set_reclaimer(&self, reclaimer: Option<Reclaimer>) {
        let mut registered = self.reclaimer.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *registered, reclaimer);
        drop(registered);
        drop(before);
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the requested size, in bytes, of the allocation at an address.
    pub(crate) fn bytes(&self, address: *mut c_void) -> Result<u64, Failure> {
        self.blocks.bytes(address as u64).ok_or_else(|| unknown(address))
    }

    #[inline]
    fn stream(&self, handle: LiveStream) -> Result<Given<'_>, Failure> {
        Ok(self.streams.get(&self.device, &self.heap, handle)?)
    }

    /// Returns the `Stream` object of a handle. If [`Heap::retire_all`] retired that object, makes
    /// a new object for the same stream.
    pub(crate) fn live_stream(&self, handle: LiveStream) -> Result<Given<'_>, Failure> {
        let found = self.stream(handle)?;
        if found.is_retired() { self.stream_anew(handle, found.id()) } else { Ok(found) }
    }

    /// Makes a new `Stream` object for a handle, in place of the retired object. `id` is the
    /// driver's id of the stream.
    #[cold]
    fn stream_anew(&self, handle: LiveStream, id: u64) -> Result<Given<'_>, Failure> {
        self.streams.supersede(handle.raw(), id);
        self.stream(handle)
    }

    /// Retires a stream that the program is about to destroy, so that the heap no longer uses it.
    pub fn stream_ended(&self, raw: *mut c_void) -> Result<(), Failure> {
        let raw = CUstream(raw as usize);
        let Some(stream) = self.streams.find(raw) else {
            // The stream was never used with this heap, or only in a capture.
            self.heap.retire_captured(raw);
            return Ok(());
        };
        self.heap.retire(&stream)?;
        self.streams.forget(raw, stream.id());
        Ok(())
    }

    fn close(self: Box<Open>) -> Result<(), Failure> {
        let waited = self.heap.retire_all();
        self.end();
        Ok(waited?)
    }

    /// Ends the heap and drops its tables with all their entries.
    fn end(self: Box<Open>) {
        // SAFETY: handles are never freed.
        let handle = unsafe { &*self.handle.load(Ordering::Relaxed) };
        if fork::count() != self.forks {
            return handle.leave_behind(LeftBehind::All(self));
        }
        let was_reset = self.heap.check_alive().is_err();
        let has_live = |kind: &MemoryKind| {
            self.heap.usage_of(*kind).map_or(true, |usage| usage.stats.live_allocations > 0)
        };
        let is_empty = !MemoryKind::ALL.iter().any(has_live);
        let Open {
            blocks,
            side,
            streams,
            heap,
            device,
            registered,
            reclaimer,
            handle: _,
            forks: _,
        } = *self;
        drop(reclaimer);
        if is_empty {
            blocks.discard();
        } else {
            drop(blocks);
        }
        drop((side, streams, registered));
        if was_reset {
            handle.leave_behind(LeftBehind::Heap(heap));
        } else {
            heap.close();
        }
        drop(device);
    }
}

#[cold]
fn no_heap() -> Failure {
    Failure::refused(
        "the heap is a null pointer: pass one from gpuheap_open; in C++, a gpuheap::heap that was moved \
         from has none, so use the one that it was moved to",
    )
}

#[cold]
fn unknown(address: *mut c_void) -> Failure {
    Failure::new(
        gpuheap_status::UnknownAddress,
        format!(
            "no allocation of this heap begins at {address:p}: it was freed before, or comes from \
             another heap or library; free each address once, by the heap that it is from"
        ),
    )
}

impl fmt::Debug for gpuheap_heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.load(Ordering::Relaxed);
        write!(f, "gpuheap_heap ({})", if open.is_null() { "closed" } else { "open" })
    }
}

#[cfg(test)]
mod tests {
    use gpuheap_driver::{CU_STREAM_NON_BLOCKING, check};

    use super::*;

    /// Makes a stream that is never destroyed.
    fn stream_of_the_program(device: &Device) -> LiveStream {
        let mut raw = CUstream::NULL;
        let made = device.with_current(|driver| {
            // SAFETY: `raw` receives the handle.
            unsafe { driver.cuStreamCreate(&mut raw, CU_STREAM_NON_BLOCKING) }
        });
        check("cuStreamCreate", made.unwrap()).unwrap();
        // SAFETY: the test destroys no stream.
        unsafe { LiveStream::new(raw.0 as *mut c_void) }
    }

    fn opened(device: &Device, heap: &Heap) -> &'static Open {
        // SAFETY: the test closes no handle.
        unsafe { gpuheap_heap::get(gpuheap_heap::new(device, heap)) }.ok().unwrap()
    }

    #[test]
    fn ended_stream_leaves_nothing() {
        let device = Device::open("emulated:1GiB").unwrap();
        let open = opened(&device, &Heap::new(&device).unwrap());
        let stream = stream_of_the_program(&device);
        assert!(open.allocate(1000, stream).is_ok());
        assert!(open.streams.find(stream.raw()).is_some());
        assert!(open.stream_ended(stream.raw().0 as *mut c_void).is_ok());
        assert!(open.streams.find(stream.raw()).is_none());
    }

    #[test]
    fn retired_stream_outlives_its_readers() {
        let device = Device::open("emulated:1GiB").unwrap();
        let heap = Heap::new(&device).unwrap();
        let open = opened(&device, &heap);
        let stream = stream_of_the_program(&device);
        assert!(open.allocate(1000, stream).is_ok());
        let found = open.stream(stream).ok().unwrap();
        let alive = std::sync::Arc::downgrade(&open.streams.find(stream.raw()).unwrap());
        heap.retire_all().unwrap();
        // This allocation replaces the retired stream object in the table. Another thread may still
        // use the old object, as `found` does here, so the old object must stay alive.
        assert!(open.allocate(1000, stream).is_ok());
        assert!(alive.upgrade().is_some());
        assert!(found.is_retired());
    }
}
