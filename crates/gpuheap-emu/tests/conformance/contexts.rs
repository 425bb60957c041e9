//! Contexts.

use gpuheap_driver::*;

use crate::support::*;

#[test]
fn own_context_returns_its_memory() {
    on_every_driver_unchecked(|gpu| {
        let before = gpu.used();
        let own = made!(gpu, cuCtxCreate_v2(0, gpu.device));
        let mut current = made!(gpu, cuCtxGetCurrent());
        assert_eq!(current, own);
        assert!(gpu.used() > before + (100 << 20));
        gpu.allocate(32 << 20);
        ok!(gpu, cuCtxDestroy_v2(own));
        ok!(gpu, cuCtxGetCurrent(&mut current));
        assert_eq!(current, gpu.context, "the one below is current again");
        assert_eq!(gpu.used(), before);
    });
}

#[test]
fn each_thread_has_its_own_stack() {
    on_every_driver(|gpu| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut current = gpu.context;
                ok!(gpu, cuCtxGetCurrent(&mut current));
                assert_eq!(current, CUcontext::NULL);
                ok!(gpu, cuCtxPushCurrent_v2(gpu.context));
                ok!(gpu, cuCtxPushCurrent_v2(gpu.context));
                ok!(gpu, cuCtxPopCurrent_v2(&mut current));
                assert_eq!(current, gpu.context);
                let mut device = -1;
                ok!(gpu, cuCtxGetDevice(&mut device));
                assert_eq!(device, gpu.device);
            });
        });
    });
}

#[test]
fn context_reports_its_properties() {
    on_every_driver(|gpu| {
        let (mut id, mut version, mut stack) = (0, 0, 0);
        ok!(gpu, cuCtxGetId(gpu.context, &mut id));
        ok!(gpu, cuCtxGetApiVersion(gpu.context, &mut version));
        ok!(gpu, cuCtxGetLimit(&mut stack, 0));
        assert!(id > 0 && version >= 3020 && stack > 0);
        assert_eq!(code!(gpu, cuCtxGetLimit(&mut stack, 99)), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(code!(gpu, cuCtxSetLimit(99, 0)), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(code!(gpu, cuCtxGetLimit(&mut stack, 3)), CUresult::ERROR_UNSUPPORTED_LIMIT);
    });
}

#[test]
fn reset_frees_memory_keeps_handle() {
    on_every_driver(|gpu| {
        let pointer = gpu.allocate(64 << 20);
        ok!(gpu, cuDevicePrimaryCtxReset_v2(gpu.device));
        let (mut flags, mut active) = (0, 1);
        ok!(gpu, cuDevicePrimaryCtxGetState(gpu.device, &mut flags, &mut active));
        assert_eq!(active, 0);
        let mut other = 0;
        let gone = CUresult::ERROR_CONTEXT_IS_DESTROYED;
        assert_eq!(code!(gpu, cuMemAlloc_v2(&mut other, 1)), gone);
        let mut device = -1;
        ok!(gpu, cuCtxGetDevice(&mut device));
        let again = made!(gpu, cuDevicePrimaryCtxRetain(gpu.device));
        assert_eq!(again, gpu.context);
        ok!(gpu, cuCtxSetCurrent(again));
        let mut bytes = 0;
        assert_ne!(
            code!(gpu, cuMemGetAddressRange_v2(std::ptr::null_mut(), &mut bytes, pointer)),
            CUresult::SUCCESS
        );
        ok!(gpu, cuDevicePrimaryCtxRelease_v2(gpu.device));
        ok!(gpu, cuDevicePrimaryCtxGetState(gpu.device, &mut flags, &mut active));
        assert_eq!(active, 1, "the reset took no reference away");
    });
}

#[test]
fn pool_memory_outlives_its_context() {
    on_every_driver(|gpu| {
        let own = made!(gpu, cuCtxCreate_v2(0, gpu.device));
        let pointer = made!(gpu, cuMemAllocAsync(1000, CUstream::NULL));
        ok!(gpu, cuCtxDestroy_v2(own));
        let mut kind = 0;
        let attribute = CUpointer_attribute::MEMORY_TYPE;
        ok!(gpu, cuPointerGetAttribute((&raw mut kind).cast(), attribute, pointer));
        assert_eq!(kind, CUmemorytype::DEVICE.0);
        ok!(gpu, cuMemFreeAsync(pointer, CUstream::NULL));
    });
}

#[test]
fn context_end_frees_plain_memory() {
    on_every_driver_unchecked(|gpu| {
        let (mut own, mut managed) = (CUcontext::NULL, 0);
        ok!(gpu, cuCtxCreate_v2(&mut own, 0, gpu.device));
        let (plain, pinned) = (gpu.allocate(1 << 20), gpu.pinned(4096).as_mut_ptr());
        ok!(gpu, cuMemAllocManaged(&mut managed, 4096, CU_MEM_ATTACH_GLOBAL));
        ok!(gpu, cuCtxDestroy_v2(own));
        let invalid = CUresult::ERROR_INVALID_VALUE;
        for pointer in [plain, managed, pinned.expose_provenance() as u64] {
            let mut kind = 0;
            let attribute = CUpointer_attribute::MEMORY_TYPE;
            let kind = (&raw mut kind).cast();
            assert_eq!(code!(gpu, cuPointerGetAttribute(kind, attribute, pointer)), invalid);
            assert_eq!(code!(gpu, cuMemFree_v2(pointer)), invalid);
        }
        assert_eq!(code!(gpu, cuMemFreeHost(pinned.cast())), invalid);
    });
}

#[test]
fn context_queries_need_no_current() {
    on_every_driver(|gpu| {
        let (stream, host, pointer) = (gpu.stream(), gpu.pinned(4096), gpu.allocate(4096));
        let mut device = -1;
        ok!(gpu, cuCtxGetDevice_v2(&mut device, CUcontext::NULL));
        assert_eq!(device, gpu.device);
        ok!(gpu, cuMemsetD8Async(pointer, 7, 4096, stream));
        ok!(gpu, cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), pointer, 4096, stream));
        ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
        device = -1;
        ok!(gpu, cuCtxGetDevice_v2(&mut device, gpu.context));
        assert_eq!(device, gpu.device);
        ok!(gpu, cuCtxSynchronize_v2(gpu.context));
        assert_eq!(host, [7; 4096]);
        let none = CUresult::ERROR_INVALID_CONTEXT;
        assert_eq!(code!(gpu, cuCtxSynchronize_v2(CUcontext::NULL)), none);
        assert_eq!(code!(gpu, cuCtxGetDevice_v2(&mut device, CUcontext::NULL)), none);
        ok!(gpu, cuCtxSetCurrent(gpu.context));
        ok!(gpu, cuCtxSynchronize_v2(CUcontext::NULL));
        gpu.unpin(host);
        gpu.free(pointer);
        ok!(gpu, cuStreamDestroy_v2(stream));
    });
}

