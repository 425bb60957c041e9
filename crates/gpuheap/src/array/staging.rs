//! Large copies of pageable memory, by way of pinned memory and on several threads.
//!
//! The driver copies pageable memory by one thread of its own, at 7 to 11 GB/s on an H200 host whose
//! link does 55; a core's memory copy is about as fast, so it takes several. Each thread here takes
//! the next piece of the copy, waits until one of its slots of pinned memory is out of use, and has
//! the device copy between that and its own memory.
//!
//! The slots are leases of the heap's pinned memory like any other, except that they are never waited
//! or climbed for: where there are none the copy goes the driver's way. They are allocated on a stream
//! that is given no work, so that what the host has to wait for before it touches them is what
//! they were used for last, and they are freed in the order of the stream that copies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use gpuheap_pool::PoolKind;

use super::storage::Storage;
use crate::error::Error;
use crate::event::Event;
use crate::heap::Heap;
use crate::heap::lease::Lease;
use crate::heap::staging::Staging;
use crate::kind::MemoryKind;
use crate::stream::Stream;

/// Pinned memory through which one copy goes.
pub(super) struct Slots<'a> {
    heap: &'a Heap,
    staging: Staging,
    /// One for each thread.
    leases: Vec<Lease>,
    /// The stream that copied.
    used_on: Option<Stream>,
    /// `true` if what went through is to be filled with zeros.
    zeroed: bool,
}

/// Which way a copy goes, and the host's memory.
#[derive(Clone, Copy)]
enum Way<'a> {
    Up(&'a [u8]),
    /// To that address on.
    Down(u64),
}

impl<'a> Slots<'a> {
    /// Returns `true` if a copy of so many bytes between the host and a storage is faster by way of
    /// them.
    pub(super) fn pay_for(storage: &Storage, bytes: usize) -> bool {
        let heap = storage.heap();
        // A pool that keeps nothing would pin memory anew for every copy.
        bytes >= heap.staging().threshold.max(1)
            && storage.kind() == MemoryKind::Device
            && heap.pool() != PoolKind::None
    }

    /// Slots for a copy that they pay for; none where there is no pinned memory to be had. May wait
    /// for other copies, so no lock is to be held.
    pub(super) fn take(storage: &'a Storage, bytes: usize) -> Option<Slots<'a>> {
        if !Slots::pay_for(storage, bytes) {
            return None;
        }
        let heap = storage.heap();
        let staging = heap.staging();
        let stream = heap.staging_stream().ok()?;
        let zeroed = storage.zeroes_on_free();
        let mut slots = Slots { heap, staging, leases: Vec::new(), used_on: None, zeroed };
        let threads = staging.threads.min(bytes.div_ceil(staging.piece));
        let each = (staging.piece * staging.slots) as u64;
        for _ in 0..threads {
            let Some(lease) = heap.staging_lease(each, stream) else { break };
            slots.leases.push(lease);
        }
        // What the slots were used for before is over then.
        let is_there = !slots.leases.is_empty() && stream.synchronize().is_ok();
        is_there.then_some(slots)
    }

    /// Returns `true` if copies on a stream can go through them: not on one of another device,
    /// which used the array last.
    pub(super) fn serve(&self, stream: &Stream) -> bool {
        self.heap.check_device(stream).is_ok()
    }

    /// Copies `source` to the device's memory at `to`, in the order of `stream`. Returns when all of
    /// it was read, which the device need not have.
    pub(super) fn upload(&mut self, source: &[u8], to: u64, stream: &Stream) -> Result<(), Error> {
        self.copy(Way::Up(source), source.len(), to, stream)
    }

    /// Copies the device's memory at `from` to the host's at `to`, which is `bytes` long and nobody
    /// else's, and waits for it.
    pub(super) fn download(
        &mut self,
        from: u64,
        to: *mut u8,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), Error> {
        ask_for_large_pages(to, bytes);
        self.copy(Way::Down(to.expose_provenance() as u64), bytes, from, stream)
    }

    fn copy(&mut self, way: Way, bytes: usize, device: u64, stream: &Stream) -> Result<(), Error> {
        // For all pieces at once: a host that borrows comes before them all, or after.
        let _working = stream.context().gate.work()?;
        self.used_on = Some(stream.clone());
        let Staging { piece, slots, .. } = self.staging;
        let copy = Copy {
            way,
            bytes,
            device,
            piece,
            stream,
            next: AtomicUsize::new(0),
            failed: Mutex::new(None),
        };
        let (own, others) = match &self.leases[..] {
            [own, others @ ..] => (own, others),
            [] => return Ok(()),
        };
        thread::scope(|scope| {
            for lease in others {
                let work = || copy.run(lease.address, slots);
                // With fewer threads it is slower, and all of it is copied.
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            copy.run(own.address, slots);
        });
        copy.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        // Behind the copies that were enqueued, also where one of them failed.
        for lease in self.leases.drain(..) {
            let stream = self.used_on.as_ref();
            // A destructor reports and carries on: the heap counts the failure.
            let _ = self.heap.free_staging(lease, stream, self.zeroed);
        }
        // The next copy waits for this one and not for what the stream is given after it.
        self.heap.fence(MemoryKind::Pinned);
    }
}

/// One copy, shared by its threads.
struct Copy<'a> {
    way: Way<'a>,
    bytes: usize,
    device: u64,
    piece: usize,
    stream: &'a Stream,
    /// The next piece that nobody took.
    next: AtomicUsize,
    failed: Mutex<Option<Error>>,
}

/// One slot of a thread's.
struct Slot {
    address: u64,
    /// What the device is to have done before it is used again, and for which piece that is.
    busy: Option<(Event, usize)>,
}

impl Copy<'_> {
    /// What each thread does.
    fn run(&self, slots: u64, count: usize) {
        if let Err(error) = self.pieces(slots, count) {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            // The others take no more.
            self.next.store(usize::MAX / 2, Ordering::Relaxed);
        }
    }

