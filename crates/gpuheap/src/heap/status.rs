//! A summary of a heap's memory.

use std::fmt;

use gpuheap_pool::{AllocStats, Limits, PoolKind};
use serde::Serialize;

use crate::error::Error;
use crate::heap::Heap;
use crate::heap::store::Store;
use crate::kind::MemoryKind;
use crate::size::Bytes;
use crate::track::{Many, Outstanding, RecordingStatus};

/// Memory of a heap and its device at one moment, in bytes. Returned by [`Heap::memory_status`].
///
/// The text is for people. The line "Effective" shows the use of the whole device by all processes,
/// contexts included, as the driver reports it. "CUDA" shows the memory that this heap took. The
/// line of the pool divides that memory into allocated and cached memory. Further lines show
/// limits, memory of this process's other heaps, and other kinds of memory, if any. With tracking
/// on, outstanding allocations follow.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// use gpuheap::{Device, Heap, PoolKind};
///
/// let device = Device::open("emulated:16GiB")?;
/// let heap = Heap::builder(&device).pool(PoolKind::Binned).build()?;
/// let _array = heap.target()?.zeroed::<i64, _>(1024)?;
/// assert_eq!(
///     heap.memory_status()?.to_string(),
///     "Effective GPU memory usage: 0.01% (2 MiB/16 GiB)\n\
///      CUDA GPU memory usage: 8 KiB\n\
///      BinnedPool usage: 8 KiB (8 KiB allocated, 0 cached)"
/// );
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MemoryStatus {
    /// Name that [`Device::open`](crate::Device::open) takes for the device.
    pub device: String,
    /// Pool in use.
    pub pool: PoolKind,
    /// Reason why `pool` differs from the requested pool: the device does not support the requested
    /// pool. `None` if `pool` is the requested pool.
    pub fallback: Option<String>,
    /// Warnings, one for each environment variable that has the library's prefix but is not a
    /// setting. Empty for a heap built without the environment.
    pub warnings: Vec<String>,
    /// Size of the device's memory.
    pub device_total: u64,
    /// Bytes of the device's memory in use by all processes. `None` if the driver does not report
    /// them.
    pub device_used: Option<u64>,
    /// Bytes of the device's memory that other heaps of this process took.
    pub other_heaps: u64,
    /// Free bytes of `other_heaps`, including frees in flight. A request that finds the device full
    /// makes those heaps give back these bytes.
    pub other_heaps_cached: u64,
    /// Bytes of the device's memory that the heap took, as requested from the driver. For a
    /// `driver` heap, the bytes in the driver's pool.
    pub taken: u64,
    /// Allocated bytes of `taken`, with the pool's rounding.
    pub allocated: u64,
    /// Bytes of `taken` that are not allocated, including frees in flight.
    pub cached: u64,
    /// Cached bytes with a pending free: the stream of the free may not have reached it yet.
    pub pending: u64,
    /// Largest contiguous cached block.
    pub largest_free_block: u64,
    /// Size of the largest block that the pool could make of cached memory. `stitched` maps free
    /// pieces together for such a block.
    pub largest_stitchable: u64,
    /// Soft limit of the device's memory.
    pub soft_limit: Option<u64>,
    /// Hard limit of the device's memory.
    pub hard_limit: Option<u64>,
    /// Limit of pinned memory.
    pub pinned_limit: Option<u64>,
    /// Unified memory.
    pub unified: KindStatus,
    /// Pinned memory.
    pub pinned: KindStatus,
    /// Registered memory; it belongs to the program.
    pub registered: KindStatus,
    /// Recording of the heap; `None` if it is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<RecordingStatus>,
    /// With tracking on, every outstanding allocation, oldest first. The text shows the first 50.
    pub outstanding: Vec<Outstanding>,
}

/// A heap's unified, pinned or registered memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KindStatus {
    /// Allocated and cached bytes.
    pub taken: u64,
    /// Allocated bytes, including their rounding.
    pub allocated: u64,
    /// Free bytes that the pool keeps.
    pub cached: u64,
}

