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
        let mut pointer = 0;
        ok!(gpu, cuMemAllocManaged(&mut pointer, MIB, CU_MEM_ATTACH_GLOBAL));
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
fn advice_and_prefetches_are_kept_and_bounded() {
    on_every_driver_unchecked(|gpu| {
        let stream = gpu.stream();
        let here = CUmemLocation::device(gpu.device);
        let mut pointer = 0;
        ok!(gpu, cuMemAllocManaged(&mut pointer, 64 * MIB, CU_MEM_ATTACH_GLOBAL));
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
        ok!(gpu, cuStreamDestroy_v2(stream));
    });
}

#[test]
fn managed_memory_cannot_be_freed_in_stream_order() {
    on_every_driver_unchecked(|gpu| {
        let (stream, mut pointer) = (gpu.stream(), 0);
        ok!(gpu, cuMemAllocManaged(&mut pointer, 4096, CU_MEM_ATTACH_GLOBAL));
        assert_eq!(code!(gpu, cuMemFreeAsync(pointer, stream)), CUresult::ERROR_NOT_SUPPORTED);
        ok!(gpu, cuMemsetD8_v2(pointer, 5, 4096));
        assert_eq!(gpu.download(pointer, 4096), [5; 4096]);
        gpu.free(pointer);
        ok!(gpu, cuStreamDestroy_v2(stream));
    });
}

#[test]
fn several_attributes_of_a_range_are_read_at_once() {
    on_every_driver(|gpu| {
        let mut pointer = 0;
        ok!(gpu, cuMemAllocManaged(&mut pointer, MIB, CU_MEM_ATTACH_GLOBAL));
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
fn managed_memory_is_attached_to_streams_whole() {
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
        ok!(gpu, cuStreamDestroy_v2(stream));
    });
}
