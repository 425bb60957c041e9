//! Tests of streams that the heap first sees while they capture a graph.

use std::sync::Barrier;

use gpuheap::emu::Schedule;
use gpuheap::{Block, Cause, Device, Error, ErrorKind, Heap, PoolKind, Stream};
use gpuheap_driver::*;
use gpuheap_pool::testing::Random;

use crate::support::*;

const MIB: u64 = 1 << 20;

const POOLS: [PoolKind; 5] =
    [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched, PoolKind::None];

const SCHEDULES: [Schedule; 3] = [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(7)];

const MODES: [CUstreamCaptureMode; 3] =
    [CUstreamCaptureMode::GLOBAL, CUstreamCaptureMode::THREAD_LOCAL, CUstreamCaptureMode::RELAXED];

/// A stream that another library made. That library also captures graphs on the stream.
struct Theirs<'a> {
    device: &'a Device,
    raw: CUstream,
    unannounced: bool,
}

impl<'a> Theirs<'a> {
    fn new(device: &'a Device, unannounced: bool) -> Theirs<'a> {
        let raw = make_foreign_stream(device);
        Theirs { device, raw, unannounced }
    }

    fn begin(&self, mode: CUstreamCaptureMode) {
        begin_capture(self.device, self.raw, mode);
    }

    /// Begins a capture, and wraps the stream that the heap does not know yet.
    fn begin_wrapped(&self, mode: CUstreamCaptureMode) -> Stream {
        self.begin(mode);
        self.wrap().unwrap()
    }

    fn wrap(&self) -> Result<Stream, Error> {
        // SAFETY: each test announces the stream's end, or first frees all blocks of the stream.
        unsafe {
            match self.unannounced {
                true => self.device.unannounced_stream(self.raw),
                false => self.device.foreign_stream(self.raw),
            }
        }
    }

    /// Ends the capture. Returns `None` if the capture broke.
    fn end(&self) -> Option<Graph<'a>> {
        let device = self.device;
        end_capture(device, self.raw).map(|graph| Graph { device, graph })
    }

    /// Makes the stream wait for all work enqueued on `other`. The wait joins the captures of both
    /// streams.
    fn follow(&self, other: &Theirs<'_>) {
        let mut event = CUevent::NULL;
        self.call("event", |driver| {
            // SAFETY: the pointer is valid, and the streams are alive.
            unsafe {
                let made = driver.cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING);
                check("cuEventCreate", made).unwrap();
                check("cuEventRecord", driver.cuEventRecord(event, other.raw)).unwrap();
                check("wait", driver.cuStreamWaitEvent(self.raw, event, 0)).unwrap();
                driver.cuEventDestroy_v2(event)
            }
        });
    }

    /// Announces the stream's end through a new handle, and destroys the stream.
    fn retire_and_destroy(&self, heap: &Heap) {
        heap.retire(&self.wrap().unwrap()).unwrap();
        self.destroy();
    }

    /// Ends the stream after the heap's memory was returned.
    fn end_after(&self, device: &Device, heap: &Heap, case: &str) {
        await_returned(device, heap, case);
        self.retire_and_destroy(heap);
    }

    fn destroy(&self) {
        self.call("cuStreamDestroy_v2", |driver| {
            // SAFETY: the stream belongs to the test.
            unsafe { driver.cuStreamDestroy_v2(self.raw) }
        });
    }

    fn call(&self, name: &'static str, call: impl FnOnce(&dyn Driver) -> CUresult) {
        check(name, self.device.with_current(call).unwrap()).unwrap();
    }
}

struct Graph<'a> {
    device: &'a Device,
    graph: CUgraph,
}

impl Graph<'_> {
    /// Enqueues two runs of the graph on a stream, and destroys the graph.
    fn run_and_end(self, stream: &Stream) {
        let mut executable = CUgraphExec::NULL;
        let ran = self.device.with_current(|driver| {
            // SAFETY: the pointer is valid, and the graph's memory is kept while it runs.
            unsafe {
                let made = driver.cuGraphInstantiateWithFlags(&mut executable, self.graph, 0);
                check("cuGraphInstantiateWithFlags", made)?;
                check("cuGraphLaunch", driver.cuGraphLaunch(executable, stream.raw()))?;
                check("cuGraphLaunch", driver.cuGraphLaunch(executable, stream.raw()))?;
                check("cuGraphExecDestroy", driver.cuGraphExecDestroy(executable))
            }
        });
        ran.unwrap().unwrap();
        self.end();
    }

    fn end(self) {
        // SAFETY: the graph belongs to the test.
        let ended = self.device.with_current(|driver| unsafe { driver.cuGraphDestroy(self.graph) });
        check("cuGraphDestroy", ended.unwrap()).unwrap();
    }
}

