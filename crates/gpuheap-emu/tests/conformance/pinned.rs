//! Pinned and registered host memory.

use std::ffi::c_void;

use gpuheap_driver::*;

use crate::support::*;

#[test]
fn pinned_memory_has_one_address() {
    on_every_driver(|gpu| {
        let before = gpu.used();
        let memory = gpu.pinned(1 << 20);
        let pointer: *mut c_void = memory.as_mut_ptr().cast();
        let seen = made!(gpu, cuMemHostGetDevicePointer_v2(pointer, 0));
        let mut flags = made!(gpu, cuMemHostGetFlags(pointer));
        assert_eq!(seen, pointer.expose_provenance() as u64);
        assert_eq!(flags & CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
        assert_eq!(gpu.used(), before, "it is the host's");
        gpu.unpin(memory);
        assert_eq!(
            code!(gpu, cuMemHostGetFlags(&mut flags, pointer)),
            CUresult::ERROR_INVALID_VALUE
        );
    });
}
