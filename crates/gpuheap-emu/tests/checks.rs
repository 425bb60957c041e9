//! Misuse that the checks find, and correct use that they accept, under every schedule.
#![allow(clippy::unwrap_used)]

use std::ffi::CString;
use std::time::Duration;

use gpuheap_driver::*;
use gpuheap_emu::{ChecksOff, Emulator, FindingKind, Options, Schedule};
use gpuheap_kernels::{Launch, Type, Unary, copy, unary};

mod calls;

use calls::{call, made, ok, start};

const CHUNK: usize = 4096;

/// A context on a device, two non-blocking streams, and a block of memory.
struct Scene {
    gpu: Emulator,
    one: CUstream,
    two: CUstream,
    block: CUdeviceptr,
}

fn scene(schedule: Schedule) -> Scene {
    let gpu = start(Options { schedule, ..Options::default() });
    let one = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
    let two = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
    let block = made!(gpu, cuMemAlloc_v2(CHUNK));
    Scene { gpu, one, two, block }
}

impl Scene {
    fn fill(&self, stream: CUstream) {
        ok!(self.gpu, cuMemsetD8Async(self.block, 1, CHUNK, stream));
    }

    fn order(&self, before: CUstream, after: CUstream) {
        let event = made!(self.gpu, cuEventCreate(0));
        ok!(self.gpu, cuEventRecord(event, before));
        ok!(self.gpu, cuStreamWaitEvent(after, event, 0));
        ok!(self.gpu, cuEventDestroy_v2(event));
    }

    /// Loads the kernel of a launch, and launches it. The kernel stays loaded.
    fn launch(&self, launches: &[Launch], stream: CUstream) -> CUresult {
        let [launch] = launches else { panic!("{launches:?}") };
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        let text = CString::new(launch.kernel.ptx()).unwrap();
        let name = CString::new(launch.kernel.name()).unwrap();
        ok!(self.gpu, cuModuleLoadData(&mut module, text.as_ptr().cast()));
        ok!(self.gpu, cuModuleGetFunction(&mut function, module, name.as_ptr()));
        let mut parameter = launch.words.as_slice().as_ptr().cast_mut().cast();
        let (grid, block, none) = (launch.grid, launch.block, std::ptr::null_mut());
        call!(
            self.gpu,
            cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, &mut parameter, none)
        )
    }

    fn allocate_async(&self, stream: CUstream) -> CUdeviceptr {
        made!(self.gpu, cuMemAllocAsync(CHUNK, stream))
    }
}

/// Runs a program under every schedule. Asserts that the checks find exactly these kinds of misuse.
fn expect(kinds: &[FindingKind], program: impl Fn(&Scene)) {
    let lag = Schedule::Lag(Duration::from_millis(1));
    let seeds = (0..8).map(Schedule::Seeded);
    for schedule in [Schedule::Immediate, Schedule::OnDemand, lag].into_iter().chain(seeds) {
        let scene = scene(schedule);
        program(&scene);
        let found = scene.gpu.findings().unwrap();
        let found_kinds: Vec<_> = found.iter().map(|finding| finding.kind).collect();
        assert_eq!(found_kinds, kinds, "{schedule:?}: {found:#?}");
    }
}

#[test]
fn overlapping_blocks_are_both_named() {
    let tell = |scene: &Scene, second: u64, is_freed: bool| {
        let context = made!(scene.gpu, cuCtxGetCurrent());
        let checks = scene.gpu.block_checks().unwrap();
        let block = |at: u64| {
            let address = scene.block + at;
            BlockNote { context, address, bytes: 1000, room: 1024, stream: scene.one }
        };
        checks.note(BlockEvent::Allocated, &block(0));
        if is_freed {
            checks.note(BlockEvent::Freed, &block(0));
        }
        checks.note(BlockEvent::Allocated, &block(second));
    };
    // The second block starts at the last byte of the first block's padding, in the middle of the
    // first block, or at its start.
    for second in [1023, 512, 0] {
        expect(&[FindingKind::OverlappingBlocks], |scene| {
            tell(scene, second, false);
            let text = &scene.gpu.findings().unwrap()[0].text;
            let [first, second] = [scene.block, scene.block + second]
                .map(|at| format!("a block of 1000 bytes at {at:#x} allocated on stream "));
            assert!(text.starts_with(&format!("a heap hands out {second}")), "{text}");
            assert!(text.contains(&format!("over {first}")), "{text}");
        });
        expect(&[], |scene| tell(scene, second, true));
    }
    expect(&[], |scene| tell(scene, 1024, false));
}

