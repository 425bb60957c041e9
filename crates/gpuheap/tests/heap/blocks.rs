//! Lifetimes of blocks and heaps.

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Block, Device, Heap, PoolKind, Stream};
use gpuheap_driver::{CUcontext, CUresult, CUstreamCaptureMode};

use crate::support::{
    allocate_filled, assert_all_returned, device, emulated, fill, fill_and_free, heap, make_heap,
    make_heap_and_stream, order,
};

#[test]
fn zero_byte_allocation_touches_nothing() {
    for pool in PoolKind::ALL {
        let (device, heap, stream) = make_heap_and_stream(64 << 20, Schedule::Immediate, pool);
        let before = heap.usage().unwrap().driver_calls;
        let blocks: Vec<_> = (0..10).map(|_| heap.allocate(0, &stream).unwrap()).collect();
        let usage = heap.usage().unwrap();
        assert_eq!((usage.live, usage.stats.taken, usage.stats.live_allocations), (0, 0, 10));
        assert!(blocks.iter().all(|block| block.address() == 0 && block.bytes() == 0));
        drop(blocks);
        let usage = heap.usage().unwrap();
        // Only the two calls of `usage` call the driver, each of them at most twice.
        assert!(usage.driver_calls - before <= 4, "{pool}: {}", usage.driver_calls - before);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn freed_block_is_reused_without_call() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split] {
        let (_device, heap, stream) = make_heap_and_stream(1 << 30, Schedule::OnDemand, pool);
        let block = heap.allocate(3 << 20, &stream).unwrap();
        let address = block.address();
        fill_and_free(block, 1, &stream);
        let before = heap.usage().unwrap().driver_calls;
        let again = heap.allocate(3 << 20, &stream).unwrap();
        assert_eq!(again.address(), address, "{pool}");
        assert_eq!(heap.usage().unwrap().driver_calls, before, "{pool}");
    }
}

/// Returns the context that is current on this thread, and the thread's capture mode.
fn state_of_thread(device: &Device) -> (CUcontext, CUstreamCaptureMode) {
    let (mut context, mut mode) = (CUcontext::NULL, CUstreamCaptureMode::GLOBAL);
    // SAFETY: the pointers are valid for the calls; the second call undoes the first.
    unsafe {
        assert!(device.driver().cuCtxGetCurrent(&mut context).is_success());
        assert!(device.driver().cuThreadExchangeStreamCaptureMode(&mut mode).is_success());
        let mut before = mode;
        assert!(device.driver().cuThreadExchangeStreamCaptureMode(&mut before).is_success());
    }
    (context, mode)
}

/// Makes seven streams and one block on each. Returns the streams and the live block of the first
/// stream; the other six blocks are freed.
fn freed_on_six(device: &Device, heap: &Heap) -> (Vec<Stream>, Block) {
    let streams: Vec<_> = (0..7).map(|_| device.stream().unwrap()).collect();
    let mut blocks = streams.iter().map(|stream| heap.allocate(3 << 20, stream).unwrap());
    let own = blocks.next().unwrap();
    drop(blocks.collect::<Vec<_>>());
    (streams, own)
}

