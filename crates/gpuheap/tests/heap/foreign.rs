//! Tests of foreign streams. Other code makes and destroys them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Device, Error, ErrorKind, Heap, MemoryKind, PoolKind, Stream};
use gpuheap_driver::{CUresult, CUstream, check};

use crate::support::{
    Witness, allocate_filled, assert_all_returned, device, emulated, fill_and_free, heap,
    make_foreign_stream, make_heap, on_real_gpu, while_capturing,
};

const MIB: u64 = 1 << 20;
const COUNT: usize = 5 << 20;

/// Makes a heap with room for one array of 5 MiB and some small arrays.
fn tight(device: &Device, pool: PoolKind) -> Heap {
    let limit = match pool {
        // The driver's own pools grow by 32 MiB.
        PoolKind::None | PoolKind::Driver => 32 * MIB,
        _ => 10 * MIB,
    };
    Heap::builder(device).without_environment().pool(pool).hard_limit(limit).build().unwrap()
}

fn wrap(device: &Device, raw: CUstream) -> Stream {
    // SAFETY: the stream is alive; the tests retire it before they end it.
    unsafe { device.foreign_stream(raw) }.unwrap()
}

fn end(device: &Device, raw: CUstream) {
    // SAFETY: the stream belongs to the test.
    let ended = device.with_current(|driver| unsafe { driver.cuStreamDestroy_v2(raw) });
    check("cuStreamDestroy_v2", ended.unwrap()).unwrap();
}

#[test]
fn foreign_stream_is_not_destroyed() {
    let device = device(1 << 30, Schedule::Immediate);
    let raw = make_foreign_stream(&device);
    let (one, two) = (wrap(&device, raw), wrap(&device, raw));
    assert_eq!((one.raw(), one.id()), (raw, two.id()));
    drop((one, two));
    let heap = heap(&device, PoolKind::Split);
    drop(heap.allocate(1 << 20, &wrap(&device, raw)).unwrap());
    // When a heap sees a new stream, it looks for streams that ended.
    drop(heap.allocate(1 << 20, &device.stream().unwrap()).unwrap());
    assert!(wrap(&device, raw).is_done().is_ok());
    assert_all_returned(&device, &heap, "foreign");
    end(&device, raw);
}

#[test]
fn default_stream_handles_name_one_stream() {
    let device = device(1 << 30, Schedule::Immediate);
    let default = device.default_stream().unwrap();
    for raw in [CUstream::NULL, CUstream::LEGACY] {
        assert_eq!(wrap(&device, raw).id(), default.id());
    }
}

