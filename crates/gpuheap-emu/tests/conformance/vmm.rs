//! Virtual memory management.

use gpuheap_driver::*;

use crate::support::*;

const MIB: usize = 1 << 20;
const M: u64 = 1 << 20;

fn reserve(gpu: &Gpu<'_>, bytes: usize) -> CUdeviceptr {
    made!(gpu, cuMemAddressReserve(bytes, 0, 0, 0))
}

fn create(gpu: &Gpu<'_>, bytes: usize) -> CUmemGenericAllocationHandle {
    made!(gpu, cuMemCreate(bytes, &CUmemAllocationProp::device(gpu.device), 0))
}

fn allow(gpu: &Gpu<'_>, pointer: CUdeviceptr, bytes: usize) -> CUresult {
    let access = CUmemAccessDesc {
        location: CUmemLocation::device(gpu.device),
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    code!(gpu, cuMemSetAccess(pointer, bytes, &access, 1))
}

#[test]
fn remapped_memory_keeps_its_content() {
    on_every_driver(|gpu| {
        let before = gpu.used();
        let va = reserve(gpu, 64 * MIB);
        assert_eq!(gpu.used(), before, "addresses cost nothing");
        let (a, b) = (create(gpu, 8 * MIB), create(gpu, 4 * MIB));
        assert_eq!(gpu.used() - before, 12 << 20);
        ok!(gpu, cuMemMap(va, 8 * MIB, 0, a, 0));
        ok!(gpu, cuMemMap(va + 8 * M, 4 * MIB, 0, b, 0));
        assert_eq!(allow(gpu, va, 12 * MIB), CUresult::SUCCESS);
        // The bytes cross the border between the two mappings.
        let data: Vec<u8> = (0..2 * MIB).map(|i| (i / 3) as u8).collect();
        gpu.upload(va + 7 * M, &data);
        assert_eq!(gpu.download(va + 7 * M, 2 * MIB), data);
        ok!(gpu, cuCtxSynchronize());
        ok!(gpu, cuMemUnmap(va + 8 * M, 4 * MIB));
        ok!(gpu, cuMemMap(va + 32 * M, 4 * MIB, 0, b, 0));
        assert_eq!(allow(gpu, va + 32 * M, 4 * MIB), CUresult::SUCCESS);
        assert_eq!(gpu.download(va + 32 * M, MIB), data[MIB..]);
        for handle in [a, b] {
            ok!(gpu, cuMemRelease(handle));
        }
        assert_eq!(gpu.used() - before, 12 << 20, "mappings keep it");
        ok!(gpu, cuMemUnmap(va, 64 * MIB));
        assert_eq!(gpu.used(), before);
        ok!(gpu, cuMemAddressFree(va, 64 * MIB));
    });
}

#[test]
fn two_mappings_share_one_memory() {
    on_every_driver(|gpu| {
        let va = reserve(gpu, 8 * MIB);
        let handle = create(gpu, 2 * MIB);
        for place in [va, va + 4 * M] {
            ok!(gpu, cuMemMap(place, 2 * MIB, 0, handle, 0));
            assert_eq!(allow(gpu, place, 2 * MIB), CUresult::SUCCESS);
        }
        ok!(gpu, cuMemsetD8_v2(va, 7, 2 * MIB));
        assert_eq!(gpu.download(va + 4 * M + 5, 1), [7]);
        ok!(gpu, cuMemUnmap(va, 8 * MIB));
        ok!(gpu, cuMemRelease(handle));
        ok!(gpu, cuMemAddressFree(va, 8 * MIB));
    });
}

#[test]
fn references_are_counted() {
    on_every_driver(|gpu| {
        let before = gpu.used();
        let va = reserve(gpu, 4 * MIB);
        let handle = create(gpu, 4 * MIB);
        ok!(gpu, cuMemMap(va, 4 * MIB, 0, handle, 0));
        let (mut same, mut flags) = (0, 9);
        let location = CUmemLocation::device(gpu.device);
        ok!(gpu, cuMemGetAccess(&mut flags, &location, va));
        assert_eq!(flags, 0);
        ok!(
            gpu,
            cuMemRetainAllocationHandle(&mut same, std::ptr::without_provenance_mut(va as usize))
        );
        assert_eq!(same, handle);
        let mut properties = CUmemAllocationProp::device(9);
        ok!(gpu, cuMemGetAllocationPropertiesFromHandle(&mut properties, handle));
        assert_eq!(properties.location, location);
        ok!(gpu, cuMemRelease(handle));
        ok!(gpu, cuMemRelease(same));
        ok!(gpu, cuMemUnmap(va, 4 * MIB));
        assert_eq!(gpu.used(), before);
        ok!(gpu, cuMemAddressFree(va, 4 * MIB));
    });
}

#[test]
fn invalid_mapping_is_refused() {
    on_every_driver_unchecked(|gpu| {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let unsupported = CUresult::ERROR_NOT_SUPPORTED;
        let properties = CUmemAllocationProp::device(gpu.device);
        let (mut granularity, mut other) = (0, 0);
        ok!(gpu, cuMemGetAllocationGranularity(&mut granularity, &properties, 0));
        assert_eq!(granularity, 2 * MIB);
        for (bytes, alignment) in [(1000, 0), (0, 0), (MIB, 0), (64 * MIB, 3)] {
            assert_eq!(
                code!(gpu, cuMemAddressReserve(&mut other, bytes, alignment, 0, 0)),
                invalid
            );
        }
        assert_eq!(
            code!(gpu, cuMemAddressReserve(&mut other, 1 << 47, 0, 0, 0)),
            CUresult::ERROR_OUT_OF_MEMORY
        );
        for bytes in [0, 1000] {
            assert_eq!(code!(gpu, cuMemCreate(&mut other, bytes, &properties, 0)), invalid);
        }
        let total = made!(gpu, cuDeviceTotalMem_v2(gpu.device));
        let all = total / granularity * granularity;
        assert_eq!(
            code!(gpu, cuMemCreate(&mut other, all, &properties, 0)),
            CUresult::ERROR_OUT_OF_MEMORY
        );

        let va = reserve(gpu, 64 * MIB);
        let handle = create(gpu, 8 * MIB);
        ok!(gpu, cuMemMap(va, 8 * MIB, 0, handle, 0));
        assert_eq!(code!(gpu, cuMemMap(va, 8 * MIB, 0, handle, 0)), invalid, "taken");
        assert_eq!(code!(gpu, cuMemMap(va + 16 * M, 4 * MIB, 4 * MIB, handle, 0)), unsupported);
        assert_eq!(code!(gpu, cuMemMap(va + 24 * M, 4 * MIB, 0, handle, 0)), unsupported);
        assert_eq!(allow(gpu, va, 4 * MIB), invalid, "a part of a mapping");
        assert_eq!(allow(gpu, va + 40 * M, 8 * MIB), invalid, "not mapped");
        assert_eq!(code!(gpu, cuMemUnmap(va, 4 * MIB)), invalid, "a part of a mapping");
        assert_eq!(code!(gpu, cuMemAddressFree(va, 64 * MIB)), invalid, "still mapped");
        assert_eq!(code!(gpu, cuMemFree_v2(va)), invalid);
        ok!(gpu, cuMemUnmap(va, 8 * MIB));
        ok!(gpu, cuMemUnmap(va, 8 * MIB));
        assert_eq!(code!(gpu, cuMemsetD8_v2(va, 0, 16)), invalid, "not mapped");
        assert_eq!(code!(gpu, cuMemAddressFree(va, 32 * MIB)), invalid, "a part");
        ok!(gpu, cuMemAddressFree(va, 64 * MIB));
        ok!(gpu, cuMemRelease(handle));
        assert_eq!(code!(gpu, cuMemRelease(handle)), invalid);
        assert_eq!(
            code!(
                gpu,
                cuMemRetainAllocationHandle(&mut other, std::ptr::without_provenance_mut(0x1000))
            ),
            invalid
        );
    });
}

#[test]
fn wrong_physical_properties_are_refused() {
    on_every_driver(|gpu| {
        type L = CUmemLocationType;
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let plain = CUmemAllocationProp::device(gpu.device);
        let at = |kind, id| CUmemLocation { kind, id };
        for (kind, location, handle_types, expected) in [
            (0, plain.location, 0, invalid),
            (CU_MEM_ALLOCATION_TYPE_MANAGED, plain.location, 0, invalid),
            (3, at(L::DEVICE, 99), 0, CUresult::ERROR_INVALID_DEVICE),
            (CU_MEM_ALLOCATION_TYPE_PINNED, at(L::DEVICE, -1), 0, CUresult::ERROR_INVALID_DEVICE),
            (CU_MEM_ALLOCATION_TYPE_PINNED, at(L::INVALID, 0), 0, invalid),
            (CU_MEM_ALLOCATION_TYPE_PINNED, at(L::HOST_NUMA, 99), 0, invalid),
            (CU_MEM_ALLOCATION_TYPE_PINNED, at(L::HOST_NUMA_CURRENT, 0), 0, invalid),
            (CU_MEM_ALLOCATION_TYPE_PINNED, at(L::HOST, 0), 1, invalid),
            // These handle types exist only on Windows.
            (CU_MEM_ALLOCATION_TYPE_PINNED, plain.location, 2, invalid),
            (CU_MEM_ALLOCATION_TYPE_PINNED, plain.location, 4, invalid),
        ] {
            let requested_handle_types = handle_types;
            let properties =
                CUmemAllocationProp { kind, location, requested_handle_types, ..plain };
            let (mut handle, mut granularity) = (0, 0);
            let code = code!(gpu, cuMemCreate(&mut handle, 2 * MIB, &properties, 0));
            assert_eq!(code, expected, "{properties:?}");
            // The granularity is the same for all properties.
            ok!(gpu, cuMemGetAllocationGranularity(&mut granularity, &properties, 0));
            assert_eq!(granularity, 2 * MIB);
        }
    });
}

#[test]
fn mapped_memory_refuses_host_access() {
    on_every_driver(|gpu| {
        let properties = CUmemAllocationProp::device(gpu.device);
        let va = made!(gpu, cuMemAddressReserve(2 * MIB, 0, 0, 0));
        let handle = made!(gpu, cuMemCreate(2 * MIB, &properties, 0));
        ok!(gpu, cuMemMap(va, 2 * MIB, 0, handle, 0));
        for (kind, expected) in [
            (CUmemLocationType::HOST, CUresult::ERROR_NOT_SUPPORTED),
            (CUmemLocationType::HOST_NUMA, CUresult::ERROR_NOT_SUPPORTED),
            (CUmemLocationType::HOST_NUMA_CURRENT, CUresult::ERROR_INVALID_VALUE),
        ] {
            let location = CUmemLocation { kind, id: 0 };
            let flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            let access = CUmemAccessDesc { location, flags };
            assert_eq!(code!(gpu, cuMemSetAccess(va, 2 * MIB, &access, 1)), expected, "{kind:?}");
        }
        // Mapped memory without access rights has neither a device pointer nor a host pointer.
        let mut host = 9_u64;
        let mut attribute = CUpointer_attribute::HOST_POINTER;
        let mut data = [(&raw mut host).cast()];
        ok!(gpu, cuPointerGetAttributes(1, &mut attribute, data.as_mut_ptr(), va));
        assert_eq!(host, 0);
        ok!(gpu, cuMemUnmap(va, 2 * MIB));
        ok!(gpu, cuMemRelease(handle));
        ok!(gpu, cuMemAddressFree(va, 2 * MIB));
    });
}