/// Work on a blocking stream waits for the legacy default stream. But a host that synchronizes the
/// blocking stream does not wait for the legacy stream's work (measured on an H200, driver 580).
#[test]
fn blocking_stream_wait_excludes_legacy_stream() {
    let wait = |scene: &Scene, by_event: bool| {
        scene.fill(CUstream::LEGACY);
        let own = CUstream::PER_THREAD;
        let event = made!(scene.gpu, cuEventCreate(0));
        ok!(scene.gpu, cuEventRecord(event, own));
        let waited = match by_event {
            true => call!(scene.gpu, cuEventSynchronize(event)),
            false => call!(scene.gpu, cuStreamSynchronize(own)),
        };
        assert!(waited.is_success());
        scene.fill(scene.one);
    };
    expect(&[FindingKind::Unordered], |scene| wait(scene, false));
    expect(&[], |scene| wait(scene, true));
}

#[test]
fn unordered_writes_name_both() {
    expect(&[FindingKind::Unordered], |scene| {
        scene.fill(scene.one);
        scene.fill(scene.two);
        let text = &scene.gpu.findings().unwrap()[0].text;
        let range = format!("{:#x}..{:#x}", scene.block, scene.block + CHUNK as u64);
        assert!(text.contains(&range) && text.matches("cuMemsetD8Async").count() == 2, "{text}");
        assert!(text.matches("on stream").count() == 2, "{text}");
    });
}

#[test]
fn waits_order_accesses() {
    expect(&[], |scene| {
        scene.fill(scene.one);
        scene.order(scene.one, scene.two);
        scene.fill(scene.two);
        ok!(scene.gpu, cuStreamSynchronize(scene.two));
        scene.fill(scene.one);
        ok!(scene.gpu, cuCtxSynchronize());
        scene.fill(scene.two);
        while call!(scene.gpu, cuStreamQuery(scene.two)) != CUresult::SUCCESS {}
        scene.fill(scene.one);
    });
}

#[test]
fn a_context_wait_covers_destroyed_streams() {
    expect(&[], |scene| {
        scene.fill(scene.one);
        ok!(scene.gpu, cuStreamDestroy_v2(scene.one));
        ok!(scene.gpu, cuCtxSynchronize());
        scene.fill(scene.two);
    });
}

unsafe extern "C" fn nothing(_data: *mut std::ffi::c_void) {}

#[test]
fn callback_orders_host_after_work() {
    let program = |scene: &Scene, callback_first: bool| {
        let call_back = || {
            ok!(scene.gpu, cuLaunchHostFunc(scene.one, Some(nothing), std::ptr::null_mut()));
        };
        if callback_first {
            call_back();
        }
        scene.fill(scene.one);
        if !callback_first {
            call_back();
        }
        scene.gpu.run_to_idle();
        scene.fill(scene.two);
    };
    expect(&[], |scene| program(scene, false));
    expect(&[FindingKind::Unordered], |scene| program(scene, true));
}

#[test]
fn earlier_record_orders_no_later_work() {
    expect(&[FindingKind::Unordered], |scene| {
        scene.order(scene.one, scene.two);
        scene.fill(scene.one);
        scene.fill(scene.two);
    });
}

