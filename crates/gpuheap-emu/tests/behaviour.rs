//! Behaviour that only an emulator has: capacity, profiles, planned failures, schedules, several
//! devices.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpuheap_driver::*;
use gpuheap_emu::{Emulator, Fault, FaultPlan, Options, Profile, Schedule, take_request};

mod calls;

use calls::{call, made, ok, start};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: CUresult = CUresult::ERROR_OUT_OF_MEMORY;

fn allocate(gpu: &Emulator, bytes: u64) -> CUdeviceptr {
    made!(gpu, cuMemAlloc_v2(bytes as usize))
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn untouched_memory_costs_nothing() {
    let gpu = start(Options::default());
    let before = resident_bytes();
    let bytes = 138 * GIB;
    let block = allocate(&gpu, bytes);
    ok!(gpu, cuMemsetD8_v2(block, 7, bytes as usize));
    let (first, last) = ([1_u8, 2, 3], [4_u8, 5]);
    ok!(gpu, cuMemcpyHtoD_v2(block, first.as_ptr().cast(), 3));
    ok!(gpu, cuMemcpyHtoD_v2(block + bytes - 2, last.as_ptr().cast(), 2));
    let mut found = [0_u8; 4];
    ok!(gpu, cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), block, 4));
    assert_eq!(found, [1, 2, 3, 7]);
    ok!(gpu, cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), block + bytes - 4, 4));
    assert_eq!(found, [7, 7, 4, 5]);
    assert!(resident_bytes() - before < 64 * MIB);
    ok!(gpu, cuMemFree_v2(block));
}

#[test]
fn freed_memory_costs_host_nothing() {
    let gpu = start(Options { checks: false, ..Options::default() });
    let data = vec![1_u8; 3000];
    let stream = made!(gpu, cuStreamCreate(0));
    let mut before = 0;
    for round in 0..20_000 {
        if round == 1000 {
            before = resident_bytes();
        }
        let plain = allocate(&gpu, 3000);
        let pooled = made!(gpu, cuMemAllocAsync(3000, stream));
        ok!(gpu, cuMemcpyHtoD_v2(plain, data.as_ptr().cast(), 3000));
        ok!(gpu, cuMemcpyHtoD_v2(pooled, data.as_ptr().cast(), 3000));
        ok!(gpu, cuMemFreeAsync(pooled, stream));
        ok!(gpu, cuMemFree_v2(plain));
    }
    // The freed blocks together had over 100 MiB, so their pages were given back.
    assert!(resident_bytes() < before + 32 * MIB);
}

#[test]
fn freed_address_is_not_reused_soon() {
    let gpu = start(Options::default());
    let mut seen = std::collections::HashSet::new();
    for bytes in [1, 4096, 3 << 20].into_iter().cycle().take(300) {
        let (plain, mut pooled) = (allocate(&gpu, bytes), 0);
        ok!(gpu, cuMemAllocAsync(&mut pooled, bytes as usize, CUstream::NULL));
        assert!(seen.insert(plain) && seen.insert(pooled));
        ok!(gpu, cuMemFree_v2(plain));
        ok!(gpu, cuMemFreeAsync(pooled, CUstream::NULL));
    }
}

#[test]
fn device_by_bytes_has_these_bytes() {
    let gpu = start(Options::with_device(Profile::with_memory(64 * MIB)));
    let block = allocate(&gpu, 64 * MIB);
    let mut pointer = 0;
    assert_eq!(call!(gpu, cuMemAlloc_v2(&mut pointer, 1)), OUT_OF_MEMORY);
    assert_eq!(gpu.usage(0).free, 0);
    ok!(gpu, cuMemFree_v2(block));
    let usage = gpu.usage(0);
    assert_eq!((usage.free, usage.high_water), (64 * MIB, 64 * MIB));
}