/// Waits until memory of a graph is given back: a real driver reports the graph's end late.
fn await_returned(device: &Device, heap: &Heap, what: &str) {
    device.synchronize().unwrap();
    for _ in 0..1000 {
        heap.reclaim_all().unwrap();
        if heap.usage().unwrap().stats.taken == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_all_returned(device, heap, what);
}

fn for_each_case(mut run: impl FnMut(&Device, PoolKind, bool, &str)) {
    for pool in POOLS {
        for schedule in SCHEDULES {
            for unannounced in [false, true] {
                let device = device(256 * MIB, schedule);
                let case = format!("{pool} {schedule:?} unannounced {unannounced}");
                run(&device, pool, unannounced, &case);
            }
        }
    }
}

#[test]
fn unknown_stream_allocates_in_capture() {
    for_each_case(|device, pool, unannounced, case| {
        for mode in MODES {
            let heap = heap(device, pool);
            let other = device.stream().unwrap();
            let theirs = Theirs::new(device, unannounced);
            let stream = theirs.begin_wrapped(mode);
            assert!(stream.is_of_capture() && stream.is_capturing().unwrap());
            assert_eq!(theirs.wrap().unwrap().id(), stream.id(), "one name in a capture");
            let kept = allocate_filled(&heap, 3 * MIB, 1, &stream);
            let between = allocate_filled(&heap, 5 * MIB, 2, &stream);
            let address = between.address();
            drop(between);
            if pool != PoolKind::None {
                let again = heap.allocate(5 * MIB, &theirs.wrap().unwrap()).unwrap();
                assert_eq!(again.address(), address, "{case}: goes round in the capture");
                fill(&again, 3, &stream);
            }
            let beside = heap.allocate(5 * MIB, &other).unwrap();
            assert_ne!(beside.address(), address, "{case}");
            fill(&beside, 9, &other);
            heap.usage().unwrap();
            heap.memory_status().unwrap();
            let graph = theirs.end().expect(case);
            assert!(!stream.is_capturing().unwrap());
            let known = theirs.wrap().unwrap();
            assert!(!known.is_of_capture() && known.id() != stream.id());
            graph.run_and_end(&other);
            known.wait(&other.record().unwrap()).unwrap();
            let mut witness = Witness::new(device, 2);
            assert!(witness.see(&kept, 1, &known) && witness.see(&beside, 9, &other));
            witness.check();
            drop((kept, beside));
            drop((stream, known));
            theirs.end_after(device, &heap, case);
        }
    });
}

#[test]
fn memory_freed_in_capture_awaits_graph() {
    for_each_case(|device, pool, unannounced, case| {
        let heap = Heap::builder(device).pool(pool).hard_limit(24 * MIB).build().unwrap();
        let other = device.stream().unwrap();
        let theirs = Theirs::new(device, unannounced);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::GLOBAL);
        drop(allocate_filled(&heap, 16 * MIB, 1, &stream));
        let refused = |when: &str| {
            let error = heap.allocate(16 * MIB, &other).unwrap_err();
            let cause = error.out_of_memory().map(|figures| figures.cause);
            assert_eq!(cause, Some(Cause::Capture), "{case} {when}: {error}");
        };
        refused("in the capture");
        let graph = theirs.end().expect(case);
        refused("before the first launch");
        device.synchronize().unwrap();
        refused("after a wait for the device");
        graph.run_and_end(&other);
        other.synchronize().unwrap();
        await_returned(device, &heap, case);
        let block = heap.allocate(16 * MIB, &device.stream().unwrap()).unwrap();
        drop(block);
        drop(stream);
        theirs.retire_and_destroy(&heap);
        assert_all_returned(device, &heap, case);
    });
}

