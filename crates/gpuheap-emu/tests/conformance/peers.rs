//! Two devices of one driver: peer access, peer copies, pools and mappings that both devices use.
//!
//! With `GPUHEAP_TEST_TWO_DEVICES=1` and `GPUHEAP_TEST_DEVICE`, the tests use the first two GPUs.

use gpuheap_driver::*;

use crate::support::*;

const BYTES: usize = 1 << 16;
const GRANULE: usize = 2 << 20;
const REFUSED: CUresult = CUresult::ERROR_INVALID_VALUE;

impl Gpu<'_> {
    fn make_current(&self) {
        ok!(self, cuCtxSetCurrent(self.context));
    }

    /// Allocates on this device. The first device is current afterwards.
    fn allocate_here(&self, first: &Gpu<'_>) -> CUdeviceptr {
        self.make_current();
        let pointer = self.allocate(BYTES);
        first.make_current();
        pointer
    }

    /// Fills memory on a stream, and waits for the stream.
    fn fill_on(&self, pointer: CUdeviceptr, value: u8, stream: CUstream) -> CUresult {
        let code = code!(self, cuMemsetD8Async(pointer, value, BYTES, stream));
        ok!(self, cuStreamSynchronize(stream));
        code
    }

    fn fill_all(&self, pointer: CUdeviceptr, value: u8, stream: CUstream) {
        assert_eq!(self.fill_on(pointer, value, stream), CUresult::SUCCESS);
    }

    fn first_byte(&self, pointer: CUdeviceptr) -> u8 {
        let mut byte = 0_u8;
        ok!(self, cuMemcpyDtoH_v2((&raw mut byte).cast(), pointer, 1));
        byte
    }

    fn device_address(&self, pointer: CUdeviceptr) -> CUresult {
        let mut found = 0_u64;
        let attribute = CUpointer_attribute::DEVICE_POINTER;
        code!(self, cuPointerGetAttribute((&raw mut found).cast(), attribute, pointer))
    }
}

