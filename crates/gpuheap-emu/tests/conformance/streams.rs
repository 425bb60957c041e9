//! Streams: order, waits, the default streams, callbacks.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use gpuheap_driver::*;
use gpuheap_emu::with_per_thread_default_stream;

use crate::support::*;

#[test]
fn stream_work_runs_in_order() {
    on_every_driver(|gpu| {
        let stream = gpu.stream();
        let device = gpu.allocate(4096);
        for value in 0..20 {
            ok!(gpu, cuMemsetD8Async(device, value, 4096, stream));
        }
        ok!(gpu, cuStreamSynchronize(stream));
        ok!(gpu, cuStreamQuery(stream));
        assert_eq!(gpu.download(device, 4096), vec![19; 4096]);
        ok!(gpu, cuStreamDestroy_v2(stream));
        gpu.free(device);
    });
}

#[test]
fn stream_waits_for_event() {
    on_every_driver(|gpu| {
        let (one, two, event) = (gpu.stream(), gpu.stream(), gpu.event());
        let (a, b) = (gpu.allocate(4096), gpu.allocate(4096));
        for round in 0..10 {
            ok!(gpu, cuMemsetD8Async(a, round, 4096, one));
            ok!(gpu, cuEventRecord(event, one));
            ok!(gpu, cuStreamWaitEvent(two, event, 0));
            ok!(gpu, cuMemcpyDtoDAsync_v2(b, a, 4096, two));
            ok!(gpu, cuEventRecord(event, two));
            ok!(gpu, cuStreamWaitEvent(one, event, 0));
        }
        ok!(gpu, cuStreamSynchronize(two));
        assert_eq!(gpu.download(b, 4096), vec![9; 4096]);
        ok!(gpu, cuEventDestroy_v2(event));
        ok!(gpu, cuStreamDestroy_v2(one));
        ok!(gpu, cuStreamDestroy_v2(two));
        gpu.free(a);
        gpu.free(b);
    });
}

#[test]
fn default_and_blocking_streams_wait() {
    on_every_driver(|gpu| {
        let mut one = CUstream::NULL;
        let mut two = CUstream::NULL;
        ok!(gpu, cuStreamCreate(&mut one, 0));
        ok!(gpu, cuStreamCreate(&mut two, 0));
        let (a, b) = (gpu.allocate(4096), gpu.allocate(4096));
        ok!(gpu, cuMemsetD8Async(a, 3, 4096, one));
        ok!(gpu, cuMemcpyDtoDAsync_v2(b, a, 4096, CUstream::NULL));
        ok!(gpu, cuMemsetD8Async(a, 4, 4096, two));
        ok!(gpu, cuStreamSynchronize(two));
        assert_eq!(gpu.download(b, 4096), vec![3; 4096]);
        assert_eq!(gpu.download(a, 4096), vec![4; 4096]);
        ok!(gpu, cuStreamDestroy_v2(one));
        ok!(gpu, cuStreamDestroy_v2(two));
        gpu.free(a);
        gpu.free(b);
    });
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    on_every_driver(|gpu| {
        let (stream, event) = (gpu.stream(), gpu.event());
        let device = gpu.allocate(4096);
        ok!(gpu, cuMemsetD8Async(device, 8, 4096, stream));
        ok!(gpu, cuEventRecord(event, stream));
        ok!(gpu, cuStreamDestroy_v2(stream));
        ok!(gpu, cuEventSynchronize(event));
        assert_eq!(gpu.download(device, 4096), vec![8; 4096]);
        ok!(gpu, cuEventDestroy_v2(event));
        gpu.free(device);
    });
}

#[test]
fn stream_ids_differ() {
    on_every_driver(|gpu| {
        let id = |stream: CUstream| {
            let mut id = 0;
            ok!(gpu, cuStreamGetId(stream, &mut id));
            id
        };
        let (one, two) = (gpu.stream(), gpu.stream());
        assert_eq!(id(CUstream::NULL), id(CUstream::LEGACY));
        let ids = [id(CUstream::NULL), id(CUstream::PER_THREAD), id(one), id(two)];
        for (index, one) in ids.iter().enumerate() {
            assert!(!ids[..index].contains(one), "{ids:?}");
        }
        let other = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                ok!(gpu, cuCtxSetCurrent(gpu.context));
                id(CUstream::PER_THREAD)
            });
            other.join().unwrap()
        });
        assert!(!ids.contains(&other));
        if gpu.name.starts_with("cuda") {
            return; // the real library has symbols of their own for this
        }
        assert_eq!(with_per_thread_default_stream(|| id(CUstream::NULL)), ids[1]);
        ok!(gpu, cuStreamDestroy_v2(one));
        ok!(gpu, cuStreamDestroy_v2(two));
    });
}

