//! Plain device memory, and how allocations and frees change the memory in use.

use gpuheap_driver::*;

use crate::support::*;

const MIB: usize = 1 << 20;

#[test]
fn device_memory_is_counted_by_granules() {
    on_every_driver(|gpu| {
        // A case has the size of an allocation in bytes, the number of allocations, and the memory
        // in MiB that the device then has in use.
        for (bytes, count, mebibytes) in [
            (1, 24, 2),
            (512, 24, 2),
            (65_536, 24, 2),
            (262_144, 24, 6),
            (1_048_576, 8, 8),
            (1_048_577, 2, 4),
            (2_097_152, 8, 16),
            (2_097_153, 2, 8),
            (5_242_880, 2, 12),
            (34_603_008, 2, 68),
        ] {
            let before = gpu.used();
            let pointers: Vec<_> = (0..count).map(|_| gpu.allocate(bytes)).collect();
            assert_eq!(gpu.used() - before, mebibytes << 20, "{count} x {bytes} on {}", gpu.name);
            pointers.into_iter().for_each(|pointer| gpu.free(pointer));
            assert_eq!(gpu.used(), before, "{count} x {bytes} freed on {}", gpu.name);
        }
    });
}

#[test]
fn shared_granule_holes_are_reused() {
    on_every_driver(|gpu| {
        let before = gpu.used();
        let mut pointers: Vec<_> = (0..64).map(|_| gpu.allocate(100_000)).collect();
        assert_eq!(gpu.used() - before, 8 << 20);
        let kept: Vec<_> = pointers.iter().copied().step_by(2).collect();
        pointers.iter().skip(1).step_by(2).for_each(|pointer| gpu.free(*pointer));
        assert_eq!(gpu.used() - before, 8 << 20, "a granule with one allocation left stays");
        pointers = kept;
        pointers.push(gpu.allocate(90_000));
        assert_eq!(gpu.used() - before, 8 << 20);
        pointers.into_iter().for_each(|pointer| gpu.free(pointer));
        assert_eq!(gpu.used(), before);
    });
}

#[test]
fn allocations_are_aligned_and_apart() {
    on_every_driver(|gpu| {
        let mut ranges: Vec<_> = [1, 511, 513, MIB, 3 * MIB, 1, 70_000]
            .into_iter()
            .map(|bytes| (gpu.allocate(bytes), bytes as u64))
            .collect();
        ranges.sort();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
        }
        for (pointer, bytes) in ranges {
            assert_eq!(pointer % 512, 0);
            let (mut base, mut length) = (0, 0);
            ok!(gpu, cuMemGetAddressRange_v2(&mut base, &mut length, pointer + bytes / 2));
            assert_eq!((base, length as u64), (pointer, bytes));
            gpu.free(pointer);
        }
    });
}

#[test]
fn request_beyond_capacity_is_refused() {
    on_every_driver(|gpu| {
        let (mut free, mut total) = (0, 0);
        ok!(gpu, cuMemGetInfo_v2(&mut free, &mut total));
        // The real driver can allocate up to 60 MiB more than it reports as free.
        for bytes in [usize::MAX, 1 << 50, total, free + 256 * MIB] {
            let mut pointer = 0;
            assert_eq!(
                code!(gpu, cuMemAlloc_v2(&mut pointer, bytes)),
                CUresult::ERROR_OUT_OF_MEMORY
            );
        }
        let most = gpu.allocate(free - 8 * MIB);
        gpu.free(most);
        let bytes = made!(gpu, cuDeviceTotalMem_v2(gpu.device));
        assert_eq!(bytes, total);
    });
}

#[test]
fn pitched_memory_has_aligned_rows() {
    on_every_driver(|gpu| {
        for (width, expected) in
            [(1, 512), (100, 512), (512, 512), (513, 1024), (1000, 1024), (5000, 5120)]
        {
            let (mut pointer, mut pitch) = (0, 0);
            ok!(gpu, cuMemAllocPitch_v2(&mut pointer, &mut pitch, width, 10, 4));
            assert_eq!(pitch, expected);
            ok!(gpu, cuMemsetD2D8_v2(pointer, pitch, 7, width, 10));
            assert_eq!(gpu.download(pointer + 9 * pitch as u64, width), vec![7; width]);
            gpu.free(pointer);
        }
    });
}