fn streams(gpus: [&Gpu<'_>; 2]) -> [CUstream; 2] {
    let made = gpus.map(|gpu| {
        gpu.make_current();
        gpu.stream()
    });
    gpus[0].make_current();
    made
}

#[test]
fn plain_memory_needs_peer_access() {
    on_two_devices(|near, far| {
        let [s0, s1] = streams([near, far]);
        let [a, b] = [near.allocate(BYTES), far.allocate_here(near)];
        for (pointer, stream) in [(a, s0), (b, s1)] {
            assert_eq!(near.fill_on(pointer, 1, stream), CUresult::SUCCESS);
        }
        for (pointer, stream) in [(b, s0), (a, s1)] {
            assert_eq!(near.fill_on(pointer, 2, stream), REFUSED);
        }
        assert_eq!(code!(near, cuMemsetD8_v2(b, 2, BYTES)), REFUSED);
        assert_eq!(near.device_address(b), REFUSED);
        let (mut base, mut bytes) = (0, 0);
        let range = code!(near, cuMemGetAddressRange_v2(&mut base, &mut bytes, b));
        assert_eq!(range, CUresult::ERROR_NOT_FOUND);
        assert_eq!([a, b].map(|pointer| near.first_byte(pointer)), [1, 1]);

        ok!(near, cuCtxEnablePeerAccess(far.context, 0));
        assert_eq!(near.fill_on(b, 3, s0), CUresult::SUCCESS);
        assert_eq!(near.device_address(b), CUresult::SUCCESS);
        // The access has one direction.
        assert_eq!(near.fill_on(a, 3, s1), REFUSED);
        let later = far.allocate_here(near);
        assert_eq!(near.fill_on(later, 3, s0), CUresult::SUCCESS);
        ok!(near, cuCtxDisablePeerAccess(far.context));
        assert_eq!(near.fill_on(b, 4, s0), REFUSED);
        assert_eq!(near.first_byte(b), 3);
        for pointer in [a, b, later] {
            near.free(pointer);
        }
        for stream in [s0, s1] {
            ok!(near, cuStreamDestroy_v2(stream));
        }
    });
}

#[test]
fn peer_access_belongs_to_contexts() {
    on_two_devices(|near, far| {
        let access = |peer, flags| code!(near, cuCtxEnablePeerAccess(peer, flags));
        let end = |peer| code!(near, cuCtxDisablePeerAccess(peer));
        assert_eq!(access(far.context, 1), REFUSED);
        assert_eq!(access(near.context, 0), CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
        assert_eq!(access(CUcontext::NULL, 0), CUresult::ERROR_INVALID_CONTEXT);
        assert_eq!(end(far.context), CUresult::ERROR_PEER_ACCESS_NOT_ENABLED);
        assert_eq!(access(far.context, 0), CUresult::SUCCESS);
        assert_eq!(access(far.context, 0), CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED);
        // Access to `far.context` does not extend to `other`, a second context on the same device.
        let (mut other, mut pointer) = (CUcontext::NULL, 0);
        ok!(near, cuCtxCreate_v2(&mut other, 0, far.device));
        assert_eq!(access(near.context, 0), CUresult::SUCCESS);
        assert_eq!(access(far.context, 0), CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
        ok!(near, cuMemAlloc_v2(&mut pointer, BYTES));
        near.make_current();
        let stream = near.stream();
        assert_eq!(near.fill_on(pointer, 1, stream), REFUSED);
        assert_eq!(access(other, 0), CUresult::SUCCESS);
        assert_eq!(near.fill_on(pointer, 1, stream), CUresult::SUCCESS);
        near.free(pointer);
        ok!(near, cuCtxDestroy_v2(other));
        assert_eq!(end(other), CUresult::ERROR_CONTEXT_IS_DESTROYED);
        assert_eq!(end(far.context), CUresult::SUCCESS);
        ok!(near, cuStreamDestroy_v2(stream));
    });
}

#[test]
fn peer_copies_need_no_access() {
    on_two_devices(|near, far| {
        let [s0, s1] = streams([near, far]);
        let [a, b] = [near.allocate(BYTES), far.allocate_here(near)];
        near.fill_all(a, 1, s0);
        near.fill_all(b, 2, s1);
        let (c0, c1) = (near.context, far.context);
        for (to, from) in [(c0, c1), (c1, c0), (c0, c0), (CUcontext::NULL, CUcontext::NULL)] {
            ok!(near, cuMemcpyPeer(a, to, b, from, BYTES));
        }
        assert_eq!(near.first_byte(a), 2);
        near.fill_all(a, 3, s0);
        for stream in [s0, s1] {
            ok!(near, cuMemcpyPeerAsync(b, c1, a, c0, BYTES, stream));
            ok!(near, cuMemcpyDtoDAsync_v2(a, b, BYTES, stream));
            ok!(near, cuMemcpyAsync(b, a, BYTES, stream));
            ok!(near, cuStreamSynchronize(stream));
        }
        assert_eq!(near.first_byte(b), 3);
        assert_eq!(code!(near, cuMemcpyPeer(a, c0, b, c1, BYTES + (4 << 20))), REFUSED);
        let times = [near, far].map(|gpu| {
            gpu.make_current();
            gpu.event()
        });
        for (event, stream) in times.into_iter().zip([s0, s1]) {
            ok!(near, cuEventRecord(event, stream));
            ok!(near, cuEventSynchronize(event));
        }
        let mut milliseconds = 0.0;
        let between = code!(near, cuEventElapsedTime(&mut milliseconds, times[0], times[1]));
        assert_eq!(between, CUresult::ERROR_INVALID_HANDLE);
        for event in times {
            ok!(near, cuEventDestroy_v2(event));
        }
        near.make_current();
        near.free(a);
        near.free(b);
        for stream in [s0, s1] {
            ok!(near, cuStreamDestroy_v2(stream));
        }
    });
}

#[test]
fn pool_grants_access_by_device() {
    on_two_devices(|near, far| {
        let [s0, s1] = streams([near, far]);
        let pool = made!(near, cuMemPoolCreate(&CUmemPoolProps::device(near.device)));
        let description = |device, flags| CUmemAccessDesc {
            location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: device },
            flags,
        };
        let set = |wanted: &[CUmemAccessDesc]| {
            code!(near, cuMemPoolSetAccess(pool, wanted.as_ptr(), wanted.len()))
        };
        let get = || {
            let (mut flags, mut at) = (7, description(far.device, 0).location);
            ok!(near, cuMemPoolGetAccess(&mut flags, pool, &mut at));
            flags
        };
        let a = made!(near, cuMemAllocFromPoolAsync(BYTES, pool, s0));
        let b = made!(near, cuMemAllocAsync(BYTES, s1));
        near.fill_all(a, 1, s0);
        near.fill_all(b, 2, s1);

        for (flags, code) in [(1, CUresult::ERROR_NOT_SUPPORTED), (2, REFUSED), (4, REFUSED)] {
            assert_eq!(set(&[description(far.device, flags)]), code, "{flags}");
        }
        assert_eq!(set(&[]), CUresult::SUCCESS);
        assert_eq!(code!(near, cuMemPoolSetAccess(pool, std::ptr::null(), 0)), REFUSED);
        let missing = description(99, 3);
        assert_eq!(set(&[missing]), CUresult::ERROR_INVALID_DEVICE);
        assert_eq!(set(&[description(far.device, 3), missing]), CUresult::ERROR_INVALID_DEVICE);
        assert_eq!(get(), 0);
        // Peer access between contexts does not extend to pools: even with it, fills and copies
        // need access that the pool grants. Only `cuMemcpyPeerAsync` needs none.
        far.make_current();
        ok!(far, cuCtxEnablePeerAccess(near.context, 0));
        assert_eq!(far.fill_on(a, 3, s1), REFUSED);
        assert_eq!(code!(far, cuMemcpyDtoDAsync_v2(b, a, BYTES, s1)), REFUSED);
        assert_eq!(far.device_address(a), REFUSED);
        ok!(far, cuCtxDisablePeerAccess(near.context));
        ok!(far, cuMemcpyPeerAsync(b, far.context, a, near.context, BYTES, s1));
        ok!(far, cuStreamSynchronize(s1));
        assert_eq!(far.first_byte(b), 1);

        assert_eq!(set(&[description(far.device, 3)]), CUresult::SUCCESS);
        assert_eq!((get(), far.fill_on(a, 4, s1)), (3, CUresult::SUCCESS));
        assert_eq!(set(&[description(far.device, 0)]), CUresult::SUCCESS);
        assert_eq!((get(), far.fill_on(a, 5, s1)), (0, REFUSED));
        near.make_current();
        assert_eq!(near.first_byte(a), 4);
        // Each stream may free the memory of either device.
        ok!(near, cuMemFreeAsync(a, s1));
        ok!(near, cuMemFreeAsync(b, s0));
        for stream in [s0, s1] {
            ok!(near, cuStreamSynchronize(stream));
            ok!(near, cuStreamDestroy_v2(stream));
        }
        ok!(near, cuMemPoolDestroy(pool));
    });
}

#[test]
fn mapping_grants_access_by_device() {
    on_two_devices(|near, far| {
        let [s0, s1] = streams([near, far]);
        let properties = CUmemAllocationProp::device(far.device);
        let va = made!(near, cuMemAddressReserve(GRANULE, 0, 0, 0));
        let handle = made!(near, cuMemCreate(GRANULE, &properties, 0));
        ok!(near, cuMemMap(va, GRANULE, 0, handle, 0));
        let set = |device, flags| {
            let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: device };
            let access = CUmemAccessDesc { location, flags };
            code!(near, cuMemSetAccess(va, GRANULE, &access, 1))
        };
        assert_eq!(near.fill_on(va, 1, s0), REFUSED);
        assert_eq!(set(99, 3), REFUSED);
        // The memory's own device needs access too.
        assert_eq!(set(near.device, 3), CUresult::SUCCESS);
        assert_eq!(near.fill_on(va, 1, s0), CUresult::SUCCESS);
        assert_eq!(near.fill_on(va, 2, s1), REFUSED);
        assert_eq!(near.device_address(va), CUresult::SUCCESS);
        far.make_current();
        assert_eq!(far.device_address(va), REFUSED);
        near.make_current();
        assert_eq!(set(far.device, 3), CUresult::SUCCESS);
        assert_eq!(near.fill_on(va, 2, s1), CUresult::SUCCESS);
        assert_eq!(set(near.device, 0), CUresult::SUCCESS);
        assert_eq!(near.fill_on(va, 3, s0), REFUSED);
        let half = GRANULE / 2;
        let copied = code!(near, cuMemcpyDtoDAsync_v2(va, va + half as u64, half, s0));
        assert_eq!(copied, REFUSED);
        ok!(near, cuMemUnmap(va, GRANULE));
        ok!(near, cuMemRelease(handle));
        ok!(near, cuMemAddressFree(va, GRANULE));
        for stream in [s0, s1] {
            ok!(near, cuStreamDestroy_v2(stream));
        }
    });
}

#[test]
fn peer_attributes_are_known() {
    on_two_devices(|near, far| {
        let attribute = |number, from, to| {
            let mut value = -1;
            let code = code!(near, cuDeviceGetP2PAttribute(&mut value, number, from, to));
            (code, value)
        };
        for number in 1..=5 {
            let expected = i32::from((2..=4).contains(&number));
            for (from, to) in [(near.device, far.device), (far.device, near.device)] {
                assert_eq!(attribute(number, from, to), (CUresult::SUCCESS, expected), "{number}");
            }
        }
        for number in [0, 6] {
            assert_eq!(attribute(number, near.device, far.device), (REFUSED, -1));
        }
        let same = attribute(1, near.device, near.device);
        assert_eq!(same, (CUresult::ERROR_INVALID_DEVICE, -1));
    });
}
