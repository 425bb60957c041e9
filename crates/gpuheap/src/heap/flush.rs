//! Returns all cached memory to the driver, and reports the remaining bytes with their reasons.

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use gpuheap_driver::CUdevice;
use gpuheap_pool::SourceResult;
use serde::Serialize;

use crate::device::{Context, Device, Holder};
use crate::error::Error;
use crate::heap::store::{Store, StoreState};
use crate::heap::{Heap, HeapInner, siblings};
use crate::kind::MemoryKind;
use crate::size::Bytes;
use crate::track::{Leak, Many};

/// Report of a flush. It has the bytes given back, and the remaining bytes with their reasons.
/// [`Heap::flush`] and [`Device::flush`] return it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FlushReport {
    /// Name that [`Device::open`] takes for the device.
    pub device: String,
    /// Result for each kind of memory that the heaps have handed out so far.
    pub kinds: Vec<FlushedKind>,
    /// Bytes of the device's memory in heaps of this process that were not flushed. 0 after a flush
    /// of the device, because it flushes all heaps.
    pub other_heaps: u64,
    /// Free bytes of `other_heaps`. A flush of those heaps, or of the device, gives them back.
    pub other_heaps_cached: u64,
    /// Bytes of the device in use by contexts, modules, other libraries and other processes.
    /// Unified memory on the device is included. `None` if the driver does not report how much is
    /// free.
    pub context_and_others: Option<u64>,
    /// Bytes that the driver reports as free. `None` if it does not report them.
    pub device_free: Option<u64>,
    /// Size of the device's memory.
    pub device_total: u64,
    /// Sites of the live allocations, most bytes first. Empty unless the heap tracks allocations.
    pub sites: Vec<Leak>,
}

/// Result of a flush for one kind of memory, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlushedKind {
    /// Kind of memory.
    pub kind: MemoryKind,
    /// Bytes returned to the driver.
    pub given_back: u64,
    /// Bytes of live arrays and blocks, including their rounding.
    pub live: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// Free bytes that could not be returned: `held_free`, and bytes that a graph capture, a failed
    /// call or the driver's own pool keeps.
    pub still_cached: u64,
    /// Bytes held by live blocks: the size of all pieces in which at least one block is live. A
    /// piece is taken from the driver as a whole, and can only be returned as a whole. Zero for the
    /// `driver` pool, because the driver does not report its pieces.
    pub held: u64,
    /// Free bytes of `held`.
    pub held_free: u64,
    /// Number of the pieces that `held` adds up. Each was taken from the driver as a whole.
    pub held_pieces: u64,
}

impl Heap {
    /// Returns all cached memory of all kinds to the driver. Waits for frees in flight, empties the
    /// pools of device, unified and pinned memory, and trims the driver's own pool. Live memory
    /// stays, and the report lists it. The report has the returned bytes even if the driver does
    /// not report the device's free memory.
    ///
    /// # Errors
    ///
    /// A driver error while waiting or while returning memory.
    pub fn flush(&self) -> Result<FlushReport, Error> {
        flush(&self.inner().context, std::slice::from_ref(self.inner()))
    }
}

impl Device {
    /// [Flushes](Heap::flush) all heaps of the device in this process.
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn flush(&self) -> Result<FlushReport, Error> {
        self.context().check_alive()?;
        let heaps = self.context().holders.all().into_iter();
        let heaps: Vec<_> = heaps.filter_map(HeapInner::from_holder).collect();
        flush(self.context(), &heaps)
    }
}

impl FlushReport {
    /// Returns the bytes of all kinds of memory that were given back to the driver.
    pub fn given_back(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.given_back).sum()
    }

    /// Returns the figures as JSON, keyed by the names of the fields. The names are stable.
    pub fn to_json(&self) -> String {
        // This cannot fail, because the fields are names, numbers and texts.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn flush(context: &Context, heaps: &[Arc<HeapInner>]) -> Result<FlushReport, Error> {
    context.check_alive()?;
    let mut kinds: Vec<FlushedKind> = Vec::new();
    for store in heaps.iter().flat_map(|heap| heap.stores()) {
        let flushed = flush_store(store)?;
        match kinds.iter_mut().find(|known| known.kind == flushed.kind) {
            Some(known) => known.add(flushed),
            None => kinds.push(flushed),
        }
    }
    for heap in heaps {
        let stats = heap.registered.usage().stats;
        if stats.live > 0 {
            // Registered memory belongs to the program, and none of it is cached.
            kinds.push(FlushedKind {
                kind: MemoryKind::Registered,
                given_back: 0,
                live: stats.live,
                live_allocations: stats.live_allocations,
                still_cached: 0,
                held: 0,
                held_free: 0,
                held_pieces: 0,
            });
        }
    }
    kinds.sort_unstable_by_key(|kind| kind.kind);
    let (mut own, mut others, mut queried) = (0, (0, 0), Ok(()));
    let is_flushed = |inner: &HeapInner| heaps.iter().any(|heap| ptr::eq(&**heap, inner));
    siblings::visit(context, |inner| match inner.device.lock().held() {
        Ok(held) if is_flushed(inner) => own += held.reserved,
        Ok(held) => others = (others.0 + held.reserved, others.1 + held.cached),
        Err(error) => queried = Err(error),
    });
    queried?;
    let (other_heaps, other_heaps_cached) = others;
    let memory = context.memory().ok();
    let device_total = memory.map_or(context.total_memory(), |(_, total)| total);
    let used = memory.map(|(free, total)| total.saturating_sub(free));
    Ok(FlushReport {
        device: context.info().name.clone(),
        kinds,
        other_heaps,
        other_heaps_cached,
        context_and_others: used.map(|used| used.saturating_sub(own).saturating_sub(other_heaps)),
        device_free: memory.map(|(free, _)| free),
        device_total,
        sites: heaps.iter().flat_map(|heap| heap.tracker.leaks().sites).collect(),
    })
}

