//! Events.

use gpuheap_driver::*;

use crate::support::*;

#[test]
fn unrecorded_event_is_complete() {
    on_every_driver(|gpu| {
        let (event, stream) = (gpu.event(), gpu.stream());
        ok!(gpu, cuEventQuery(event));
        ok!(gpu, cuEventSynchronize(event));
        ok!(gpu, cuStreamWaitEvent(stream, event, 0));
        ok!(gpu, cuStreamDestroy_v2(stream));
        ok!(gpu, cuEventDestroy_v2(event));
    });
}

#[test]
fn a_loop_of_queries_ends() {
    on_every_driver(|gpu| {
        let (event, stream) = (gpu.event(), gpu.stream());
        let device = gpu.allocate(1 << 20);
        for _ in 0..5 {
            ok!(gpu, cuMemsetD8Async(device, 1, 1 << 20, stream));
        }
        ok!(gpu, cuEventRecord(event, stream));
        loop {
            match code!(gpu, cuEventQuery(event)) {
                CUresult::SUCCESS => break,
                code => assert_eq!(code, CUresult::ERROR_NOT_READY),
            }
        }
        ok!(gpu, cuEventQuery(event));
        gpu.free(device);
        ok!(gpu, cuStreamDestroy_v2(stream));
        ok!(gpu, cuEventDestroy_v2(event));
    });
}

#[test]
fn time_passes_between_events() {
    on_every_driver(|gpu| {
        let (start, end, stream) = (gpu.event(), gpu.event(), gpu.stream());
        let device = gpu.allocate(64 << 20);
        ok!(gpu, cuEventRecord(start, stream));
        ok!(gpu, cuMemsetD8Async(device, 1, 64 << 20, stream));
        ok!(gpu, cuEventRecord(end, stream));
        ok!(gpu, cuEventSynchronize(end));
        let (mut forth, mut back) = (0.0, 0.0);
        ok!(gpu, cuEventElapsedTime(&mut forth, start, end));
        ok!(gpu, cuEventElapsedTime(&mut back, start, start));
        assert!(forth > 0.0 && back == 0.0, "{forth} {back}");
        gpu.free(device);
        ok!(gpu, cuStreamDestroy_v2(stream));
        ok!(gpu, cuEventDestroy_v2(start));
        ok!(gpu, cuEventDestroy_v2(end));
    });
}

#[test]
fn wait_uses_last_earlier_record() {
    on_every_driver(|gpu| {
        let (one, two, event) = (gpu.stream(), gpu.stream(), gpu.event());
        let (a, b) = (gpu.allocate(4096), gpu.allocate(4096));
        ok!(gpu, cuMemsetD8Async(a, 1, 4096, one));
        ok!(gpu, cuEventRecord(event, one));
        ok!(gpu, cuStreamWaitEvent(two, event, 0));
        // The event is recorded again on another stream and destroyed. The earlier wait does not
        // change.
        ok!(gpu, cuEventRecord(event, two));
        ok!(gpu, cuEventDestroy_v2(event));
        ok!(gpu, cuMemcpyDtoDAsync_v2(b, a, 4096, two));
        ok!(gpu, cuStreamSynchronize(two));
        assert_eq!(gpu.download(b, 4096), vec![1; 4096]);
        ok!(gpu, cuStreamDestroy_v2(one));
        ok!(gpu, cuStreamDestroy_v2(two));
        gpu.free(a);
        gpu.free(b);
    });
}

#[test]
fn event_refuses_other_contexts_stream() {
    on_every_driver(|gpu| {
        let mut own = CUcontext::NULL;
        let outside = gpu.stream();
        ok!(gpu, cuCtxCreate_v2(&mut own, 0, gpu.device));
        let (stream, event) = (gpu.stream(), gpu.event());
        ok!(gpu, cuCtxPopCurrent_v2(&mut own));
        ok!(gpu, cuEventRecord(event, stream));
        let handle = CUresult::ERROR_INVALID_HANDLE;
        assert_eq!(code!(gpu, cuEventRecord(event, CUstream::NULL)), handle);
        assert_eq!(code!(gpu, cuEventRecord(event, outside)), handle);
        // Any stream may wait for the event.
        ok!(gpu, cuStreamWaitEvent(CUstream::NULL, event, 0));
        ok!(gpu, cuStreamWaitEvent(outside, event, 0));
        ok!(gpu, cuEventSynchronize(event));
        ok!(gpu, cuStreamDestroy_v2(stream));
        ok!(gpu, cuStreamDestroy_v2(outside));
        ok!(gpu, cuEventDestroy_v2(event));
        ok!(gpu, cuCtxDestroy_v2(own));
    });
}
