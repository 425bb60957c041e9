//! Tests every form of copy and fill, their bounds, and every kind of memory.

use std::ffi::c_void;

use gpuheap_driver::*;

use crate::support::*;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn copied_bytes_come_back_equal() {
    on_every_driver(|gpu| {
        // The sizes cross borders of the emulator's pages and of the driver's granules.
        for bytes in [1, 7, 4096, 65_536, 65_537, 3 << 20] {
            let data = pattern(bytes);
            let (a, b) = (gpu.allocate(bytes), gpu.allocate(bytes));
            gpu.upload(a, &data);
            ok!(gpu, cuMemcpyDtoD_v2(b, a, bytes));
            assert_eq!(gpu.download(b, bytes), data);
            gpu.free(a);
            gpu.free(b);
        }
    });
}

#[test]
fn copy_direction_follows_addresses() {
    on_every_driver(|gpu| {
        let data = pattern(1000);
        let (mut a, mut b) = (vec![0_u8; 1000], vec![0_u8; 1000]);
        let device = gpu.allocate(1000);
        let address = |host: *const u8| host.expose_provenance() as u64;
        ok!(gpu, cuMemcpy(device, address(data.as_ptr()), 1000));
        ok!(gpu, cuMemcpy(address(a.as_mut_ptr()), device, 1000));
        ok!(gpu, cuMemcpy(address(b.as_mut_ptr()), address(a.as_ptr()), 1000));
        assert_eq!((a, b), (data.clone(), data));
        gpu.free(device);
    });
}

#[test]
fn fills_write_words_of_their_size() {
    on_every_driver(|gpu| {
        let bytes = 300_000;
        let a = gpu.allocate(bytes);
        ok!(gpu, cuMemsetD8_v2(a, 1, bytes));
        ok!(gpu, cuMemsetD16_v2(a + 2, 0x0302, 70_000));
        ok!(gpu, cuMemsetD32_v2(a + 131_072, 0x0706_0504, 20_000));
        let mut expected = vec![1_u8; bytes];
        expected[2..140_002].chunks_exact_mut(2).for_each(|word| word.copy_from_slice(&[2, 3]));
        expected[131_072..211_072]
            .chunks_exact_mut(4)
            .for_each(|word| word.copy_from_slice(&[4, 5, 6, 7]));
        assert_eq!(gpu.download(a, bytes), expected);
        let b = gpu.allocate(bytes);
        // The source and the target of the copy have different offsets in a page.
        ok!(gpu, cuMemsetD8_v2(b, 9, bytes));
        ok!(gpu, cuMemcpyDtoD_v2(b + 3, a + 1, bytes - 3));
        assert_eq!(gpu.download(b + 3, bytes - 3), expected[1..bytes - 2]);
        gpu.free(a);
        gpu.free(b);
    });
}

#[test]
fn rectangle_copy_keeps_surroundings() {
    on_every_driver(|gpu| {
        let (mut pointer, mut pitch) = (0, 0);
        ok!(gpu, cuMemAllocPitch_v2(&mut pointer, &mut pitch, 100, 20, 4));
        ok!(gpu, cuMemsetD8_v2(pointer, 0xff, pitch * 20));
        let data = pattern(50 * 10);
        let mut copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::HOST,
            srcHost: data.as_ptr().cast(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: 50,
            dstXInBytes: 8,
            dstY: 3,
            dstMemoryType: CUmemorytype::DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: pointer,
            dstArray: std::ptr::null_mut(),
            dstPitch: pitch,
            WidthInBytes: 40,
            Height: 10,
        };
        ok!(gpu, cuMemcpy2D_v2(&copy));
        let mut all = vec![0_u8; pitch * 20];
        copy.srcMemoryType = CUmemorytype::DEVICE;
        copy.srcDevice = pointer;
        copy.srcPitch = pitch;
        copy.dstMemoryType = CUmemorytype::HOST;
        copy.dstHost = all.as_mut_ptr().cast();
        (copy.dstXInBytes, copy.dstY) = (0, 0);
        (copy.WidthInBytes, copy.Height) = (pitch, 20);
        ok!(gpu, cuMemcpy2DUnaligned_v2(&copy));
        for (y, row) in all.chunks(pitch).enumerate() {
            for (x, byte) in row.iter().enumerate() {
                let inside = (3..13).contains(&y) && (8..48).contains(&x);
                let expected = if inside { data[(y - 3) * 50 + x - 8] } else { 0xff };
                assert_eq!(*byte, expected, "{x}, {y}");
            }
        }
        gpu.free(pointer);
    });
}

#[test]
fn pageable_source_is_read_at_once() {
    on_every_driver(|gpu| {
        let stream = gpu.stream();
        let device = gpu.allocate(64 << 10);
        let mut data = pattern(60_000);
        ok!(gpu, cuMemcpyHtoDAsync_v2(device, data.as_ptr().cast(), data.len(), stream));
        let expected = data.clone();
        data.fill(0);
        ok!(gpu, cuStreamSynchronize(stream));
        assert_eq!(gpu.download(device, data.len()), expected);
        ok!(gpu, cuStreamDestroy_v2(stream));
        gpu.free(device);
    });
}

#[test]
fn pageable_target_copy_is_synchronous() {
    on_every_driver(|gpu| {
        let stream = gpu.stream();
        let device = gpu.allocate(4096);
        ok!(gpu, cuMemsetD8Async(device, 5, 4096, stream));
        let mut data = vec![0_u8; 4096];
        ok!(gpu, cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast(), device, 4096, stream));
        assert_eq!(data, vec![5; 4096]);
        ok!(gpu, cuStreamDestroy_v2(stream));
        gpu.free(device);
    });
}

#[test]
fn pinned_copies_follow_stream_order() {
    on_every_driver(|gpu| {
        let stream = gpu.stream();
        let device = gpu.allocate(8192);
        let pinned = gpu.pinned(8192);
        let mut own = vec![0_u8; 8192];
        let registered: *mut c_void = own.as_mut_ptr().cast();
        ok!(gpu, cuMemHostRegister_v2(registered, 8192, 0));
        pinned.copy_from_slice(&pattern(8192));
        ok!(gpu, cuMemcpyHtoDAsync_v2(device, pinned.as_ptr().cast(), 8192, stream));
        ok!(gpu, cuMemcpyDtoHAsync_v2(registered, device, 8192, stream));
        ok!(gpu, cuStreamSynchronize(stream));
        ok!(gpu, cuMemHostUnregister(registered));
        assert_eq!(own, pattern(8192));
        gpu.unpin(pinned);
        ok!(gpu, cuStreamDestroy_v2(stream));
        gpu.free(device);
    });
}