#[test]
fn polling_groups_calls_and_restores_context() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let device = device(1 << 30, Schedule::OnDemand);
        let before = state_of_thread(&device);
        let heap = heap(&device, pool);
        let (streams, own) = freed_on_six(&device, &heap);
        let calls = |symbol| device.emulator().map_or(0, |emulator| emulator.calls_of(symbol));
        let count = || ["cuThreadExchangeStreamCaptureMode", "cuEventQuery"].map(calls);
        let [ways, asked] = count();
        let theirs = heap.allocate(3 << 20, &streams[0]).unwrap();
        let [ways, asked] = [count()[0] - ways, count()[1] - asked];
        // The heap enters the driver once for all six queries, and once or twice for the wait. Each
        // entry exchanges the capture mode twice. Separate queries would exchange it twelve times.
        assert!(!device.is_emulated() || asked >= 6 && ways <= asked, "{pool}: {ways} for {asked}");
        assert_eq!(state_of_thread(&device), before, "{pool}");
        drop((own, theirs));
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// Whichever call fails, the thread's state is unchanged afterwards.
#[test]
fn failing_call_restores_context() {
    let symbols = [
        "cuCtxGetCurrent",
        "cuCtxPushCurrent_v2",
        "cuStreamIsCapturing",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuStreamWaitEvent",
    ];
    let mut failed = 0;
    for pool in [PoolKind::None, PoolKind::Split, PoolKind::Stitched] {
        for (symbol, nth) in symbols.iter().flat_map(|symbol| (1..12).map(move |n| (symbol, n))) {
            let device = emulated(1 << 30, Schedule::OnDemand);
            let before = state_of_thread(&device);
            let heap = heap(&device, pool);
            let (streams, own) = freed_on_six(&device, &heap);
            let emulator = device.emulator().unwrap();
            let fault = Fault::nth(symbol, nth, CUresult::ERROR_UNKNOWN);
            emulator.set_faults(FaultPlan::new([fault]));
            failed += u32::from(heap.allocate(3 << 20, &streams[0]).is_err());
            drop((own, streams));
            let _ = heap.reclaim_all();
            emulator.set_faults(FaultPlan::default());
            assert_eq!(state_of_thread(&device), before, "{pool}, {symbol} {nth}");
        }
    }
    assert!(failed > 0);
}

#[test]
fn freed_block_crosses_streams_in_order() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(64 << 20, Schedule::OnDemand, pool);
        let [one, two, three] = [(); 3].map(|()| device.stream().unwrap());
        // Each request is for 40 of 64 MiB, so on the emulator the second gets the first one's
        // memory.
        let first = allocate_filled(&heap, 40 << 20, 1, &one);
        order(&device, &one, &two);
        fill(&first, 2, &two);
        first.free_on(&two).unwrap();
        drop(allocate_filled(&heap, 40 << 20, 3, &three));
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn dropped_stream_loses_nothing() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(64 << 20, Schedule::OnDemand, pool);
        let other = device.stream().unwrap();
        for round in 0..4 {
            let stream = device.stream().unwrap();
            drop(allocate_filled(&heap, 40 << 20, round, &stream));
            drop(stream);
            let _block = allocate_filled(&heap, 40 << 20, round, &other);
        }
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn blocks_outlive_stream_streams_outlive_heap() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(200 << 20, Schedule::Seeded(4), pool);
        let other = device.stream().unwrap();
        for round in 0..3 {
            let stream = device.stream().unwrap();
            let first = heap.allocate(30 << 20, &stream).unwrap();
            let second = heap.allocate(1000, &stream).unwrap();
            fill(&first, round, &stream);
            fill(&second, round, &stream);
            drop(stream.clone());
            drop(stream);
            // With this request, the heap notices that the stream ended while blocks of the stream
            // are live.
            let block = allocate_filled(&heap, 40 << 20, round, &other);
            drop((first, second, block));
            let _block = allocate_filled(&heap, 60 << 20, round, &other);
        }
        assert_all_returned(&device, &heap, pool.name());
        let last = allocate_filled(&heap, 1 << 20, 1, &other);
        drop(heap);
        drop(last);
        other.synchronize().unwrap();
        crate::support::assert_no_findings(&device, pool.name());
    }
}

#[test]
fn ended_streams_are_released() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let emulator = device.emulator().unwrap();
    for pool in PoolKind::ALL {
        let heap = heap(&device, pool);
        let before = emulator.calls_of("cuStreamDestroy_v2");
        for _ in 0..20 {
            let stream = device.stream().unwrap();
            drop(heap.allocate(1 << 20, &stream).unwrap());
        }
        let destroyed = emulator.calls_of("cuStreamDestroy_v2") - before;
        assert!(destroyed >= 19, "{pool}: {destroyed} of 20 are gone");
    }
}

#[test]
fn a_dropped_heap_gives_everything_back() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Seeded(3));
        let stream = device.stream().unwrap();
        let free = |device: &gpuheap::Device| {
            let (mut free, mut total) = (0, 0);
            device.synchronize().unwrap();
            let asked = device.with_current(|driver| {
                // SAFETY: both pointers are valid.
                unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) }
            });
            assert!(asked.unwrap().is_success());
            free
        };
        let before = free(&device);
        let heap: Heap = heap(&device, pool);
        let kept = heap.allocate(100 << 20, &stream).unwrap();
        for bytes in [10 << 20, 1000, 300 << 20] {
            let _block = allocate_filled(&heap, bytes, 9, &stream);
        }
        drop(heap);
        fill(&kept, 9, &stream);
        assert!(free(&device) < before, "{pool}: a block keeps its heap");
        drop(kept);
        assert_eq!(free(&device), before, "{pool}");
        crate::support::assert_no_findings(&device, pool.name());
    }
}

