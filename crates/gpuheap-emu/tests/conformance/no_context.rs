//! Calls on a thread without a current context. Handles and pointers determine their context, so
//! calls that take a handle or a pointer succeed. All other calls need a current context.

use std::ffi::c_void;
use std::ptr::null_mut;

use gpuheap_driver::*;

use crate::support::*;

const NONE: CUresult = CUresult::ERROR_INVALID_CONTEXT;

fn without_context(gpu: &Gpu<'_>, part: impl FnOnce()) {
    ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
    part();
    ok!(gpu, cuCtxSetCurrent(gpu.context));
}

#[test]
fn a_stream_says_its_context() {
    on_every_driver(|gpu| {
        let (stream, event) = (gpu.stream(), gpu.event());
        without_context(gpu, || {
            let (mut id, mut flags, mut priority) = (0, 9, 9);
            let mut status = CUstreamCaptureStatus::ACTIVE;
            let mut context = CUcontext::NULL;
            ok!(gpu, cuStreamQuery(stream));
            ok!(gpu, cuStreamWaitEvent(stream, event, 0));
            ok!(gpu, cuStreamSynchronize(stream));
            ok!(gpu, cuStreamGetId(stream, &mut id));
            ok!(gpu, cuStreamGetFlags(stream, &mut flags));
            ok!(gpu, cuStreamGetPriority(stream, &mut priority));
            ok!(gpu, cuStreamIsCapturing(stream, &mut status));
            ok!(gpu, cuStreamGetCtx(stream, &mut context));
            assert_eq!((flags, priority), (CU_STREAM_NON_BLOCKING, 0));
            assert_eq!(status, CUstreamCaptureStatus::NONE);
            assert_eq!(context, gpu.context);
            for default in [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD] {
                assert_eq!(code!(gpu, cuStreamSynchronize(default)), NONE);
                assert_eq!(code!(gpu, cuStreamGetId(default, &mut id)), NONE);
                assert_eq!(code!(gpu, cuStreamIsCapturing(default, &mut status)), NONE);
            }
            let mut other = CUstream::NULL;
            assert_eq!(code!(gpu, cuStreamCreate(&mut other, 0)), NONE);
            ok!(gpu, cuStreamDestroy_v2(stream));
        });
        ok!(gpu, cuEventDestroy_v2(event));
    });
}

#[test]
fn an_event_says_its_context() {
    on_every_driver(|gpu| {
        let (stream, start, end) = (gpu.stream(), gpu.event(), gpu.event());
        without_context(gpu, || {
            ok!(gpu, cuEventRecord(start, stream));
            ok!(gpu, cuEventRecord(end, stream));
            assert_eq!(code!(gpu, cuEventRecord(end, CUstream::NULL)), NONE);
            ok!(gpu, cuEventSynchronize(end));
            ok!(gpu, cuEventQuery(start));
            let mut milliseconds = -1.0;
            ok!(gpu, cuEventElapsedTime(&mut milliseconds, start, end));
            assert!(milliseconds >= 0.0);
            let mut other = CUevent::NULL;
            assert_eq!(code!(gpu, cuEventCreate(&mut other, 0)), NONE);
            ok!(gpu, cuEventDestroy_v2(start));
            ok!(gpu, cuEventDestroy_v2(end));
        });
        ok!(gpu, cuStreamDestroy_v2(stream));
    });
}

