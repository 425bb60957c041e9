//! Stream-ordered pools.

use std::ffi::c_void;

use gpuheap_driver::*;

use crate::support::*;

const MIB: usize = 1 << 20;

struct Pool<'g, 'd> {
    gpu: &'g Gpu<'d>,
    pool: CUmemoryPool,
    stream: CUstream,
}

impl<'g, 'd> Pool<'g, 'd> {
    /// Creates a pool that keeps all its memory. The pool's limit is `max` bytes.
    fn new(gpu: &'g Gpu<'d>, max: usize) -> Self {
        let mut pool = CUmemoryPool::NULL;
        let properties = CUmemPoolProps { max_size: max, ..CUmemPoolProps::device(gpu.device) };
        ok!(gpu, cuMemPoolCreate(&mut pool, &properties));
        let pool = Pool { gpu, pool, stream: gpu.stream() };
        pool.set(CUmemPool_attribute::RELEASE_THRESHOLD, u64::MAX);
        pool
    }

    fn set(&self, attribute: CUmemPool_attribute, mut value: u64) {
        let value: *mut c_void = (&raw mut value).cast();
        ok!(self.gpu, cuMemPoolSetAttribute(self.pool, attribute, value));
    }

    fn get(&self, attribute: CUmemPool_attribute) -> u64 {
        let mut value = 0_u64;
        ok!(self.gpu, cuMemPoolGetAttribute(self.pool, attribute, (&raw mut value).cast()));
        value
    }

    fn reserved(&self) -> u64 {
        self.get(CUmemPool_attribute::RESERVED_MEM_CURRENT)
    }

    fn used(&self) -> u64 {
        self.get(CUmemPool_attribute::USED_MEM_CURRENT)
    }

    fn allocate(&self, bytes: usize) -> CUdeviceptr {
        made!(self.gpu, cuMemAllocFromPoolAsync(bytes, self.pool, self.stream))
    }

    fn free(&self, pointer: CUdeviceptr) {
        ok!(self.gpu, cuMemFreeAsync(pointer, self.stream));
    }

    fn end(self) {
        ok!(self.gpu, cuStreamSynchronize(self.stream));
        ok!(self.gpu, cuStreamDestroy_v2(self.stream));
        ok!(self.gpu, cuMemPoolDestroy(self.pool));
    }
}

#[test]
fn pool_grows_by_32_mib() {
    on_every_driver(|gpu| {
        let before = gpu.used();
        let pool = Pool::new(gpu, 0);
        for (bytes, mebibytes) in [
            (1, 32),
            (MIB, 32),
            (20 * MIB, 32),
            (33 * MIB, 64),
            (50 * MIB, 64),
            (65 * MIB, 96),
            (100 * MIB + 1, 128),
            (1024 * MIB, 1024),
        ] {
            let pointer = pool.allocate(bytes);
            assert_eq!(pool.reserved(), mebibytes << 20, "{bytes}");
            assert_eq!(pool.used(), bytes as u64);
            assert_eq!(gpu.used() - before, (mebibytes << 20) as i64);
            pool.free(pointer);
            ok!(gpu, cuStreamSynchronize(pool.stream));
            assert_eq!((pool.reserved(), pool.used()), (mebibytes << 20, 0));
            ok!(gpu, cuMemPoolTrimTo(pool.pool, 0));
            assert_eq!(pool.reserved(), 0);
        }
        pool.end();
        assert_eq!(gpu.used(), before);
    });
}

/// If a device is nearly full, the real driver takes and returns memory for itself. So the test
/// does not rely on the driver's figure of free memory. It counts the device as full at the first
/// refused request, and reads the pool's own figures.
#[test]
fn full_device_gives_pool_small_chunks() {
    const BLOCK: usize = 4 * MIB;
    const CHUNK: usize = 32 * MIB;
    let is_emulated = std::env::var_os("GPUHEAP_TEST_DEVICE").is_none();
    on_every_driver(|gpu| {
        let pool = Pool::new(gpu, 0);
        pool.set(CUmemPool_attribute::RELEASE_THRESHOLD, 0);
        let (mut free, mut total, mut pointer) = (0, 0, 0);
        ok!(gpu, cuMemGetInfo_v2(&mut free, &mut total));
        let mut blocks = vec![gpu.allocate(free - 128 * MIB)];
        let full = loop {
            match code!(gpu, cuMemAlloc_v2(&mut pointer, BLOCK)) {
                CUresult::SUCCESS => blocks.push(pointer),
                code => break code,
            }
        };
        assert_eq!(full, CUresult::ERROR_OUT_OF_MEMORY);
        // The driver may keep some of the freed memory, so frees blocks until the allocation
        // succeeds. On an H200, less than a chunk of freed memory sufficed on most days, and a
        // whole chunk on others.
        let mut freed = 0;
        let pooled = loop {
            gpu.free(blocks.pop().unwrap());
            freed += BLOCK;
            match code!(gpu, cuMemAllocFromPoolAsync(&mut pointer, MIB, pool.pool, pool.stream)) {
                CUresult::SUCCESS => break pointer,
                code => assert_eq!(code, CUresult::ERROR_OUT_OF_MEMORY),
            }
            let most = if is_emulated { CHUNK } else { 4 * CHUNK };
            assert!(freed + BLOCK < most, "{freed} bytes were freed, and the pool found none");
        };
        let taken = pool.reserved();
        let most = freed.min(CHUNK) as u64;
        assert!((2 * MIB as u64..=most).contains(&taken), "{taken} of {freed}");
        pool.free(pooled);
        ok!(gpu, cuStreamSynchronize(pool.stream));
        assert_eq!(pool.reserved(), 0);
        blocks.into_iter().for_each(|block| gpu.free(block));
        pool.end();
    });
}

