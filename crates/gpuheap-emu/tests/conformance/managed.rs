//! Managed memory.

use gpuheap_driver::*;

use crate::support::*;

const MIB: usize = 1 << 20;
const READ_MOSTLY: i32 = 1;
const PREFERRED_LOCATION: i32 = 2;
const LAST_PREFETCH_LOCATION: i32 = 4;

#[test]
fn host_and_device_share_managed_memory() {
    on_every_driver(|gpu| {
        let pointer = made!(gpu, cuMemAllocManaged(MIB, CU_MEM_ATTACH_GLOBAL));
        ok!(gpu, cuMemsetD8_v2(pointer, 5, MIB));
        ok!(gpu, cuCtxSynchronize());
        // SAFETY: the host may use managed memory, and the device is done with it.
        let host = unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::with_exposed_provenance_mut::<u8>(pointer as usize),
                MIB,
            )
        };
        assert!(host.iter().all(|byte| *byte == 5));
        host[7] = 8;
        assert_eq!(gpu.download(pointer + 7, 1), [8]);
        gpu.free(pointer);
    });
}

#[test]
fn advice_is_kept_and_bounded() {
    on_every_driver_unchecked(|gpu| {
        let stream = gpu.stream();
        let here = CUmemLocation::device(gpu.device);
        let mut pointer = made!(gpu, cuMemAllocManaged(64 * MIB, CU_MEM_ATTACH_GLOBAL));
        let read = |attribute: i32| {
            let mut value = 99_i32;
            let data = (&raw mut value).cast();
            ok!(gpu, cuMemRangeGetAttribute(data, 4, attribute, pointer, 64 * MIB));
            value
        };
        assert_eq!((read(READ_MOSTLY), read(PREFERRED_LOCATION)), (0, -2));
        ok!(gpu, cuMemPrefetchAsync_v2(pointer, 64 * MIB, here, 0, stream));
        ok!(gpu, cuMemAdvise_v2(pointer, 64 * MIB, 1, here));
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!((read(READ_MOSTLY), read(LAST_PREFETCH_LOCATION)), (1, gpu.device));
        let invalid = CUresult::ERROR_INVALID_VALUE;
        for bytes in [0, 65 * MIB] {
            assert_eq!(code!(gpu, cuMemPrefetchAsync_v2(pointer, bytes, here, 0, stream)), invalid);
        }
        let nowhere = CUmemLocation::device(99);
        assert_eq!(
            code!(gpu, cuMemPrefetchAsync_v2(pointer, MIB, nowhere, 0, stream)),
            CUresult::ERROR_INVALID_DEVICE
        );
        assert_eq!(code!(gpu, cuMemAdvise_v2(pointer, MIB, 99, here)), invalid);
        gpu.free(pointer);
        assert_eq!(code!(gpu, cuMemAdvise_v2(pointer, 4096, 1, here)), invalid);
        for (bytes, flags) in [(0, 1), (10, 7)] {
            assert_eq!(code!(gpu, cuMemAllocManaged(&mut pointer, bytes, flags)), invalid);
        }
    });
}

#[test]
fn managed_memory_refuses_ordered_free() {
    on_every_driver_unchecked(|gpu| {
        let (stream, mut pointer) = (gpu.stream(), 0);
        ok!(gpu, cuMemAllocManaged(&mut pointer, 4096, CU_MEM_ATTACH_GLOBAL));
        assert_eq!(code!(gpu, cuMemFreeAsync(pointer, stream)), CUresult::ERROR_NOT_SUPPORTED);
        ok!(gpu, cuMemsetD8_v2(pointer, 5, 4096));
        assert_eq!(gpu.download(pointer, 4096), [5; 4096]);
        gpu.free(pointer);
    });
}