#[test]
fn stream_work_needs_only_its_context() {
    on_every_driver(|gpu| {
        let (stream, device, host) = (gpu.stream(), gpu.allocate(4096), gpu.pinned(4096));
        let at: *mut c_void = host.as_mut_ptr().cast();
        let (mut pooled, mut managed, mut pool) = (0, 0, CUmemoryPool::NULL);
        ok!(gpu, cuMemAllocManaged(&mut managed, 4096, CU_MEM_ATTACH_GLOBAL));
        without_context(gpu, || {
            ok!(gpu, cuMemsetD8Async(device, 7, 4096, stream));
            ok!(gpu, cuMemcpyDtoHAsync_v2(at, device, 4096, stream));
            ok!(gpu, cuStreamSynchronize(stream));
            ok!(gpu, cuMemcpyHtoDAsync_v2(device, at, 4096, stream));
            ok!(gpu, cuDeviceGetMemPool(&mut pool, gpu.device));
            ok!(gpu, cuMemAllocAsync(&mut pooled, 4096, stream));
            ok!(gpu, cuMemFreeAsync(pooled, stream));
            ok!(gpu, cuMemAllocFromPoolAsync(&mut pooled, 4096, pool, stream));
            assert_eq!(code!(gpu, cuMemFreeAsync(pooled, CUstream::NULL)), NONE);
            ok!(gpu, cuMemFreeAsync(pooled, stream));
            ok!(gpu, cuMemPrefetchAsync(managed, 4096, gpu.device, stream));
            ok!(gpu, cuStreamSynchronize(stream));

            let default = CUstream::NULL;
            assert_eq!(code!(gpu, cuMemAllocAsync(&mut pooled, 4096, default)), NONE);
            assert_eq!(code!(gpu, cuMemsetD8Async(device, 7, 4096, default)), NONE);
            assert_eq!(code!(gpu, cuMemcpyHtoDAsync_v2(device, at, 4096, default)), NONE);
            assert_eq!(code!(gpu, cuMemsetD8_v2(device, 7, 4096)), NONE);
            assert_eq!(code!(gpu, cuMemcpyHtoD_v2(device, at, 4096)), NONE);
            assert_eq!(code!(gpu, cuMemcpyDtoH_v2(at, device, 4096)), NONE);
            assert_eq!(code!(gpu, cuMemcpy(device, managed, 4096)), NONE);
            assert_eq!(code!(gpu, cuMemAdvise(managed, 4096, 1, gpu.device)), NONE);
        });
        assert_eq!(host, [7; 4096]);
        gpu.unpin(host);
        gpu.free(device);
        gpu.free(managed);
        ok!(gpu, cuStreamDestroy_v2(stream));
    });
}

#[test]
fn a_pointer_says_its_context() {
    on_every_driver_unchecked(|gpu| {
        let (device, host) = (gpu.allocate(4096), gpu.pinned(4096));
        let (mut pooled, mut managed) = (0, 0);
        let mut own = vec![0_u8; 8192];
        let own: *mut c_void = own.as_mut_ptr().cast();
        ok!(gpu, cuMemAllocAsync(&mut pooled, 4096, CUstream::NULL));
        ok!(gpu, cuMemAllocManaged(&mut managed, 4096, CU_MEM_ATTACH_GLOBAL));
        ok!(gpu, cuMemHostRegister_v2(own, 8192, 0));
        without_context(gpu, || {
            let mut context = CUcontext::NULL;
            let attribute = CUpointer_attribute::CONTEXT;
            ok!(gpu, cuPointerGetAttribute((&raw mut context).cast(), attribute, device));
            assert_eq!(context, gpu.context);

            let (mut bytes, mut total, mut flags) = (0, 0, 0);
            let (mut pointer, mut other) = (0, null_mut());
            let at: *mut c_void = host.as_mut_ptr().cast();
            assert_eq!(code!(gpu, cuMemGetInfo_v2(&mut bytes, &mut total)), NONE);
            assert_eq!(code!(gpu, cuMemGetAddressRange_v2(&mut pointer, &mut bytes, device)), NONE);
            assert_eq!(code!(gpu, cuMemAlloc_v2(&mut pointer, 4096)), NONE);
            assert_eq!(code!(gpu, cuMemAllocManaged(&mut pointer, 4096, 1)), NONE);
            assert_eq!(code!(gpu, cuMemAllocHost_v2(&mut other, 4096)), NONE);
            assert_eq!(code!(gpu, cuMemHostRegister_v2(own, 4096, 0)), NONE);
            assert_eq!(code!(gpu, cuMemHostGetDevicePointer_v2(&mut pointer, at, 0)), NONE);
            assert_eq!(code!(gpu, cuMemHostGetFlags(&mut flags, at)), NONE);

            ok!(gpu, cuMemFree_v2(0));
            ok!(gpu, cuMemFree_v2(device));
            ok!(gpu, cuMemFree_v2(managed));
            ok!(gpu, cuMemFree_v2(pooled));
            gpu.unpin(host);
            ok!(gpu, cuMemHostUnregister(own));
            let unknown = CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED;
            assert_eq!(code!(gpu, cuMemHostUnregister(own)), unknown);
        });
    });
}
