//! Tests of the unmodified crate cudarc on the emulated `libcuda.so.1`.
//!
//! cudarc loads the driver by name. Each test therefore runs in a separate process, in which the
//! loader finds the emulated library first.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

use crate::library;

#[test]
fn cudarc_runs_under_every_schedule() {
    let folder = library::folder(&[&library::LIBCUDA]);
    for schedule in ["immediate", "seeded:1", "seeded:2", "seeded:3"] {
        let stdout = library::run_ignored_test(
            "cudarc_client::the_program",
            &folder,
            &[
                ("GPUHEAP_EMULATED_DEVICE", "rtx4090,rtx4090"),
                ("GPUHEAP_EMULATED_SCHEDULE", schedule),
                ("GPUHEAP_EMULATED_CHECKS", "1"),
            ],
        );
        assert!(stdout.contains("the end of cudarc's program"), "{schedule}: {stdout}");
    }
}

#[test]
#[ignore = "runs in a process of its own, see above"]
fn the_program() {
    assert_eq!(CudaContext::device_count().unwrap(), 2);
    let context = CudaContext::new(0).unwrap();
    assert!(context.name().unwrap().contains("emulated"));
    assert_eq!(context.compute_capability().unwrap(), (8, 9));
    assert!(context.has_async_alloc());

    let (free_before, total) = context.mem_get_info().unwrap();
    assert!(free_before <= total && total > 23 << 30);

    default_stream(&context);
    two_streams(&context);
    pinned_memory(&context);
    plain_memory(&context);
    a_pool_of_its_own(&context);
    out_of_memory(&context);
    two_devices(&context);

    // Synchronising also returns the pool's cached memory.
    context.synchronize().unwrap();
    // SAFETY: the device exists, and its default pool lives as long as the device.
    let pool = unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device()).unwrap();
        result::mem_pool::trim_to(pool, 0).unwrap();
        pool
    };
    assert_eq!(pool_bytes(pool, USED), 0);
    assert_eq!(pool_bytes(pool, RESERVED), 0);
    assert_eq!(context.mem_get_info().unwrap().0, free_before);
    println!("the end of cudarc's program");
}

fn default_stream(context: &Arc<CudaContext>) {
    let stream = context.default_stream();
    let zeros = stream.alloc_zeros::<f32>(1000).unwrap();
    assert_eq!(stream.clone_dtoh(&zeros).unwrap(), vec![0.0; 1000]);

    let numbers: Vec<u32> = (0..10_000).collect();
    let mut up = stream.clone_htod(&numbers).unwrap();
    assert_eq!(stream.clone_dtoh(&up).unwrap(), numbers);
    assert_eq!(stream.clone_dtoh(&up.slice(100..200)).unwrap(), numbers[100..200]);

    let copy = stream.clone_dtod(&up).unwrap();
    stream.memset_zeros(&mut up).unwrap();
    assert_eq!(stream.clone_dtoh(&copy).unwrap(), numbers);
    assert!(stream.clone_dtoh(&up).unwrap().iter().all(|&number| number == 0));
}

/// Writes on one stream, and reads on another stream after an event. cudarc adds the waits before
/// the free.
fn two_streams(context: &Arc<CudaContext>) {
    let writer = context.new_stream().unwrap();
    let reader = context.new_stream().unwrap();
    for round in 0..20_u64 {
        let numbers = vec![round; 5000];
        let up = writer.clone_htod(&numbers).unwrap();
        let written = writer.record_event(None).unwrap();
        reader.wait(&written).unwrap();
        assert_eq!(reader.clone_dtoh(&up).unwrap(), numbers);
        written.synchronize().unwrap();
        assert!(written.is_complete());
    }
    reader.join(&writer).unwrap();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let start = writer.record_event(timed).unwrap();
    let mut block = writer.alloc_zeros::<u8>(1 << 20).unwrap();
    writer.memset_zeros(&mut block).unwrap();
    let end = writer.record_event(timed).unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
}

fn pinned_memory(context: &Arc<CudaContext>) {
    let stream = context.new_stream().unwrap();
    // SAFETY: the memory is written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u64>(4096) }.unwrap();
    for (at, number) in pinned.as_mut_slice().unwrap().iter_mut().enumerate() {
        *number = at as u64;
    }
    let up = stream.clone_htod(&pinned).unwrap();
    let mut back = vec![0_u64; 4096];
    stream.memcpy_dtoh(&up, &mut back).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(back, pinned.as_slice().unwrap());
}