#[test]
fn trim_returns_only_empty_chunks() {
    on_every_driver(|gpu| {
        let pool = Pool::new(gpu, 0);
        let mut pointers = Vec::new();
        for count in 1..=100 {
            pointers.push(pool.allocate(MIB));
            assert_eq!(pool.reserved(), ((count as u64).div_ceil(32) * 32) << 20);
        }
        pointers.iter().step_by(2).for_each(|pointer| pool.free(*pointer));
        ok!(gpu, cuStreamSynchronize(pool.stream));
        ok!(gpu, cuMemPoolTrimTo(pool.pool, 0));
        assert_eq!((pool.reserved(), pool.used()), (128 << 20, 50 << 20));
        pointers.iter().skip(1).step_by(2).for_each(|pointer| pool.free(*pointer));
        ok!(gpu, cuStreamSynchronize(pool.stream));
        ok!(gpu, cuMemPoolTrimTo(pool.pool, 40 * MIB));
        assert_eq!(pool.reserved(), 64 << 20);
        assert_eq!(pool.get(CUmemPool_attribute::RESERVED_MEM_HIGH), 128 << 20);
        pool.set(CUmemPool_attribute::RESERVED_MEM_HIGH, 0);
        assert_eq!(pool.get(CUmemPool_attribute::RESERVED_MEM_HIGH), 64 << 20);
        pool.end();
    });
}

#[test]
fn synchronisation_trims_to_threshold() {
    on_every_driver(|gpu| {
        let pool = Pool::new(gpu, 0);
        pool.set(CUmemPool_attribute::RELEASE_THRESHOLD, 0);
        let pointer = pool.allocate(40 * MIB);
        pool.free(pointer);
        assert_eq!(pool.reserved(), 64 << 20, "not before");
        ok!(gpu, cuStreamSynchronize(pool.stream));
        assert_eq!(pool.reserved(), 0);
        pool.end();
    });
}

#[test]
fn stream_reuses_own_freed_memory() {
    on_every_driver(|gpu| {
        let pool = Pool::new(gpu, 0);
        for _ in 0..50 {
            let pointer = pool.allocate(20 * MIB);
            ok!(gpu, cuMemsetD8Async(pointer, 1, 20 * MIB, pool.stream));
            pool.free(pointer);
        }
        assert_eq!(pool.reserved(), 32 << 20);
        pool.end();
    });
}

#[test]
fn a_bounded_pool_refuses_more() {
    on_every_driver(|gpu| {
        let pool = Pool::new(gpu, 64 * MIB);
        let mut pointer = 0;
        let too_much =
            code!(gpu, cuMemAllocFromPoolAsync(&mut pointer, 65 * MIB, pool.pool, pool.stream));
        assert_eq!(too_much, CUresult::ERROR_OUT_OF_MEMORY);
        let (a, b) = (pool.allocate(40 * MIB), pool.allocate(20 * MIB));
        assert_eq!(pool.reserved(), 64 << 20);
        pool.free(a);
        pool.free(b);
        pool.end();
    });
}

#[test]
fn destroyed_pool_outlives_allocations() {
    on_every_driver(|gpu| {
        let before = gpu.used();
        let pool = Pool::new(gpu, 0);
        let pointer = pool.allocate(MIB);
        ok!(gpu, cuStreamSynchronize(pool.stream));
        ok!(gpu, cuMemPoolDestroy(pool.pool));
        assert_eq!(gpu.used() - before, 32 << 20);
        ok!(gpu, cuMemsetD8Async(pointer, 3, MIB, pool.stream));
        pool.free(pointer);
        ok!(gpu, cuStreamSynchronize(pool.stream));
        assert_eq!(gpu.used(), before);
        ok!(gpu, cuStreamDestroy_v2(pool.stream));
    });
}