#[test]
fn range_attributes_are_read_together() {
    on_every_driver(|gpu| {
        let pointer = made!(gpu, cuMemAllocManaged(MIB, CU_MEM_ATTACH_GLOBAL));
        ok!(gpu, cuMemAdvise(pointer, MIB, 1, gpu.device));
        let (mut read_mostly, mut preferred) = (9_i32, 9_i32);
        let mut data = [(&raw mut read_mostly).cast(), (&raw mut preferred).cast()];
        let (mut sizes, mut attributes) = ([4, 4], [READ_MOSTLY, PREFERRED_LOCATION]);
        let (data, sizes) = (data.as_mut_ptr(), sizes.as_mut_ptr());
        let attributes = attributes.as_mut_ptr();
        ok!(gpu, cuMemRangeGetAttributes(data, sizes, attributes, 2, pointer, MIB));
        assert_eq!((read_mostly, preferred), (1, -2));
        gpu.free(pointer);
        assert_eq!(
            code!(gpu, cuMemRangeGetAttributes(data, sizes, attributes, 2, pointer, MIB)),
            CUresult::ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn managed_memory_attaches_whole() {
    on_every_driver_unchecked(|gpu| {
        let (stream, mut pointer) = (gpu.stream(), 0);
        ok!(gpu, cuMemAllocManaged(&mut pointer, MIB, CU_MEM_ATTACH_GLOBAL));
        ok!(gpu, cuStreamAttachMemAsync(stream, pointer, 0, CU_MEM_ATTACH_SINGLE));
        ok!(gpu, cuMemsetD8Async(pointer, 5, MIB, stream));
        ok!(gpu, cuStreamAttachMemAsync(stream, pointer, MIB, CU_MEM_ATTACH_HOST));
        ok!(gpu, cuStreamAttachMemAsync(CUstream::NULL, pointer, 0, CU_MEM_ATTACH_GLOBAL));
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(gpu.download(pointer, MIB), vec![5; MIB]);
        let plain = gpu.allocate(MIB);
        let invalid = CUresult::ERROR_INVALID_VALUE;
        for (stream, pointer, bytes, flags) in [
            (stream, pointer, MIB / 2, CU_MEM_ATTACH_GLOBAL),
            (stream, pointer, 0, 9),
            (CUstream::NULL, pointer, 0, CU_MEM_ATTACH_SINGLE),
            (stream, plain, 0, CU_MEM_ATTACH_GLOBAL),
        ] {
            let code = code!(gpu, cuStreamAttachMemAsync(stream, pointer, bytes, flags));
            assert_eq!(code, invalid, "{bytes} {flags}");
        }
        gpu.free(plain);
        gpu.free(pointer);
    });
}

#[test]
fn prefetch_batch_moves_each_group() {
    on_every_driver_unchecked(|gpu| {
        let stream = gpu.stream();
        let mut pointers = [0; 3];
        for pointer in &mut pointers {
            ok!(gpu, cuMemAllocManaged(pointer, 2 * MIB, CU_MEM_ATTACH_GLOBAL));
        }
        let host = CUmemLocation { kind: CUmemLocationType::HOST, id: 0 };
        let here = CUmemLocation::device(gpu.device);
        let prefetch = |firsts: &[usize], places: &[CUmemLocation], ranges: [u64; 3], stream| {
            let (mut firsts, mut places, mut ranges) = (firsts.to_vec(), places.to_vec(), ranges);
            let (mut sizes, groups) = ([2 * MIB; 3], firsts.len());
            code!(
                gpu,
                cuMemPrefetchBatchAsync(
                    ranges.as_mut_ptr(),
                    sizes.as_mut_ptr(),
                    3,
                    places.as_mut_ptr(),
                    firsts.as_mut_ptr(),
                    groups,
                    0,
                    stream
                )
            )
        };
        let last = || {
            pointers.map(|pointer| {
                let mut place = 99;
                let data = (&raw mut place).cast();
                let attribute = LAST_PREFETCH_LOCATION;
                ok!(gpu, cuMemRangeGetAttribute(data, 4, attribute, pointer, 2 * MIB));
                place
            })
        };
        let everywhere = [here, host];
        let invalid = CUresult::ERROR_INVALID_VALUE;
        assert_eq!(prefetch(&[0, 3], &everywhere, pointers, stream), invalid);
        assert_eq!(prefetch(&[1, 2], &everywhere, pointers, stream), invalid);
        assert_eq!(prefetch(&[0, 2], &everywhere, pointers, CUstream::NULL), invalid);
        let far = [CUmemLocation::device(99)];
        assert_eq!(prefetch(&[0], &far, pointers, stream), invalid);
        assert_eq!(last(), [-2; 3], "a refused batch moves nothing");
        assert_eq!(prefetch(&[0, 2], &everywhere, pointers, stream), CUresult::SUCCESS);
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(last(), [gpu.device, gpu.device, CU_DEVICE_CPU]);
        // Attribute 8 is the id of the last prefetch's location: the 0 that the batch call passed.
        let mut id = 99;
        ok!(gpu, cuMemRangeGetAttribute((&raw mut id).cast(), 4, 8, pointers[2], 2 * MIB));
        assert_eq!(id, 0);
        // Each location has a group of ranges. The groups begin at the indices 0, 2 and 1. The
        // third group begins before the second, so the third location applies to no range.
        let three = [here, host, here];
        assert_eq!(prefetch(&[0, 2, 1], &three, pointers, stream), CUresult::SUCCESS);
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(last(), [gpu.device, gpu.device, CU_DEVICE_CPU]);
        // If a range is wrong, the ranges before it are still prefetched.
        let wrong = [pointers[0], 0, pointers[2]];
        assert_eq!(prefetch(&[0], &[host], wrong, stream), invalid);
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(last(), [CU_DEVICE_CPU, gpu.device, CU_DEVICE_CPU]);
        let (mut ranges, mut sizes) = (pointers, [2 * MIB; 3]);
        let (ranges, sizes) = (ranges.as_mut_ptr(), sizes.as_mut_ptr());
        ok!(gpu, cuMemDiscardBatchAsync(ranges, sizes, 3, 0, stream));
        assert_eq!(code!(gpu, cuMemDiscardBatchAsync(ranges, sizes, 3, 1, stream)), invalid);
        // A capture cannot record a batch.
        ok!(gpu, cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::RELAXED));
        let unsupported = CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
        assert_eq!(prefetch(&[0], &[here], pointers, stream), unsupported);
        let mut graph = CUgraph::NULL;
        let ended = code!(gpu, cuStreamEndCapture(stream, &mut graph));
        assert_eq!(ended, CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        for pointer in pointers {
            gpu.free(pointer);
        }
    });
}

#[test]
fn host_advice_needs_no_node() {
    on_every_driver_unchecked(|gpu| {
        type L = CUmemLocationType;
        const SET_READ_MOSTLY: i32 = 1;
        const SET_PREFERRED_LOCATION: i32 = 3;
        const SET_ACCESSED_BY: i32 = 5;
        let pointer = made!(gpu, cuMemAllocManaged(2 * MIB, CU_MEM_ATTACH_GLOBAL));
        let read = |attribute: i32| {
            let mut value = 99_i32;
            let data = (&raw mut value).cast();
            ok!(gpu, cuMemRangeGetAttribute(data, 4, attribute, pointer, 2 * MIB));
            value
        };
        let advise = |advice, kind, id| {
            code!(gpu, cuMemAdvise_v2(pointer, 2 * MIB, advice, CUmemLocation { kind, id }))
        };
        let (good, invalid) = (CUresult::SUCCESS, CUresult::ERROR_INVALID_VALUE);
        // Attributes 5 and 6 are the kind and the id of the preferred location.
        assert_eq!([read(5), read(6)], [L::INVALID.0, -2]);
        assert_eq!(advise(SET_PREFERRED_LOCATION, L::HOST, 7), good);
        assert_eq!([read(PREFERRED_LOCATION), read(5), read(6)], [CU_DEVICE_CPU, L::HOST.0, -1]);
        // Advice for a NUMA node is accepted and has no effect.
        assert_eq!(advise(SET_PREFERRED_LOCATION, L::HOST_NUMA, 0), good);
        assert_eq!(advise(SET_READ_MOSTLY, L::HOST_NUMA, 0), good);
        assert_eq!([read(5), read(6), read(READ_MOSTLY)], [L::HOST.0, -1, 0]);
        assert_eq!(advise(SET_ACCESSED_BY, L::HOST_NUMA, 0), invalid);
        assert_eq!(advise(SET_PREFERRED_LOCATION, L::HOST_NUMA, 99), invalid);
        assert_eq!(advise(SET_PREFERRED_LOCATION, L::DEVICE, 99), invalid);
        assert_eq!(advise(SET_READ_MOSTLY, L::INVALID, 0), invalid);
        let first = code!(gpu, cuMemAdvise(pointer, 2 * MIB, SET_PREFERRED_LOCATION, 99));
        assert_eq!(first, CUresult::ERROR_INVALID_DEVICE);
        // Attributes 7 and 8 are the kind and the id of the last prefetch's location.
        let current = CUmemLocation { kind: L::HOST_NUMA_CURRENT, id: 5 };
        ok!(gpu, cuMemPrefetchAsync_v2(pointer, 2 * MIB, current, 0, CUstream::NULL));
        assert_eq!([read(LAST_PREFETCH_LOCATION), read(7), read(8)], [CU_DEVICE_CPU, 4, 5]);
        gpu.free(pointer);
    });
}