#[test]
fn heap_holds_address_of_taken_memory() {
    for (pool, held) in
        [(PoolKind::Split, true), (PoolKind::None, true), (PoolKind::Stitched, false)]
    {
        let device = emulated(256 << 20, Schedule::Immediate);
        let heap = heap(&device, pool);
        let block = heap.allocate(40 << 20, &device.stream().unwrap()).unwrap();
        let address = block.address();
        assert_eq!(heap.holds(address), held, "{pool}");
        assert!(!heap.holds(address + 512) && !heap.holds(0), "{pool}");
        drop(block);
        heap.reclaim_all().unwrap();
        assert!(!heap.holds(address), "{pool}");
    }
}

#[test]
fn blocks_have_driver_alignment() {
    for pool in PoolKind::ALL {
        let (_device, heap, stream) = make_heap_and_stream(256 << 20, Schedule::Immediate, pool);
        let sizes = [1, 100, 513, 4097, 70_001, (1 << 20) + 1, (20 << 20) + 3];
        let mut blocks: Vec<_> =
            sizes.iter().map(|bytes| heap.allocate(*bytes, &stream).unwrap()).collect();
        // More blocks are taken from the memory that two freed blocks leave.
        blocks.drain(4..6);
        blocks.extend(sizes[..5].iter().map(|bytes| heap.allocate(*bytes, &stream).unwrap()));
        for block in &blocks {
            assert_eq!(block.address() % 512, 0, "{pool}: {block:?}");
        }
    }
}

#[test]
fn default_stream_is_never_released() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(100 << 20, Schedule::OnDemand, pool);
        let [one, two] = [(); 2].map(|()| device.default_stream().unwrap());
        drop(heap.allocate(1 << 20, &one).unwrap());
        let kept = heap.allocate(40 << 20, &two).unwrap();
        drop(one);
        let other = device.stream().unwrap();
        drop(heap.allocate(1 << 20, &other).unwrap());
        // `two` is a second handle of the dropped stream `one`, and can still free its block.
        fill_and_free(kept, 1, &two);
        drop(allocate_filled(&heap, 40 << 20, 2, &other));
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn blocks_beyond_two_tebibytes_work() {
    let device = emulated(16 << 40, Schedule::Immediate);
    let stream = device.stream().unwrap();
    for pool in PoolKind::ALL {
        let heap = heap(&device, pool);
        drop(heap.allocate(5 << 39, &stream).unwrap());
        let block = heap.allocate(3 << 40, &stream).unwrap();
        assert!(heap.usage().unwrap().reserved >= 3 << 40, "{pool}: {:?}", heap.usage());
        drop(block);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn ending_heap_returns_held_up_memory() {
    use gpuheap::emu::{Fault, FaultPlan};
    use gpuheap_driver::CUresult;
    for pool in PoolKind::ALL {
        for symbol in ["cuMemFree_v2", "cuEventSynchronize", "cuEventQuery", "cuEventRecord"] {
            let device = emulated(1 << 30, Schedule::Seeded(2));
            let emulator = device.emulator().unwrap();
            let heap = heap(&device, pool);
            let streams = [(); 2].map(|()| device.stream().unwrap());
            for stream in &streams {
                drop(heap.allocate(64 << 20, stream).unwrap());
            }
            let fault = Fault::nth(symbol, 1, CUresult::ERROR_UNKNOWN);
            // Event calls fail for good. Memory calls fail once, because the memory must be
            // returned.
            let lasts = symbol.starts_with("cuEvent");
            emulator.set_faults(FaultPlan::new([if lasts { fault.onwards() } else { fault }]));
            drop(heap);
            emulator.set_faults(FaultPlan::default());
            device.synchronize().unwrap();
            let usage = emulator.usage(0);
            assert_eq!((usage.plain, usage.pools), (0, 0), "{pool}, {symbol}");
        }
    }
}
