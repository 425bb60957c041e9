//! Attributes of pointers.

use std::ffi::c_void;

use gpuheap_driver::*;

use crate::support::*;

type A = CUpointer_attribute;

fn number<T: Default>(gpu: &Gpu<'_>, attribute: A, pointer: u64) -> Result<T, CUresult> {
    let mut value = T::default();
    match code!(gpu, cuPointerGetAttribute((&raw mut value).cast(), attribute, pointer)) {
        CUresult::SUCCESS => Ok(value),
        code => Err(code),
    }
}

#[test]
fn device_memory_says_where_it_is() {
    on_every_driver(|gpu| {
        let p = gpu.allocate(1000);
        assert_eq!(number(gpu, A::MEMORY_TYPE, p + 10), Ok(CUmemorytype::DEVICE.0));
        assert_eq!(number(gpu, A::DEVICE_ORDINAL, p), Ok(gpu.device));
        assert_eq!(number(gpu, A::CONTEXT, p), Ok(gpu.context.0));
        assert_eq!(number(gpu, A::RANGE_START_ADDR, p + 999), Ok(p));
        assert_eq!(number(gpu, A::RANGE_SIZE, p), Ok(1000_u64));
        assert_eq!(number(gpu, A::DEVICE_POINTER, p + 3), Ok(p + 3));
        assert_eq!(number(gpu, A::IS_MANAGED, p), Ok(0));
        let invalid = Err(CUresult::ERROR_INVALID_VALUE);
        assert_eq!(number::<u64>(gpu, A::HOST_POINTER, p), invalid);
        assert_eq!(number::<u64>(gpu, CUpointer_attribute(999), p), invalid);
        let other = gpu.allocate(1000);
        assert_ne!(number::<u64>(gpu, A::BUFFER_ID, p), number(gpu, A::BUFFER_ID, other));
        gpu.free(p);
        gpu.free(other);
    });
}

#[test]
fn memory_of_each_kind_says_so() {
    on_every_driver(|gpu| {
        let stream = gpu.stream();
        let (mut pooled, mut managed, mut pool) = (0, 0, CUmemoryPool::NULL);
        ok!(gpu, cuMemAllocAsync(&mut pooled, 1000, stream));
        ok!(gpu, cuDeviceGetMemPool(&mut pool, gpu.device));
        assert_eq!(number(gpu, A::MEMPOOL_HANDLE, pooled), Ok(pool.0));
        assert_eq!(number(gpu, A::CONTEXT, pooled), Ok(0_usize), "the device's, not a context's");
        ok!(gpu, cuMemFreeAsync(pooled, stream));
        ok!(gpu, cuMemAllocManaged(&mut managed, 1000, CU_MEM_ATTACH_GLOBAL));
        assert_eq!(number(gpu, A::IS_MANAGED, managed), Ok(1));
        assert_eq!(number(gpu, A::SYNC_MEMOPS, managed), Ok(1));
        assert_eq!(number(gpu, A::ACCESS_FLAGS, managed), Ok(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        assert_eq!(number(gpu, A::HOST_POINTER, managed), Ok(managed));
        gpu.free(managed);
        let pinned = gpu.pinned(1000);
        let address = pinned.as_ptr().expose_provenance() as u64;
        assert_eq!(number(gpu, A::MEMORY_TYPE, address), Ok(CUmemorytype::HOST.0));
        assert_eq!(number(gpu, A::HOST_POINTER, address + 5), Ok(address + 5));
        gpu.unpin(pinned);
    });
}

#[test]
fn unknown_memory_has_no_attributes() {
    on_every_driver(|gpu| {
        let own = [0_u8; 16];
        let address = own.as_ptr().expose_provenance() as u64;
        assert_eq!(number::<i32>(gpu, A::MEMORY_TYPE, address), Err(CUresult::ERROR_INVALID_VALUE));
        let (mut kind, mut ordinal, mut context) = (9, 9, 9_usize);
        let mut attributes = [A::MEMORY_TYPE, A::DEVICE_ORDINAL, A::CONTEXT];
        let mut data: [*mut c_void; 3] =
            [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut context).cast()];
        ok!(gpu, cuPointerGetAttributes(3, attributes.as_mut_ptr(), data.as_mut_ptr(), address));
        assert_eq!((kind, ordinal, context), (0, -2, 0));
    });
}

#[test]
fn unknown_memory_has_no_range() {
    on_every_driver(|gpu| {
        let own = [0_u8; 16];
        let address = own.as_ptr().expose_provenance() as u64;
        let (mut host, mut device, mut bytes) = (9_u64, 9_u64, 9_usize);
        let mut attributes = [A::HOST_POINTER, A::DEVICE_POINTER, A::RANGE_SIZE];
        let mut data: [*mut c_void; 3] =
            [(&raw mut host).cast(), (&raw mut device).cast(), (&raw mut bytes).cast()];
        let (attributes, data) = (attributes.as_mut_ptr(), data.as_mut_ptr());
        ok!(gpu, cuPointerGetAttributes(3, attributes, data, address));
        assert_eq!((host, device, bytes), (address, 0, 9), "the size is not written");
        let none = code!(gpu, cuPointerGetAttributes(0, attributes, data, address));
        assert_eq!(none, CUresult::ERROR_INVALID_VALUE);
    });
}

#[test]
fn reserved_addresses_have_a_range_only() {
    on_every_driver(|gpu| {
        const BYTES: usize = 2 << 20;
        let reserved = made!(gpu, cuMemAddressReserve(BYTES, 0, 0, 0));
        assert_eq!(number::<u64>(gpu, A::RANGE_SIZE, reserved), Err(CUresult::ERROR_INVALID_VALUE));
        let (mut kind, mut start, mut bytes) = (9, 9_u64, 9_usize);
        let mut attributes = [A::MEMORY_TYPE, A::RANGE_START_ADDR, A::RANGE_SIZE];
        let mut data: [*mut c_void; 3] =
            [(&raw mut kind).cast(), (&raw mut start).cast(), (&raw mut bytes).cast()];
        ok!(gpu, cuPointerGetAttributes(3, attributes.as_mut_ptr(), data.as_mut_ptr(), reserved));
        assert_eq!((kind, start, bytes), (0, reserved, BYTES));
        ok!(gpu, cuMemAddressFree(reserved, BYTES));
    });
}

#[test]
fn device_address_needs_current_context() {
    on_every_driver(|gpu| {
        let p = gpu.allocate(1000);
        ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
        let none = number::<u64>(gpu, A::DEVICE_POINTER, p);
        assert_eq!(none, Err(CUresult::ERROR_INVALID_CONTEXT));
        let (mut device, mut kind) = (9_u64, 9);
        let mut attributes = [A::DEVICE_POINTER, A::MEMORY_TYPE];
        let mut data: [*mut c_void; 2] = [(&raw mut device).cast(), (&raw mut kind).cast()];
        ok!(gpu, cuPointerGetAttributes(2, attributes.as_mut_ptr(), data.as_mut_ptr(), p));
        assert_eq!((device, kind), (0, CUmemorytype::DEVICE.0));
        let on = 1_u32;
        ok!(gpu, cuPointerSetAttribute((&raw const on).cast(), A::SYNC_MEMOPS, p));
        assert_eq!(number(gpu, A::SYNC_MEMOPS, p), Ok(1));
        ok!(gpu, cuCtxSetCurrent(gpu.context));
        gpu.free(p);
    });
}