/// The graph still runs when its last handle is destroyed.
#[test]
fn running_graph_memory_is_not_reused() {
    for pool in POOLS {
        let device = device(64 * MIB, Schedule::OnDemand);
        let heap = Heap::builder(&device).pool(pool).hard_limit(24 * MIB).build().unwrap();
        let (other, runner) = (device.stream().unwrap(), device.stream().unwrap());
        let theirs = Theirs::new(&device, true);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::GLOBAL);
        drop(allocate_filled(&heap, 16 * MIB, 1, &stream));
        theirs.end().unwrap().run_and_end(&runner);
        // The request may succeed only after the heap has waited for the launched graph. Without
        // the wait, the emulator's checks find a conflict between the graph and this fill.
        match heap.allocate(16 * MIB, &other) {
            Ok(block) => fill(&block, 2, &other),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory),
        }
        runner.synchronize().unwrap();
        drop(stream);
        await_returned(&device, &heap, pool.name());
        theirs.destroy();
    }
}

#[test]
fn forked_streams_of_capture_share_nothing() {
    for_each_case(|device, pool, unannounced, case| {
        let heap = heap(device, pool);
        let (theirs, fork) = (Theirs::new(device, unannounced), Theirs::new(device, unannounced));
        theirs.begin(CUstreamCaptureMode::GLOBAL);
        fork.follow(&theirs);
        let (stream, forked) = (theirs.wrap().unwrap(), fork.wrap().unwrap());
        assert_ne!(stream.id(), forked.id());
        let block = allocate_filled(&heap, 5 * MIB, 1, &stream);
        let address = block.address();
        drop(block);
        let beside = heap.allocate(5 * MIB, &forked).unwrap();
        assert_ne!(beside.address(), address, "{case}: nothing orders the two");
        fill(&beside, 2, &forked);
        theirs.follow(&fork);
        let graph = theirs.end().expect(case);
        drop(beside);
        graph.end();
        drop((stream, forked));
        await_returned(device, &heap, case);
        for theirs in [theirs, fork] {
            theirs.retire_and_destroy(&heap);
        }
    });
}

#[test]
fn two_threads_capture_at_once() {
    for mode in MODES {
        let (device, heap) = make_heap(512 * MIB, Schedule::OnDemand, PoolKind::Stitched);
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for tag in 1..=2 {
                let (device, heap, both) = (&device, &heap, &both);
                scope.spawn(move || {
                    let theirs = Theirs::new(device, true);
                    theirs.begin(mode);
                    both.wait();
                    let stream = theirs.wrap().unwrap();
                    let mut kept = Vec::new();
                    for round in 0..40 {
                        let block = allocate_filled(heap, (1 + round % 5) * MIB, tag, &stream);
                        if round % 8 == 0 {
                            kept.push(block);
                        }
                    }
                    both.wait();
                    let graph = theirs.end().expect("a capture that the other left alone");
                    both.wait();
                    let known = theirs.wrap().unwrap();
                    graph.run_and_end(&known);
                    let mut witness = Witness::new(device, kept.len());
                    for block in &kept {
                        assert!(witness.see(block, tag, &known));
                    }
                    both.wait();
                    witness.check();
                    drop(kept);
                    theirs.destroy();
                });
            }
        });
        await_returned(&device, &heap, &format!("{mode:?}"));
    }
}

#[test]
fn broken_capture_returns_its_memory() {
    for_each_case(|device, pool, unannounced, case| {
        let heap = heap(device, pool);
        let theirs = Theirs::new(device, unannounced);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::GLOBAL);
        let (freed, kept) =
            (heap.allocate(5 * MIB, &stream).unwrap(), heap.allocate(MIB, &stream).unwrap());
        break_capture(&theirs);
        drop(freed);
        let error = theirs.wrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capturing, "{case}: {error}");
        assert!(error.to_string().contains("end the capture first"), "{error}");
        assert!(theirs.end().is_none());
        let known = theirs.wrap().unwrap();
        fill(&kept, 1, &known);
        drop((kept, stream));
        let block = allocate_filled(&heap, MIB, 2, &known);
        drop((block, known));
        theirs.end_after(device, &heap, case);
    });
}

#[test]
fn block_outlives_captured_stream() {
    for pool in POOLS {
        for by_all in [false, true] {
            let (device, heap) = make_heap(64 * MIB, Schedule::OnDemand, pool);
            let theirs = Theirs::new(&device, false);
            let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
            let [block, another] = [(); 2].map(|()| heap.allocate(5 * MIB, &stream).unwrap());
            assert_eq!(heap.retire(&stream).unwrap_err().kind(), ErrorKind::Capturing);
            let graph = theirs.end().unwrap();
            fill(&block, 1, &stream);
            match by_all {
                true => heap.retire_all().unwrap(),
                false => heap.retire(&stream).unwrap(),
            }
            assert!(by_all || stream.is_retired());
            heap.retire(&stream).unwrap();
            theirs.destroy();
            drop(block);
            graph.end();
            drop((another, stream));
            await_returned(&device, &heap, pool.name());
        }
    }
}