#[test]
fn managed_memory_counts_towards_demand() {
    let gpu = start(Options::with_device(Profile::with_memory(64 * MIB)));
    let block = allocate(&gpu, 4 * MIB);
    let (mut first, mut second) = (0, 0);
    ok!(gpu, cuMemAllocManaged(&mut first, 80 << 20, CU_MEM_ATTACH_GLOBAL));
    ok!(gpu, cuMemFree_v2(first));
    ok!(gpu, cuMemAllocManaged(&mut second, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    ok!(gpu, cuMemFree_v2(second));
    ok!(gpu, cuMemFree_v2(block));
    let usage = gpu.usage(0);
    assert_eq!((usage.managed_high_water, usage.high_water), (80 * MIB, 4 * MIB));
    assert_eq!((usage.demand_high_water, usage.free), (84 * MIB, 64 * MIB));
}

#[test]
fn request_is_kept_for_its_thread() {
    let gpu = start(Options::with_device(Profile::with_memory(64 * MIB)));
    let (mut pointer, before) = (0, gpu.peak_mark());
    take_request();
    ok!(gpu, cuMemAlloc_v2(&mut pointer, 60 << 20));
    assert!(gpu.peak_mark() > before);
    let granted = take_request().unwrap();
    assert_eq!((granted.bytes, granted.is_granted), (60 * MIB, true));
    assert_eq!((granted.place, take_request()), ((&raw const pointer).addr() as u64, None));
    assert_eq!(call!(gpu, cuMemAlloc_v2(&mut pointer, 5 << 20)), OUT_OF_MEMORY);
    let refused = take_request().unwrap();
    assert_eq!((refused.function, refused.device), ("cuMemAlloc_v2", 0));
    assert_eq!((refused.bytes, refused.free_bytes, refused.is_granted), (5 * MIB, 4 * MIB, false));
}

#[test]
fn usage_names_each_owner() {
    let gpu = start(Options::with_device(Profile::with_memory(GIB).context_bytes(100 * MIB)));
    let block = allocate(&gpu, 3 * MIB);
    let pooled = made!(gpu, cuMemAllocAsync(1, CUstream::NULL));
    let handle = made!(gpu, cuMemCreate(2 << 20, &CUmemAllocationProp::device(0), 0));
    let usage = gpu.usage(0);
    assert_eq!(
        (usage.context, usage.plain, usage.pools, usage.vmm),
        (100 * MIB, 4 * MIB, 32 * MIB, 2 * MIB)
    );
    assert_eq!(usage.free, GIB - 138 * MIB);
    ok!(gpu, cuMemFreeAsync(pooled, CUstream::NULL));
    ok!(gpu, cuMemFree_v2(block));
    ok!(gpu, cuMemRelease(handle));
    ok!(gpu, cuDevicePrimaryCtxRelease_v2(0));
    // The context's own memory is freed, although the default pool outlives the context.
    assert_eq!(gpu.usage(0).context, 0);
}

#[test]
fn full_device_reclaims_idle_pools() {
    let gpu = start(Options::with_device(Profile::with_memory(64 * MIB)));
    let mut pool = CUmemoryPool::NULL;
    let mut forever = u64::MAX;
    ok!(gpu, cuDeviceGetDefaultMemPool(&mut pool, 0));
    ok!(
        gpu,
        cuMemPoolSetAttribute(
            pool,
            CUmemPool_attribute::RELEASE_THRESHOLD,
            (&raw mut forever).cast()
        )
    );
    let pooled = made!(gpu, cuMemAllocAsync(64 << 20, CUstream::NULL));
    ok!(gpu, cuMemFreeAsync(pooled, CUstream::NULL));
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(gpu.usage(0).pools, 64 * MIB);
    let block = allocate(&gpu, 40 * MIB);
    assert!(gpu.usage(0).pools <= 24 * MIB);
    ok!(gpu, cuMemFree_v2(block));
}

#[test]
fn wsl2_profile_lacks_features() {
    let profile = Profile::named("wsl2-rtx4060").unwrap();
    let gpu = start(Options { checks: false, ..Options::with_device(profile.clone()) });
    let (mut address, mut managed, mut pinned) = (0, 0, std::ptr::null_mut());
    assert_eq!(
        call!(gpu, cuMemAddressReserve(&mut address, 2 << 20, 0, 0, 0)),
        CUresult::ERROR_NOT_SUPPORTED
    );
    ok!(gpu, cuMemAllocManaged(&mut managed, 4096, CU_MEM_ATTACH_GLOBAL));
    assert_eq!(
        call!(gpu, cuMemPrefetchAsync(managed, 4096, 0, CUstream::NULL)),
        CUresult::ERROR_INVALID_DEVICE
    );
    ok!(gpu, cuMemFree_v2(managed));
    // Without concurrent access, managed memory takes device memory. The device gets the memory
    // back only after some more driver calls.
    for _ in 0..profile.late_release_calls {
        ok!(gpu, cuCtxSynchronize());
    }
    let half = gpu.usage(0).free as usize / 2;
    let global = CU_MEM_ATTACH_GLOBAL;
    let mut other = 0;
    let too_much = 2 * half + (1 << 20);
    assert_eq!(call!(gpu, cuMemAllocManaged(&mut managed, too_much, global)), OUT_OF_MEMORY);
    ok!(gpu, cuMemAllocManaged(&mut managed, half, global));
    assert_eq!(
        call!(gpu, cuMemAllocManaged(&mut other, half + MIB as usize, global)),
        OUT_OF_MEMORY
    );
    assert_eq!(call!(gpu, cuMemAlloc_v2(&mut other, half + MIB as usize)), OUT_OF_MEMORY);
    assert_eq!(gpu.usage(0).managed, half.next_multiple_of(4096) as u64);
    ok!(gpu, cuMemFree_v2(managed));
    assert_eq!(gpu.usage(0).managed, 0);
    for _ in 0..profile.late_release_calls {
        ok!(gpu, cuCtxSynchronize());
    }
    let limit = profile.pinned_limit.unwrap() as usize;
    assert_eq!(call!(gpu, cuMemAllocHost_v2(&mut pinned, limit + 1)), OUT_OF_MEMORY);
    ok!(gpu, cuMemAllocHost_v2(&mut pinned, limit));
    ok!(gpu, cuMemFreeHost(pinned));

    // On WSL2, the reported free memory exceeds the memory that can be allocated, and freed memory
    // becomes available some calls later.
    let (mut free, mut total, mut block) = (0, 0, 0);
    ok!(gpu, cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(call!(gpu, cuMemAlloc_v2(&mut block, free)), OUT_OF_MEMORY);
    let most = gpu.usage(0).free / (2 * MIB) * 2 * MIB;
    ok!(gpu, cuMemAlloc_v2(&mut block, most as usize));
    ok!(gpu, cuMemFree_v2(block));
    assert_eq!(call!(gpu, cuMemAlloc_v2(&mut block, most as usize)), OUT_OF_MEMORY);
    assert_eq!(gpu.usage(0).late, most);
    for _ in 0..profile.late_release_calls {
        ok!(gpu, cuMemGetInfo_v2(&mut free, &mut total));
    }
    ok!(gpu, cuMemAlloc_v2(&mut block, most as usize));
    ok!(gpu, cuMemFree_v2(block));
}

#[test]
fn every_name_is_a_profile() {
    for name in Profile::NAMES {
        let profile = Profile::named(name).unwrap();
        assert!(profile.name.contains("emulated"), "{name} never claims to be real");
        assert!(profile.memory_bytes > 4 * GIB);
    }
    assert_eq!(Profile::named("h100"), None);
}

#[test]
fn calls_are_counted() {
    let gpu = start(Options::default());
    let before = gpu.calls();
    let block = allocate(&gpu, 10);
    ok!(gpu, cuMemFree_v2(block));
    assert_eq!((gpu.calls() - before, gpu.calls_of("cuMemAlloc_v2")), (2, 1));
    assert_eq!(gpu.calls_of("cuTeleport"), 0);
}

#[test]
fn planned_fault_fails_one_call() {
    let gpu = start(Options::default());
    gpu.set_faults(FaultPlan::new([Fault::nth("cuMemAlloc_v2", 2, OUT_OF_MEMORY)]));
    let mut pointer = 0;
    let codes: Vec<_> =
        (0..3).map(|_| call!(gpu, cuMemAlloc_v2(&mut pointer, 16)).is_success()).collect();
    assert_eq!(codes, [true, false, true]);
    gpu.set_faults(FaultPlan::new([Fault::nth("cuMemAlloc_v2", 2, OUT_OF_MEMORY).onwards()]));
    let codes: Vec<_> =
        (0..3).map(|_| call!(gpu, cuMemAlloc_v2(&mut pointer, 16)).is_success()).collect();
    assert_eq!(codes, [true, false, false]);
    gpu.set_faults(FaultPlan::default().out_of_memory_at(600 * MIB));
    assert_eq!(call!(gpu, cuMemAlloc_v2(&mut pointer, 80 << 20)), OUT_OF_MEMORY);
    gpu.set_faults(FaultPlan::default());
    ok!(gpu, cuMemAlloc_v2(&mut pointer, 80 << 20));
}

#[test]
fn a_sweep_reaches_every_call() {
    let scenario = |gpu: &Emulator| {
        let mut pointer = 0;
        let mut codes = vec![call!(gpu, cuMemAlloc_v2(&mut pointer, 100))];
        codes.push(call!(gpu, cuMemsetD8_v2(pointer, 0, 100)));
        codes.push(call!(gpu, cuMemFree_v2(pointer)));
        codes
    };
    for nth in 1..=3 {
        let gpu = start(Options { checks: false, ..Options::default() });
        gpu.set_faults(FaultPlan::fail_call(nth, CUresult::ERROR_UNKNOWN));
        let codes = scenario(&gpu);
        assert_eq!(codes[nth as usize - 1], CUresult::ERROR_UNKNOWN, "{codes:?}");
        assert!(codes[..nth as usize - 1].iter().all(|code| code.is_success()));
    }
}

#[test]
fn lost_context_fails_until_reset() {
    let gpu = start(Options::default());
    let fault = Fault::nth("cuCtxSynchronize", 1, CUresult::ERROR_ILLEGAL_ADDRESS).context_lost();
    gpu.set_faults(FaultPlan::new([fault]));
    assert_eq!(call!(gpu, cuCtxSynchronize()), CUresult::ERROR_ILLEGAL_ADDRESS);
    let mut pointer = 0;
    assert_eq!(call!(gpu, cuMemAlloc_v2(&mut pointer, 1)), CUresult::ERROR_ILLEGAL_ADDRESS);
    let mut context = CUcontext::NULL;
    ok!(gpu, cuDevicePrimaryCtxReset_v2(0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(gpu, cuCtxSetCurrent(context));
    ok!(gpu, cuMemAlloc_v2(&mut pointer, 1));
}

#[test]
fn a_slow_call_takes_its_time() {
    let gpu = start(Options::default());
    gpu.set_faults(FaultPlan::new([Fault::slow("cuCtxSynchronize", 1, Duration::from_millis(20))]));
    let before = Instant::now();
    ok!(gpu, cuCtxSynchronize());
    assert!(before.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_lag_is_virtual_time() {
    let schedule = Schedule::Lag(Duration::from_secs(10));
    let gpu = start(Options { schedule, ..Options::default() });
    let one = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
    let two = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
    let event = made!(gpu, cuEventCreate(0));
    ok!(gpu, cuEventRecord(event, one));
    ok!(gpu, cuStreamWaitEvent(two, event, 0));
    let not_ready = CUresult::ERROR_NOT_READY;
    assert_eq!(call!(gpu, cuEventQuery(event)), not_ready);
    gpu.advance(Duration::from_secs(9));
    assert_eq!(call!(gpu, cuEventQuery(event)), not_ready);
    gpu.set_time(Duration::from_secs(11));
    ok!(gpu, cuEventQuery(event));
    assert_eq!(call!(gpu, cuStreamQuery(two)), not_ready, "10 s after what it waits for");
    ok!(gpu, cuStreamSynchronize(two));
    assert!(gpu.time() >= Duration::from_secs(20) && gpu.time() < Duration::from_secs(21));
}

#[test]
fn freed_pool_memory_moves_between_streams() {
    let schedule = Schedule::Lag(Duration::from_secs(1));
    let gpu = start(Options { schedule, ..Options::with_device(Profile::with_memory(32 * MIB)) });
    let one = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
    let two = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
    let pool = made!(gpu, cuDeviceGetDefaultMemPool(0));
    let mut no = 0_i32;
    let dependencies = CUmemPool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES;
    ok!(gpu, cuMemPoolSetAttribute(pool, dependencies, (&raw mut no).cast()));
    let (mut a, mut b) = (0, 0);
    ok!(gpu, cuMemAllocAsync(&mut a, 32 << 20, one));
    ok!(gpu, cuMemFreeAsync(a, one));
    // Stream `one` freed the memory, so it can reuse the memory immediately. Stream `two` can reuse
    // it only after the free is done.
    ok!(gpu, cuMemAllocAsync(&mut a, 32 << 20, one));
    ok!(gpu, cuMemFreeAsync(a, one));
    assert_eq!(call!(gpu, cuMemAllocAsync(&mut b, 32 << 20, two)), OUT_OF_MEMORY);
    gpu.advance(Duration::from_secs(10));
    ok!(gpu, cuMemAllocAsync(&mut b, 32 << 20, two));
    ok!(gpu, cuMemFreeAsync(b, two));
    // If internal dependencies are allowed, the driver makes the other stream wait for the free.
    let mut yes = 1_i32;
    ok!(gpu, cuMemPoolSetAttribute(pool, dependencies, (&raw mut yes).cast()));
    ok!(gpu, cuMemAllocAsync(&mut a, 32 << 20, one));
    assert_eq!(call!(gpu, cuStreamQuery(one)), CUresult::ERROR_NOT_READY);
    gpu.run_to_idle();
    ok!(gpu, cuStreamQuery(one));
    assert_eq!(gpu.findings().unwrap(), []);
}

#[test]
fn non_opportunistic_pool_waits_for_host() {
    let gpu = start(Options::default());
    let (mut one, mut two, mut pool) = (CUstream::NULL, CUstream::NULL, CUmemoryPool::NULL);
    ok!(gpu, cuStreamCreate(&mut one, CU_STREAM_NON_BLOCKING));
    ok!(gpu, cuStreamCreate(&mut two, CU_STREAM_NON_BLOCKING));
    let properties = CUmemPoolProps { max_size: 32 << 20, ..CUmemPoolProps::device(0) };
    ok!(gpu, cuMemPoolCreate(&mut pool, &properties));
    let (mut no, mut forever) = (0_i32, u64::MAX);
    type A = CUmemPool_attribute;
    for attribute in [A::REUSE_ALLOW_OPPORTUNISTIC, A::REUSE_ALLOW_INTERNAL_DEPENDENCIES] {
        ok!(gpu, cuMemPoolSetAttribute(pool, attribute, (&raw mut no).cast()));
    }
    ok!(gpu, cuMemPoolSetAttribute(pool, A::RELEASE_THRESHOLD, (&raw mut forever).cast()));
    let (mut a, mut b) = (0, 0);
    ok!(gpu, cuMemAllocFromPoolAsync(&mut a, 32 << 20, pool, one));
    ok!(gpu, cuMemFreeAsync(a, one));
    assert_eq!(call!(gpu, cuMemAllocFromPoolAsync(&mut b, 32 << 20, pool, two)), OUT_OF_MEMORY);
    ok!(gpu, cuMemAllocFromPoolAsync(&mut a, 32 << 20, pool, one));
    ok!(gpu, cuMemFreeAsync(a, one));
    ok!(gpu, cuStreamSynchronize(one));
    ok!(gpu, cuMemAllocFromPoolAsync(&mut b, 32 << 20, pool, two));
    ok!(gpu, cuMemFreeAsync(b, two));
    assert_eq!(gpu.findings().unwrap(), []);
}

#[test]
fn arguments_beyond_all_addresses_are_refused() {
    let gpu = start(Options { checks: false, ..Options::default() });
    let block = allocate(&gpu, 4096);
    let invalid = CUresult::ERROR_INVALID_VALUE;
    for (pitch, width, height) in
        [(usize::MAX - 99, 50, 2), (usize::MAX, 1, usize::MAX), (64, 65, 2), (1 << 40, 16, 1 << 40)]
    {
        assert_eq!(call!(gpu, cuMemsetD2D8_v2(block, pitch, 1, width, height)), invalid);
    }
    assert_eq!(call!(gpu, cuMemsetD32_v2(block, 1, usize::MAX)), invalid);
    assert_eq!(call!(gpu, cuMemsetD8_v2(u64::MAX, 1, 2)), invalid);
    assert_eq!(call!(gpu, cuMemcpyDtoD_v2(block, block, usize::MAX)), invalid);
    assert_eq!(call!(gpu, cuMemUnmap(u64::MAX, 2 << 20)), invalid);
    assert_eq!(call!(gpu, cuMemAddressFree(u64::MAX, usize::MAX)), invalid);
    ok!(gpu, cuMemFree_v2(block));
}

/// Compares the emulator with two H200 under driver 580, with and without peer access.
#[test]
fn peer_pool_copy_needs_peer_call() {
    let devices = vec![Profile::with_memory(GIB), Profile::with_memory(GIB)];
    let gpu = start(Options { devices, ..Options::default() });
    let own = made!(gpu, cuCtxGetCurrent());
    let mut other = made!(gpu, cuDevicePrimaryCtxRetain(1));
    let here = allocate(&gpu, 4096);
    ok!(gpu, cuMemsetD8_v2(here, 9, 4096));
    assert_eq!((gpu.usage(0).plain, gpu.usage(1).plain), (2 * MIB, 0));
    let (mut pool, mut there) = (CUmemoryPool::NULL, 0);
    ok!(gpu, cuMemPoolCreate(&mut pool, &CUmemPoolProps::device(1)));
    ok!(gpu, cuCtxPushCurrent_v2(other));
    ok!(gpu, cuMemAllocFromPoolAsync(&mut there, 4096, pool, CUstream::NULL));
    ok!(gpu, cuStreamSynchronize(CUstream::NULL));
    ok!(gpu, cuMemcpyAsync(there, here, 4096, CUstream::NULL));
    ok!(gpu, cuCtxPopCurrent_v2(&mut other));
    let refused = call!(gpu, cuMemcpyAsync(there, here, 4096, CUstream::NULL));
    assert_eq!(refused, CUresult::ERROR_INVALID_VALUE);
    ok!(gpu, cuMemcpyPeerAsync(there, other, here, own, 4096, CUstream::NULL));
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuCtxPushCurrent_v2(other));
    ok!(gpu, cuMemFreeAsync(there, CUstream::NULL));
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuMemPoolDestroy(pool));
    ok!(gpu, cuCtxPopCurrent_v2(&mut other));
    ok!(gpu, cuMemFree_v2(here));
}

#[test]
fn emulators_share_nothing() {
    let one = start(Options::default());
    let two = Emulator::new(Options::default());
    let mut pointer = 0;
    assert_eq!(call!(two, cuMemAlloc_v2(&mut pointer, 1)), CUresult::ERROR_NOT_INITIALIZED);
    ok!(two, cuInit(0));
    assert_eq!(call!(two, cuMemAlloc_v2(&mut pointer, 1)), CUresult::ERROR_INVALID_CONTEXT);
    assert_eq!(one.usage(0).plain, two.usage(0).plain);
}

unsafe extern "C" fn set(data: *mut c_void) {
    // SAFETY: the test passes a flag that outlives the stream's work.
    unsafe { &*data.cast::<AtomicBool>() }.store(true, Ordering::SeqCst);
}

#[test]
fn seed_decides_completion_order() {
    let calls_until_done = |seed| {
        let gpu = start(Options { schedule: Schedule::Seeded(seed), ..Options::default() });
        let called = AtomicBool::new(false);
        let data = std::ptr::from_ref(&called).cast_mut().cast();
        ok!(gpu, cuLaunchHostFunc(CUstream::NULL, Some(set), data));
        let mut context = CUcontext::NULL;
        (0..1000).position(|_| {
            let done = called.load(Ordering::SeqCst);
            ok!(gpu, cuCtxGetCurrent(&mut context));
            done
        })
    };
    let counts: Vec<_> = (0..20).map(|seed| calls_until_done(seed).unwrap()).collect();
    assert!(
        counts.iter().any(|count| *count > 1) && counts.iter().any(|count| *count < 2),
        "{counts:?}"
    );
    assert_eq!(counts, (0..20).map(|seed| calls_until_done(seed).unwrap()).collect::<Vec<_>>());
}

#[test]
fn worker_runs_idle_host_callbacks() {
    for schedule in
        [Schedule::Immediate, Schedule::Seeded(3), Schedule::Lag(Duration::from_millis(5))]
    {
        let gpu = start(Options { schedule, worker: true, ..Options::default() });
        let called = AtomicBool::new(false);
        let data = std::ptr::from_ref(&called).cast_mut().cast();
        ok!(gpu, cuLaunchHostFunc(CUstream::NULL, Some(set), data));
        while !called.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        ok!(gpu, cuCtxSynchronize());
    }
}

unsafe extern "C" fn call_back(data: *mut c_void) {
    // SAFETY: the test passes the emulator. It outlives the stream's work.
    let gpu = unsafe { &*data.cast::<Emulator>() };
    let mut pointer = 0;
    assert_eq!(call!(gpu, cuMemAlloc_v2(&mut pointer, 1)), CUresult::ERROR_NOT_PERMITTED);
}

#[test]
fn callback_driver_call_is_refused() {
    let gpu = start(Options::default());
    let data = std::ptr::from_ref(&gpu).cast_mut().cast();
    ok!(gpu, cuLaunchHostFunc(CUstream::NULL, Some(call_back), data));
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(gpu.findings().unwrap().len(), 1);
}

unsafe extern "C" fn wait_for_flag(data: *mut c_void) {
    // SAFETY: the test passes a flag that outlives the stream's work.
    let flag = unsafe { &*data.cast::<AtomicBool>() };
    while !flag.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

#[test]
fn callback_wait_holds_no_lock() {
    let gpu = start(Options::default());
    let mut context = CUcontext::NULL;
    let mut stream = CUstream::NULL;
    ok!(gpu, cuCtxGetCurrent(&mut context));
    ok!(gpu, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
    let open = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            ok!(gpu, cuCtxSetCurrent(context));
            let data = std::ptr::from_ref(&open).cast_mut().cast();
            ok!(gpu, cuLaunchHostFunc(stream, Some(wait_for_flag), data));
        });
        while gpu.calls_of("cuLaunchHostFunc") == 0 {
            std::thread::yield_now();
        }
        // The callback blocks only its own stream.
        let block = allocate(&gpu, 16);
        ok!(gpu, cuMemsetD8_v2(block, 1, 16));
        let waiter = scope.spawn(|| {
            ok!(gpu, cuCtxSetCurrent(context));
            ok!(gpu, cuStreamSynchronize(stream));
        });
        open.store(true, Ordering::SeqCst);
        waiter.join().unwrap();
        caller.join().unwrap();
    });
    ok!(gpu, cuStreamQuery(stream));
}

/// A planned fault with the code for success is ignored. If the call were skipped instead, the
/// caller might build a slice from a pointer that was never written.
#[test]
fn a_planned_success_is_no_fault() {
    let gpu = start(Options::default());
    let symbol = "cuMemHostAlloc";
    for plan in [
        FaultPlan::new([Fault::nth(symbol, 1, CUresult::SUCCESS).onwards()]),
        FaultPlan::new([Fault::any(1, CUresult::SUCCESS).context_lost()]),
    ] {
        gpu.set_faults(plan);
        let mut pointer: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call, and the memory is not used after its free.
        let codes =
            unsafe { [gpu.cuMemHostAlloc(&mut pointer, 100, 0), gpu.cuMemFreeHost(pointer)] };
        assert_eq!(codes, [CUresult::SUCCESS; 2]);
        assert!(!pointer.is_null());
    }
}
