//! Pools of host memory and of managed memory.

use std::ffi::{c_int, c_void};

use gpuheap_driver::*;

use crate::support::*;

type L = CUmemLocationType;

const MIB: usize = 1 << 20;
const PINNED: c_int = CU_MEM_ALLOCATION_TYPE_PINNED;
const MANAGED: c_int = CU_MEM_ALLOCATION_TYPE_MANAGED;
const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
const UNSUPPORTED: CUresult = CUresult::ERROR_NOT_SUPPORTED;

fn at(kind: L, id: c_int) -> CUmemLocation {
    CUmemLocation { kind, id }
}

fn create(gpu: &Gpu<'_>, kind: c_int, location: CUmemLocation) -> Result<CUmemoryPool, CUresult> {
    let mut pool = CUmemoryPool::NULL;
    let properties = CUmemPoolProps { kind, location, ..CUmemPoolProps::device(gpu.device) };
    let code = code!(gpu, cuMemPoolCreate(&mut pool, &properties));
    if code.is_success() { Ok(pool) } else { Err(code) }
}

fn set_access(
    gpu: &Gpu<'_>,
    pool: CUmemoryPool,
    location: CUmemLocation,
    flags: c_int,
) -> CUresult {
    code!(gpu, cuMemPoolSetAccess(pool, &CUmemAccessDesc { location, flags }, 1))
}

fn access(gpu: &Gpu<'_>, pool: CUmemoryPool, mut location: CUmemLocation) -> c_int {
    let mut flags = 9;
    ok!(gpu, cuMemPoolGetAccess(&mut flags, pool, &mut location));
    flags
}

fn reserved(gpu: &Gpu<'_>, pool: CUmemoryPool) -> usize {
    let mut bytes = 0_usize;
    let attribute = CUmemPool_attribute::RESERVED_MEM_CURRENT;
    ok!(gpu, cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()));
    bytes
}

fn number(gpu: &Gpu<'_>, attribute: CUpointer_attribute, pointer: u64) -> Option<u64> {
    let mut value = 0_u64;
    let data = (&raw mut value).cast();
    let code = code!(gpu, cuPointerGetAttribute(data, attribute, pointer));
    code.is_success().then_some(value)
}

#[test]
fn host_pool_memory_is_shared() {
    on_every_driver(|gpu| {
        type A = CUpointer_attribute;
        let stream = gpu.stream();
        let here = CUmemLocation::device(gpu.device);
        for (kind, location) in [
            (PINNED, at(L::HOST, 0)),
            (PINNED, at(L::HOST_NUMA, 0)),
            (MANAGED, at(L::INVALID, 0)),
            (MANAGED, here),
        ] {
            let pool = create(gpu, kind, location).unwrap();
            let used = gpu.used();
            let (mut pointer, mut second) = (0, 0);
            ok!(gpu, cuMemAllocFromPoolAsync(&mut pointer, 1000, pool, stream));
            assert_eq!(reserved(gpu, pool), 32 * MIB);
            assert_eq!(gpu.used(), used, "no memory of the device");
            assert_eq!(number(gpu, A::MEMPOOL_HANDLE, pointer), Some(pool.0 as u64));
            assert_eq!(number(gpu, A::HOST_POINTER, pointer), Some(pointer));
            assert_eq!(number(gpu, A::CONTEXT, pointer), Some(0));
            let managed = kind == MANAGED;
            let memory = if managed { CUmemorytype::DEVICE } else { CUmemorytype::HOST };
            assert_eq!(number(gpu, A::MEMORY_TYPE, pointer), Some(memory.0 as u64));
            assert_eq!(number(gpu, A::IS_MANAGED, pointer), Some(u64::from(managed)));
            // A device can access memory of a host pool only after the pool granted access.
            let seen = number(gpu, A::DEVICE_POINTER, pointer);
            assert_eq!(seen, managed.then_some(pointer));
            let all = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            assert_eq!(set_access(gpu, pool, here, all), CUresult::SUCCESS);
            assert_eq!(set_access(gpu, pool, at(L::HOST, 0), all), CUresult::SUCCESS);
            ok!(gpu, cuMemAllocFromPoolAsync(&mut second, 33 * MIB, pool, stream));
            assert_eq!(reserved(gpu, pool), 64 * MIB);
            ok!(gpu, cuMemsetD8Async(pointer, 7, 1000, stream));
            ok!(gpu, cuStreamSynchronize(stream));
            // SAFETY: the pool allocated these 1000 bytes, and the fill is done.
            let bytes = unsafe {
                let start = std::ptr::with_exposed_provenance_mut::<u8>(pointer as usize);
                std::slice::from_raw_parts_mut(start, 1000)
            };
            assert!(bytes.iter().all(|byte| *byte == 7));
            bytes.fill(9);
            let mut data = [0_u8; 1000];
            let target = data.as_mut_ptr().expose_provenance() as u64;
            ok!(gpu, cuMemcpy(target, pointer, 1000));
            assert_eq!(data, [9; 1000]);
            // `cuMemcpyDtoH`, `HtoD` and `DtoD` state which side is device memory. On that side,
            // they accept memory of a host pool only if it is managed.
            let code = if managed { CUresult::SUCCESS } else { INVALID };
            let on_host = std::ptr::with_exposed_provenance_mut::<c_void>(pointer as usize);
            let device = gpu.allocate(1000);
            gpu.upload(device, &data);
            assert_eq!(code!(gpu, cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), pointer, 1000)), code);
            assert_eq!(code!(gpu, cuMemcpyHtoD_v2(pointer, data.as_ptr().cast(), 1000)), code);
            assert_eq!(code!(gpu, cuMemcpyDtoD_v2(pointer, device, 1000)), code);
            assert_eq!(code!(gpu, cuMemcpyDtoD_v2(device, pointer, 1000)), code);
            ok!(gpu, cuMemcpyHtoD_v2(device, on_host.cast_const(), 1000));
            ok!(gpu, cuMemcpyDtoH_v2(on_host, device, 1000));
            gpu.free(device);
            ok!(gpu, cuMemFreeAsync(second, stream));
            ok!(gpu, cuMemFree_v2(pointer));
            ok!(gpu, cuStreamSynchronize(stream));
            assert_eq!(reserved(gpu, pool), 0, "above the release threshold");
            ok!(gpu, cuMemPoolDestroy(pool));
        }
    });
}