#[test]
fn stream_object_serves_after_its_capture() {
    for_each_case(|device, pool, unannounced, case| {
        let heap = heap(device, pool);
        let theirs = Theirs::new(device, unannounced);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::GLOBAL);
        let array = heap.on(&stream).zeroed::<u8, _>(MIB as usize).unwrap();
        let released = heap.on(&stream).zeroed::<u8, _>(MIB as usize).unwrap();
        theirs.end().expect(case).end();
        let block = allocate_filled(&heap, MIB, 1, &stream);
        let free = |block: Block| block.free_on(&stream).unwrap();
        free(block);
        let other = device.stream().unwrap();
        free(heap.allocate(MIB, &other).unwrap());
        stream.synchronize().unwrap();
        assert!(stream.is_done().unwrap());
        released.release().unwrap();
        drop((array, stream));
        theirs.end_after(device, &heap, case);
    });
}

#[test]
fn known_block_is_freed_in_capture() {
    for_each_case(|device, pool, unannounced, case| {
        let heap = heap(device, pool);
        let other = device.stream().unwrap();
        let block = allocate_filled(&heap, 5 * MIB, 1, &other);
        let theirs = Theirs::new(device, unannounced);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::GLOBAL);
        block.free_on(&stream).unwrap();
        let inside = allocate_filled(&heap, 5 * MIB, 2, &stream);
        // Frees a block of the capture on a stream outside of it. The host waits for that stream.
        let outside = device.stream().unwrap();
        inside.free_on(&outside).unwrap();
        theirs.end().expect(case).end();
        drop(stream);
        theirs.end_after(device, &heap, case);
    });
}

#[test]
fn limit_in_capture_breaks_nothing() {
    for_each_case(|device, pool, unannounced, case| {
        let heap = Heap::builder(device).pool(pool).hard_limit(24 * MIB).build().unwrap();
        let other = device.stream().unwrap();
        drop(allocate_filled(&heap, 8 * MIB, 1, &other));
        let theirs = Theirs::new(device, unannounced);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::GLOBAL);
        let first = heap.allocate(8 * MIB, &stream).unwrap();
        let second = allocate_filled(&heap, 8 * MIB, 2, &stream);
        let error = heap.allocate(16 * MIB, &stream).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{case}");
        heap.reclaim(MIB).unwrap();
        heap.flush().unwrap();
        drop(first);
        theirs.end().expect(case).end();
        drop((second, stream));
        theirs.end_after(device, &heap, case);
    });
}

/// While the stream may be capturing, the heap does not wait for the device, even if it lacks
/// memory.
#[test]
fn device_wait_spares_unknown_capture() {
    for unannounced in [false, true] {
        for pool in POOLS {
            let device = emulated(64 * MIB, Schedule::OnDemand);
            let heap = heap(&device, pool);
            let own = device.stream().unwrap();
            // Frees 32 MiB in such a way that they are reused only after a wait for the device.
            let ended = Theirs::new(&device, true);
            let stream = ended.wrap().unwrap();
            let detached = allocate_filled(&heap, 32 * MIB, 1, &stream);
            stream.synchronize().unwrap();
            heap.retire(&stream).unwrap();
            drop((detached, stream));
            ended.destroy();
            let theirs = Theirs::new(&device, unannounced);
            let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
            drop(heap.allocate(1000, &stream).unwrap());
            let refused = heap.allocate(32 * MIB, &own).map(drop).map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::OutOfMemory), "{pool}");
            let graph = theirs.end().expect("a whole capture");
            drop(heap.allocate(1000, &theirs.wrap().unwrap()).unwrap());
            if unannounced {
                // The heap notices the end of the capture at the next use of the captured `Stream`.
                drop(heap.allocate(1000, &stream).unwrap());
            }
            assert!(heap.allocate(32 * MIB, &own).is_ok(), "{pool} {unannounced}");
            graph.end();
            drop(stream);
            theirs.retire_and_destroy(&heap);
            await_returned(&device, &heap, pool.name());
        }
    }
}