#[test]
fn properties_of_streams_are_kept() {
    on_every_driver(|gpu| {
        let (mut least, mut greatest) = (1, 1);
        ok!(gpu, cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
        assert!(least == 0 && greatest < 0);
        let stream = made!(gpu, cuStreamCreateWithPriority(CU_STREAM_NON_BLOCKING, greatest));
        let (mut flags, mut priority, mut context) = (9, 9, CUcontext::NULL);
        let mut capturing = CUstreamCaptureStatus::ACTIVE;
        ok!(gpu, cuStreamGetFlags(stream, &mut flags));
        ok!(gpu, cuStreamGetPriority(stream, &mut priority));
        ok!(gpu, cuStreamGetCtx(stream, &mut context));
        ok!(gpu, cuStreamIsCapturing(stream, &mut capturing));
        assert_eq!(
            (flags, priority, context, capturing),
            (CU_STREAM_NON_BLOCKING, greatest, gpu.context, CUstreamCaptureStatus::NONE)
        );
        ok!(gpu, cuStreamDestroy_v2(stream));
    });
}

unsafe extern "C" fn add_one(data: *mut c_void) {
    // SAFETY: the test passes a counter that outlives the stream's work.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn add_status(_stream: CUstream, status: CUresult, data: *mut c_void) {
    assert!(status.is_success());
    // SAFETY: the test passes a counter that outlives the stream's work.
    unsafe { add_one(data) };
}

#[test]
fn host_callback_follows_stream_order() {
    on_every_driver(|gpu| {
        let stream = gpu.stream();
        let count = AtomicU32::new(0);
        let data: *mut c_void = std::ptr::from_ref(&count).cast_mut().cast();
        let device = gpu.allocate(4096);
        for _ in 0..5 {
            ok!(gpu, cuLaunchHostFunc(stream, Some(add_one), data));
            ok!(gpu, cuMemsetD8Async(device, 8, 4096, stream));
            ok!(gpu, cuStreamAddCallback(stream, Some(add_status), data, 0));
        }
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(count.load(Ordering::SeqCst), 10);
        ok!(gpu, cuStreamDestroy_v2(stream));
        gpu.free(device);
    });
}

unsafe extern "C" fn add_one_late(data: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(20));
    // SAFETY: the test passes a counter that outlives the stream's work.
    unsafe { add_one(data) };
}

#[test]
fn default_stream_wait_includes_blocking_streams() {
    on_every_driver(|gpu| {
        let stream = made!(gpu, cuStreamCreate(0));
        let count = AtomicU32::new(0);
        let data: *mut c_void = std::ptr::from_ref(&count).cast_mut().cast();
        ok!(gpu, cuLaunchHostFunc(stream, Some(add_one_late), data));
        ok!(gpu, cuStreamSynchronize(CUstream::NULL));
        let then = count.load(Ordering::SeqCst);
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(then, 1, "{}", gpu.name);
        ok!(gpu, cuStreamDestroy_v2(stream));
    });
}

#[test]
fn stream_knows_context_and_device() {
    on_every_driver(|gpu| {
        let (mut own, outside) = (CUcontext::NULL, gpu.stream());
        ok!(gpu, cuCtxCreate_v2(&mut own, 0, gpu.device));
        let inside = gpu.stream();
        for (stream, wanted) in [(outside, gpu.context), (inside, own), (CUstream::NULL, own)] {
            let (mut context, mut green) = (CUcontext::NULL, CUgreenCtx(1));
            ok!(gpu, cuStreamGetCtx_v2(stream, &mut context, &mut green));
            assert_eq!((context, green), (wanted, CUgreenCtx::NULL));
            let mut device = -1;
            ok!(gpu, cuStreamGetDevice(stream, &mut device));
            assert_eq!(device, gpu.device);
        }
        ok!(gpu, cuStreamDestroy_v2(inside));
        ok!(gpu, cuCtxDestroy_v2(own));
        ok!(gpu, cuStreamDestroy_v2(outside));
    });
}