#[test]
fn each_location_has_pools() {
    on_every_driver(|gpu| {
        let here = CUmemLocation::device(gpu.device);
        let places = [
            (PINNED, here),
            (PINNED, at(L::HOST, 0)),
            (PINNED, at(L::HOST_NUMA, 0)),
            (MANAGED, at(L::INVALID, 0)),
            (MANAGED, here),
            (MANAGED, at(L::HOST, 0)),
            (MANAGED, at(L::HOST_NUMA, 0)),
        ];
        let default = |(kind, mut location)| -> CUmemoryPool {
            made!(gpu, cuMemGetDefaultMemPool(&mut location, kind))
        };
        let current = |(kind, mut location)| -> CUmemoryPool {
            made!(gpu, cuMemGetMemPool(&mut location, kind))
        };
        let pools: std::collections::HashSet<_> = places.map(default).into_iter().collect();
        assert_eq!(pools.len(), places.len(), "a pool for each");
        // The id of a host location has no meaning.
        assert_eq!(default((PINNED, at(L::HOST, 5))), default((PINNED, at(L::HOST, 0))));
        for place in places {
            let (kind, mut location) = place;
            assert_eq!(current(place), default(place));
            assert_eq!(code!(gpu, cuMemPoolDestroy(default(place))), INVALID);
            let pool = create(gpu, kind, location).unwrap();
            for (other_kind, mut other) in places.into_iter().filter(|other| *other != place) {
                let code = code!(gpu, cuMemSetMemPool(&mut other, other_kind, pool));
                assert_eq!(code, INVALID, "{place:?} as {other_kind} {other:?}");
            }
            ok!(gpu, cuMemSetMemPool(&mut location, kind, pool));
            assert_eq!(current(place), pool);
            ok!(gpu, cuMemSetMemPool(&mut location, kind, default(place)));
            ok!(gpu, cuMemPoolDestroy(pool));
        }
    });
}

#[test]
fn pool_at_missing_location_is_refused() {
    on_every_driver(|gpu| {
        for (kind, location, expected) in [
            (PINNED, at(L::INVALID, 0), INVALID),
            (PINNED, at(L::DEVICE, 99), INVALID),
            (PINNED, at(L::HOST_NUMA, 99), INVALID),
            (PINNED, at(L::HOST_NUMA_CURRENT, 0), INVALID),
            (MANAGED, at(L::DEVICE, 99), INVALID),
            (MANAGED, at(L::HOST_NUMA, -1), INVALID),
            (MANAGED, at(CUmemLocationType(5), 0), UNSUPPORTED),
            (3, at(L::HOST, 0), INVALID),
        ] {
            assert_eq!(create(gpu, kind, location), Err(expected), "{kind} {location:?}");
        }
        let current = create(gpu, MANAGED, at(L::HOST_NUMA_CURRENT, 0)).unwrap();
        ok!(gpu, cuMemPoolDestroy(current));
        let mut pool = CUmemoryPool::NULL;
        let code =
            code!(gpu, cuMemGetDefaultMemPool(&mut pool, &mut at(L::HOST_NUMA_CURRENT, 0), PINNED));
        assert_eq!(code, UNSUPPORTED);
    });
}

#[test]
fn host_pool_access_stays() {
    on_every_driver(|gpu| {
        let (none, all) = (CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        let (host, here) = (at(L::HOST, 0), CUmemLocation::device(gpu.device));
        for (kind, location) in [(PINNED, host), (MANAGED, here)] {
            let pool = create(gpu, kind, location).unwrap();
            let own = kind == PINNED;
            assert_eq!(access(gpu, pool, host), if own { all } else { none });
            assert_eq!(access(gpu, pool, here), none);
            let refused = set_access(gpu, pool, host, none);
            assert_eq!(refused, if own { UNSUPPORTED } else { CUresult::SUCCESS });
            assert_eq!(set_access(gpu, pool, host, all), CUresult::SUCCESS);
            assert_eq!(access(gpu, pool, at(L::HOST_NUMA, 0)), all, "the same access");
            let read = CU_MEM_ACCESS_FLAGS_PROT_READ;
            assert_eq!(set_access(gpu, pool, here, read), UNSUPPORTED);
            assert_eq!(set_access(gpu, pool, here, all), CUresult::SUCCESS);
            assert_eq!(access(gpu, pool, here), all);
            assert_eq!(set_access(gpu, pool, here, none), CUresult::SUCCESS);
            ok!(gpu, cuMemPoolDestroy(pool));
        }
    });
}