/// Only one block fits on the device, so each block on `own` reuses memory that was last used on a
/// retired stream. The heap must not query that stream.
#[test]
fn retired_stream_is_not_queried() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(64 << 20, Schedule::Seeded(6), pool);
        let own = device.stream().unwrap();
        for tag in 0..8 {
            let raw = make_foreign_stream(&device);
            let stream = wrap(&device, raw);
            let block = allocate_filled(&heap, 40 << 20, tag, &stream);
            heap.retire(&stream).unwrap();
            drop(stream);
            end(&device, raw);
            // The block outlives its stream, and its memory is still ordered after that stream's
            // work.
            block.free().unwrap();
            let _block = allocate_filled(&heap, 40 << 20, tag, &own);
        }
        assert_eq!(heap.usage().unwrap().stats.failed_frees, 0, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn stream_retired_early_is_followed_again() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(64 << 20, Schedule::Seeded(3), pool);
        let (own, raw) = (device.stream().unwrap(), make_foreign_stream(&device));
        let mut stream = wrap(&device, raw);
        for tag in 0..8 {
            for retired in [false, true] {
                if retired {
                    heap.retire(&stream).unwrap();
                    let refused = heap.allocate(40 << 20, &stream).unwrap_err().to_string();
                    assert!(refused.contains("was retired"), "{pool}: {refused}");
                    stream = wrap(&device, raw);
                }
                let _block = allocate_filled(&heap, 40 << 20, tag, &stream);
            }
            let _block = allocate_filled(&heap, 40 << 20, tag, &own);
        }
        heap.retire(&stream).unwrap();
        end(&device, raw);
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// If work were enqueued after a stream is retired, it would overlap the work of the memory's next
/// user.
#[test]
fn retired_stream_refuses_work() {
    for all in [false, true] {
        for pool in PoolKind::ALL {
            let device = device(1 << 30, Schedule::OnDemand);
            let heap = tight(&device, pool);
            let (own, raw) = (device.stream().unwrap(), make_foreign_stream(&device));
            let stream = wrap(&device, raw);
            let mut x = heap.on(&stream).filled(MIB as usize, 1_u8).unwrap();
            let earlier = own.record().unwrap();
            match all {
                true => heap.retire_all().unwrap(),
                false => heap.retire(&stream).unwrap(),
            }
            assert!(stream.is_retired() && stream.clone().is_retired() && !own.is_retired());
            let refused = [
                x.fill(2).unwrap_err(),
                x.device_ptr(&stream).unwrap_err(),
                stream.record().unwrap_err(),
                stream.wait(&earlier).unwrap_err(),
                heap.allocate(MIB, &stream).unwrap_err(),
                heap.on(&stream).zeroed::<u8, _>(10).unwrap_err(),
            ];
            for error in refused {
                let text = error.to_string();
                assert!(text.contains("was retired") && text.contains("foreign_stream"), "{text}");
            }
            // From here on, the stream's handle must not be used.
            end(&device, raw);
            // The host and other streams can still wait for work from before the stream was
            // retired.
            let copy = x.copy_to(&heap.on(&own)).unwrap();
            assert!(copy.to_vec().unwrap().iter().all(|byte| *byte == 1));
            stream.synchronize().unwrap();
            assert!(stream.is_done().unwrap() && !stream.is_capturing().unwrap());
            let block = heap.allocate(MIB, &own).unwrap();
            block.free_on(&stream).unwrap();
            drop((x, copy));
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

/// Two `Stream` objects wrap one stream. After one is retired, the other can still be used, and its
/// later work does not count as completed.
#[test]
fn new_object_of_retired_stream_works() {
    for pool in PoolKind::ALL {
        for all in [false, true] {
            let device = device(1 << 30, Schedule::OnDemand);
            let heap = tight(&device, pool);
            let (own, raw) = (device.stream().unwrap(), make_foreign_stream(&device));
            let (one, two) = (wrap(&device, raw), wrap(&device, raw));
            drop(heap.on(&one).filled(10, 1_u8).unwrap());
            let mut x = heap.on(&two).filled(COUNT, 1_u8).unwrap();
            match all {
                true => heap.retire_all().unwrap(),
                false => heap.retire(&one).unwrap(),
            }
            assert!(!two.is_retired());
            x.fill(2).unwrap();
            drop(x);
            let next = heap.on(&own).filled(COUNT, 3_u8).unwrap();
            own.synchronize().unwrap();
            two.synchronize().unwrap();
            assert!(next.to_vec().unwrap().iter().all(|byte| *byte == 3), "{pool} {all}");
            drop(next);
            heap.retire(&two).unwrap();
            end(&device, raw);
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

/// If a wait for the device fails, the heap does not treat the streams' work as completed.
#[test]
fn failed_retire_all_withholds_live_memory() {
    if on_real_gpu() {
        return;
    }
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let device = emulated(1 << 30, Schedule::OnDemand);
        let heap = heap(&device, pool);
        let (own, raw) = (device.stream().unwrap(), make_foreign_stream(&device));
        let stream = wrap(&device, raw);
        let x = heap.on(&stream).filled(COUNT, 1_u8).unwrap();
        let address = x.device_ptr(&stream).unwrap();
        let fault = Fault::nth("cuCtxSynchronize", 1, CUresult::ERROR_UNKNOWN);
        device.emulator().unwrap().set_faults(FaultPlan::new([fault]));
        heap.retire_all().unwrap_err();
        device.emulator().unwrap().set_faults(FaultPlan::default());
        drop(x);
        let pending = heap.usage().unwrap().pending;
        assert!(pending >= COUNT as u64, "{pool}: {pending}");
        let next = heap.on(&own).filled(COUNT, 3_u8).unwrap();
        assert_ne!(next.device_ptr(&own).unwrap(), address, "{pool}");
        drop(next);
        let emulator = device.emulator().unwrap().clone();
        drop((heap, own));
        let findings = emulator.findings().unwrap();
        assert!(findings.is_empty(), "{pool}: {findings:#?}");
        end(&device, raw);
    }
}

#[test]
fn retire_all_accepts_destroyed_streams() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(64 << 20, Schedule::Seeded(2), pool);
        let own = device.stream().unwrap();
        for tag in 0..4 {
            let raw = make_foreign_stream(&device);
            let stream = wrap(&device, raw);
            drop(allocate_filled(&heap, 10 << 20, tag, &stream));
            let kept = allocate_filled(&heap, 20 << 20, tag, &stream);
            end(&device, raw);
            heap.retire_all().unwrap();
            kept.free().unwrap();
            let _block = allocate_filled(&heap, 40 << 20, tag, &own);
        }
        assert_eq!(heap.usage().unwrap().stats.failed_frees, 0, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn retire_all_spares_other_streams() {
    let [one, two] = [(); 2].map(|()| crate::support::emulated(1 << 30, Schedule::OnDemand));
    let heap = heap(&one, PoolKind::Split);
    for stream in [one.stream().unwrap(), one.default_stream().unwrap()] {
        let block = heap.allocate(1 << 20, &stream).unwrap();
        heap.retire(&stream).unwrap();
        // `retire` has no effect on streams that gpuheap made, so this stream is still usable.
        fill_and_free(block, 1, &stream);
    }
    let error = heap.retire(&two.stream().unwrap()).unwrap_err();
    assert!(error.to_string().contains("use a stream of the heap's own device"), "{error}");
    assert_all_returned(&one, &heap, "retired");
}

/// Frees on a stream that may end unannounced are fenced at once. The fences reuse events.
#[test]
fn unannounced_frees_take_few_events() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        for schedule in [Schedule::Immediate, Schedule::OnDemand] {
            let device = device(64 << 20, schedule);
            let heap = Heap::builder(&device).pool(pool).hard_limit(8 << 20).build().unwrap();
            let (own, raw) = (device.stream().unwrap(), make_foreign_stream(&device));
            // SAFETY: the stream is alive until all memory that was allocated on it is freed.
            let stream = unsafe { device.unannounced_stream(raw) }.unwrap();
            for tag in 0..1000 {
                let block = allocate_filled(&heap, 5 << 20, tag as u8, &stream);
                block.free().unwrap();
            }
            drop(stream);
            end(&device, raw);
            // The frees were fenced, so the heap can hand out their memory after the stream has
            // ended.
            let block = allocate_filled(&heap, 5 << 20, 1, &own);
            let mut witness = Witness::new(&device, 1);
            assert!(witness.see(&block, 1, &own));
            witness.check();
            drop(block);
            if let Some(emulator) = device.emulator() {
                let events = emulator.calls_of("cuEventCreate");
                assert!(events < 64, "{pool}: {events} events");
            }
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

/// A free on a stream that may end unannounced is fenced at once. If that fence fails, no other
/// stream can wait for the free. The fence of the stream's next free covers both frees.
#[test]
fn unfenced_free_blocks_only_itself() {
    if on_real_gpu() {
        return;
    }
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let device = emulated(1024 * MIB, Schedule::OnDemand);
        let emulator = device.emulator().unwrap();
        let heap = Heap::builder(&device).pool(pool).thread_cache(0).build().unwrap();
        let (own, other) = (device.stream().unwrap(), device.stream().unwrap());
        // SAFETY: the stream lives as long as it is used.
        let stream = unsafe { device.unannounced_stream(own.raw()) }.unwrap();
        let block = heap.allocate(5 * MIB, &stream).unwrap();
        let fault = Fault::nth("cuEventRecord", 1, CUresult::ERROR_UNKNOWN);
        emulator.set_faults(FaultPlan::new([fault]));
        block.free().unwrap();
        emulator.set_faults(FaultPlan::default());
        for size in [100, 8 * MIB, 8 * MIB] {
            let theirs = heap.allocate(size, &other);
            assert!(theirs.is_ok(), "{pool} {size}: {}", theirs.unwrap_err());
        }
        drop(heap.allocate(MIB, &stream).unwrap());
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// Requests 40 MiB on a foreign stream of a device with 64 MiB. A reclaimer frees an array of
/// another stream and calls `retire`.
fn reclaiming(pool: PoolKind, retire: fn(&Heap, &Stream)) -> Result<(), Error> {
    let device = emulated(64 << 20, Schedule::OnDemand);
    let heap = heap(&device, pool);
    let (own, raw) = (device.stream().unwrap(), make_foreign_stream(&device));
    let stream = wrap(&device, raw);
    drop(heap.allocate(1000, &stream).unwrap());
    let held = Mutex::new(Some(heap.on(&own).filled(32 << 20, 1_u8).unwrap()));
    let mine = (heap.clone(), stream.clone(), device.clone());
    let reclaimer = heap.register_reclaimer(move |_| {
        let Some(array) = held.lock().unwrap().take() else { return 0 };
        drop(array);
        let (heap, stream, device) = &mine;
        retire(heap, stream);
        end(device, stream.raw());
        32 << 20
    });
    let got = heap.allocate(40 << 20, &stream).map(drop);
    drop(reclaimer);
    assert_all_returned(&device, &heap, pool.name());
    got
}

#[test]
fn request_on_retired_stream_is_refused() {
    for pool in PoolKind::ALL {
        let by_name = reclaiming(pool, |heap, stream| heap.retire(stream).unwrap());
        let with_all = reclaiming(pool, |heap, _| heap.retire_all().unwrap());
        for refused in [by_name, with_all] {
            let kind = refused.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::StreamUnusable), "{pool}");
        }
    }
}

/// During the request, its stream is retired, and a new stream takes the slot. A block that was
/// freed on the new stream does not count as freed on the request's stream.
#[test]
fn request_on_replaced_stream_is_refused() {
    const LARGE: usize = 12 << 20;
    for pool in [PoolKind::Simple, PoolKind::Split, PoolKind::Stitched] {
        let device = emulated(256 << 20, Schedule::OnDemand);
        let builder = Heap::builder(&device).pool(pool).without_environment();
        let heap = builder.hard_limit(20 << 20).build().unwrap();
        let (own, raw) = (device.stream().unwrap(), make_foreign_stream(&device));
        let stream = wrap(&device, raw);
        drop(heap.allocate(1000, &stream).unwrap());
        let held = Mutex::new(Some(heap.on(&own).filled(LARGE, 1_u8).unwrap()));
        let kept = Arc::new(Mutex::new(None));
        let (mine, keeps) = ((heap.clone(), stream.clone(), device.clone()), kept.clone());
        let reclaimer = heap.register_reclaimer(move |_| {
            let Some(mut array) = held.lock().unwrap().take() else { return 0 };
            let (heap, stream, device) = &mine;
            heap.retire(stream).unwrap();
            device.synchronize().unwrap();
            heap.reclaim_all().unwrap();
            let new = device.stream().unwrap();
            array.device_ptr(&new).unwrap();
            array.fill(7).unwrap();
            drop(array);
            *keeps.lock().unwrap() = Some(new);
            LARGE as u64
        });
        let kind = heap.allocate(LARGE as u64, &stream).map(drop).map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::StreamUnusable), "{pool}");
        drop(reclaimer);
        end(&device, raw);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn failed_retire_all_retires_every_kind() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let heap = heap(&device, PoolKind::Split);
    let raw = make_foreign_stream(&device);
    let streams = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned].map(|kind| {
        let stream = wrap(&device, raw);
        drop(heap.on(&stream).kind(kind).filled(1 << 20, 1_u8).unwrap());
        stream
    });
    let fault = Fault::nth("cuCtxSynchronize", 1, CUresult::ERROR_UNKNOWN);
    device.emulator().unwrap().set_faults(FaultPlan::new([fault]));
    let error = heap.retire_all().unwrap_err().to_string();
    assert!(error.contains("cuCtxSynchronize"), "{error}");
    assert_eq!(streams.map(|stream| stream.is_retired()), [true; 3]);
    end(&device, raw);
    drop(heap.target().unwrap().kind(MemoryKind::Pinned).filled(1 << 20, 2_u8).unwrap());
    device.synchronize().unwrap();
    heap.flush().unwrap();
    assert_all_returned(&device, &heap, "retired");
}

/// A thread queries a stream while another thread retires and ends the stream. No query uses a
/// stale handle.
#[test]
fn queries_work_during_retire() {
    for _ in 0..200 {
        let device = emulated(1 << 30, Schedule::Immediate);
        let heap = heap(&device, PoolKind::Split);
        let raw = make_foreign_stream(&device);
        let stream = wrap(&device, raw);
        drop(heap.allocate(1000, &stream).unwrap());
        let (start, ended) = (Barrier::new(4), AtomicBool::new(false));
        std::thread::scope(|threads| {
            let ask = |question: fn(&Stream)| {
                let (stream, start, ended) = (&stream, &start, &ended);
                threads.spawn(move || {
                    start.wait();
                    while !ended.load(Ordering::Relaxed) {
                        question(stream);
                    }
                });
            };
            ask(|stream| stream.synchronize().unwrap());
            ask(|stream| assert!(stream.is_done().is_ok()));
            ask(|stream| assert!(!stream.is_capturing().unwrap()));
            start.wait();
            heap.retire(&stream).unwrap();
            end(&device, raw);
            ended.store(true, Ordering::Relaxed);
        });
        assert_all_returned(&device, &heap, "asked");
    }
}

/// Frees an array of 40 MiB, on a device of 64 MiB, after the array's stream was retired. That
/// stream may end unannounced, so the heap records no fence for the free. The memory is reused only
/// after a wait for the whole device.
fn detach(device: &Device, heap: &Heap) {
    let raw = make_foreign_stream(device);
    // SAFETY: the stream ends only after it was retired and the array was freed.
    let stream = unsafe { device.unannounced_stream(raw) }.unwrap();
    let array = heap.on(&stream).filled(40 << 20, 1_u8).unwrap();
    stream.synchronize().unwrap();
    heap.retire(&stream).unwrap();
    drop(array);
    end(device, raw);
}

#[test]
fn detached_memory_returns_after_device_wait() {
    for pool in PoolKind::ALL {
        let device = emulated(64 << 20, Schedule::Immediate);
        let heap = heap(&device, pool);
        let own = device.stream().unwrap();
        detach(&device, &heap);
        device.synchronize().unwrap();
        let calls = device.emulator().unwrap().calls_of("cuCtxSynchronize");
        let usage = heap.usage().unwrap();
        assert_eq!((usage.live, usage.pending), (0, 0), "{pool}");
        if pool != PoolKind::Driver {
            assert!(heap.allocate(40 << 20, &own).is_ok(), "{pool}");
            let waits = device.emulator().unwrap().calls_of("cuCtxSynchronize") - calls;
            assert_eq!(waits, 0, "{pool}: the program's own wait is enough");
        }
        heap.flush().unwrap();
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn request_waits_for_detached_memory() {
    for pool in PoolKind::ALL {
        for sibling in [false, true] {
            let device = emulated(64 << 20, Schedule::OnDemand);
            let (one, two) = (heap(&device, pool), heap(&device, pool));
            let own = device.stream().unwrap();
            detach(&device, &one);
            let asker = if sibling { &two } else { &one };
            let array = asker.on(&own).filled(40 << 20, 3_u8);
            let array = array.unwrap_or_else(|error| panic!("{pool} {sibling}: {error}"));
            assert!(array.to_vec().unwrap().iter().all(|byte| *byte == 3), "{pool} {sibling}");
            drop(array);
            assert_all_returned(&device, &one, pool.name());
            assert_all_returned(&device, &two, pool.name());
        }
    }
}

/// A block outlives its stream. Another stream gets the ended stream's place in the heap, but the
/// other stream's fences do not cover the block's free.
#[test]
fn detached_memory_ignores_next_stream() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let device = emulated(64 << 20, Schedule::OnDemand);
        let heap = heap(&device, pool);
        let (own, raws) =
            (device.stream().unwrap(), [(); 2].map(|()| make_foreign_stream(&device)));
        // SAFETY: both streams are alive as long as the test uses them.
        let [one, two] = raws.map(|raw| unsafe { device.unannounced_stream(raw) }.unwrap());
        let block = allocate_filled(&heap, 40 << 20, 1, &one);
        heap.retire(&one).unwrap();
        heap.reclaim_all().unwrap();
        drop(block);
        drop(heap.allocate(1000, &two).unwrap());
        let next = heap.on(&own).filled(40 << 20, 3_u8).unwrap();
        own.synchronize().unwrap();
        device.synchronize().unwrap();
        assert!(next.to_vec().unwrap().iter().all(|byte| *byte == 3), "{pool}");
        drop(next);
        heap.retire(&two).unwrap();
        raws.into_iter().for_each(|raw| end(&device, raw));
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// A request during a capture does not get memory that can be reused only after a wait for the
/// device. The wait would break the capture.
#[test]
fn capture_request_skips_detached_memory() {
    for pool in PoolKind::ALL {
        let device = emulated(64 << 20, Schedule::OnDemand);
        let heap = heap(&device, pool);
        let (own, captured) = (device.stream().unwrap(), device.stream().unwrap());
        drop(heap.allocate(1000, &captured).unwrap());
        detach(&device, &heap);
        let refused = while_capturing(&captured, || heap.allocate(40 << 20, &own).map(drop));
        let refused = refused.map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::OutOfMemory), "{pool}");
        assert!(heap.allocate(40 << 20, &own).is_ok(), "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}
