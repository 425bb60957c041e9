//! Streams that record a graph, and the calls that a capture forbids.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpuheap_driver::*;

use crate::support::*;

type Mode = CUstreamCaptureMode;
type Status = CUstreamCaptureStatus;

const UNSUPPORTED: CUresult = CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
const INVALIDATED: CUresult = CUresult::ERROR_STREAM_CAPTURE_INVALIDATED;

fn begin(gpu: &Gpu<'_>, stream: CUstream, mode: Mode) {
    ok!(gpu, cuStreamBeginCapture_v2(stream, mode));
}

fn end(gpu: &Gpu<'_>, stream: CUstream) -> Result<CUgraph, CUresult> {
    let mut graph = CUgraph::NULL;
    let code = code!(gpu, cuStreamEndCapture(stream, &mut graph));
    assert_eq!(code.is_success(), !graph.is_null());
    if code.is_success() { Ok(graph) } else { Err(code) }
}

fn end_well(gpu: &Gpu<'_>, stream: CUstream) {
    let graph = end(gpu, stream).unwrap();
    ok!(gpu, cuGraphDestroy(graph));
}

fn status(gpu: &Gpu<'_>, stream: CUstream) -> Status {
    let mut status = Status::NONE;
    ok!(gpu, cuStreamIsCapturing(stream, &mut status));
    status
}

/// Sets the thread's capture mode, and returns the previous mode.
fn exchange(gpu: &Gpu<'_>, mut mode: Mode) -> Mode {
    ok!(gpu, cuThreadExchangeStreamCaptureMode(&mut mode));
    mode
}

#[test]
fn recorded_work_runs_at_launch() {
    on_every_driver(|gpu| {
        let (stream, block) = (gpu.stream(), gpu.allocate(4096));
        ok!(gpu, cuMemsetD8_v2(block, 1, 4096));
        ok!(gpu, cuCtxSynchronize());
        assert_eq!(status(gpu, stream), Status::NONE);
        begin(gpu, stream, Mode::GLOBAL);
        assert_eq!(status(gpu, stream), Status::ACTIVE);
        ok!(gpu, cuMemsetD8Async(block, 7, 4096, stream));
        ok!(gpu, cuMemcpyDtoDAsync_v2(block, block + 2048, 1024, stream));
        let graph = end(gpu, stream).unwrap();
        assert_eq!(status(gpu, stream), Status::NONE);
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(gpu.download(block, 4096), [1; 4096], "recorded and not run");
        let executable = made!(gpu, cuGraphInstantiateWithFlags(graph, 0));
        ok!(gpu, cuGraphDestroy(graph));
        for other in [stream, gpu.stream()] {
            ok!(gpu, cuMemsetD8Async(block, 1, 4096, other));
            ok!(gpu, cuGraphLaunch(executable, other));
            ok!(gpu, cuStreamSynchronize(other));
            assert_eq!(gpu.download(block, 4096), [7; 4096]);
            ok!(gpu, cuStreamDestroy_v2(other));
        }
        ok!(gpu, cuGraphExecDestroy(executable));
        gpu.free(block);
    });
}

#[test]
fn capturing_stream_hides_its_id() {
    on_every_driver(|gpu| {
        for mode in [Mode::GLOBAL, Mode::RELAXED] {
            let stream = gpu.stream();
            let (mut id, mut context) = (0, CUcontext::NULL);
            begin(gpu, stream, mode);
            ok!(gpu, cuStreamGetCtx(stream, &mut context));
            assert_eq!(status(gpu, stream), Status::ACTIVE);
            assert_eq!(code!(gpu, cuStreamGetId(stream, &mut id)), UNSUPPORTED);
            assert_eq!(code!(gpu, cuStreamGetCtx(stream, &mut context)), INVALIDATED);
            assert_eq!(end(gpu, stream), Err(INVALIDATED));
            ok!(gpu, cuStreamGetCtx(stream, &mut context));
            ok!(gpu, cuStreamGetId(stream, &mut id));
        }
    });
}