#[test]
fn memory_accepts_either_free() {
    on_every_driver(|gpu| {
        let before = gpu.used();
        let stream = gpu.stream();
        let plain = gpu.allocate(4 * MIB);
        ok!(gpu, cuMemFreeAsync(plain, stream));
        let pooled = made!(gpu, cuMemAllocAsync(4 * MIB, stream));
        ok!(gpu, cuMemFree_v2(pooled));
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(gpu.used(), before);
    });
}

#[test]
fn plain_free_keeps_pool_figure() {
    on_every_driver(|gpu| {
        let pool = Pool::new(gpu, 0);
        let pointers = [pool.allocate(1000), pool.allocate(2000)];
        ok!(gpu, cuStreamSynchronize(pool.stream));
        gpu.free(pointers[0]);
        assert_eq!(pool.used(), 3000);
        pool.free(pointers[1]);
        ok!(gpu, cuStreamSynchronize(pool.stream));
        assert_eq!(pool.used(), 1000);
        pool.end();
    });
}

#[test]
fn current_pool_can_be_set() {
    on_every_driver(|gpu| {
        let pool = Pool::new(gpu, 0);
        let (mut current, mut default) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
        ok!(gpu, cuDeviceSetMemPool(gpu.device, pool.pool));
        ok!(gpu, cuDeviceGetMemPool(&mut current, gpu.device));
        assert_eq!(current, pool.pool);
        let pointer = made!(gpu, cuMemAllocAsync(1000, pool.stream));
        assert_eq!(pool.used(), 1000);
        pool.free(pointer);
        pool.end();
        ok!(gpu, cuDeviceGetMemPool(&mut current, gpu.device));
        ok!(gpu, cuDeviceGetDefaultMemPool(&mut default, gpu.device));
        assert_eq!(current, default);
    });
}

#[test]
fn limit_rounds_up_to_chunks() {
    on_every_driver(|gpu| {
        for (max, chunks) in [(1, 1), (2048, 1), (32 * MIB, 1), (32 * MIB + 1, 2)] {
            let pool = Pool::new(gpu, max);
            let whole = pool.allocate(chunks * 32 * MIB);
            let more = code!(gpu, cuMemAllocFromPoolAsync(&mut 0, 512, pool.pool, pool.stream));
            assert_eq!(more, CUresult::ERROR_OUT_OF_MEMORY, "{max}");
            pool.free(whole);
            pool.end();
        }
        let huge = CUmemPoolProps { max_size: 1 << 60, ..CUmemPoolProps::device(gpu.device) };
        let mut pool = CUmemoryPool::NULL;
        let code = code!(gpu, cuMemPoolCreate(&mut pool, &huge));
        assert_eq!(code, CUresult::ERROR_OUT_OF_MEMORY);
    });
}

#[test]
fn device_pool_refuses_host_access() {
    on_every_driver(|gpu| {
        type L = CUmemLocationType;
        let pool = Pool::new(gpu, 0);
        let set = |location, flags| {
            let access = CUmemAccessDesc { location, flags };
            code!(gpu, cuMemPoolSetAccess(pool.pool, &access, 1))
        };
        let get = |mut location| {
            let mut flags = 9;
            let code = code!(gpu, cuMemPoolGetAccess(&mut flags, pool.pool, &mut location));
            if code.is_success() { Ok(flags) } else { Err(code) }
        };
        let (own, far) = (CUmemLocation::device(gpu.device), CUmemLocation::device(99));
        let host = CUmemLocation { kind: L::HOST, id: 0 };
        let all = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        assert_eq!(set(own, all), CUresult::SUCCESS);
        assert_eq!(set(own, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUresult::ERROR_INVALID_DEVICE);
        assert_eq!(set(own, CU_MEM_ACCESS_FLAGS_PROT_READ), CUresult::ERROR_NOT_SUPPORTED);
        assert_eq!(set(far, all), CUresult::ERROR_INVALID_DEVICE);
        assert_eq!(set(host, all), CUresult::ERROR_NOT_SUPPORTED);
        assert_eq!(get(own), Ok(all));
        assert_eq!(get(host), Ok(CU_MEM_ACCESS_FLAGS_PROT_NONE));
        assert_eq!(get(far), Err(CUresult::ERROR_INVALID_VALUE));
        pool.end();
        let (mut found, invalid) = (CUmemoryPool::NULL, CUresult::ERROR_INVALID_VALUE);
        assert_eq!(code!(gpu, cuDeviceGetMemPool(&mut found, 99)), invalid);
        let code = code!(gpu, cuDeviceGetDefaultMemPool(&mut found, 99));
        assert_eq!(code, CUresult::ERROR_INVALID_DEVICE);
    });
}
