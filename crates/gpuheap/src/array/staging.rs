//! Large copies of pageable memory, through pinned memory and on several threads.
//!
//! The driver copies pageable memory on a single thread, at 7 to 11 GB/s on an H200 host whose link
//! reaches 55 GB/s. One core copies memory about as fast, so only several cores can fill the link.
//! Each thread of a copy takes the next piece and waits until one of its slots of pinned memory is
//! free. It then moves the piece through that slot: the device copies between the slot and device
//! memory.
//!
//! The slots are leases of the heap's pinned memory. Unlike other leases, a lease of a slot neither
//! waits nor runs reclaim steps. Without slots, the driver makes the copy.
//!
//! The slots are allocated on a stream that never has work. Before the host touches a slot, it
//! therefore waits only for the slot's last use. The slots are freed in the order of the stream
//! that copies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use gpuheap_pool::PoolKind;

use super::storage::Storage;
use crate::error::Error;
use crate::event::Event;
use crate::heap::Heap;
use crate::heap::staging::Staging;
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::stream::Stream;

/// Pinned memory through which a copy is made.
pub(super) struct Slots<'a> {
    heap: &'a Heap,
    staging: Staging,
    leases: Vec<Lease>,
    /// Stream on which the copies were enqueued; `None` before the first copy.
    used_on: Option<Stream>,
    /// `true` if the slots are to be filled with zeros when they are freed.
    zeroed: bool,
}

/// Direction of a copy, with the host memory that it reads or writes.
#[derive(Clone, Copy)]
enum Way<'a> {
    Up(&'a [u8]),
    /// Download to this address on the host.
    Down(u64),
}

impl<'a> Slots<'a> {
    /// Returns `true` if a copy of `bytes` between host and device is faster through pinned slots.
    pub(super) fn pay_for(storage: &Storage, bytes: usize) -> bool {
        let heap = storage.heap();
        // The pool `none` keeps no freed slots, so every copy would pin new slots, and be slower.
        bytes >= heap.inner().staging.threshold.max(1)
            && storage.kind() == MemoryKind::Device
            && heap.pool() != PoolKind::None
    }

    /// Takes slots for a copy. Returns `None` if slots would not make the copy faster, or if no
    /// pinned memory is available. May wait for other copies, so call it with no lock held.
    pub(super) fn take(storage: &'a Storage, bytes: usize) -> Option<Slots<'a>> {
        if !Slots::pay_for(storage, bytes) {
            return None;
        }
        let heap = storage.heap();
        let staging = heap.inner().staging;
        let stream = heap.staging_stream().ok()?;
        let zeroed = storage.zeroes_on_free();
        let mut slots = Slots { heap, staging, leases: Vec::new(), used_on: None, zeroed };
        let threads = staging.threads.min(bytes.div_ceil(staging.piece));
        let each = (staging.piece * staging.slots) as u64;
        for _ in 0..threads {
            let Some(lease) = heap.staging_lease(each, stream) else { break };
            slots.leases.push(lease);
        }
        // After the wait, the last use of the slots has completed.
        let is_there = !slots.leases.is_empty() && stream.synchronize().is_ok();
        is_there.then_some(slots)
    }

    /// Returns `true` if copies on `stream` can use the slots. `stream` may be of another device,
    /// on which the array was used last. Such a stream cannot use them.
    pub(super) fn serve(&self, stream: &Stream) -> bool {
        self.heap.store(MemoryKind::Device).check_stream(stream).is_ok()
    }

    /// Copies `source` to the device's memory at `to`, in the order of `stream`. Returns when all
    /// of `source` was read; the device may still be copying.
    pub(super) fn upload(&mut self, source: &[u8], to: u64, stream: &Stream) -> Result<(), Error> {
        self.copy(Way::Up(source), source.len(), to, stream)
    }

    /// Copies the device's memory at `from` to `bytes` of host memory at `to`, and waits for the
    /// copy. No other code may access that host memory meanwhile.
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
        // The guard is taken once for all pieces, so that a borrow by the host comes before or
        // after the whole copy.
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
                // With fewer threads the copy is slower, but complete.
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
        // The slots are freed after the enqueued copies, even if one of the copies failed.
        for lease in self.leases.drain(..) {
            let stream = self.used_on.as_ref();
            // A destructor cannot return the error, so the heap counts the failure.
            let heap = self.heap.inner();
            let _ = heap.free(MemoryKind::Pinned, lease, stream, self.zeroed);
        }
        // Records a fence now, so that the next copy through these slots waits only for this copy,
        // and not for later work of the stream.
        self.heap.fence(MemoryKind::Pinned);
    }
}

