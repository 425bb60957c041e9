//! Tests of allocations and frees while a stream captures a graph.

use std::sync::Barrier;

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Block, Cause, Device, Error, Heap, PoolKind, Stream};
use gpuheap_driver::*;
use gpuheap_pool::testing::Random;

use crate::failing::{fail_each_call, with_failing_call};
use crate::support::*;

const MIB: u64 = 1 << 20;

const POOLS: [PoolKind; 4] =
    [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched];

const MODES: [CUstreamCaptureMode; 3] =
    [CUstreamCaptureMode::GLOBAL, CUstreamCaptureMode::THREAD_LOCAL, CUstreamCaptureMode::RELAXED];

/// Captures the work that `work` enqueues on `stream`. Returns the graph; `None` if the capture
/// broke.
fn capture(
    device: &Device,
    stream: &Stream,
    mode: CUstreamCaptureMode,
    work: impl FnOnce(),
) -> Option<CUgraph> {
    begin_capture(device, stream.raw(), mode);
    assert!(stream.is_capturing().unwrap());
    work();
    let graph = end_capture(device, stream.raw());
    assert!(!stream.is_capturing().unwrap());
    graph
}

/// Runs a graph twice while its memory is still allocated.
fn run(device: &Device, graph: CUgraph, stream: &Stream) {
    let mut executable = CUgraphExec::NULL;
    let ran = device.with_current(|driver| {
        // SAFETY: the pointer is valid. The caller keeps the memory that the graph uses, and the
        // wait completes both launches before the graph is destroyed.
        unsafe {
            check("make", driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0))?;
            check("run", driver.cuGraphLaunch(executable, stream.raw()))?;
            check("run", driver.cuGraphLaunch(executable, stream.raw()))?;
            check("wait", driver.cuStreamSynchronize(stream.raw()))?;
            check("cuGraphExecDestroy", driver.cuGraphExecDestroy(executable))
        }
    });
    ran.unwrap().unwrap();
}

/// Captures the work, and asserts that the capture is valid.
fn captured(device: &Device, stream: &Stream, mode: CUstreamCaptureMode, work: impl FnOnce()) {
    let graph = capture(device, stream, mode, work).expect("a capture that nothing broke");
    destroy_graph(device, graph);
}

#[test]
fn capture_is_untouched_by_heap() {
    for pool in POOLS {
        for mode in MODES {
            let (device, heap) = make_heap(256 * MIB, Schedule::OnDemand, pool);
            let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
            drop(allocate_filled(&heap, 5 * MIB, 1, &other));
            let hit = heap.allocate(3 * MIB, &stream).unwrap().address();
            captured(&device, &stream, mode, || {
                // The capturing stream gets its own cached block and then new memory. It never gets
                // a block that another stream freed.
                let again = heap.allocate(3 * MIB, &stream).unwrap();
                assert_eq!(again.address(), hit);
                let fresh = heap.allocate(5 * MIB, &stream).unwrap();
                let zeroed = heap.on(&stream).zeroed::<u8, _>(MIB as usize).unwrap();
                fill(&again, 2, &stream);
                fill(&fresh, 3, &stream);
                drop((again, zeroed));
                // Memory freed in the capture is reused within it.
                assert_eq!(heap.allocate(3 * MIB, &stream).unwrap().address(), hit);
                fresh.free_on(&stream).unwrap();
                heap.usage().unwrap();
                heap.memory_status().unwrap();
            });
            assert_all_returned(&device, &heap, &format!("{pool} {mode:?}"));
        }
    }
}

#[test]
fn other_threads_continue_during_capture() {
    for mode in MODES {
        let (device, heap, stream) =
            make_heap_and_stream(256 * MIB, Schedule::OnDemand, PoolKind::Split);
        let (begin, end) = (Barrier::new(3), Barrier::new(3));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (device, heap, begin, end) = (&device, &heap, &begin, &end);
                scope.spawn(move || {
                    let mine = device.stream().unwrap();
                    let mut random = Random(thread);
                    begin.wait();
                    let mut work = || -> Result<(), Error> {
                        let mut kept: Vec<Block> = Vec::new();
                        for _ in 0..200 {
                            let block = heap.allocate(1 + random.below(8 * MIB), &mine)?;
                            fill(&block, thread as u8, &mine);
                            kept.push(block);
                            if kept.len() > 4 {
                                drop(kept.swap_remove(random.below(4) as usize));
                            }
                            if random.below(16) == 0 {
                                heap.reclaim(MIB)?;
                            }
                        }
                        Ok(())
                    };
                    let done = work();
                    end.wait();
                    done.unwrap();
                });
            }
            captured(&device, &stream, mode, || {
                begin.wait();
                let block = heap.allocate(6 * MIB, &stream);
                end.wait();
                fill(&block.unwrap(), 9, &stream);
            });
        });
        assert_all_returned(&device, &heap, &format!("{mode:?}"));
    }
}