#[test]
fn unsafe_call_breaks_capture() {
    on_every_driver_unchecked(|gpu| {
        let (stream, other, event) = (gpu.stream(), gpu.stream(), gpu.event());
        ok!(gpu, cuEventRecord(event, other));
        ok!(gpu, cuStreamSynchronize(other));
        let mut block = 0;
        for mode in [Mode::GLOBAL, Mode::THREAD_LOCAL] {
            begin(gpu, stream, mode);
            assert_eq!(code!(gpu, cuMemAlloc_v2(&mut block, 4096)), UNSUPPORTED, "{mode:?}");
            assert_eq!(status(gpu, stream), Status::INVALIDATED);
            assert_eq!(end(gpu, stream), Err(INVALIDATED));
            begin(gpu, stream, mode);
            assert_eq!(code!(gpu, cuEventQuery(event)), UNSUPPORTED, "{mode:?}");
            assert_eq!(end(gpu, stream), Err(INVALIDATED));
            assert_eq!(status(gpu, stream), Status::NONE);
        }
        begin(gpu, stream, Mode::GLOBAL);
        assert_eq!(code!(gpu, cuStreamSynchronize(other)), UNSUPPORTED);
        assert_eq!(end(gpu, stream), Err(INVALIDATED));
        for mode in [Mode::GLOBAL, Mode::THREAD_LOCAL, Mode::RELAXED] {
            begin(gpu, stream, mode);
            assert!(!code!(gpu, cuStreamSynchronize(stream)).is_success());
            assert_eq!(end(gpu, stream), Err(INVALIDATED), "{mode:?}");
            begin(gpu, stream, mode);
            assert!(!code!(gpu, cuStreamQuery(stream)).is_success());
            assert_eq!(end(gpu, stream), Err(INVALIDATED), "{mode:?}");
            begin(gpu, stream, mode);
            assert!(!code!(gpu, cuCtxSynchronize()).is_success());
            assert_eq!(end(gpu, stream), Err(INVALIDATED), "{mode:?}");
        }
    });
}