#[test]
fn own_default_stream_is_captured_first() {
    let (device, heap) = make_heap(256 * MIB, Schedule::OnDemand, PoolKind::Stitched);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let theirs = Theirs { device: &device, raw: CUstream::PER_THREAD, unannounced: false };
            let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
            assert!(stream.is_of_capture());
            let (block, kept) =
                (heap.allocate(MIB, &stream).unwrap(), heap.allocate(MIB, &stream).unwrap());
            fill_and_free(block, 1, &stream);
            let graph = theirs.end().unwrap();
            fill(&kept, 1, &stream);
            assert!(!theirs.wrap().unwrap().is_of_capture());
            drop((kept, stream));
            graph.end();
            await_returned(&device, &heap, "a thread's own default stream");
        });
    });
}

/// A program captures repeatedly. Once a graph is destroyed, later captures reuse its memory.
#[test]
fn captures_in_turns_leave_no_streams() {
    let device = emulated(256 * MIB, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Stitched);
    let theirs = Theirs::new(&device, true);
    let mut reserved = 0;
    for round in 0..100 {
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::GLOBAL);
        let block = heap.allocate(5 * MIB, &stream).unwrap();
        drop(heap.allocate(3 * MIB, &stream).unwrap());
        theirs.end().unwrap().end();
        drop(block);
        let now = heap.usage().unwrap().reserved;
        if round < 3 {
            reserved = now;
        }
        assert!(now <= reserved, "round {round}: {now} of {reserved}");
    }
    theirs.retire_and_destroy(&heap);
    assert_all_returned(&device, &heap, "captures in turns");
}

/// Breaks the capture of a stream: the host must not wait for a stream that is capturing.
fn break_capture(theirs: &Theirs<'_>) {
    // SAFETY: the tests destroy the stream of `theirs` only after this call.
    let waited =
        theirs.device.with_current(|driver| unsafe { driver.cuStreamSynchronize(theirs.raw) });
    assert_eq!(waited.unwrap(), CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

/// A block of a capture is used on the stream after that capture ended. Then a wait breaks a later
/// capture on the same stream. The end of the first graph must not count as the end of that use.
#[test]
fn later_broken_capture_keeps_order() {
    for pool in POOLS {
        for by_name in [false, true] {
            for seen in [false, true] {
                let device = device(64 * MIB, Schedule::OnDemand);
                let heap = Heap::builder(&device).pool(pool).hard_limit(24 * MIB).build().unwrap();
                let other = device.stream().unwrap();
                let theirs = Theirs::new(&device, false);
                let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
                let inside = heap.allocate(16 * MIB, &stream).unwrap();
                let graph = theirs.end().unwrap();
                fill(&inside, 1, &stream);
                if seen {
                    drop(heap.allocate(1000, &stream).unwrap());
                }
                theirs.begin(CUstreamCaptureMode::RELAXED);
                break_capture(&theirs);
                match by_name {
                    // SAFETY: it is the block's own stream.
                    true => unsafe { inside.free_on_unchecked(&stream).unwrap() },
                    false => drop(inside),
                }
                graph.end();
                if let Ok(block) = heap.allocate(16 * MIB, &other) {
                    fill(&block, 2, &other);
                    other.synchronize().unwrap();
                }
                assert!(theirs.end().is_none());
                device.synchronize().unwrap();
                drop(stream);
                theirs.end_after(&device, &heap, &format!("{pool} {by_name} {seen}"));
            }
        }
    }
}

/// A stream is captured again, and a wait breaks this second capture. Until the second capture
/// ends, a request with the `Stream` of the first capture gets no memory of the first graph.
#[test]
fn broken_capture_gets_no_graph_memory() {
    for pool in POOLS {
        let (device, heap) = make_heap(64 * MIB, Schedule::OnDemand, pool);
        let other = device.stream().unwrap();
        let theirs = Theirs::new(&device, false);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
        let freed = allocate_filled(&heap, 16 * MIB, 1, &stream);
        let address = freed.address();
        drop(freed);
        let graph = theirs.end().unwrap();
        theirs.begin(CUstreamCaptureMode::RELAXED);
        break_capture(&theirs);
        let again = heap.allocate(16 * MIB, &stream);
        assert!(again.is_err() || again.is_ok_and(|block| block.address() != address), "{pool}");
        assert!(theirs.end().is_none());
        graph.run_and_end(&other);
        device.synchronize().unwrap();
        drop(stream);
        theirs.end_after(&device, &heap, pool.name());
    }
}

#[test]
fn heap_ends_before_its_graph() {
    for_each_case(|device, pool, unannounced, case| {
        let heap = heap(device, pool);
        let other = device.stream().unwrap();
        let theirs = Theirs::new(device, unannounced);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
        drop(allocate_filled(&heap, 16 * MIB, 1, &stream));
        let graph = theirs.end().expect(case);
        drop((stream, heap));
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are valid.
        let asked = |driver: &dyn Driver| unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) };
        check("cuMemGetInfo_v2", device.with_current(asked).unwrap()).unwrap();
        assert!(
            (total - free) as u64 >= 16 * MIB,
            "{case}: the memory stays until the device's end"
        );
        graph.run_and_end(&other);
        other.synchronize().unwrap();
        theirs.destroy();
        assert_no_findings(device, case);
    });
}