impl Heap {
    /// Returns the figures of the heap and its device now, for people ([`Display`](fmt::Display))
    /// and programs ([`to_json`](MemoryStatus::to_json)). Does not wait for the device. If the
    /// driver does not report how much of the device is in use, that figure is `None`, "unknown"
    /// and `null`.
    ///
    /// # Errors
    ///
    /// The process is a forked child; the device was reset; for a `driver` heap, the driver cannot
    /// report the size of its pool.
    #[doc(alias = "memory_info")]
    pub fn memory_status(&self) -> Result<MemoryStatus, Error> {
        let inner = self.inner();
        let usage = self.usage()?;
        let others = inner.device.others();
        let (soft_limit, hard_limit, memory, ordered) = {
            let mut state = inner.device.lock();
            let Limits { soft, hard } = state.limits;
            (soft, hard, state.source.device_memory(), state.source.is_stream_ordered())
        };
        let device_used = memory.as_ref().ok().map(|(free, total)| total.saturating_sub(*free));
        let taken = if ordered { usage.reserved } else { usage.stats.taken };
        Ok(MemoryStatus {
            device: inner.context.info().name.clone(),
            pool: inner.pool,
            fallback: inner.fallback.map(|fallback| fallback.to_string()),
            warnings: inner.warnings.to_vec(),
            device_total: memory.map_or(inner.context.total_memory(), |(_, total)| total),
            device_used,
            other_heaps: others.reserved,
            other_heaps_cached: others.cached,
            taken,
            allocated: usage.live_blocks,
            cached: taken.saturating_sub(usage.live_blocks),
            pending: usage.pending,
            largest_free_block: usage.largest_cached_block,
            largest_stitchable: usage.largest_stitchable,
            soft_limit,
            hard_limit,
            pinned_limit: inner.pinned_limit,
            unified: KindStatus::from_store(inner.unified.get()),
            pinned: KindStatus::from_store(inner.pinned.get()),
            registered: KindStatus::from_stats(&inner.registered.usage().stats),
            recording: inner.tracker.recording(),
            outstanding: inner.tracker.outstanding(),
        })
    }
}

impl KindStatus {
    fn from_store(store: Option<&Store>) -> KindStatus {
        let Some(store) = store else { return KindStatus::default() };
        KindStatus::from_stats(&store.lock().stats())
    }

    fn from_stats(stats: &AllocStats) -> KindStatus {
        let (taken, allocated) = (stats.taken, stats.live_blocks);
        KindStatus { taken, allocated, cached: taken.saturating_sub(allocated) }
    }
}

impl MemoryStatus {
    /// Returns the figures as JSON, keyed by the names of the fields. The names are stable.
    pub fn to_json(&self) -> String {
        // This cannot fail, because the fields are names, numbers and texts.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Maximum number of outstanding allocations in the text. The field `outstanding` has all of them.
const SHOWN: usize = 50;

impl fmt::Display for MemoryStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = Bytes(self.device_total);
        match self.device_used {
            Some(used) => {
                let share = used as f64 / self.device_total.max(1) as f64 * 100.0;
                let used = Bytes(used);
                writeln!(f, "Effective GPU memory usage: {share:.2}% ({used}/{total})")?;
            }
            None => writeln!(f, "Effective GPU memory usage: unknown (of {total})")?,
        }
        writeln!(f, "CUDA GPU memory usage: {}", Bytes(self.taken))?;
        let device =
            KindStatus { taken: self.taken, allocated: self.allocated, cached: self.cached };
        write!(f, "{} usage: {device}", self.pool.title())?;
        if let Some(fallback) = &self.fallback {
            write!(f, "\nPool: {fallback}")?;
        }
        for warning in &self.warnings {
            write!(f, "\nWarning: {warning}")?;
        }
        if let Some(recording) = &self.recording {
            write!(f, "\nRecording: {recording}")?;
        }
        self.limits(f)?;
        if self.other_heaps > 0 {
            let (taken, cached) = (self.other_heaps, self.other_heaps_cached);
            let allocated = taken.saturating_sub(cached);
            let others = KindStatus { taken, allocated, cached };
            write!(f, "\nOther heaps of this process: {others}")?;
        }
        for (kind, status) in [
            (MemoryKind::Unified, self.unified),
            (MemoryKind::Pinned, self.pinned),
            (MemoryKind::Registered, self.registered),
        ] {
            if status.taken > 0 {
                write!(f, "\n{} usage: {status}", title(kind))?;
            }
        }
        self.outstanding.iter().take(SHOWN).try_for_each(|one| write!(f, "\n\n{one}"))?;
        match self.outstanding.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => {
                let more = Many(more as u64, "more outstanding allocation");
                write!(f, "\n\n{more}; Heap::leaks groups all of them by the line that allocated")
            }
        }
    }
}

impl MemoryStatus {
    fn limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all =
            [("soft", self.soft_limit), ("hard", self.hard_limit), ("pinned", self.pinned_limit)];
        let given = all.into_iter().filter_map(|(name, limit)| Some((name, limit?)));
        for (index, (name, limit)) in given.enumerate() {
            let before = if index == 0 { "\nMemory limit: " } else { ", " };
            write!(f, "{before}{name} = {}", Bytes(limit))?;
        }
        Ok(())
    }
}

impl fmt::Display for KindStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KindStatus { taken, allocated, cached } = *self;
        let (taken, allocated, cached) = (Bytes(taken), Bytes(allocated), Bytes(cached));
        write!(f, "{taken} ({allocated} allocated, {cached} cached)")
    }
}

fn title(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Device => "Device memory",
        MemoryKind::Unified => "Unified memory",
        MemoryKind::Pinned => "Pinned memory",
        MemoryKind::Registered => "Registered memory",
    }
}
