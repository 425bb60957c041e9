//! Makes devices to test on, and enqueues work on their streams.

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Block, Device, Heap, MemoryKind, PoolKind, Stream};
use gpuheap_driver::{
    CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CUevent, CUgraph, CUstream,
    CUstreamCaptureMode, check,
};

/// Returns the device under test: the device that `GPUHEAP_TEST_DEVICE` names, or otherwise an
/// emulated device of `memory` bytes with the checks on.
pub(crate) fn device(memory: u64, schedule: Schedule) -> Device {
    match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => emulated(memory, schedule),
    }
}

pub(crate) fn emulated(memory: u64, schedule: Schedule) -> Device {
    let profile = Profile::with_memory(memory).without_context();
    Device::emulated_with(Options { schedule, ..Options::with_device(profile) }).unwrap()
}

/// Number of live bytes above which a heap waits for another stream's work instead of taking more
/// memory.
pub(crate) const PAST_SPARE: u64 = 600 << 20;

pub(crate) fn on_real_gpu() -> bool {
    std::env::var_os("GPUHEAP_TEST_DEVICE").is_some()
}

pub(crate) fn heap(device: &Device, pool: PoolKind) -> Heap {
    Heap::builder(device).pool(pool).build().unwrap()
}

pub(crate) fn make_heap(memory: u64, schedule: Schedule, pool: PoolKind) -> (Device, Heap) {
    let device = device(memory, schedule);
    let heap = heap(&device, pool);
    (device, heap)
}

pub(crate) fn make_heap_and_stream(
    memory: u64,
    schedule: Schedule,
    pool: PoolKind,
) -> (Device, Heap, Stream) {
    let (device, heap) = make_heap(memory, schedule, pool);
    let stream = device.stream().unwrap();
    (device, heap, stream)
}

/// Allocates a block on a stream, and enqueues its fill.
pub(crate) fn allocate_filled(heap: &Heap, bytes: u64, tag: u8, stream: &Stream) -> Block {
    let block = heap.allocate(bytes, stream).unwrap();
    fill(&block, tag, stream);
    block
}

/// Enqueues a fill of a block on a stream, and frees the block.
pub(crate) fn fill_and_free(block: Block, tag: u8, stream: &Stream) {
    fill(&block, tag, stream);
}

/// Enqueues a fill of a block on a stream.
pub(crate) fn fill(block: &Block, tag: u8, stream: &Stream) {
    if block.bytes() == 0 {
        return;
    }
    let filled = stream.device().with_current(|driver| {
        // SAFETY: the borrows keep the block live and the stream alive until the work is enqueued.
        unsafe {
            driver.cuMemsetD8Async(block.address(), tag, block.bytes() as usize, stream.raw())
        }
    });
    check("cuMemsetD8Async", filled.unwrap()).unwrap();
}

/// Makes `later` wait for all work enqueued on `earlier` so far.
pub(crate) fn order(device: &Device, earlier: &Stream, later: &Stream) {
    device
        .with_current(|driver| {
            let mut event = CUevent::NULL;
            // SAFETY: `event` is a local variable, and the borrows keep both streams alive.
            unsafe {
                check("create", driver.cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING)).unwrap();
                check("record", driver.cuEventRecord(event, earlier.raw())).unwrap();
                check("wait", driver.cuStreamWaitEvent(later.raw(), event, 0)).unwrap();
                check("destroy", driver.cuEventDestroy_v2(event)).unwrap();
            }
        })
        .unwrap();
}

/// Waits for the device's work, and returns the contents of device memory.
pub(crate) fn read(device: &Device, address: u64, bytes: u64) -> Vec<u8> {
    device.synchronize().unwrap();
    let mut seen = vec![0_u8; bytes as usize];
    let read = device.with_current(|driver| {
        // SAFETY: `seen` has `bytes` bytes, and callers pass the address of a block of that size.
        unsafe { driver.cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), address, seen.len()) }
    });
    check("cuMemcpyDtoH_v2", read.unwrap()).unwrap();
    seen
}