#[test]
fn context_flags_can_be_set() {
    const SPIN: u32 = 1;
    const YIELD: u32 = 2;
    on_every_driver(|gpu| {
        let own = made!(gpu, cuCtxCreate_v2(SPIN, gpu.device));
        let mut flags = made!(gpu, cuCtxGetFlags());
        assert_eq!(flags & 7, SPIN);
        ok!(gpu, cuCtxSetFlags(YIELD));
        ok!(gpu, cuCtxGetFlags(&mut flags));
        assert_eq!(flags & 7, YIELD);
        assert_eq!(code!(gpu, cuCtxSetFlags(SPIN | YIELD)), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(code!(gpu, cuCtxSetFlags(1 << 20)), CUresult::ERROR_INVALID_VALUE);
        ok!(gpu, cuCtxDestroy_v2(own));
        assert_eq!(code!(gpu, cuCtxSetCurrent(CUcontext::NULL)), CUresult::SUCCESS);
        assert_eq!(code!(gpu, cuCtxSetFlags(YIELD)), CUresult::ERROR_INVALID_CONTEXT);
        ok!(gpu, cuCtxSetCurrent(gpu.context));
    });
}

/// Compares live pool memory before and after a reset. Compares all visible properties as one
/// value, so that a failure shows every difference.
#[test]
fn live_pool_memory_survives_reset() {
    on_every_driver_unchecked(|gpu| {
        let own = made!(gpu, cuMemPoolCreate(&CUmemPoolProps::device(gpu.device)));
        let default = made!(gpu, cuDeviceGetDefaultMemPool(gpu.device));
        let stream = gpu.stream();
        let mut pointers = [0, 0];
        let (used_before, default_before) = (gpu.used(), mebibytes_used(gpu, default));
        for (pointer, pool) in pointers.iter_mut().zip([own, default]) {
            ok!(gpu, cuMemAllocFromPoolAsync(pointer, 64 << 20, pool, stream));
        }
        ok!(gpu, cuStreamSynchronize(stream));
        ok!(gpu, cuDevicePrimaryCtxReset_v2(gpu.device));
        let again = made!(gpu, cuDevicePrimaryCtxRetain(gpu.device));
        ok!(gpu, cuCtxSetCurrent(again));
        let is_known = pointers.map(|pointer| {
            let (mut kind, attribute) = (0, CUpointer_attribute::MEMORY_TYPE);
            code!(gpu, cuPointerGetAttribute((&raw mut kind).cast(), attribute, pointer))
        });
        let used = [mebibytes_used(gpu, own), mebibytes_used(gpu, default) - default_before];
        let freed = pointers.map(|pointer| code!(gpu, cuMemFreeAsync(pointer, CUstream::NULL)));
        ok!(gpu, cuCtxSynchronize());
        let still = [mebibytes_used(gpu, own), mebibytes_used(gpu, default) - default_before];
        let taken = [(gpu.used() - used_before) >> 20, {
            ok!(gpu, cuMemPoolDestroy(own));
            ok!(gpu, cuMemPoolTrimTo(default, 0));
            (gpu.used() - used_before) >> 20
        }];
        let code = CUresult::SUCCESS;
        assert_eq!(
            (is_known, used, freed, still, taken),
            ([code; 2], [64, 64], [code; 2], [0, 0], [0, 0]),
            "known, used by the pools (MiB), freed, still used, taken from the device before and after \
             the pool went"
        );
        ok!(gpu, cuDevicePrimaryCtxRelease_v2(gpu.device));
    });
}

fn mebibytes_used(gpu: &Gpu<'_>, pool: CUmemoryPool) -> u64 {
    let (mut value, attribute) = (0_u64, CUmemPool_attribute::USED_MEM_CURRENT);
    ok!(gpu, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    value >> 20
}
