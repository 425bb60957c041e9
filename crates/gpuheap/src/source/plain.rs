//! Takes plain allocations of one kind of memory, and manages the heap's virtual memory.

use std::ffi::c_void;
use std::fs;
use std::ptr;
use std::sync::Arc;

use gpuheap_driver::{
    CU_MEM_ATTACH_GLOBAL, CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CUdevice,
    CUdeviceptr,
};
use gpuheap_pool::{
    Fence, GRANULE, MemorySource, Pages, Segment, SourceError, SourceResult, StreamRef, Waiter,
    round_up,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::events::{Events, order_by_events};
use super::vmm::Vmm;
use super::{name_pool, unname_pool};
use crate::device::Context;
use crate::kind::MemoryKind;
use crate::total_limit::{Share, TotalLimit};

/// Source that takes one kind of memory by the driver's plain calls: `cuMemAlloc`,
/// `cuMemAllocManaged`, `cuMemHostAlloc`. Giving memory back waits for the device.
pub(crate) struct PlainSource {
    events: Events,
    kind: MemoryKind,
    /// Number of segments in each granule of 2 MiB, keyed by the granule's index. The driver puts
    /// several segments of device memory into a granule if none is larger than 2 MiB.
    shared_granules: FxHashMap<u64, u32>,
    /// Bytes of the segments that cannot share a granule with others, rounded as the driver does.
    large: u64,
    /// Addresses of all segments.
    segments: FxHashSet<u64>,
    reserved_peak: u64,
    /// Virtual memory that [`pages`](MemorySource::pages) returns; `None` before its first use.
    vmm: Option<Vmm>,
    /// Bytes of the plain allocations that count against a total limit.
    share: Share,
}

impl MemorySource for PlainSource {
    fn take(&mut self, bytes: u64, _stream: StreamRef) -> SourceResult<Segment> {
        let size = usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory)?;
        let growth = self.growth(bytes);
        self.share.claim(growth)?;
        let allocated = self.allocate(size);
        if allocated.is_err() {
            self.settle();
        }
        let segment = Segment { address: allocated?, bytes };
        self.segments.insert(segment.address);
        name_pool(&self.events.context, self.kind, segment.address, bytes);
        if !self.shares_granules(segment) {
            self.large += growth;
        } else {
            for granule in PlainSource::granule_range(segment) {
                let count = self.shared_granules.entry(granule).or_insert(0);
                *count += 1;
                if *count == 1 {
                    self.events.context.granules.enter(granule);
                }
            }
        }
        self.settle();
        self.reserved_peak = self.reserved_peak.max(self.granules_now() + self.created());
        Ok(segment)
    }

    fn give_back(&mut self, segment: Segment) -> SourceResult {
        let is_host = matches!(self.kind, MemoryKind::Pinned | MemoryKind::Registered);
        let function = if is_host { "cuMemFreeHost" } else { "cuMemFree_v2" };
        // Removes the segment's name for profilers. After the free, another heap may name the
        // address.
        unname_pool(&self.events.context, segment.address);
        let freed = self.events.call(function, |context| {
            let driver = context.driver();
            // SAFETY: `take` allocated the segment, and the policy returns it only after its last
            // use completed.
            unsafe {
                if is_host {
                    driver.cuMemFreeHost(ptr::with_exposed_provenance_mut(segment.address as usize))
                } else {
                    driver.cuMemFree_v2(segment.address)
                }
            }
        });
        freed.inspect_err(|_| {
            name_pool(&self.events.context, self.kind, segment.address, segment.bytes);
        })?;
        self.segments.remove(&segment.address);
        if !self.shares_granules(segment) {
            self.large -= self.growth(segment.bytes);
            self.settle();
            return Ok(());
        }
        for granule in PlainSource::granule_range(segment) {
            if let Some(count) = self.shared_granules.get_mut(&granule) {
                *count -= 1;
                if *count == 0 {
                    self.shared_granules.remove(&granule);
                    self.events.context.granules.leave(granule);
                }
            }
        }
        self.settle();
        Ok(())
    }

    fn reserved(&mut self) -> SourceResult<u64> {
        Ok(self.granules_now() + self.created())
    }

    fn reserved_peak(&mut self) -> SourceResult<u64> {
        let beside = self.vmm.as_ref().map_or(0, |vmm| vmm.reserved_peak);
        Ok(self.reserved_peak.max(beside))
    }

    fn growth(&self, bytes: u64) -> u64 {
        if self.kind == MemoryKind::Device { round_up(bytes, GRANULE) } else { bytes }
    }

    fn regained(&mut self, segments: &[Segment]) -> SourceResult<u64> {
        let in_pages = |segment: &&Segment| self.holds_pages(segment.address);
        let pages: u64 = segments.iter().filter(in_pages).map(|segment| segment.bytes).sum();
        let is_large = |segment: &&Segment| !in_pages(segment) && !self.shares_granules(**segment);
        let large = segments.iter().filter(is_large).map(|segment| self.growth(segment.bytes));
        let large: u64 = large.sum();
        Ok(pages + large + self.emptied(segments).count() as u64 * GRANULE)
    }

    /// Counts the granules that this heap would empty, but in which other heaps have allocations.
    fn may_stay(&mut self, segments: &[Segment]) -> SourceResult<u64> {
        let granules = &self.events.context.granules;
        let shared = self.emptied(segments).filter(|granule| granules.is_shared(*granule));
        Ok(shared.count() as u64 * GRANULE)
    }

    fn capacity(&self) -> u64 {
        match self.kind {
            MemoryKind::Device => self.events.context.total_memory(),
            // With concurrent access, unified memory may exceed the device, because its pages
            // migrate.
            MemoryKind::Unified => match self.events.context.info().concurrent_managed_access {
                true => u64::MAX,
                false => self.events.context.total_memory(),
            },
            MemoryKind::Pinned | MemoryKind::Registered => host_memory().1,
        }
    }

    fn device_memory(&mut self) -> SourceResult<(u64, u64)> {
        match self.kind {
            MemoryKind::Device | MemoryKind::Unified => self.events.device_memory(),
            MemoryKind::Pinned | MemoryKind::Registered => Ok(host_memory()),
        }
    }

    fn leave(&mut self) {
        if let Some(vmm) = &mut self.vmm {
            vmm.leave();
        }
    }

    fn after_reset(&mut self) {
        self.share = Share::default();
        if let Some(vmm) = &mut self.vmm {
            vmm.give_all_back();
            vmm.share = Share::default();
        }
    }

    fn pages(&mut self) -> Option<&mut dyn Pages> {
        if self.vmm.is_none() && self.kind == MemoryKind::Device {
            let context = &self.events.context;
            let mut vmm = Vmm::new(context.clone(), context.virtual_memory().ok()?);
            vmm.share = self.share.sibling();
            self.vmm = Some(vmm);
        }
        let beside = self.granules_now();
        let vmm = self.vmm.as_mut()?;
        vmm.beside = beside;
        Some(vmm)
    }

    fn open_to(&mut self, reader: CUdevice) -> SourceResult {
        self.vmm.as_mut().map_or(Ok(()), |vmm| vmm.open_to(reader))
    }

    fn holds(&self, address: u64) -> bool {
        self.segments.contains(&address)
    }

    fn calls(&self) -> u64 {
        self.events.calls + self.vmm.as_ref().map_or(0, |vmm| vmm.calls)
    }

    order_by_events!();
}