/// Allocates plain and managed memory with cudarc's unsafe functions.
fn plain_memory(context: &Arc<CudaContext>) {
    context.bind_to_thread().unwrap();
    // SAFETY: each pointer is used with the size of its block, and each block is freed once.
    unsafe {
        let (free, _) = result::mem_get_info().unwrap();
        let plain = result::malloc_sync(10 << 20).unwrap();
        assert_eq!(result::mem_get_info().unwrap().0, free - (10 << 20));
        result::memset_d8_sync(plain, 0xAB, 10 << 20).unwrap();
        let mut back = vec![0_u8; 10 << 20];
        result::memcpy_dtoh_sync(&mut back, plain).unwrap();
        assert!(back.iter().all(|&byte| byte == 0xAB));
        result::free_sync(plain).unwrap();
        assert_eq!(result::mem_get_info().unwrap().0, free);

        let global = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
        let managed = result::malloc_managed(1 << 16, global).unwrap();
        result::memset_d8_sync(managed, 7, 1 << 16).unwrap();
        result::ctx::synchronize().unwrap();
        let bytes = std::slice::from_raw_parts(managed as *const u8, 1 << 16);
        assert!(bytes.iter().all(|&byte| byte == 7));
        result::memory_free(managed).unwrap();
    }
}

fn a_pool_of_its_own(context: &Arc<CudaContext>) {
    let stream = context.new_stream().unwrap();
    // SAFETY: the structure has only integers and pointers, so zeros are valid.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: each pointer is used with the size of its block, and each block is freed once.
    unsafe {
        let pool = result::mem_pool::create(&properties).unwrap();
        let mut keep = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast()).unwrap();

        let block = result::mem_pool::alloc_async(pool, 3 << 20, stream.cu_stream()).unwrap();
        assert!(pool_bytes(pool, USED) >= 3 << 20);
        result::memset_d8_async(block, 1, 3 << 20, stream.cu_stream()).unwrap();
        result::free_async(block, stream.cu_stream()).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(pool_bytes(pool, USED), 0);
        assert!(pool_bytes(pool, RESERVED) >= 3 << 20, "the threshold keeps it");
        result::mem_pool::trim_to(pool, 0).unwrap();
        assert_eq!(pool_bytes(pool, RESERVED), 0);
        result::mem_pool::destroy(pool).unwrap();
    }
}

fn out_of_memory(context: &Arc<CudaContext>) {
    let stream = context.default_stream();
    let (free, _) = context.mem_get_info().unwrap();
    let expected = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    // SAFETY: the memory of a failed allocation is never used.
    unsafe {
        assert_eq!(stream.alloc::<u8>(free + 1).unwrap_err(), expected);
        assert_eq!(result::malloc_sync(free + 1).unwrap_err(), expected);
    }
    assert_eq!(expected.error_name().unwrap(), c"CUDA_ERROR_OUT_OF_MEMORY");
    // The next request succeeds: the failure had no lasting effect.
    small_round_trip(&stream);
}

/// Copies between devices on created streams. With null streams, cudarc 0.19 copies and frees on
/// the default stream of the current context. That is the wrong context, and the checks would
/// report it.
fn two_devices(first: &Arc<CudaContext>) {
    let second = CudaContext::new(1).unwrap();
    let numbers: Vec<u16> = (0..3000).collect();
    let source = first.new_stream().unwrap();
    let target = second.new_stream().unwrap();
    let here = source.clone_htod(&numbers).unwrap();
    let there = target.clone_dtod(&here).unwrap();
    assert_eq!(target.clone_dtoh(&there).unwrap(), numbers);
}

fn small_round_trip(stream: &Arc<CudaStream>) {
    let up = stream.clone_htod(&[1_u8, 2, 3]).unwrap();
    assert_eq!(stream.clone_dtoh(&up).unwrap(), [1, 2, 3]);
}

const USED: sys::CUmemPool_attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
const RESERVED: sys::CUmemPool_attribute =
    sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;

fn pool_bytes(pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute) -> u64 {
    let mut bytes = 0_u64;
    // SAFETY: these attributes are 64-bit integers.
    unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()) }.unwrap();
    bytes
}