/// Returns the free bytes of the device, as the driver reports them.
pub(crate) fn free_memory(device: &Device) -> u64 {
    let (mut free, mut total) = (0, 0);
    let queried = device.with_current(|driver| {
        // SAFETY: both pointers are to local variables.
        unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) }
    });
    check("cuMemGetInfo_v2", queried.unwrap()).unwrap();
    free as u64
}

/// Makes a stream as another library would.
pub(crate) fn make_foreign_stream(device: &Device) -> CUstream {
    let mut raw = CUstream::NULL;
    let made = device.with_current(|driver| {
        // SAFETY: `raw` is a local variable that the call writes.
        unsafe { driver.cuStreamCreate(&mut raw, CU_STREAM_NON_BLOCKING) }
    });
    check("cuStreamCreate", made.unwrap()).unwrap();
    raw
}

pub(crate) fn begin_capture(device: &Device, stream: CUstream, mode: CUstreamCaptureMode) {
    let begun = device.with_current(|driver| {
        // SAFETY: the caller's stream is alive; the driver refuses a second capture.
        unsafe { driver.cuStreamBeginCapture_v2(stream, mode) }
    });
    check("cuStreamBeginCapture_v2", begun.unwrap()).unwrap();
}

/// Ends the capture of a stream. Returns the graph, or `None` if the capture broke.
pub(crate) fn end_capture(device: &Device, stream: CUstream) -> Option<CUgraph> {
    let mut graph = CUgraph::NULL;
    let ended = device.with_current(|driver| {
        // SAFETY: `graph` is a local variable, and the caller's stream is alive.
        unsafe { driver.cuStreamEndCapture(stream, &mut graph) }
    });
    ended.unwrap().is_success().then_some(graph)
}

/// Destroys a graph that [`end_capture`] returned.
pub(crate) fn destroy_graph(device: &Device, graph: CUgraph) {
    // SAFETY: only this function destroys graphs, and each caller passes its graph once.
    let gone = device.with_current(|driver| unsafe { driver.cuGraphDestroy(graph) });
    check("cuGraphDestroy", gone.unwrap()).unwrap();
}

/// Runs `work` while the stream captures a graph, and discards the graph.
pub(crate) fn while_capturing<R>(stream: &Stream, work: impl FnOnce() -> R) -> R {
    let device = stream.device();
    begin_capture(&device, stream.raw(), CUstreamCaptureMode::RELAXED);
    let result = work();
    let graph = end_capture(&device, stream.raw()).expect("the capture is whole");
    destroy_graph(&device, graph);
    result
}

/// Device memory outside the heap. Before a block is freed, parts of the block are copied here on a
/// stream, so that a test can check its contents. The host does not wait for the copies.
pub(crate) struct Witness<'a> {
    device: &'a Device,
    address: u64,
    /// Expected contents of each slot.
    expected: Vec<u8>,
    slots: usize,
}

/// Number of bytes of each sample that a [`Witness`] takes from a block.
const PLACE: u64 = 32;
/// Maximum number of samples of a block: both ends and, if the block is larger than 1 MiB, places
/// in between.
const PLACES: u64 = 8;
const SLOT: u64 = PLACES * PLACE;