impl Drop for PlainSource {
    fn drop(&mut self) {
        let context = &self.events.context;
        self.segments.iter().for_each(|address| unname_pool(context, *address));
        for granule in self.shared_granules.keys() {
            self.events.context.granules.leave(*granule);
        }
    }
}

impl PlainSource {
    pub(crate) fn new(context: Arc<Context>, kind: MemoryKind) -> PlainSource {
        PlainSource {
            events: Events::new(context),
            kind,
            shared_granules: FxHashMap::default(),
            large: 0,
            segments: FxHashSet::default(),
            reserved_peak: 0,
            vmm: None,
            share: Share::default(),
        }
    }

    /// Counts the source's memory against a total limit.
    pub(crate) fn under(mut self, total: Option<&TotalLimit>) -> PlainSource {
        let share = total.map(|total| total.share(&self.events.context));
        self.share = share.unwrap_or_default();
        self
    }

    fn settle(&mut self) {
        self.share.settle(self.granules_now());
    }

    fn granules_now(&self) -> u64 {
        self.large + self.shared_granules.len() as u64 * GRANULE
    }

    /// Returns the granules in which this heap would have no small segment left if `segments` were
    /// freed.
    fn emptied(&self, segments: &[Segment]) -> impl Iterator<Item = u64> {
        let mut left: FxHashMap<u64, u32> = FxHashMap::default();
        for &segment in segments {
            if self.holds_pages(segment.address) || !self.shares_granules(segment) {
                continue;
            }
            for granule in PlainSource::granule_range(segment) {
                let held = self.shared_granules.get(&granule).copied().unwrap_or(0);
                let left = left.entry(granule).or_insert(held);
                *left = left.saturating_sub(1);
            }
        }
        left.into_iter().filter(|(_, left)| *left == 0).map(|(granule, _)| granule)
    }