fn flush_store(store: &Store) -> Result<FlushedKind, Error> {
    let given_back = store.reclaim(u64::MAX)?;
    let (usage, held) = (store.usage()?, store.held());
    Ok(FlushedKind {
        kind: store.kind,
        given_back,
        live: usage.live_blocks,
        live_allocations: usage.stats.live_allocations,
        still_cached: usage.cached,
        held: held.bytes,
        held_free: held.free,
        held_pieces: held.pieces,
    })
}

impl FlushedKind {
    fn add(&mut self, other: FlushedKind) {
        self.given_back += other.given_back;
        self.live += other.live;
        self.live_allocations += other.live_allocations;
        self.still_cached += other.still_cached;
        self.held += other.held;
        self.held_free += other.held_free;
        self.held_pieces += other.held_pieces;
    }
}

impl HeapInner {
    /// Downcasts a holder to a heap.
    pub(crate) fn from_holder(holder: Arc<dyn Holder>) -> Option<Arc<HeapInner>> {
        (holder as Arc<dyn Any + Send + Sync>).downcast().ok()
    }

    /// Returns the stores of all kinds of memory used so far.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &Store> {
        [Some(&self.device), self.unified.get(), self.pinned.get()].into_iter().flatten()
    }
}

impl Holder for HeapInner {
    fn before_reset(&self) {
        // Nothing may use the device during the reset.
        if let Some(idle) = self.idle.get() {
            idle.pause();
        }
        // Ignores an error, because the reset frees memory that was not given back, and live memory
        // too. Only live memory of a driver's pool stays with that pool (H200, driver 580).
        for store in self.stores() {
            let _ = store.reclaim(u64::MAX);
        }
    }

    fn after_reset(&self, is_reset: bool) {
        if let Some(idle) = self.idle.get() {
            if is_reset { idle.end() } else { idle.resume() }
        }
        if is_reset {
            for store in self.stores() {
                let mut state = store.lock();
                // Closes the threads' caches, because the reset freed the memory of their blocks. A
                // thread takes blocks from an open cache without a check for a reset.
                state.close(|_| true);
                state.source.after_reset();
            }
            // Ends the heap if only blocks keep it alive: after a reset, no free does so.
            self.end_if_over();
        }
    }

    fn open_to(&self, reader: CUdevice) -> SourceResult {
        self.device.lock().source.open_to(reader)
    }

    fn is_any_capturing(&self) -> bool {
        self.stores().any(|store| {
            let mut state = store.lock();
            let StoreState { order, source, .. } = &mut *state;
            order.is_any_capturing(&mut **source).unwrap_or(true)
        })
    }
}

impl fmt::Display for FlushReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} given back to the driver", Bytes(self.given_back()))?;
        for kind in self.kinds.iter().filter(|kind| kind.given_back > 0) {
            write!(f, "\n  {}: {}", kind.kind, Bytes(kind.given_back))?;
        }
        let total = Bytes(self.device_total);
        write!(f, "\nleft on {}: ", self.device)?;
        match self.device_free {
            Some(free) => {
                write!(f, "{} of {total}", Bytes(self.device_total.saturating_sub(free)))?
            }
            None => write!(f, "unknown, of {total}")?,
        }
        for flushed in &self.kinds {
            let FlushedKind { kind, live, held, held_free, .. } = *flushed;
            if live > 0 {
                let count = Many(flushed.live_allocations, "allocation");
                write!(f, "\n  {kind}: {} live in {count}", Bytes(live))?;
            }
            if held_free > 0 {
                let (held, free) = (Bytes(held), Bytes(held_free));
                let pieces = Many(flushed.held_pieces, "piece");
                write!(f, "\n  {kind}: {held} held by live blocks in {pieces}, {free} of it free")?;
            }
            let kept = flushed.still_cached.saturating_sub(held_free);
            if kept > 0 {
                let kept = Bytes(kept);
                write!(f, "\n  {kind}: {kept} free, but kept by a capture or by the driver")?;
            }
        }
        if self.other_heaps > 0 {
            write!(f, "\n  other heaps of this process: {}", Bytes(self.other_heaps))?;
            match self.other_heaps_cached {
                0 => {}
                cached => write!(f, " ({} cached)", Bytes(cached))?,
            }
        }
        match self.context_and_others {
            Some(0) => {}
            Some(held) => write!(f, "\n  context and other processes: {}", Bytes(held))?,
            None => f.write_str("\n  context and other processes: unknown")?,
        }
        self.sites.iter().try_for_each(|site| write!(f, "\n\n{site}"))
    }
}
