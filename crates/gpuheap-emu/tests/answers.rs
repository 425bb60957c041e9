//! Answers that the tests of cuda-bindings, cuda-core and numba-cuda expect of a driver. They are
//! by NVIDIA's documents and were not measured on a device.

use std::ffi::{CStr, c_int};
use std::ptr;

use gpuheap_driver::*;
use gpuheap_emu::{Emulator, Options, Profile};

const GIB: u64 = 1 << 30;
const MIB: usize = 1 << 20;

/// Calls a function of the driver and returns its code.
macro_rules! code {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the tests pass valid pointers.
        unsafe { $gpu.$function($($arg),*) }
    };
}

/// Calls a function of the driver that must succeed.
macro_rules! ok {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(code!($gpu, $function($($arg),*)), CUresult::SUCCESS, stringify!($function))
    };
}

/// Returns an initialised emulator with `profiles` and the first device's context, which is current
/// on this thread.
fn emulator(profiles: Vec<Profile>) -> (Emulator, CUcontext) {
    let gpu = Emulator::new(Options { devices: profiles, ..Options::default() });
    let mut context = CUcontext::NULL;
    ok!(gpu, cuInit(0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(gpu, cuCtxSetCurrent(context));
    (gpu, context)
}

fn one() -> (Emulator, CUcontext) {
    emulator(vec![Profile::with_memory(4 * GIB)])
}

#[test]
fn memory_of_the_host_is_refused_by_attribute_and_by_call() {
    type A = CUdevice_attribute;
    let (gpu, _) = one();
    for attribute in [
        A::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        A::HOST_NUMA_MEMORY_POOLS_SUPPORTED,
        A::HOST_MEMORY_POOLS_SUPPORTED,
        A::HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    ] {
        let mut value = 9;
        ok!(gpu, cuDeviceGetAttribute(&mut value, attribute, 0));
        assert_eq!(value, 0, "{attribute:?}");
    }
    let unsupported = CUresult::ERROR_NOT_SUPPORTED;
    let (mut pool, mut handle) = (CUmemoryPool::NULL, 0);
    let host = CUmemLocation { kind: CUmemLocationType::HOST, id: 0 };
    let node = CUmemLocation { kind: CUmemLocationType::HOST_NUMA, id: 0 };
    let device = CUmemLocation::device(0);
    let pinned = CU_MEM_ALLOCATION_TYPE_PINNED;
    let managed = CU_MEM_ALLOCATION_TYPE_MANAGED;
    for (mut location, kind) in
        [(host, pinned), (node, pinned), (device, managed), (host, managed), (node, managed)]
    {
        let properties = CUmemPoolProps { location, kind, ..CUmemPoolProps::device(0) };
        assert_eq!(code!(gpu, cuMemPoolCreate(&mut pool, &properties)), unsupported);
        assert_eq!(code!(gpu, cuMemGetMemPool(&mut pool, &mut location, kind)), unsupported);
        let code = code!(gpu, cuMemGetDefaultMemPool(&mut pool, &mut location, kind));
        assert_eq!(code, unsupported);
        let properties = CUmemAllocationProp { location, kind, ..CUmemAllocationProp::device(0) };
        assert_eq!(code!(gpu, cuMemCreate(&mut handle, 2 * MIB, &properties, 0)), unsupported);
    }
    let properties = CUmemPoolProps { kind: 9, ..CUmemPoolProps::device(0) };
    let invalid = CUresult::ERROR_INVALID_VALUE;
    assert_eq!(code!(gpu, cuMemPoolCreate(&mut pool, &properties)), invalid);
}

#[test]
fn pool_limit_is_rounded_up() {
    let (gpu, _) = one();
    let (mut pool, mut pointer) = (CUmemoryPool::NULL, 0);
    let properties = CUmemPoolProps { max_size: 2048, ..CUmemPoolProps::device(0) };
    ok!(gpu, cuMemPoolCreate(&mut pool, &properties));
    ok!(gpu, cuMemAllocFromPoolAsync(&mut pointer, 64, pool, CUstream::NULL));
    let more = code!(gpu, cuMemAllocFromPoolAsync(&mut 0, 2 * MIB, pool, CUstream::NULL));
    assert_eq!(more, CUresult::ERROR_OUT_OF_MEMORY);
    ok!(gpu, cuMemFreeAsync(pointer, CUstream::NULL));
    ok!(gpu, cuMemPoolDestroy(pool));
}

#[test]
fn pointer_attributes_need_no_current_context() {
    let (gpu, _) = one();
    let mut device = 0;
    ok!(gpu, cuMemAlloc_v2(&mut device, 64));
    ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
    let host = [0_u8; 64];
    for (pointer, expected) in [(device, (2, 0)), (host.as_ptr() as u64, (0, -2))] {
        let (mut kind, mut ordinal): (c_int, c_int) = (9, 9);
        let mut data = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
        let mut attributes =
            [CUpointer_attribute::MEMORY_TYPE, CUpointer_attribute::DEVICE_ORDINAL];
        let (attributes, data) = (attributes.as_mut_ptr(), data.as_mut_ptr());
        ok!(gpu, cuPointerGetAttributes(2, attributes, data, pointer));
        assert_eq!((kind, ordinal), expected);
    }
}

#[test]
fn range_attributes_tell_nodes_of_the_host() {
    const SET_PREFERRED_LOCATION: c_int = 3;
    let (gpu, _) = one();
    let mut pointer = 0;
    ok!(gpu, cuMemAllocManaged(&mut pointer, MIB, CU_MEM_ATTACH_GLOBAL));
    let read = |attribute: c_int| {
        let mut value: c_int = 99;
        let data = (&raw mut value).cast();
        ok!(gpu, cuMemRangeGetAttribute(data, 4, attribute, pointer, MIB));
        value
    };
    assert_eq!([read(5), read(7)], [CUmemLocationType::INVALID.0; 2]);
    let node = CUmemLocation { kind: CUmemLocationType::HOST_NUMA, id: 1 };
    ok!(gpu, cuMemAdvise_v2(pointer, MIB, SET_PREFERRED_LOCATION, node));
    assert_eq!([read(5), read(6)], [CUmemLocationType::HOST_NUMA.0, 1]);
    // The first form knows devices and the host only.
    assert_eq!(read(2), CU_DEVICE_CPU);
    let host = CUmemLocation { kind: CUmemLocationType::HOST, id: 7 };
    ok!(gpu, cuMemAdvise_v2(pointer, MIB, SET_PREFERRED_LOCATION, host));
    assert_eq!(read(5), CUmemLocationType::HOST.0);
    let device = CUmemLocation::device(0);
    ok!(gpu, cuMemPrefetchAsync_v2(pointer, MIB, device, 0, CUstream::NULL));
    assert_eq!([read(7), read(8), read(4)], [CUmemLocationType::DEVICE.0, 0, 0]);
    ok!(gpu, cuMemFree_v2(pointer));
}

#[test]
fn memory_to_be_shared_by_descriptor_is_memory_like_any_other() {
    let (gpu, _) = one();
    let mut handle = 0;
    let by = |kind| CUmemAllocationProp {
        requested_handle_types: kind,
        ..CUmemAllocationProp::device(0)
    };
    let descriptor = by(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ok!(gpu, cuMemCreate(&mut handle, 2 * MIB, &descriptor, 0));
    let mut made = by(0);
    ok!(gpu, cuMemGetAllocationPropertiesFromHandle(&mut made, handle));
    assert_eq!(made.requested_handle_types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ok!(gpu, cuMemRelease(handle));
    let fabric = code!(gpu, cuMemCreate(&mut handle, 2 * MIB, &by(8), 0));
    assert_eq!(fabric, CUresult::ERROR_NOT_SUPPORTED);
}

#[test]
fn every_code_of_cuda_h_has_a_name_and_a_text() {
    let gpu = Emulator::new(Options::default());
    let read = |code: c_int| {
        let (mut name, mut text) = (ptr::null(), ptr::null());
        ok!(gpu, cuGetErrorName(CUresult(code), &mut name));
        ok!(gpu, cuGetErrorString(CUresult(code), &mut text));
        // SAFETY: both are static C strings, because both calls succeeded.
        unsafe { (CStr::from_ptr(name), CStr::from_ptr(text)) }
    };
    assert_eq!(read(101), (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"));
    assert_eq!(read(916).0, c"CUDA_ERROR_KEY_ROTATION");
    let known = |code: &c_int| code!(gpu, cuGetErrorName(CUresult(*code), &mut ptr::null()));
    assert_eq!((0..1000).filter(|code| known(code).is_success()).count(), 101);
}

#[test]
fn capture_tells_its_state_its_number_and_its_graph() {
    let (gpu, _) = one();
    let (mut stream, mut ended) = (CUstream::NULL, CUgraph::NULL);
    ok!(gpu, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
    let info = || {
        let (mut status, mut id) = (CUstreamCaptureStatus::INVALIDATED, 0);
        let (mut graph, mut nodes, mut count) = (CUgraph::NULL, ptr::null(), 9);
        ok!(
            gpu,
            cuStreamGetCaptureInfo_v3(
                stream,
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                ptr::null_mut(),
                &mut count
            )
        );
        (status, id, graph)
    };
    assert_eq!(info(), (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL));
    ok!(gpu, cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::RELAXED));
    let (status, id, graph) = info();
    assert!(status == CUstreamCaptureStatus::ACTIVE && id != 0 && !graph.is_null());
    let mut status = CUstreamCaptureStatus::NONE;
    let (none, nothing) = (ptr::null_mut(), ptr::null_mut());
    ok!(
        gpu,
        cuStreamGetCaptureInfo_v2(
            stream,
            &mut status,
            none,
            ptr::null_mut(),
            nothing,
            ptr::null_mut()
        )
    );
    assert_eq!(status, CUstreamCaptureStatus::ACTIVE);
    // The capture keeps its graph until it ends.
    assert_eq!(code!(gpu, cuGraphDestroy(graph)), CUresult::ERROR_INVALID_VALUE);
    ok!(gpu, cuStreamEndCapture(stream, &mut ended));
    assert_eq!((ended, info().0), (graph, CUstreamCaptureStatus::NONE));
    ok!(gpu, cuGraphDestroy(ended));
    ok!(gpu, cuStreamDestroy_v2(stream));
}

#[test]
fn profiler_and_memory_of_graphs_have_nothing_to_tell() {
    type A = CUgraphMem_attribute;
    let (gpu, _) = one();
    ok!(gpu, cuProfilerStart());
    ok!(gpu, cuProfilerStop());
    let mut bytes = 9_u64;
    let value = (&raw mut bytes).cast();
    ok!(gpu, cuDeviceGetGraphMemAttribute(0, A::RESERVED_MEM_HIGH, value));
    assert_eq!(bytes, 0);
    ok!(gpu, cuDeviceSetGraphMemAttribute(0, A::USED_MEM_HIGH, value));
    ok!(gpu, cuDeviceGraphMemTrim(0));
    let code = code!(gpu, cuDeviceSetGraphMemAttribute(0, A::USED_MEM_CURRENT, value));
    assert_eq!(code, CUresult::ERROR_INVALID_VALUE);
    ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
    assert_eq!(code!(gpu, cuProfilerStart()), CUresult::ERROR_INVALID_CONTEXT);
}

#[test]
fn batches_move_each_group_of_ranges_to_its_place() {
    const LAST_PREFETCH_LOCATION: c_int = 4;
    let (gpu, _) = one();
    let (mut stream, mut pointers) = (CUstream::NULL, [0; 3]);
    ok!(gpu, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
    for pointer in &mut pointers {
        ok!(gpu, cuMemAllocManaged(pointer, MIB, CU_MEM_ATTACH_GLOBAL));
    }
    let mut sizes = [MIB; 3];
    let host = CUmemLocation { kind: CUmemLocationType::HOST, id: 0 };
    let mut locations = [CUmemLocation::device(0), host];
    let addresses = pointers;
    let mut prefetch = |firsts: [usize; 2], stream: CUstream| {
        let (mut firsts, count) = (firsts, 3);
        let (ranges, bytes) = (pointers.as_mut_ptr(), sizes.as_mut_ptr());
        let (places, firsts) = (locations.as_mut_ptr(), firsts.as_mut_ptr());
        code!(gpu, cuMemPrefetchBatchAsync(ranges, bytes, count, places, firsts, 2, 0, stream))
    };
    let invalid = CUresult::ERROR_INVALID_VALUE;
    assert_eq!(prefetch([0, 3], stream), invalid);
    assert_eq!(prefetch([1, 2], stream), invalid);
    assert_eq!(prefetch([0, 2], CUstream::NULL), invalid);
    assert_eq!(prefetch([0, 2], stream), CUresult::SUCCESS);
    for (pointer, expected) in addresses.into_iter().zip([0, 0, CU_DEVICE_CPU]) {
        let mut place: c_int = 99;
        let data = (&raw mut place).cast();
        ok!(gpu, cuMemRangeGetAttribute(data, 4, LAST_PREFETCH_LOCATION, pointer, MIB));
        assert_eq!(place, expected);
    }
    let (mut ranges, mut bytes) = (addresses, [MIB; 3]);
    let (ranges, bytes) = (ranges.as_mut_ptr(), bytes.as_mut_ptr());
    ok!(gpu, cuMemDiscardBatchAsync(ranges, bytes, 3, 0, stream));
    assert_eq!(code!(gpu, cuMemDiscardBatchAsync(ranges, bytes, 3, 1, stream)), invalid);
    for pointer in addresses {
        ok!(gpu, cuMemFree_v2(pointer));
    }
    ok!(gpu, cuStreamDestroy_v2(stream));
}

#[test]
fn context_goes_with_its_last_reference() {
    let (gpu, _) = one();
    let (mut made, mut same) = (CUcontext::NULL, CUcontext::NULL);
    ok!(gpu, cuCtxCreate_v2(&mut made, 0, 0));
    ok!(gpu, cuCtxAttach(&mut same, 0));
    assert_eq!(same, made);
    ok!(gpu, cuCtxDetach(made));
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuCtxDetach(made));
    let gone = code!(gpu, cuCtxPushCurrent_v2(made));
    assert_eq!(gone, CUresult::ERROR_CONTEXT_IS_DESTROYED);
}

/// Returns the UUIDs of the devices that a list keeps of three.
fn visible(list: &str) -> Vec<u8> {
    let three = [1, 2, 3].map(|gib| Profile::with_memory(gib * GIB)).to_vec();
    let options = Options { devices: three, ..Options::default() }.with_visible_devices(list);
    let gpu = Emulator::new(options);
    if code!(gpu, cuInit(0)) == CUresult::ERROR_NO_DEVICE {
        return Vec::new();
    }
    let mut count = 0;
    ok!(gpu, cuDeviceGetCount(&mut count));
    let uuid = |device| {
        let (mut uuid, mut bytes) = (CUuuid::default(), 0);
        ok!(gpu, cuDeviceGetUuid_v2(&mut uuid, device));
        ok!(gpu, cuDeviceTotalMem_v2(&mut bytes, device));
        let mut bus = 0;
        ok!(gpu, cuDeviceGetAttribute(&mut bus, CUdevice_attribute::PCI_BUS_ID, device));
        let number = uuid.bytes[15];
        assert_eq!((bytes as u64, bus), (u64::from(number + 1) * GIB, c_int::from(number) + 1));
        number
    };
    (0..count).map(uuid).collect()
}

#[test]
fn visible_devices_keep_their_uuid_and_place() {
    const UUID: &str = "GPU-67707568-6561-702d-656d-7500";
    assert_eq!(visible("0"), [0]);
    assert_eq!(visible("2, 0"), [2, 0]);
    assert_eq!(visible(&format!("{UUID}00000001")), [1]);
    assert_eq!(visible(&format!("{UUID}00000002,0")), [2, 0]);
    // The first entry that names no device ends the list.
    assert_eq!(visible("1,7,0"), [1]);
    assert_eq!(visible("1,1,0"), [1]);
    for none in ["", "-1", "GPU-", "nothing", UUID] {
        assert_eq!(visible(none), [], "{none:?}");
    }
}