    /// Returns `true` if an address is in the virtual memory of this source.
    fn holds_pages(&self, address: u64) -> bool {
        self.vmm.as_ref().is_some_and(|vmm| vmm.holds(address))
    }

    fn created(&self) -> u64 {
        self.vmm.as_ref().map_or(0, Vmm::created)
    }

    /// Returns `true` if other segments may share the granules of a segment.
    fn shares_granules(&self, segment: Segment) -> bool {
        self.kind == MemoryKind::Device && segment.bytes <= GRANULE
    }

    fn allocate(&mut self, bytes: usize) -> SourceResult<CUdeviceptr> {
        let mut address: CUdeviceptr = 0;
        match self.kind {
            MemoryKind::Device => self.events.call("cuMemAlloc_v2", |context| {
                // SAFETY: the driver writes a device address to `address`, which outlives the
                // closure.
                unsafe { context.driver().cuMemAlloc_v2(&mut address, bytes) }
            })?,
            MemoryKind::Unified => self.events.call("cuMemAllocManaged", |context| {
                // SAFETY: the driver writes a managed address to `address`, which outlives the
                // closure.
                unsafe {
                    context.driver().cuMemAllocManaged(&mut address, bytes, CU_MEM_ATTACH_GLOBAL)
                }
            })?,
            MemoryKind::Pinned | MemoryKind::Registered => {
                let mut pointer: *mut c_void = ptr::null_mut();
                let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
                self.events.call("cuMemHostAlloc", |context| {
                    // SAFETY: the driver writes a host pointer to `pointer`, which outlives the
                    // closure.
                    unsafe { context.driver().cuMemHostAlloc(&mut pointer, bytes, flags) }
                })?;
                // Every 64-bit driver has unified addressing: pinned memory has equal addresses on
                // the device and on the host.
                address = pointer.expose_provenance() as CUdeviceptr;
            }
        }
        Ok(address)
    }

    /// Returns the granules of a small segment: two if the segment crosses a border, else one.
    fn granule_range(segment: Segment) -> std::ops::RangeInclusive<u64> {
        segment.address / GRANULE..=(segment.address + segment.bytes - 1) / GRANULE
    }
}

/// Returns the available and the total bytes of the host's memory, from Linux's `/proc/meminfo`. If
/// the file cannot be read, returns `u64::MAX` for both.
fn host_memory() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = field(&text, "MemAvailable:").unwrap_or(u64::MAX);
    (available, field(&text, "MemTotal:").unwrap_or(u64::MAX))
}

/// Parses a line such as `MemTotal:       24576 kB` as bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_meminfo_is_parsed() {
        let text = "MemTotal:       24576 kB\nMemAvailable:    1024 kB\nHugePages_Total:  3\n";
        assert_eq!(field(text, "MemTotal:"), Some(24 << 20));
        assert_eq!(field(text, "MemAvailable:"), Some(1 << 20));
        assert_eq!(field(text, "HugePages_Total:"), None);
        assert_eq!(field(text, "SwapTotal:"), None);
    }
}