#[test]
fn capture_frees_return_after_capture() {
    let device = device(64 * MIB, Schedule::OnDemand);
    let heap = Heap::builder(&device).pool(PoolKind::Split).hard_limit(48 * MIB).build().unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let block = heap.allocate(40 * MIB, &stream).unwrap();
    captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
        drop(block);
        // The free is in the capture, so no other stream can wait for the free now. The request is
        // refused, and the error's text says why.
        let error = heap.allocate(40 * MIB, &other).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().cause, Cause::Capture, "{error}");
        assert!(error.to_string().contains("captures a graph"), "{error}");
        assert_eq!(heap.usage().unwrap().pending, 40 * MIB);
        // Polling continues for the other streams.
        drop(allocate_filled(&heap, MIB, 1, &other));
        // The reclaim waits for the other stream in a way that the capture allows. A wait by the
        // program would break the capture.
        heap.reclaim(MIB).unwrap();
        assert_eq!(heap.usage().unwrap().pending, 40 * MIB);
    });
    let block = heap.allocate(40 * MIB, &other).unwrap();
    drop(block);
    assert_all_returned(&device, &heap, "after the capture");
}

#[test]
fn capturing_stream_never_waits() {
    for pool in POOLS {
        let device = device(96 * MIB, Schedule::OnDemand);
        let heap = Heap::builder(&device).pool(pool).hard_limit(64 * MIB).build().unwrap();
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let block = heap.allocate(64 * MIB, &other).unwrap();
        captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
            fill_and_free(block, 1, &other);
            // The reclaim steps wait for the other stream, because that stream is not in the
            // capture.
            let _block = allocate_filled(&heap, 64 * MIB, 2, &stream);
        });
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn event_wait_breaks_no_capture() {
    let device = device(64 * MIB, Schedule::OnDemand);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    for mode in MODES {
        captured(&device, &stream, mode, || other.record().unwrap().synchronize().unwrap());
    }
}

#[test]
fn capture_free_blocks_only_itself() {
    for pool in POOLS {
        for (mine, size) in [(MIB, 8 * MIB), (5 * MIB, 8 * MIB), (5 * MIB, MIB / 2), (5 * MIB, 100)]
        {
            let device = device(1024 * MIB, Schedule::OnDemand);
            let heap = Heap::builder(&device).pool(pool).thread_cache(0).build().unwrap();
            let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
            let block = heap.allocate(mine, &stream).unwrap();
            captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
                drop(block);
                for _ in 0..2 {
                    let _theirs = allocate_filled(&heap, size, 1, &other);
                }
            });
            assert_all_returned(&device, &heap, &format!("{pool} {mine} {size}"));
        }
    }
}

/// A gigabyte is cached and no longer in use. A capturing stream takes pieces from it.
#[test]
fn capture_takes_only_requested_memory() {
    for own in [true, false] {
        let device = device(2048 * MIB, Schedule::OnDemand);
        let heap = Heap::builder(&device)
            .pool(PoolKind::Stitched)
            .thread_cache(0)
            .hard_limit(1024 * MIB)
            .build()
            .unwrap();
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        drop(heap.allocate(1024 * MIB, if own { &stream } else { &other }).unwrap());
        device.synchronize().unwrap();
        // Polls the progress of the streams.
        drop(heap.allocate(1, &device.default_stream().unwrap()).unwrap());
        device.synchronize().unwrap();
        let block = heap.allocate(MIB, &stream).unwrap();
        captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
            drop(block);
            let pending = heap.usage().unwrap().pending;
            assert!(pending <= 4 * MIB, "{pending} bytes are pending for one freed MiB");
            assert!(heap.reclaim(64 * MIB).unwrap() >= 64 * MIB, "what nobody uses can go");
            let _theirs = allocate_filled(&heap, 900 * MIB, 1, &other);
        });
        assert_all_returned(&device, &heap, "a gigabyte");
    }
}