/// A stream that the heap knew before a capture has a second id in the heap during the capture.
#[test]
fn stream_of_two_names_frees() {
    for_each_case(|device, pool, unannounced, case| {
        let heap = heap(device, pool);
        let theirs = Theirs::new(device, unannounced);
        let known = theirs.wrap().unwrap();
        let before = allocate_filled(&heap, 5 * MIB, 1, &known);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
        let inside = allocate_filled(&heap, 5 * MIB, 2, &stream);
        let freed = (before.free_on(&stream).is_ok(), inside.free_on(&known).is_ok());
        theirs.end().expect(case).end();
        assert_eq!(freed, (true, true), "{case}");
        drop((stream, known));
        theirs.end_after(device, &heap, case);
    });
}

/// A heap ends, and its memory needs a wait for the device. Another heap's capture continues.
#[test]
fn ending_heap_spares_other_captures() {
    for pool in POOLS {
        for zeroed in [false, true] {
            let device = emulated(64 * MIB, Schedule::OnDemand);
            let other = heap(&device, pool);
            let captured = Theirs::new(&device, false);
            let stream = captured.wrap().unwrap();
            drop(other.allocate(MIB, &stream).unwrap());
            let ending = Heap::builder(&device).pool(pool).zero_on_free(zeroed).build().unwrap();
            let ended = Theirs::new(&device, true);
            let block = ending.allocate(MIB, &ended.wrap().unwrap()).unwrap();
            ended.retire_and_destroy(&ending);
            captured.begin(CUstreamCaptureMode::RELAXED);
            drop(block);
            drop(ending);
            captured.end().unwrap_or_else(|| panic!("{pool} {zeroed}")).end();
            drop(stream);
            captured.end_after(&device, &other, pool.name());
        }
    }
}

/// A program keeps a graph, and uses the captured stream again. At that use, the heap notices that
/// the capture ended, and may wait for the device again.
#[test]
fn kept_graph_allows_device_waits() {
    for pool in POOLS {
        let device = emulated(64 * MIB, Schedule::OnDemand);
        let heap = heap(&device, pool);
        let own = device.stream().unwrap();
        let theirs = Theirs::new(&device, true);
        theirs.begin(CUstreamCaptureMode::RELAXED);
        drop(heap.allocate(1000, &theirs.wrap().unwrap()).unwrap());
        let graph = theirs.end().unwrap();
        let ended = Theirs::new(&device, true);
        let stream = ended.wrap().unwrap();
        let detached = heap.allocate(32 * MIB, &stream).unwrap();
        stream.synchronize().unwrap();
        heap.retire(&stream).unwrap();
        drop((detached, stream));
        ended.destroy();
        drop(heap.allocate(1000, &theirs.wrap().unwrap()).unwrap());
        assert!(heap.allocate(32 * MIB, &own).is_ok(), "{pool}");
        graph.end();
        await_returned(&device, &heap, pool.name());
        theirs.destroy();
    }
}

#[test]
fn driver_pool_refuses_unknown_capture() {
    for unannounced in [false, true] {
        let (device, heap) = make_heap(256 * MIB, Schedule::OnDemand, PoolKind::Driver);
        let other = device.stream().unwrap();
        let block = heap.allocate(MIB, &other).unwrap();
        let theirs = Theirs::new(&device, unannounced);
        let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
        assert!(heap.allocate(MIB, &stream).is_err());
        let _ = block.free_on(&stream);
        theirs.end().expect("a whole capture").end();
        drop(stream);
        device.synchronize().unwrap();
        heap.reclaim_all().unwrap();
        assert_eq!(heap.usage().unwrap().live, 0);
        theirs.retire_and_destroy(&heap);
        assert_no_findings(&device, "driver");
    }
}