#[test]
fn relaxed_thread_may_allocate_during_capture() {
    on_every_driver(|gpu| {
        let (stream, other, event) = (gpu.stream(), gpu.stream(), gpu.event());
        ok!(gpu, cuEventRecord(event, other));
        ok!(gpu, cuStreamSynchronize(other));
        for mode in [Mode::GLOBAL, Mode::THREAD_LOCAL, Mode::RELAXED] {
            begin(gpu, stream, mode);
            assert_eq!(exchange(gpu, Mode::RELAXED), Mode::GLOBAL);
            // A heap makes the following calls while it serves a request.
            let block = gpu.allocate(4 << 20);
            gpu.used();
            ok!(gpu, cuEventQuery(event));
            ok!(gpu, cuEventRecord(event, other));
            ok!(gpu, cuEventSynchronize(event));
            gpu.free(block);
            let pinned = gpu.pinned(4096);
            gpu.unpin(pinned);
            let (mut address, mut handle) = (0, 0);
            let (bytes, properties) = (2 << 20, CUmemAllocationProp::device(gpu.device));
            let access = CUmemAccessDesc {
                location: CUmemLocation::device(gpu.device),
                flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            ok!(gpu, cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
            ok!(gpu, cuMemCreate(&mut handle, bytes, &properties, 0));
            ok!(gpu, cuMemMap(address, bytes, 0, handle, 0));
            ok!(gpu, cuMemSetAccess(address, bytes, &access, 1));
            ok!(gpu, cuMemUnmap(address, bytes));
            ok!(gpu, cuMemRelease(handle));
            ok!(gpu, cuMemAddressFree(address, bytes));
            assert_eq!(exchange(gpu, Mode::GLOBAL), Mode::RELAXED);
            assert_eq!(status(gpu, stream), Status::ACTIVE, "{mode:?}");
            end_well(gpu, stream);
        }
    });
}

#[test]
fn mapping_is_allowed_during_capture() {
    on_every_driver(|gpu| {
        let (stream, other) = (gpu.stream(), gpu.stream());
        let (bytes, properties) = (2 << 20, CUmemAllocationProp::device(gpu.device));
        let access = CUmemAccessDesc {
            location: CUmemLocation::device(gpu.device),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let (mut address, mut handle) = (0, 0);
        begin(gpu, stream, Mode::GLOBAL);
        ok!(gpu, cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
        ok!(gpu, cuMemCreate(&mut handle, bytes, &properties, 0));
        ok!(gpu, cuMemMap(address, bytes, 0, handle, 0));
        ok!(gpu, cuMemSetAccess(address, bytes, &access, 1));
        ok!(gpu, cuMemUnmap(address, bytes));
        ok!(gpu, cuMemRelease(handle));
        ok!(gpu, cuMemAddressFree(address, bytes));
        end_well(gpu, stream);
        begin(gpu, stream, Mode::GLOBAL);
        assert_eq!(code!(gpu, cuStreamQuery(other)), UNSUPPORTED);
        assert_eq!(end(gpu, stream), Err(INVALIDATED));
    });
}

#[test]
fn global_capture_binds_other_threads() {
    struct Shared<'g, 'd>(&'g Gpu<'d>);
    // SAFETY: drivers may be called from any thread, and handles are numbers.
    unsafe impl Sync for Shared<'_, '_> {}
    on_every_driver_unchecked(|gpu| {
        let stream = gpu.stream();
        for (mode, breaks) in
            [(Mode::GLOBAL, true), (Mode::THREAD_LOCAL, false), (Mode::RELAXED, false)]
        {
            begin(gpu, stream, mode);
            let shared = Shared(gpu);
            let code = std::thread::scope(|scope| {
                let there = || {
                    let gpu = { &shared }.0;
                    ok!(gpu, cuCtxSetCurrent(gpu.context));
                    let mut block = 0;
                    let code = code!(gpu, cuMemAlloc_v2(&mut block, 4096));
                    if code.is_success() {
                        exchange(gpu, Mode::RELAXED);
                        gpu.free(block);
                    }
                    ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
                    code
                };
                scope.spawn(there).join().unwrap()
            });
            assert_eq!(code, if breaks { UNSUPPORTED } else { CUresult::SUCCESS }, "{mode:?}");
            assert_eq!(end(gpu, stream).is_err(), breaks, "{mode:?}");
        }
    });
}

#[test]
fn captured_event_marks_no_work() {
    on_every_driver_unchecked(|gpu| {
        let (stream, other, event) = (gpu.stream(), gpu.stream(), gpu.event());
        begin(gpu, stream, Mode::RELAXED);
        ok!(gpu, cuEventRecord(event, stream));
        end_well(gpu, stream);
        let captured = CUresult::ERROR_CAPTURED_EVENT;
        // On an H200, driver 580 refuses the event with `INVALID_VALUE` once the capture has ended.
        let refused = [captured, CUresult::ERROR_INVALID_VALUE];
        assert!(refused.contains(&code!(gpu, cuEventQuery(event))));
        assert!(refused.contains(&code!(gpu, cuEventSynchronize(event))));
        ok!(gpu, cuEventRecord(event, other));
        ok!(gpu, cuEventSynchronize(event));
        ok!(gpu, cuEventQuery(event));
    });
}

#[test]
fn capture_refuses_outside_event() {
    on_every_driver_unchecked(|gpu| {
        let (stream, other, event) = (gpu.stream(), gpu.stream(), gpu.event());
        ok!(gpu, cuEventRecord(event, other));
        begin(gpu, stream, Mode::RELAXED);
        let isolation = CUresult::ERROR_STREAM_CAPTURE_ISOLATION;
        assert_eq!(code!(gpu, cuStreamWaitEvent(stream, event, 0)), isolation);
        assert_eq!(end(gpu, stream), Err(INVALIDATED));
    });
}

#[test]
fn joined_stream_must_rejoin_capture() {
    on_every_driver(|gpu| {
        let (stream, other) = (gpu.stream(), gpu.stream());
        let (fork, join, block) = (gpu.event(), gpu.event(), gpu.allocate(4096));
        for comes_back in [true, false] {
            begin(gpu, stream, Mode::GLOBAL);
            ok!(gpu, cuMemsetD8Async(block, 1, 4096, stream));
            ok!(gpu, cuEventRecord(fork, stream));
            ok!(gpu, cuStreamWaitEvent(other, fork, 0));
            assert_eq!(status(gpu, other), Status::ACTIVE);
            ok!(gpu, cuMemsetD8Async(block, 2, 4096, other));
            if comes_back {
                ok!(gpu, cuEventRecord(join, other));
                ok!(gpu, cuStreamWaitEvent(stream, join, 0));
                end_well(gpu, stream);
            } else {
                assert_eq!(end(gpu, stream), Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED));
            }
            assert_eq!(status(gpu, other), Status::NONE);
        }
        for event in [fork, join] {
            ok!(gpu, cuEventDestroy_v2(event));
        }
        ok!(gpu, cuStreamDestroy_v2(stream));
        ok!(gpu, cuStreamDestroy_v2(other));
        gpu.free(block);
    });
}

#[test]
fn default_stream_ignores_capture() {
    on_every_driver_unchecked(|gpu| {
        let blocking = made!(gpu, cuStreamCreate(0));
        let block = gpu.allocate(4096);
        begin(gpu, blocking, Mode::RELAXED);
        let implicit = CUresult::ERROR_STREAM_CAPTURE_IMPLICIT;
        assert_eq!(code!(gpu, cuMemsetD8Async(block, 1, 4096, CUstream::LEGACY)), implicit);
        assert_eq!(end(gpu, blocking), Err(INVALIDATED));
        let refused = code!(gpu, cuStreamBeginCapture_v2(CUstream::LEGACY, Mode::RELAXED));
        assert_eq!(refused, UNSUPPORTED);
        ok!(gpu, cuStreamDestroy_v2(blocking));
        gpu.free(block);
    });
}

#[test]
fn a_capture_ends_where_it_began() {
    on_every_driver_unchecked(|gpu| {
        let (stream, mut graph) = (gpu.stream(), CUgraph::NULL);
        assert!(!code!(gpu, cuStreamEndCapture(stream, &mut graph)).is_success());
        let mode = CUstreamCaptureMode(9);
        assert!(!code!(gpu, cuStreamBeginCapture_v2(stream, mode)).is_success());
        begin(gpu, stream, Mode::RELAXED);
        assert!(!code!(gpu, cuStreamBeginCapture_v2(stream, Mode::RELAXED)).is_success());
        let _ = end(gpu, stream);
    });
}

#[test]
fn capture_query_leaves_capture_valid() {
    on_every_driver(|gpu| {
        let (mut stream, mut status) = (CUstream::NULL, Status::NONE);
        ok!(gpu, cuStreamCreate(&mut stream, 0));
        begin(gpu, stream, Mode::RELAXED);
        let (id, graph, nodes, count) = (
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        );
        let info = |stream, status| {
            code!(gpu, cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count))
        };
        let implicit = info(CUstream::NULL, &mut status);
        assert_eq!(implicit, CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
        assert_eq!(info(stream, &mut status), CUresult::SUCCESS);
        assert_eq!(status, Status::ACTIVE);
        // Edge data is returned only if the nodes are requested too.
        let mut edges = std::ptr::null();
        let alone = code!(
            gpu,
            cuStreamGetCaptureInfo_v3(stream, &mut status, id, graph, nodes, &mut edges, count)
        );
        assert_eq!(alone, CUresult::ERROR_INVALID_VALUE);
        end_well(gpu, stream);
    });
}

#[test]
fn unknown_graph_flags_are_refused() {
    on_every_driver(|gpu| {
        let (stream, block) = (gpu.stream(), gpu.allocate(64));
        begin(gpu, stream, Mode::RELAXED);
        ok!(gpu, cuMemsetD8Async(block, 7, 64, stream));
        let graph = end(gpu, stream).unwrap();
        let mut executable = CUgraphExec::NULL;
        for (flags, expected) in [
            (1, CUresult::SUCCESS),
            (8, CUresult::SUCCESS),
            // Flag 2 requests an upload, but this function has no argument for the upload's stream.
            (2, CUresult::ERROR_INVALID_VALUE),
            (16, CUresult::ERROR_INVALID_VALUE),
        ] {
            let code = code!(gpu, cuGraphInstantiateWithFlags(&mut executable, graph, flags));
            assert_eq!(code, expected, "{flags}");
            if code.is_success() {
                ok!(gpu, cuGraphExecDestroy(executable));
            }
        }
        let make = |graph, flags, executable: &mut CUgraphExec| {
            let mut parameters = CUDA_GRAPH_INSTANTIATE_PARAMS {
                flags,
                hUploadStream: stream,
                hErrNode_out: CUgraphNode(9),
                result_out: 9,
            };
            let code = code!(gpu, cuGraphInstantiateWithParams(executable, graph, &mut parameters));
            assert!(parameters.hErrNode_out.is_null());
            (code, parameters.result_out)
        };
        let invalid = CUresult::ERROR_INVALID_VALUE;
        assert_eq!(make(graph, 16, &mut executable), (invalid, 1));
        assert_eq!(make(CUgraph::NULL, 0, &mut executable), (invalid, 1));
        assert_eq!(make(graph, 2, &mut executable), (CUresult::SUCCESS, 0));
        ok!(gpu, cuGraphUpload(executable, stream));
        ok!(gpu, cuGraphLaunch(executable, stream));
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(gpu.download(block, 64), [7; 64]);
        ok!(gpu, cuGraphExecDestroy(executable));
        ok!(gpu, cuGraphDestroy(graph));
        gpu.free(block);
    });
}

/// Destructor of a user object. It increments the counter that is the object's data.
unsafe extern "C" fn count_end(data: *mut c_void) {
    // SAFETY: the data of each object here is a counter that outlives the object.
    unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

/// Makes the graph of a capture keep a user object. The object's destructor increments `ends`.
fn keep(gpu: &Gpu<'_>, stream: CUstream, ends: &AtomicUsize) {
    let (mut status, mut graph, mut object) = (Status::NONE, CUgraph::NULL, CUuserObject::NULL);
    let (id, dependencies, count) = (null_mut(), null_mut(), null_mut());
    ok!(gpu, cuStreamGetCaptureInfo_v2(stream, &mut status, id, &mut graph, dependencies, count));
    let (data, flags) = (std::ptr::from_ref(ends).cast_mut(), CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    ok!(gpu, cuUserObjectCreate(&mut object, data.cast(), Some(count_end), 1, flags));
    ok!(gpu, cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
}

/// Waits until `count` objects have ended. A driver calls destructors on another thread, some time
/// later.
fn await_ends(ends: &AtomicUsize, count: usize) {
    let late = Instant::now() + Duration::from_secs(30);
    while ends.load(Ordering::SeqCst) != count && Instant::now() < late {
        std::thread::yield_now();
    }
    assert_eq!(ends.load(Ordering::SeqCst), count);
}

#[test]
fn user_object_ends_with_last_launch() {
    on_every_driver(|gpu| {
        let (stream, block, ends) = (gpu.stream(), gpu.allocate(4096), AtomicUsize::new(0));
        begin(gpu, stream, Mode::GLOBAL);
        keep(gpu, stream, &ends);
        assert_eq!(status(gpu, stream), Status::ACTIVE);
        ok!(gpu, cuMemsetD8Async(block, 7, 4096, stream));
        let graph = end(gpu, stream).unwrap();
        let executable = made!(gpu, cuGraphInstantiateWithFlags(graph, 0));
        ok!(gpu, cuGraphDestroy(graph));
        ok!(gpu, cuGraphLaunch(executable, stream));
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(ends.load(Ordering::SeqCst), 0, "the executable graph keeps it");
        ok!(gpu, cuGraphLaunch(executable, stream));
        ok!(gpu, cuGraphExecDestroy(executable));
        ok!(gpu, cuStreamSynchronize(stream));
        await_ends(&ends, 1);
        assert_eq!(gpu.download(block, 4096), [7; 4096]);
        ok!(gpu, cuMemFree_v2(block));
    });
}

#[test]
fn user_object_of_broken_capture_ends() {
    on_every_driver(|gpu| {
        let (stream, ends) = (gpu.stream(), AtomicUsize::new(0));
        begin(gpu, stream, Mode::GLOBAL);
        keep(gpu, stream, &ends);
        assert_eq!(code!(gpu, cuStreamSynchronize(stream)), UNSUPPORTED);
        assert_eq!(end(gpu, stream), Err(INVALIDATED));
        await_ends(&ends, 1);
        let destroyed = gpu.stream();
        begin(gpu, destroyed, Mode::GLOBAL);
        keep(gpu, destroyed, &ends);
        ok!(gpu, cuStreamDestroy_v2(destroyed));
        await_ends(&ends, 2);
    });
}