/// At the hard limit, a request finds its stream's one free block. In the pool's list, this block
/// comes after many blocks that a capturing stream freed.
#[test]
fn capture_free_hides_no_memory() {
    for pool in [PoolKind::Split, PoolKind::Stitched] {
        for (bytes, hiding) in [(64 << 10, 14), (100 << 10, 8)] {
            let device = device(1024 * MIB, Schedule::OnDemand);
            let heap = Heap::builder(&device)
                .pool(pool)
                .thread_cache(0)
                .hard_limit(2 * MIB)
                .build()
                .unwrap();
            let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
            let mut blocks = vec![heap.allocate(bytes, &other).unwrap()];
            while let Ok(block) = heap.allocate(bytes, &stream) {
                blocks.push(block);
            }
            captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
                // Frees every second one of the first blocks, and keeps the other blocks.
                let freed = blocks.drain(..).enumerate().filter_map(|(at, block)| {
                    let goes = at % 2 == 0 && at <= 2 * hiding;
                    if goes {
                        drop(block)
                    } else {
                        return Some(block);
                    }
                    None
                });
                let kept: Vec<_> = freed.collect();
                let theirs = allocate_filled(&heap, bytes, 1, &other);
                drop((kept, theirs));
            });
            assert_all_returned(&device, &heap, &format!("{pool} {bytes}"));
        }
    }
}

#[test]
fn failure_during_capture_takes_nothing() {
    for pool in POOLS {
        let device = device(1024 * MIB, Schedule::OnDemand);
        let heap =
            Heap::builder(&device).pool(pool).hard_limit(24 * MIB).thread_cache(0).build().unwrap();
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let block = heap.allocate(16 * MIB, &stream).unwrap();
        captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
            drop(block);
            let taken = heap.usage().unwrap().stats.taken;
            for _ in 0..3 {
                assert!(heap.allocate(12 * MIB, &other).is_err(), "{pool}: not past the limit");
                assert_eq!(heap.usage().unwrap().stats.taken, taken, "{pool}");
            }
            drop(heap.allocate(8 * MIB, &other).unwrap());
        });
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn driver_pool_stays_out_of_capture() {
    for threshold in [0, u64::MAX] {
        let pool = PoolKind::Driver;
        let device = device(96 * MIB, Schedule::OnDemand);
        let builder = Heap::builder(&device).pool(pool);
        let heap = builder.release_threshold(threshold).build().unwrap();
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let (before, theirs) =
            (heap.allocate(MIB, &stream).unwrap(), heap.allocate(MIB, &other).unwrap());
        captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
            let error = heap.allocate(MIB, &stream).unwrap_err().to_string();
            assert!(error.contains("capturing a graph") && error.contains("split pool"), "{error}");
            before.free_on(&stream).unwrap();
            drop(theirs);
            drop(heap.allocate(MIB, &other).unwrap());
            // In the capture, waits for the device fail, and so do waits and queries of the stream.
            assert!(heap.reclaim_all().is_err());
            assert!(stream.synchronize().is_err() && stream.is_done().is_err());
        });
        drop(heap.allocate(MIB, &stream).unwrap());
        assert_eq!(heap.usage().unwrap().stats.failed_frees, 0);
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// Tests the one case in which pool `none` keeps memory: no stream can wait for a captured free.
#[test]
fn unpooled_capture_free_returns_later() {
    let (device, heap) = make_heap(96 * MIB, Schedule::OnDemand, PoolKind::None);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let [before, theirs] = [&stream, &other].map(|stream| {
        let block = heap.allocate(3 * MIB, stream).unwrap();
        fill(&block, 1, stream);
        block
    });
    captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
        let inside = allocate_filled(&heap, MIB, 2, &stream);
        drop((before, inside));
        let usage = heap.usage().unwrap();
        assert_eq!((usage.live, usage.pending, usage.cached), (3 * MIB, 4 * MIB, 4 * MIB));
        theirs.free_on(&other).unwrap();
        let usage = heap.usage().unwrap();
        assert_eq!((usage.live, usage.stats.taken), (0, 4 * MIB), "what others free goes back");
    });
    drop(heap.allocate(MIB, &other).unwrap());
    let usage = heap.usage().unwrap();
    assert_eq!((usage.cached, usage.stats.taken, usage.stats.failed_frees), (0, 0, 0));
    assert_all_returned(&device, &heap, "none");
}

#[test]
fn streams_ending_in_capture_lose_nothing() {
    let (device, heap, stream) =
        make_heap_and_stream(96 * MIB, Schedule::OnDemand, PoolKind::Split);
    captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
        let other = device.stream().unwrap();
        let block = allocate_filled(&heap, MIB, 1, &other);
        drop((block, other));
        drop(heap.allocate(MIB, &stream).unwrap());
        drop(heap.allocate(2 * MIB, &device.stream().unwrap()).unwrap());
    });
    drop(stream);
    assert_all_returned(&device, &heap, "streams");
}