#[test]
fn order_goes_through_a_third_stream() {
    expect(&[], |scene| {
        let third = made!(scene.gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
        scene.fill(scene.one);
        scene.order(scene.one, third);
        scene.order(third, scene.two);
        scene.fill(scene.two);
    });
}

#[test]
fn wait_for_destroyed_stream_orders_successor() {
    expect(&[], |scene| {
        let (mut event, mut next) = (CUevent::NULL, CUstream::NULL);
        ok!(scene.gpu, cuEventCreate(&mut event, 0));
        scene.fill(scene.one);
        ok!(scene.gpu, cuEventRecord(event, scene.one));
        ok!(scene.gpu, cuStreamDestroy_v2(scene.one));
        // Repeats until a new stream gets the index of the destroyed stream.
        for _ in 0..8 {
            ok!(scene.gpu, cuStreamCreate(&mut next, CU_STREAM_NON_BLOCKING));
            ok!(scene.gpu, cuStreamWaitEvent(next, event, 0));
            scene.fill(next);
            ok!(scene.gpu, cuEventRecord(event, next));
            ok!(scene.gpu, cuStreamDestroy_v2(next));
        }
    });
}

#[test]
fn write_after_read_needs_order() {
    expect(&[FindingKind::Unordered], |scene| {
        let mut targets = [0; 2];
        for target in &mut targets {
            ok!(scene.gpu, cuMemAlloc_v2(target, CHUNK));
        }
        scene.fill(scene.one);
        scene.order(scene.one, scene.two);
        let copy = |target, stream| {
            ok!(scene.gpu, cuMemcpyDtoDAsync_v2(target, scene.block, CHUNK, stream));
        };
        copy(targets[0], scene.one);
        copy(targets[1], scene.two);
        assert_eq!(scene.gpu.findings().unwrap(), []);
        scene.fill(scene.one);
    });
}

#[test]
fn default_stream_orders_only_blocking_streams() {
    expect(&[FindingKind::Unordered], |scene| {
        let blocking = made!(scene.gpu, cuStreamCreate(0));
        scene.fill(blocking);
        scene.fill(CUstream::NULL);
        scene.fill(blocking);
        assert_eq!(scene.gpu.findings().unwrap(), []);
        ok!(scene.gpu, cuStreamSynchronize(blocking));
        scene.fill(CUstream::NULL);
        scene.fill(scene.one);
    });
}

#[test]
fn pool_memory_is_ordered_by_stream() {
    expect(&[FindingKind::Unordered], |scene| {
        let pointer = scene.allocate_async(scene.one);
        scene.order(scene.one, scene.two);
        ok!(scene.gpu, cuMemsetD8Async(pointer, 0, CHUNK, scene.two));
        scene.order(scene.two, scene.one);
        ok!(scene.gpu, cuMemFreeAsync(pointer, scene.one));
        assert_eq!(scene.gpu.findings().unwrap(), []);
        let pointer = scene.allocate_async(scene.one);
        ok!(scene.gpu, cuMemsetD8Async(pointer, 0, CHUNK, scene.two));
    });
}

#[test]
fn free_before_use_completes_is_found() {
    expect(&[FindingKind::Unordered], |scene| {
        let pointer = scene.allocate_async(scene.one);
        scene.order(scene.one, scene.two);
        ok!(scene.gpu, cuMemsetD8Async(pointer, 0, CHUNK, scene.two));
        ok!(scene.gpu, cuMemFreeAsync(pointer, scene.one));
    });
}

#[test]
fn use_after_free_is_found() {
    expect(&[FindingKind::UseAfterFree, FindingKind::UseAfterFree], |scene| {
        let pointer = scene.allocate_async(scene.one);
        ok!(scene.gpu, cuMemFreeAsync(pointer, scene.one));
        assert!(!call!(scene.gpu, cuMemsetD8Async(pointer, 0, CHUNK, scene.one)).is_success());
        ok!(scene.gpu, cuMemFree_v2(scene.block));
        assert!(!call!(scene.gpu, cuMemsetD8Async(scene.block, 0, CHUNK, scene.one)).is_success());
    });
}

#[test]
fn wrong_frees_are_found() {
    use FindingKind::{DoubleFree, WrongFree};
    expect(&[WrongFree, WrongFree, DoubleFree, DoubleFree], |scene| {
        let pointer = scene.allocate_async(scene.one);
        for code in [
            call!(scene.gpu, cuMemFree_v2(scene.block + 16)),
            call!(scene.gpu, cuMemFree_v2(0x1234)),
        ] {
            assert_eq!(code, CUresult::ERROR_INVALID_VALUE);
        }
        ok!(scene.gpu, cuMemFree_v2(scene.block));
        assert!(!call!(scene.gpu, cuMemFree_v2(scene.block)).is_success());
        ok!(scene.gpu, cuMemFreeAsync(pointer, scene.one));
        assert!(!call!(scene.gpu, cuMemFreeAsync(pointer, scene.one)).is_success());
    });
}

#[test]
fn copy_beyond_end_is_found() {
    expect(&[FindingKind::OutOfBounds, FindingKind::WildPointer], |scene| {
        let end = scene.block + CHUNK as u64 - 8;
        assert!(!call!(scene.gpu, cuMemsetD8Async(end, 0, 9, scene.one)).is_success());
        assert!(!call!(scene.gpu, cuMemsetD8Async(0x1000, 0, 9, scene.one)).is_success());
    });
}

#[test]
fn unwritten_bytes_copied_out_are_found() {
    expect(&[FindingKind::Uninitialised; 2], |scene| {
        let mut other = 0;
        let mut host = vec![0_u8; CHUNK];
        ok!(scene.gpu, cuMemAlloc_v2(&mut other, CHUNK));
        ok!(scene.gpu, cuMemsetD8_v2(scene.block, 1, CHUNK - 1));
        let read = |from, bytes, host: &mut Vec<u8>| {
            ok!(scene.gpu, cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), from, bytes));
        };
        read(scene.block, CHUNK - 1, &mut host);
        assert_eq!(scene.gpu.findings().unwrap(), []);
        read(scene.block, CHUNK, &mut host);
        // If source bytes of a copy on the device are unwritten, their copies count as unwritten.
        ok!(scene.gpu, cuMemcpyDtoD_v2(other, scene.block, CHUNK));
        read(other, CHUNK - 1, &mut host);
        read(other, CHUNK, &mut host);
    });
}