    fn pieces(&self, slots: u64, count: usize) -> Result<(), Error> {
        let _current = self.stream.context().enter()?;
        let slot = |nth| Slot { address: slots + (nth * self.piece) as u64, busy: None };
        let mut slots: Vec<Slot> = (0..count.max(1)).map(slot).collect();
        let pieces = self.bytes.div_ceil(self.piece);
        for turn in 0.. {
            let nth = self.next.fetch_add(1, Ordering::Relaxed);
            if nth >= pieces {
                break;
            }
            let count = slots.len();
            let slot = &mut slots[turn % count];
            self.finish(slot)?;
            self.begin(slot, nth)?;
        }
        if let Way::Down(..) = self.way {
            // Oldest first or not: all of them are waited for.
            slots.iter_mut().try_for_each(|slot| self.finish(slot))?;
        }
        Ok(())
    }

    /// Has the device copy a piece by way of a slot that is out of use.
    fn begin(&self, slot: &mut Slot, nth: usize) -> Result<(), Error> {
        let (start, length) = self.place(nth);
        let device = self.device + start as u64;
        let (driver, stream) = (self.stream.context().driver(), self.stream.raw());
        let alive = self.stream.accept_work()?;
        let (function, copied) = match self.way {
            Way::Up(source) => {
                // SAFETY: the piece is in the source; the slot is this thread's, is that long, and
                // the device is done with it.
                unsafe {
                    let from = source.as_ptr().add(start);
                    from.copy_to_nonoverlapping(pointer(slot.address), length);
                }
                let from = pointer(slot.address).cast();
                // SAFETY: both sides have these bytes; the slot is not written before the event
                // below is reached, and is freed in the order of the stream.
                let copied = unsafe { driver.cuMemcpyHtoDAsync_v2(device, from, length, stream) };
                ("cuMemcpyHtoDAsync_v2", copied)
            }
            Way::Down(..) => {
                let to = pointer(slot.address).cast();
                // SAFETY: as above, the other way.
                let copied = unsafe { driver.cuMemcpyDtoHAsync_v2(to, device, length, stream) };
                ("cuMemcpyDtoHAsync_v2", copied)
            }
        };
        drop(alive);
        gpuheap_driver::check(function, copied)?;
        slot.busy = Some((self.stream.record()?, nth));
        Ok(())
    }

    /// Waits until the device is done with a slot, and takes out what it left there.
    fn finish(&self, slot: &mut Slot) -> Result<(), Error> {
        let Some((event, nth)) = slot.busy.take() else { return Ok(()) };
        event.synchronize()?;
        if let Way::Down(to) = self.way {
            let (start, length) = self.place(nth);
            // SAFETY: the piece is in the target, which is nobody else's, and no two threads have
            // the same piece; the device is done with the slot, which is that long.
            unsafe {
                let to = pointer(to).add(start);
                to.copy_from_nonoverlapping(pointer(slot.address), length);
            }
        }
        Ok(())
    }

    /// Where a piece starts, and how long it is.
    fn place(&self, nth: usize) -> (usize, usize) {
        let start = nth * self.piece;
        (start, self.piece.min(self.bytes - start))
    }
}

/// Asks the host for large pages behind memory that is to be written for the first time. Most of what
/// a download takes is touching new pages of 4 KiB: with eight threads it went from 7 to 17 GB/s on
/// an H200's host.
fn ask_for_large_pages(to: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const LARGE: usize = 2 << 20;
        let start = to.align_offset(LARGE);
        let Some(whole) = bytes.checked_sub(start).map(|left| left / LARGE * LARGE) else { return };
        // SAFETY: the range is within the memory, and the advice changes none of its bytes. It is
        // only advice: what it comes to does not matter.
        unsafe { libc::madvise(to.add(start).cast(), whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (to, bytes);
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