#[test]
fn capture_arrays_work_or_are_refused() -> Result<(), Error> {
    let (device, heap) = make_heap(96 * MIB, Schedule::OnDemand, PoolKind::Split);
    let (stream, other) = (device.stream()?, device.stream()?);
    let (mut ours, theirs) =
        (heap.on(&stream).array(&[1.0_f32; 1000])?, heap.on(&other).array(&[2.0_f32; 1000])?);
    device.synchronize()?;
    captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
        let sum = (&ours + &ours).unwrap();
        for refused in [
            ours.to_vec().map(drop),
            ours.write_from(&[3.0_f32; 1000]),
            heap.on(&stream).array(&[1.0_f32]).map(drop),
            ours.copy_from(&theirs),
        ] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("capturing a graph"), "{text}");
        }
        ours.copy_from(&sum).unwrap();
    });
    assert_eq!(ours.to_vec()?, [1.0; 1000], "captured and not run");
    drop((ours, theirs));
    assert_all_returned(&device, &heap, "arrays");
    Ok(())
}

#[test]
fn graph_runs_on_kept_memory() {
    let (device, heap, stream) =
        make_heap_and_stream(96 * MIB, Schedule::OnDemand, PoolKind::Split);
    let mut kept = None;
    let graph = capture(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
        let block = allocate_filled(&heap, MIB, 7, &stream);
        kept = Some(block);
    });
    let (graph, kept) = (graph.unwrap(), kept.unwrap());
    run(&device, graph, &stream);
    let mut witness = Witness::new(&device, 1);
    assert!(witness.see(&kept, 7, &stream));
    witness.check();
    destroy_graph(&device, graph);
    drop(kept);
    assert_all_returned(&device, &heap, "a graph");
}

/// A graph may use memory that was freed during its capture. If the heap ends, it leaves that
/// memory allocated.
#[test]
fn heap_ending_in_capture_keeps_graph() {
    for pool in POOLS {
        for mode in MODES {
            let (device, heap) = make_heap(96 * MIB, Schedule::OnDemand, pool);
            let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
            let ours = allocate_filled(&heap, 5 * MIB, 1, &stream);
            let theirs = allocate_filled(&heap, 20 * MIB, 2, &other);
            let graph = capture(&device, &stream, mode, || {
                fill(&ours, 3, &stream);
                drop((ours, theirs, heap));
            });
            let what = format!("{pool} {mode:?}");
            let graph = graph.expect(&what);
            run(&device, graph, &stream);
            device.synchronize().unwrap();
            destroy_graph(&device, graph);
            assert_no_findings(&device, &what);
            if let Some(emulator) = device.emulator() {
                let usage = emulator.usage(0);
                let left = usage.plain + usage.vmm;
                assert!(left >= 5 * MIB, "{what}: {left}");
            }
        }
    }
}

#[test]
fn refused_virtual_memory_keeps_capture() {
    let device = emulated(96 * MIB, Schedule::OnDemand);
    let stream = device.stream().unwrap();
    let emulator = device.emulator().unwrap();
    captured(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
        let refused = Fault::nth("cuMemUnmap", 1, CUresult::ERROR_NOT_SUPPORTED);
        emulator.set_faults(FaultPlan::new([refused]));
        assert_eq!(heap(&device, PoolKind::Stitched).pool(), PoolKind::Split);
        emulator.set_faults(FaultPlan::default());
    });
    assert_eq!(emulator.usage(0).vmm, 0);
    assert_no_findings(&device, "a probe");
}

#[test]
fn failing_call_in_capture_loses_nothing() {
    if on_real_gpu() {
        return;
    }
    for pool in POOLS {
        fail_each_call_in_a_capture(pool);
    }
}

fn fail_each_call_in_a_capture(pool: PoolKind) {
    let (failed, made_good) = fail_each_call(|nth| {
        let device = emulated(96 * MIB, Schedule::OnDemand);
        let emulator = device.emulator().unwrap();
        let heap = heap(&device, pool);
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let theirs = heap.allocate(4 * MIB, &other).unwrap();
        let (mut done, mut got_there) = (Ok(()), false);
        let work = || -> Result<(), Error> {
            drop(theirs);
            let block = heap.allocate(4 * MIB, &stream)?;
            drop(heap.on(&other).zeroed::<u8, _>(MIB as usize)?);
            block.free_on(&stream)?;
            heap.allocate(2 * MIB, &other)?.free()
        };
        let graph = capture(&device, &stream, CUstreamCaptureMode::GLOBAL, || {
            (done, got_there) = with_failing_call(emulator, nth, CUresult::ERROR_UNKNOWN, work);
        });
        if let Some(graph) = graph {
            destroy_graph(&device, graph);
        }
        assert_all_returned(&device, &heap, &format!("{pool} call {nth}"));
        (done.is_err(), got_there)
    });
    assert!(failed > 5, "{pool}: {failed} failed, {made_good} made good");
}