/// Blocks of a capture on a thread's own default stream are freed by other threads, both while that
/// thread runs and after it has ended.
#[test]
fn other_threads_free_of_own_capture() {
    for pool in POOLS {
        for ended in [false, true] {
            let (device, heap) = make_heap(256 * MIB, Schedule::OnDemand, pool);
            let blocks = std::thread::scope(|scope| {
                let made = scope.spawn(|| {
                    let theirs =
                        Theirs { device: &device, raw: CUstream::PER_THREAD, unannounced: false };
                    let stream = theirs.begin_wrapped(CUstreamCaptureMode::RELAXED);
                    let blocks = [(); 2].map(|()| heap.allocate(5 * MIB, &stream).unwrap());
                    blocks.iter().for_each(|block| fill(block, 1, &stream));
                    let [one, two] = blocks;
                    let mut one = Some(one);
                    if !ended {
                        let one = one.take();
                        std::thread::scope(|scope| drop(scope.spawn(move || drop(one))));
                    }
                    theirs.end().unwrap().run_and_end(&stream);
                    (one, two)
                });
                made.join().unwrap()
            });
            drop(blocks);
            let other = device.stream().unwrap();
            drop(allocate_filled(&heap, 10 * MIB, 2, &other));
            await_returned(&device, &heap, pool.name());
        }
    }
}

/// Several heaps of a device have limits, while threads capture, break captures and end heaps.
#[test]
fn captures_of_many_heaps_at_random() {
    for seed in 0..4_u64 {
        let device = emulated(192 * MIB, Schedule::Seeded(seed));
        let heaps: Vec<Heap> = [PoolKind::Stitched, PoolKind::Split, PoolKind::Binned]
            .map(|pool| {
                Heap::builder(&device)
                    .pool(pool)
                    .soft_limit(8 * MIB)
                    .hard_limit(48 * MIB)
                    .build()
                    .unwrap()
            })
            .into();
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (device, heaps) = (&device, &heaps);
                scope.spawn(move || {
                    let mut random = Random(seed * 31 + thread + 1);
                    let mut next = move |below| random.below(below);
                    let launched = device.stream().unwrap();
                    let mut kept = Vec::new();
                    for _ in 0..40 {
                        let theirs = Theirs::new(device, next(2) == 0);
                        theirs.begin(MODES[2]);
                        for _ in 0..next(12) {
                            let heap = &heaps[next(3) as usize];
                            let Ok(stream) = theirs.wrap() else { break };
                            match next(8) {
                                0 => drop(heap.reclaim(MIB)),
                                1 => drop(heap.usage().unwrap()),
                                2 => drop(heap.flush()),
                                _ => {
                                    let Ok(block) = heap.allocate((1 + next(6)) * MIB, &stream)
                                    else {
                                        continue;
                                    };
                                    fill(&block, 1, &stream);
                                    if next(4) == 0 {
                                        kept.push(block);
                                    }
                                }
                            }
                        }
                        if let Some(graph) = theirs.end() {
                            if next(3) > 0 {
                                graph.run_and_end(&launched);
                            } else {
                                graph.end();
                            }
                        }
                        let stream = theirs.wrap().unwrap();
                        stream.wait(&launched.record().unwrap()).unwrap();
                        kept.drain(..).for_each(|block| fill(&block, 3, &stream));
                        drop(stream);
                        for heap in heaps {
                            heap.retire(&theirs.wrap().unwrap()).unwrap();
                        }
                        theirs.destroy();
                    }
                });
            }
        });
        for heap in &heaps {
            device.synchronize().unwrap();
            heap.reclaim_all().unwrap();
            assert_eq!(heap.usage().unwrap().live, 0);
            assert_eq!(heap.usage().unwrap().stats.taken, 0, "{seed}");
        }
        assert_no_findings(&device, "at random");
    }
}