#[test]
fn leak_is_found_at_context_end() {
    expect(&[FindingKind::Leak], |scene| {
        ok!(scene.gpu, cuDevicePrimaryCtxRelease_v2(0));
    });
    expect(&[], |scene| {
        ok!(scene.gpu, cuDevicePrimaryCtxReset_v2(0));
    });
}

#[test]
fn unmapping_under_running_work_is_found() {
    const GRANULE: usize = 2 << 20;
    expect(&[FindingKind::Unordered], |scene| {
        let (mut address, mut handle) = (0, 0);
        let properties = CUmemAllocationProp::device(0);
        let access = CUmemAccessDesc {
            location: CUmemLocation::device(0),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        ok!(scene.gpu, cuMemAddressReserve(&mut address, 2 * GRANULE, 0, 0, 0));
        ok!(scene.gpu, cuMemCreate(&mut handle, GRANULE, &properties, 0));
        ok!(scene.gpu, cuMemMap(address, GRANULE, 0, handle, 0));
        ok!(scene.gpu, cuMemSetAccess(address, GRANULE, &access, 1));
        ok!(scene.gpu, cuMemsetD8Async(address, 0, GRANULE, scene.one));
        ok!(scene.gpu, cuStreamSynchronize(scene.one));
        ok!(scene.gpu, cuMemUnmap(address, GRANULE));
        ok!(scene.gpu, cuMemMap(address, GRANULE, 0, handle, 0));
        ok!(scene.gpu, cuMemSetAccess(address, GRANULE, &access, 1));
        ok!(scene.gpu, cuMemsetD8Async(address, 0, 100, scene.one));
        ok!(scene.gpu, cuMemUnmap(address, GRANULE));
    });
}

#[test]
fn unmap_leaves_other_mapping_usable() {
    const GRANULE: usize = 2 << 20;
    expect(&[], |scene| {
        let (mut address, mut handle) = (0, 0);
        let properties = CUmemAllocationProp::device(0);
        let access = CUmemAccessDesc {
            location: CUmemLocation::device(0),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        ok!(scene.gpu, cuMemAddressReserve(&mut address, 2 * GRANULE, 0, 0, 0));
        ok!(scene.gpu, cuMemCreate(&mut handle, GRANULE, &properties, 0));
        let other = address + GRANULE as u64;
        ok!(scene.gpu, cuMemMap(address, GRANULE, 0, handle, 0));
        ok!(scene.gpu, cuMemMap(other, GRANULE, 0, handle, 0));
        ok!(scene.gpu, cuMemSetAccess(address, 2 * GRANULE, &access, 1));
        ok!(scene.gpu, cuMemsetD8Async(address, 0, GRANULE, scene.one));
        ok!(scene.gpu, cuMemUnmap(other, GRANULE));
        ok!(scene.gpu, cuStreamSynchronize(scene.one));
        ok!(scene.gpu, cuMemUnmap(address, GRANULE));
        ok!(scene.gpu, cuMemRelease(handle));
        ok!(scene.gpu, cuMemAddressFree(address, 2 * GRANULE));
    });
}

#[test]
fn unknown_kernel_is_refused() {
    expect(&[FindingKind::KernelRefused], |scene| {
        let mut module = CUmodule::NULL;
        let code = call!(scene.gpu, cuModuleLoadData(&mut module, c".version 8.0".as_ptr().cast()));
        assert_eq!(code, CUresult::ERROR_NOT_SUPPORTED);
        // No module is loaded, so no kernel and no variable exists.
        let (mut function, mut pointer, mut bytes) = (CUfunction::NULL, 0, 0);
        let name = c"name".as_ptr();
        for code in [
            call!(scene.gpu, cuModuleGetFunction(&mut function, module, name)),
            call!(scene.gpu, cuModuleGetGlobal_v2(&mut pointer, &mut bytes, module, name)),
        ] {
            assert_eq!(code, CUresult::ERROR_INVALID_HANDLE);
        }
    });
}

/// Returns one launch. It negates the first bytes of the block, and writes the results to the
/// block's second half.
fn negate(block: CUdeviceptr, count: usize) -> Vec<Launch> {
    unary(Unary::Negate, Type::I8, count, block + CHUNK as u64 / 2, block)
}

#[test]
fn changed_kernel_text_is_refused() {
    expect(&[FindingKind::KernelRefused; 2], |scene| {
        let [launch] = negate(0, 1)[..] else { panic!() };
        let (text, mut module) = (launch.kernel.ptx(), CUmodule::NULL);
        for text in [text.replacen("mul.lo", "add", 1), text + "//"] {
            let text = CString::new(text).unwrap();
            let code = call!(scene.gpu, cuModuleLoadData(&mut module, text.as_ptr().cast()));
            assert_eq!(code, CUresult::ERROR_NOT_SUPPORTED);
        }
    });
}

#[test]
fn kernels_are_ordered_like_copies() {
    let half = CHUNK / 2;
    expect(&[], |scene| {
        scene.fill(scene.one);
        scene.order(scene.one, scene.two);
        assert_eq!(scene.launch(&negate(scene.block, half), scene.two), CUresult::SUCCESS);
        scene.order(scene.two, scene.one);
        scene.fill(scene.one);
    });
    expect(&[FindingKind::Unordered], |scene| {
        scene.fill(scene.one);
        scene.order(scene.one, scene.two);
        let _ = scene.launch(&negate(scene.block, 16), scene.one);
        let code = call!(scene.gpu, cuMemsetD8Async(scene.block, 2, 16, scene.two));
        assert_eq!(code, CUresult::SUCCESS);
        let text = &scene.gpu.findings().unwrap()[0].text;
        assert!(text.contains("cuLaunchKernel"), "{text}");
    });
    // Two streams that write alternate bytes do not conflict.
    expect(&[], |scene| {
        scene.fill(scene.one);
        scene.order(scene.one, scene.two);
        for (stream, off) in [(scene.one, 0), (scene.two, 1)] {
            let other = scene.allocate_async(stream);
            let _ = call!(scene.gpu, cuMemsetD8Async(other, 7, 100, stream));
            let launches = copy(1, &[100], scene.block + off, &[2], other, &[1]);
            assert_eq!(scene.launch(&launches, stream), CUresult::SUCCESS);
        }
    });
}

#[test]
fn kernel_reading_unwritten_bytes_is_found() {
    expect(&[FindingKind::Uninitialised], |scene| {
        let code = call!(scene.gpu, cuMemsetD8Async(scene.block, 1, 100, scene.one));
        assert_eq!(code, CUresult::SUCCESS);
        assert_eq!(scene.launch(&negate(scene.block, 100), scene.one), CUresult::SUCCESS);
        assert_eq!(scene.gpu.findings().unwrap(), []);
        let _ = scene.launch(&negate(scene.block, 101), scene.one);
    });
    // A strided copy does not read the gaps in its source. The gaps in its target stay unwritten.
    expect(&[FindingKind::Uninitialised; 2], |scene| {
        let fill = |at, count| call!(scene.gpu, cuMemsetD8Async(at, 1, count, scene.one));
        let (from, to) = (scene.block, scene.block + 1024);
        assert_eq!([fill(from, 1), fill(from + 8, 1)], [CUresult::SUCCESS; 2]);
        let _ = scene.launch(&copy(1, &[2], to, &[4], from, &[8]), scene.one);
        let mut host = [0_u8; 5];
        let mut bring = |at, bytes| {
            let _ = call!(scene.gpu, cuStreamSynchronize(scene.one));
            let target = host.as_mut_ptr().cast();
            ok!(scene.gpu, cuMemcpyDtoH_v2(target, at, bytes));
            scene.gpu.findings().unwrap().len()
        };
        assert_eq!([bring(to, 1), bring(to + 4, 1), bring(to, 5)], [0, 0, 1]);
        // A copy of unwritten bytes counts as unwritten.
        let _ = scene.launch(&copy(1, &[3], to + 64, &[1], from, &[4]), scene.one);
        assert_eq!([bring(to + 64, 1), bring(to + 66, 1), bring(to + 65, 1)], [1, 1, 2]);
    });
}

#[test]
fn bad_kernel_address_loses_context() {
    use FindingKind::*;
    let lost = CUresult::ERROR_ILLEGAL_ADDRESS;
    type Plan = fn(&Scene) -> Vec<Launch>;
    let cases: [(_, Plan, _); 5] = [
        (OutOfBounds, |scene| negate(scene.block, CHUNK / 2 + 1), lost),
        (WildPointer, |_| negate(0x1000, 10), lost),
        (WildPointer, |scene| copy(1, &[5], scene.block, &[-1], scene.block, &[1]), lost),
        (
            UseAfterFree,
            |scene| {
                let other = scene.allocate_async(scene.one);
                ok!(scene.gpu, cuMemFreeAsync(other, scene.one));
                negate(other, 10)
            },
            lost,
        ),
        (
            WildPointer,
            |scene| unary(Unary::Negate, Type::I32, 5, scene.block + 2048, scene.block + 2),
            CUresult::ERROR_MISALIGNED_ADDRESS,
        ),
    ];
    for (kind, launches, lost) in cases {
        expect(&[kind], |scene| {
            scene.fill(scene.one);
            let code = scene.launch(&launches(scene), scene.one);
            assert!([CUresult::SUCCESS, lost].contains(&code), "{code:?}");
            assert_eq!(call!(scene.gpu, cuStreamSynchronize(scene.one)), lost);
            let mut pointer = 0;
            assert_eq!(call!(scene.gpu, cuMemAlloc_v2(&mut pointer, 1)), lost);
        });
    }
}

#[test]
fn modules_end_with_their_context() {
    let gpu = start(Options::default());
    let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
    let [launch] = negate(0, 1)[..] else { panic!() };
    let text = CString::new(launch.kernel.ptx()).unwrap();
    let name = CString::new(launch.kernel.name()).unwrap();
    ok!(gpu, cuModuleLoadData(&mut module, text.as_ptr().cast()));
    ok!(gpu, cuModuleGetFunction(&mut function, module, name.as_ptr()));
    ok!(gpu, cuDevicePrimaryCtxReset_v2(0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut CUcontext::default(), 0));
    assert_eq!(call!(gpu, cuModuleUnload(module)), CUresult::ERROR_INVALID_HANDLE);
    let code = call!(gpu, cuModuleGetFunction(&mut function, module, name.as_ptr()));
    assert_eq!(code, CUresult::ERROR_INVALID_HANDLE);
}

#[test]
fn findings_without_checks_are_refused() {
    let gpu = start(Options { checks: false, ..Options::default() });
    assert_eq!(call!(gpu, cuMemFree_v2(0x1234)), CUresult::ERROR_INVALID_VALUE);
    let error = gpu.findings().unwrap_err();
    assert_eq!(error, ChecksOff);
    assert!(error.to_string().contains("checks: true"), "{error}");
}

#[test]
fn excess_findings_are_counted() {
    let scene = scene(Schedule::Immediate);
    let misuse = || assert!(!call!(scene.gpu, cuMemFree_v2(0x1234)).is_success());
    (0..1000).for_each(|_| misuse());
    assert_eq!(scene.gpu.findings().unwrap().len(), 1000);
    (0..234).for_each(|_| misuse());
    let found = scene.gpu.findings().unwrap();
    let (last, kept) = found.split_last().unwrap();
    assert!(kept.len() == 1000 && kept.iter().all(|one| one.kind == kept[0].kind));
    assert_eq!(last.kind, FindingKind::Dropped(234));
    assert!(last.text.starts_with("dropped 234 findings after the first 1000"), "{last}");
}