/// A copy, shared by its threads.
struct Copy<'a> {
    way: Way<'a>,
    bytes: usize,
    device: u64,
    piece: usize,
    stream: &'a Stream,
    /// Index of the next piece that no thread has taken.
    next: AtomicUsize,
    failed: Mutex<Option<Error>>,
}

struct Slot {
    address: u64,
    /// Event after the device's last use of the slot, and the index of the piece in the slot.
    busy: Option<(Event, usize)>,
}

impl Copy<'_> {
    /// Copies pieces, on each thread.
    fn run(&self, slots: u64, count: usize) {
        if let Err(error) = self.pieces(slots, count) {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            // Stops the other threads from taking more pieces.
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
            // The order does not matter, because all slots are waited for.
            slots.iter_mut().try_for_each(|slot| self.finish(slot))?;
        }
        Ok(())
    }

    /// Enqueues the copy of piece number `nth` through `slot`. The slot is not in use.
    fn begin(&self, slot: &mut Slot, nth: usize) -> Result<(), Error> {
        let (start, length) = self.place(nth);
        let device = self.device + start as u64;
        let (driver, stream) = (self.stream.context().driver(), self.stream.raw());
        let alive = self.stream.accept_work()?;
        let (function, copied) = match self.way {
            Way::Up(source) => {
                // SAFETY: the piece is in the source. The slot belongs to this thread, is as long
                // as the piece, and is no longer in use by the device.
                unsafe {
                    let from = source.as_ptr().add(start);
                    from.copy_to_nonoverlapping(pointer(slot.address), length);
                }
                let from = pointer(slot.address).cast();
                // SAFETY: both ranges are `length` bytes long. The slot is not written before the
                // event below is reached, and is freed in the order of the stream.
                let copied = unsafe { driver.cuMemcpyHtoDAsync_v2(device, from, length, stream) };
                ("cuMemcpyHtoDAsync_v2", copied)
            }
            Way::Down(..) => {
                let to = pointer(slot.address).cast();
                // SAFETY: both ranges are `length` bytes long. The slot is not read before the
                // event below is reached, and is freed in the order of the stream.
                let copied = unsafe { driver.cuMemcpyDtoHAsync_v2(to, device, length, stream) };
                ("cuMemcpyDtoHAsync_v2", copied)
            }
        };
        drop(alive);
        gpuheap_driver::check(function, copied)?;
        slot.busy = Some((self.stream.record()?, nth));
        Ok(())
    }

    /// Waits until the device has finished with a slot, and copies a downloaded piece out of it.
    fn finish(&self, slot: &mut Slot) -> Result<(), Error> {
        let Some((event, nth)) = slot.busy.take() else { return Ok(()) };
        event.synchronize()?;
        if let Way::Down(to) = self.way {
            let (start, length) = self.place(nth);
            // SAFETY: the piece is in the target, which no other code accesses, and no two threads
            // have the same piece. The device has finished with the slot, which is as long as the
            // piece.
            unsafe {
                let to = pointer(to).add(start);
                to.copy_from_nonoverlapping(pointer(slot.address), length);
            }
        }
        Ok(())
    }

    /// Returns the start and the length of a piece.
    fn place(&self, nth: usize) -> (usize, usize) {
        let start = nth * self.piece;
        (start, self.piece.min(self.bytes - start))
    }
}

/// Requests huge pages for host memory that is about to be written for the first time. A download
/// to 4 KiB pages spends most of its time on page faults. With huge pages, eight threads copied 17
/// GB/s instead of 7 on an H200's host.
fn ask_for_large_pages(to: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const LARGE: usize = 2 << 20;
        let start = to.align_offset(LARGE);
        let Some(whole) = bytes.checked_sub(start).map(|left| left / LARGE * LARGE) else { return };
        // SAFETY: the range is within the memory, and the advice changes none of its bytes. A
        // failure of the advice does not matter.
        unsafe { libc::madvise(to.add(start).cast(), whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (to, bytes);
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
