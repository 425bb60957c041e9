//! Per-thread default streams, and the legacy default stream. Threads without their own default
//! stream use the legacy default stream.

use std::ffi::c_void;
use std::thread;
use std::time::Duration;

use gpuheap_driver::*;

use crate::support::{Gpu, code, ok, on_every_driver};

const BYTES: usize = 4096;

unsafe extern "C" fn nap(_data: *mut c_void) {
    thread::sleep(Duration::from_millis(20));
}

/// Enqueues a pause, so that later work on this stream is still pending when work on another stream
/// begins.
fn pause(gpu: &Gpu<'_>, stream: CUstream) {
    ok!(gpu, cuLaunchHostFunc(stream, Some(nap), std::ptr::null_mut()));
}

fn write_late(gpu: &Gpu<'_>, target: CUdeviceptr, value: u8, stream: CUstream) {
    pause(gpu, stream);
    ok!(gpu, cuMemsetD8Async(target, value, BYTES, stream));
}

/// Runs `work` on a new thread, and waits until the thread has ended.
fn on_a_thread(gpu: &Gpu<'_>, work: impl Fn() + Send + Sync) {
    let body = || {
        ok!(gpu, cuCtxSetCurrent(gpu.context));
        work();
    };
    thread::scope(|scope| scope.spawn(body).join().unwrap());
}

/// Two blocks, an event, and a non-blocking stream. The stream waits for the event and copies. The
/// copy shows which work the event covers.
struct Scene<'g> {
    gpu: &'g Gpu<'g>,
    block: CUdeviceptr,
    seen: CUdeviceptr,
    stream: CUstream,
    event: CUevent,
}

impl Scene<'_> {
    fn on_every_driver(test: impl Fn(&Scene<'_>)) {
        on_every_driver(|gpu| {
            let (block, seen) = (gpu.allocate(BYTES), gpu.allocate(BYTES));
            let scene = Scene { gpu, block, seen, stream: gpu.stream(), event: gpu.event() };
            test(&scene);
            ok!(gpu, cuCtxSynchronize());
            ok!(gpu, cuEventDestroy_v2(scene.event));
            ok!(gpu, cuStreamDestroy_v2(scene.stream));
            gpu.free(block);
            gpu.free(seen);
        });
    }

    /// Asserts that a wait for the event also waits for a write of `value`.
    fn assert_covered(&self, value: u8) {
        let gpu = self.gpu;
        ok!(gpu, cuStreamWaitEvent(self.stream, self.event, 0));
        ok!(gpu, cuMemcpyDtoDAsync_v2(self.seen, self.block, BYTES, self.stream));
        ok!(gpu, cuStreamSynchronize(self.stream));
        assert_eq!(gpu.download(self.seen, BYTES), vec![value; BYTES], "{}", gpu.name);
    }
}

#[test]
fn legacy_event_covers_ended_thread() {
    Scene::on_every_driver(|scene| {
        let (gpu, block) = (scene.gpu, scene.block);
        on_a_thread(gpu, || write_late(gpu, block, 5, CUstream::PER_THREAD));
        ok!(gpu, cuEventRecord(scene.event, CUstream::LEGACY));
        scene.assert_covered(5);
    });
}

#[test]
fn thread_work_follows_legacy_wait() {
    Scene::on_every_driver(|scene| {
        let (gpu, block) = (scene.gpu, scene.block);
        write_late(gpu, block, 6, scene.stream);
        ok!(gpu, cuEventRecord(scene.event, scene.stream));
        ok!(gpu, cuStreamWaitEvent(CUstream::LEGACY, scene.event, 0));
        on_a_thread(gpu, || {
            ok!(gpu, cuMemsetD8Async(block, 7, BYTES, CUstream::PER_THREAD));
        });
        ok!(gpu, cuEventRecord(scene.event, CUstream::LEGACY));
        scene.assert_covered(7);
    });
}

#[test]
fn thread_event_covers_legacy_work() {
    Scene::on_every_driver(|scene| {
        let (gpu, event) = (scene.gpu, scene.event);
        write_late(gpu, scene.block, 8, CUstream::LEGACY);
        on_a_thread(gpu, || ok!(gpu, cuEventRecord(event, CUstream::PER_THREAD)));
        scene.assert_covered(8);
    });
}

#[test]
fn thread_event_covers_legacy_wait() {
    Scene::on_every_driver(|scene| {
        let (gpu, event, other) = (scene.gpu, scene.event, scene.gpu.stream());
        write_late(gpu, scene.block, 9, other);
        ok!(gpu, cuEventRecord(event, other));
        ok!(gpu, cuStreamWaitEvent(CUstream::LEGACY, event, 0));
        on_a_thread(gpu, || ok!(gpu, cuEventRecord(event, CUstream::PER_THREAD)));
        scene.assert_covered(9);
    });
}

#[test]
fn legacy_stream_captures_with_thread() {
    on_every_driver(|gpu| {
        let own = CUstream::PER_THREAD;
        ok!(gpu, cuStreamBeginCapture_v2(own, CUstreamCaptureMode::RELAXED));
        let mut status = CUstreamCaptureStatus::NONE;
        ok!(gpu, cuStreamIsCapturing(own, &mut status));
        assert_eq!(status, CUstreamCaptureStatus::ACTIVE);
        on_a_thread(gpu, || {
            let (mut own, mut legacy) =
                (CUstreamCaptureStatus::ACTIVE, CUstreamCaptureStatus::NONE);
            ok!(gpu, cuStreamIsCapturing(CUstream::PER_THREAD, &mut own));
            assert_eq!(own, CUstreamCaptureStatus::NONE);
            let code = code!(gpu, cuStreamIsCapturing(CUstream::LEGACY, &mut legacy));
            assert_eq!(code, CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
        });
        let mut graph = CUgraph::NULL;
        ok!(gpu, cuStreamEndCapture(own, &mut graph));
        ok!(gpu, cuGraphDestroy(graph));
    });
}
