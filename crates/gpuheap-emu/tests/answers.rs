//! Tests results that the tests of cuda-bindings, cuda-core and numba-cuda expect of driver calls.
//! The conformance suite does not test them. The emulator refuses some of the calls on purpose, and
//! a device that other programs use may give other results.

use std::ffi::{CStr, c_int};
use std::ptr;

use gpuheap_driver::*;
use gpuheap_emu::{Emulator, FindingKind, Options, Profile, Schedule};

mod calls;

use calls::{call, made, ok, start};

const GIB: u64 = 1 << 30;
const MIB: usize = 1 << 20;

/// Returns an initialised emulator with `profiles`. The first device's context is current on this
/// thread.
fn emulator(profiles: Vec<Profile>) -> (Emulator, CUcontext) {
    let gpu = start(Options { devices: profiles, ..Options::default() });
    let context = made!(gpu, cuCtxGetCurrent());
    (gpu, context)
}

fn one() -> (Emulator, CUcontext) {
    emulator(vec![Profile::with_memory(4 * GIB)])
}

#[test]
fn physical_host_memory_is_refused() {
    type A = CUdevice_attribute;
    type L = CUmemLocationType;
    let (gpu, _) = one();
    let read = |attribute| {
        let mut value = 9;
        ok!(gpu, cuDeviceGetAttribute(&mut value, attribute, 0));
        value
    };
    assert_eq!(read(A::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 0);
    assert_eq!(read(A::HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 0);
    assert_eq!(read(A::HOST_NUMA_MEMORY_POOLS_SUPPORTED), 1);
    assert_eq!(read(A::HOST_MEMORY_POOLS_SUPPORTED), 1);
    for kind in [L::HOST, L::HOST_NUMA] {
        let location = CUmemLocation { kind, id: 0 };
        let properties = CUmemAllocationProp { location, ..CUmemAllocationProp::device(0) };
        let code = call!(gpu, cuMemCreate(&mut 0, 2 * MIB, &properties, 0));
        assert_eq!(code, CUresult::ERROR_NOT_SUPPORTED);
    }
}

#[test]
fn shareable_pool_is_refused() {
    let (gpu, _) = one();
    let mut pool = CUmemoryPool::NULL;
    let host = CUmemLocation { kind: CUmemLocationType::HOST, id: 0 };
    let device = CUmemLocation::device(0);
    for (location, handle_types, expected) in [
        (device, 1, CUresult::ERROR_NOT_SUPPORTED),
        (device, 2, CUresult::ERROR_INVALID_VALUE),
        (host, 1, CUresult::ERROR_INVALID_VALUE),
    ] {
        let properties = CUmemPoolProps { location, handle_types, ..CUmemPoolProps::device(0) };
        assert_eq!(call!(gpu, cuMemPoolCreate(&mut pool, &properties)), expected);
    }
}

#[test]
fn wsl2_has_no_host_pools() {
    let (gpu, _) = emulator(vec![Profile::wsl2_rtx4060()]);
    let attribute = CUdevice_attribute::HOST_MEMORY_POOLS_SUPPORTED;
    let (mut value, mut pool) = (9, CUmemoryPool::NULL);
    ok!(gpu, cuDeviceGetAttribute(&mut value, attribute, 0));
    let mut host = CUmemLocation { kind: CUmemLocationType::HOST, id: 0 };
    for kind in [CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOCATION_TYPE_MANAGED] {
        let code = call!(gpu, cuMemGetDefaultMemPool(&mut pool, &mut host, kind));
        assert_eq!((value, code), (0, CUresult::ERROR_NOT_SUPPORTED));
    }
}

/// Memory of a host pool stays mapped after its free while work is queued. So, as on a real device,
/// a faulty copy that runs after the free does not crash.
#[test]
fn freed_host_memory_readable_until_done() {
    let devices = vec![Profile::with_memory(4 * GIB)];
    let gpu = start(Options { devices, schedule: Schedule::OnDemand, ..Options::default() });
    let mut pool = CUmemoryPool::NULL;
    let location = CUmemLocation { kind: CUmemLocationType::HOST, id: 0 };
    let properties = CUmemPoolProps { location, ..CUmemPoolProps::device(0) };
    ok!(gpu, cuMemPoolCreate(&mut pool, &properties));
    let [mut stream, mut other] = [CUstream::NULL; 2];
    for made in [&mut stream, &mut other] {
        ok!(gpu, cuStreamCreate(made, CU_STREAM_NON_BLOCKING));
    }
    let device = made!(gpu, cuMemAlloc_v2(MIB));
    let pointer = made!(gpu, cuMemAllocFromPoolAsync(MIB, pool, stream));
    // The copy on the other stream is not ordered before the free, and runs after the free.
    ok!(gpu, cuMemcpyAsync(device, pointer, MIB, other));
    ok!(gpu, cuMemFreeAsync(pointer, stream));
    ok!(gpu, cuStreamSynchronize(stream));
    ok!(gpu, cuStreamSynchronize(other));
    let found = gpu.findings().unwrap();
    assert!(found.iter().any(|found| found.kind == FindingKind::Unordered), "{found:?}");
}

#[test]
fn descriptor_memory_is_allocated() {
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
    let fabric = call!(gpu, cuMemCreate(&mut handle, 2 * MIB, &by(8), 0));
    assert_eq!(fabric, CUresult::ERROR_NOT_PERMITTED);
}

#[test]
fn each_code_has_name_and_text() {
    let gpu = Emulator::new(Options::default());
    let read = |code: c_int| {
        let (mut name, mut text) = (ptr::null(), ptr::null());
        ok!(gpu, cuGetErrorName(CUresult(code), &mut name));
        ok!(gpu, cuGetErrorString(CUresult(code), &mut text));
        // SAFETY: both are static C strings, because both calls succeeded.
        unsafe { (CStr::from_ptr(name), CStr::from_ptr(text)) }
    };
    assert_eq!(read(101), (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"));
    assert_eq!(read(205), (c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed"));
    assert_eq!(read(916).0, c"CUDA_ERROR_KEY_ROTATION");
    let known = |code: &c_int| call!(gpu, cuGetErrorName(CUresult(*code), &mut ptr::null()));
    assert_eq!((0..1000).filter(|code| known(code).is_success()).count(), 101);
}

#[test]
fn capture_info_has_state_and_graph() {
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
    // The capture keeps its graph until the capture ends.
    assert_eq!(call!(gpu, cuGraphDestroy(graph)), CUresult::ERROR_INVALID_VALUE);
    ok!(gpu, cuStreamEndCapture(stream, &mut ended));
    assert_eq!((ended, info().0), (graph, CUstreamCaptureStatus::NONE));
    ok!(gpu, cuGraphDestroy(ended));
    ok!(gpu, cuStreamDestroy_v2(stream));
}

#[test]
fn graph_memory_figures_are_zero() {
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
    let code = call!(gpu, cuDeviceSetGraphMemAttribute(0, A::USED_MEM_CURRENT, value));
    assert_eq!(code, CUresult::ERROR_INVALID_VALUE);
    ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
    assert_eq!(call!(gpu, cuProfilerStart()), CUresult::ERROR_INVALID_CONTEXT);
}

#[test]
fn context_goes_with_its_last_reference() {
    let (gpu, _) = one();
    let made = made!(gpu, cuCtxCreate_v2(0, 0));
    let same = made!(gpu, cuCtxAttach(0));
    assert_eq!(same, made);
    ok!(gpu, cuCtxDetach(made));
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuCtxDetach(made));
    let gone = call!(gpu, cuCtxPushCurrent_v2(made));
    assert_eq!(gone, CUresult::ERROR_CONTEXT_IS_DESTROYED);
}

#[test]
fn primary_context_stays_whatever_is_detached() {
    let (gpu, primary) = one();
    ok!(gpu, cuCtxAttach(&mut CUcontext::default(), 0));
    for _ in 0..3 {
        ok!(gpu, cuCtxDetach(primary));
    }
    ok!(gpu, cuMemAlloc_v2(&mut 0, 64));
}

/// Returns the indices of the devices that are visible with `CUDA_VISIBLE_DEVICES` set to `list`,
/// on a machine with three devices. If `cuInit` fails, returns its code.
fn visible(list: &str) -> Result<Vec<u8>, CUresult> {
    let three = [1, 2, 3].map(|gib| Profile::with_memory(gib * GIB)).to_vec();
    let options = Options { devices: three, ..Options::default() }.with_visible_devices(list);
    let gpu = Emulator::new(options);
    let code = call!(gpu, cuInit(0));
    if !code.is_success() {
        return Err(code);
    }
    let count = made!(gpu, cuDeviceGetCount());
    let uuid = |device| {
        let uuid = made!(gpu, cuDeviceGetUuid_v2(device));
        let bytes = made!(gpu, cuDeviceTotalMem_v2(device));
        let bus = made!(gpu, cuDeviceGetAttribute(CUdevice_attribute::PCI_BUS_ID, device));
        let number = uuid.bytes[15];
        assert_eq!((bytes as u64, bus), (u64::from(number + 1) * GIB, c_int::from(number) + 1));
        number
    };
    Ok((0..count).map(uuid).collect())
}

#[test]
fn visible_devices_keep_their_uuid() {
    const UUID: &str = "GPU-67707568-6561-702d-656d-7500";
    for (list, expected) in [
        ("0", vec![0]),
        ("2, 0", vec![2, 0]),
        // Ordinals are parsed like C's atoi.
        (" 1x,+2;,0x1", vec![1, 2, 0]),
        ("-0,4294967297", vec![0, 1]),
        (&format!("{UUID}00000001"), vec![1]),
        (&format!("{UUID}00000001f,{UUID}00000000"), vec![1, 0]),
        (&UUID.to_lowercase().replace("gpu", "GPU").replace("7500", "750000000002"), vec![2]),
        // The list ends before an entry that names no device. It also ends where ordinals change to
        // UUIDs or the reverse.
        ("1,7,0", vec![1]),
        (&format!("{UUID}00000002,0"), vec![2]),
        (&format!("1,{UUID}00000002"), vec![1]),
    ] {
        assert_eq!(visible(list), Ok(expected), "{list:?}");
    }
    for twice in ["1,1,0", "0,2,0", &format!("{UUID}00000001,{UUID}00000001")] {
        assert_eq!(visible(twice), Err(CUresult::ERROR_INVALID_DEVICE), "{twice:?}");
    }
    let padded = format!(" {UUID}00000001");
    for none in ["", "-1", "x0", "2147483648", "GPU-", "nothing", UUID, &padded] {
        assert_eq!(visible(none), Err(CUresult::ERROR_NO_DEVICE), "{none:?}");
    }
}