impl Witness<'_> {
    pub(crate) fn new(device: &Device, slots: usize) -> Witness<'_> {
        let mut address = 0;
        let bytes = slots * SLOT as usize;
        let taken = device.with_current(|driver| {
            // SAFETY: the pointer is valid; the memory is filled before it is read.
            unsafe {
                check("cuMemAlloc_v2", driver.cuMemAlloc_v2(&mut address, bytes)).unwrap();
                check("cuMemsetD8_v2", driver.cuMemsetD8_v2(address, 0, bytes))
            }
        });
        taken.unwrap().unwrap();
        // The fill is not ordered with the streams under test, so the host waits for it.
        device.synchronize().unwrap();
        Witness { device, address, expected: Vec::new(), slots }
    }

    /// Copies samples of a block into the next slot. All their bytes must be `tag`. Returns `false`
    /// if no slot is left.
    pub(crate) fn see(&mut self, block: &Block, tag: u8, stream: &Stream) -> bool {
        let length = PLACE.min(block.bytes());
        if length == 0 || self.expected.len() == self.slots {
            return self.expected.len() < self.slots;
        }
        let slot = self.address + self.expected.len() as u64 * SLOT;
        let last = (block.bytes() >> 20).clamp(2, PLACES) - 1;
        let copied = self.device.with_current(|driver| {
            let raw = stream.raw();
            // SAFETY: the slot is part of this witness's memory, and the stream is alive.
            check("fill", unsafe { driver.cuMemsetD8Async(slot, tag, SLOT as usize, raw) })?;
            (0..=last).try_for_each(|place| {
                let from = block.address() + (block.bytes() - length) / last * place;
                // SAFETY: block and stream are alive. `new` allocated the slot's memory.
                let copied = unsafe {
                    driver.cuMemcpyDtoDAsync_v2(slot + place * PLACE, from, length as usize, raw)
                };
                check("copy", copied)
            })
        });
        copied.unwrap().unwrap();
        self.expected.push(tag);
        true
    }

    /// Waits for the device and compares the samples in all slots with the expected contents.
    pub(crate) fn check(self) {
        let seen = read(self.device, self.address, self.expected.len() as u64 * SLOT);
        for (slot, tag) in self.expected.iter().enumerate() {
            let mut found = seen[slot * SLOT as usize..(slot + 1) * SLOT as usize].to_vec();
            found.dedup();
            assert!(found == [*tag], "slot {slot}: {found:?} one after the other, not {tag}");
        }
    }
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory. A failing test must not fail again here.
        let _ = self.device.with_current(|driver| unsafe { driver.cuMemFree_v2(self.address) });
    }
}

/// Asserts that no memory is live or taken, and that the checks found nothing.
pub(crate) fn assert_all_returned(device: &Device, heap: &Heap, what: &str) {
    assert_memory_returned(device, heap, what);
    assert_no_findings(device, what);
}

/// Asserts that no memory is live or taken, whatever the checks found.
pub(crate) fn assert_memory_returned(device: &Device, heap: &Heap, what: &str) {
    device.synchronize().unwrap();
    heap.reclaim_all().unwrap();
    assert_nothing_live(heap, what);
    let usage = heap.usage().unwrap();
    assert_eq!((usage.cached, usage.reserved, usage.stats.taken), (0, 0, 0), "{what}: {usage:?}");
    assert_other_kinds_returned(heap, what);
}

/// Asserts that no device memory is live, and that the numbers of allocations and frees are equal.
pub(crate) fn assert_nothing_live(heap: &Heap, what: &str) {
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.stats.live_allocations), (0, 0), "{what}");
    assert_eq!(usage.stats.allocations, usage.stats.frees, "{what}");
}

/// Asserts for all kinds except device memory that no block is live, and that a flush returns all
/// memory.
pub(crate) fn assert_other_kinds_returned(heap: &Heap, what: &str) {
    let kinds = [MemoryKind::Unified, MemoryKind::Pinned, MemoryKind::Registered];
    for kind in kinds {
        let usage = heap.usage_of(kind).unwrap();
        let live = (usage.live, usage.live_blocks, usage.stats.live_allocations);
        assert_eq!(live, (0, 0, 0), "{what}: {kind}: {usage:?}");
        assert_eq!(usage.stats.allocations, usage.stats.frees, "{what}: {kind}");
    }
    heap.flush().unwrap();
    for kind in kinds {
        assert_eq!(heap.usage_of(kind).unwrap().stats.taken, 0, "{what}: {kind}");
    }
}

pub(crate) fn assert_no_findings(device: &Device, what: &str) {
    if let Some(emulator) = device.emulator() {
        let findings = emulator.findings().unwrap();
        assert!(findings.is_empty(), "{what}: {findings:#?}");
    }
}