/// Threads capture, break captures, destroy graphs and free one another's blocks. Meanwhile the
/// heaps end.
#[test]
fn heaps_end_amid_captures() {
    for seed in 0..12_u64 {
        let device = emulated(512 * MIB, SCHEDULES[seed as usize % 3]);
        let pools = [PoolKind::Stitched, PoolKind::Split, PoolKind::Simple, PoolKind::Stitched];
        let thrown = std::sync::Mutex::new(Vec::<Block>::new());
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (device, thrown) = (&device, &thrown);
                scope.spawn(move || {
                    let mut random = Random(seed * 31 + thread + 1);
                    let mut next = move |below| random.below(below);
                    let launched = device.stream().unwrap();
                    for round in 0..20 {
                        let heap = Heap::builder(device)
                            .pool(pools[next(4) as usize])
                            .zero_on_free(next(3) == 0)
                            .hard_limit(64 * MIB)
                            .build()
                            .unwrap();
                        let unannounced = next(2) == 0;
                        let theirs = Theirs::new(device, unannounced);
                        let early = theirs.wrap().unwrap();
                        let mut kept = vec![heap.allocate(MIB, &early).unwrap()];
                        fill(&kept[0], 1, &early);
                        let stream = loop {
                            theirs.begin(MODES[2]);
                            match theirs.wrap() {
                                Ok(stream) => break stream,
                                // Another heap may end at this time: it looks for captures, and
                                // then waits for the device. The wait breaks this capture if it
                                // begins in between. The heap also overlooks a capture on an
                                // unannounced stream until the stream's first use.
                                Err(_) => assert!(theirs.end().is_none()),
                            }
                        };
                        // `runs` is `false` if the graph must not be launched. `runs_late` is
                        // `false` if `kept` has memory of the graph. The graph must then not be
                        // launched after the blocks in `kept` are freed, outside the capture.
                        let (mut runs, mut runs_late) = (true, true);
                        for _ in 0..next(9) {
                            let Ok(block) = heap.allocate((1 + next(6)) * MIB, &stream) else {
                                continue;
                            };
                            fill(&block, 1, &stream);
                            match next(5) {
                                0 => {
                                    runs_late = false;
                                    kept.push(block);
                                }
                                1 => drop(block.free_on(&early)),
                                // Another thread may free this block before a launch uses it, so
                                // the graph is not launched.
                                2 if !unannounced => {
                                    runs = false;
                                    thrown.lock().unwrap().push(block);
                                }
                                3 => drop(block.free_on(&launched)),
                                _ => drop(block),
                            }
                        }
                        if next(4) == 0 {
                            break_capture(&theirs);
                        }
                        let found = thrown.lock().unwrap().pop();
                        drop(found);
                        drop(heap.usage());
                        drop(heap.flush());
                        let graph = theirs.end();
                        let graph = match graph {
                            Some(graph) if runs && next(2) == 0 => {
                                graph.run_and_end(&launched);
                                None
                            }
                            graph => graph,
                        };
                        let now = theirs.wrap().unwrap();
                        now.wait(&launched.record().unwrap()).unwrap();
                        for block in kept {
                            fill(&block, 2, &now);
                            drop(block.free_on(if round % 2 == 0 { &now } else { &launched }));
                        }
                        now.synchronize().unwrap();
                        drop(heap.reclaim_all());
                        for stream in [stream, early, now] {
                            drop(heap.retire(&stream));
                        }
                        drop(heap);
                        match graph {
                            Some(graph) if runs && runs_late => graph.run_and_end(&launched),
                            graph => drop(graph.map(Graph::end)),
                        }
                        launched.synchronize().unwrap();
                        if unannounced {
                            theirs.destroy();
                        }
                    }
                });
            }
        });
        drop(thrown);
        device.synchronize().unwrap();
        assert_no_findings(&device, &format!("seed {seed}"));
    }
}

/// After the capture, a block of the capture is freed. At this free, the heap first sees the stream
/// outside of a capture. From then on the stream counts as ordinary, so its memory is reused.
#[test]
fn stream_named_by_free_is_ordinary() {
    let device = emulated(512 * MIB, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Stitched);
    let mut reserved = 0;
    for round in 0..50 {
        let theirs = Theirs::new(&device, false);
        theirs.begin(CUstreamCaptureMode::GLOBAL);
        let inside = heap.allocate(5 * MIB, &theirs.wrap().unwrap()).unwrap();
        theirs.end().unwrap().end();
        drop(inside);
        let known = theirs.wrap().unwrap();
        let block = heap.allocate(5 * MIB, &known).unwrap();
        heap.usage().unwrap();
        let other = device.stream().unwrap();
        let beside = heap.allocate(MIB, &other).unwrap();
        drop(beside);
        drop(block);
        let now = heap.usage().unwrap().reserved;
        if round < 3 {
            reserved = now;
        }
        assert!(now <= reserved, "round {round}: {now} of {reserved}");
        heap.retire(&known).unwrap();
        theirs.destroy();
    }
    assert_all_returned(&device, &heap, "named by a free");
}
