//! Kernels as no-ops: any module loads, and any launch is queued in its stream and does nothing.
#![allow(clippy::unwrap_used)]

use std::ptr;

use gpuheap_driver::*;
use gpuheap_emu::{Emulator, FindingKind, Kernels, Options, Profile, Schedule};
use gpuheap_kernels::{Launch, Type, Unary, unary};

mod calls;

use calls::{call, made, ok, start};

/// A fat binary without entries.
const FAT_BINARY: [u8; 16] = [0x50, 0xed, 0x55, 0xba, 1, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The header of an ELF file without sections.
const CUBIN: &[u8] = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
                       \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const PTX: &[u8] = b".version 8.0\n.target sm_90\n.visible .entry add(.param .u64 p) { ret; }\n\0";
const MIB: usize = 1 << 20;
const OK: CUresult = CUresult::SUCCESS;

fn device(kernels: Kernels, schedule: Schedule) -> Emulator {
    start(Options { kernels, schedule, ..Options::default() })
}

fn no_op() -> Emulator {
    device(Kernels::NoOp, Schedule::Immediate)
}

fn allocate(gpu: &Emulator, bytes: usize) -> CUdeviceptr {
    made!(gpu, cuMemAlloc_v2(bytes))
}

fn load(gpu: &Emulator, image: &[u8], name: &std::ffi::CStr) -> CUfunction {
    let module = made!(gpu, cuModuleLoadData(image.as_ptr().cast()));
    made!(gpu, cuModuleGetFunction(module, name.as_ptr()))
}

fn load_library(gpu: &Emulator, image: &[u8]) -> (CUlibrary, CUkernel) {
    let (mut library, mut kernel) = (CUlibrary::NULL, CUkernel::NULL);
    let (options, values) = (ptr::null_mut(), ptr::null_mut());
    let image = image.as_ptr().cast();
    ok!(gpu, cuLibraryLoadData(&mut library, image, options, values, 0, options, values, 0));
    ok!(gpu, cuLibraryGetKernel(&mut kernel, library, c"any".as_ptr()));
    (library, kernel)
}

fn launch(gpu: &Emulator, function: CUfunction, grid: u32, block: u32) -> CUresult {
    let (stream, none) = (CUstream::NULL, ptr::null_mut());
    call!(gpu, cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, none, none))
}

fn config(blocks: u32, threads: u32, stream: CUstream) -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 2,
        gridDimZ: 3,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 200 << 10,
        hStream: stream,
        attrs: ptr::null_mut(),
        numAttrs: 0,
    }
}

#[test]
fn launches_of_any_image_are_counted() {
    let gpu = no_op();
    for image in [&FAT_BINARY[..], CUBIN, PTX] {
        let function = load(&gpu, image, c"_Z3addPf");
        assert_eq!(launch(&gpu, function, 65_536, 1024), OK);
    }
    assert_eq!(gpu.counts().launches_dropped, 3);
    assert_eq!(gpu.findings().unwrap(), []);
}

#[test]
fn each_launch_variant_is_accepted() {
    let gpu = no_op();
    let (library, kernel) = load_library(&gpu, CUBIN);
    let function = CUfunction(kernel.0);
    let none = ptr::null_mut();
    let launched = config(4, 256, CUstream::NULL);
    ok!(gpu, cuLaunchKernelEx(&launched, function, none, none));
    ok!(gpu, cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, CUstream::NULL, none));
    assert_eq!(launch(&gpu, function, 1, 1), OK);
    assert_eq!(gpu.counts().launches_dropped, 3);

    ok!(gpu, cuLibraryUnload(library));
    assert_eq!(launch(&gpu, function, 1, 1), CUresult::ERROR_INVALID_HANDLE);
}

#[test]
fn impossible_launch_size_is_refused() {
    let gpu = no_op();
    let function = load(&gpu, CUBIN, c"f");
    for (grid, block) in [(0, 1), (1, 0), (1, 1025)] {
        assert_eq!(launch(&gpu, function, grid, block), CUresult::ERROR_INVALID_VALUE);
    }
    assert_eq!(gpu.counts().launches_dropped, 0);
}

#[test]
fn kernels_have_properties_and_occupancy() {
    type A = CUfunction_attribute;
    let gpu = no_op();
    let function = load(&gpu, CUBIN, c"f");
    let get = |attribute| {
        let mut value = -2;
        ok!(gpu, cuFuncGetAttribute(&mut value, attribute, function));
        value
    };
    assert_eq!((get(A::MAX_THREADS_PER_BLOCK), get(A::BINARY_VERSION)), (1024, 90));
    assert_eq!(get(A::MAX_DYNAMIC_SHARED_SIZE_BYTES), 48 << 10);
    let dynamic = A::MAX_DYNAMIC_SHARED_SIZE_BYTES;
    ok!(gpu, cuFuncSetAttribute(function, dynamic, 200 << 10));
    assert_eq!(get(dynamic), 200 << 10);

    let blocks = |threads, shared| {
        let mut blocks = -1;
        ok!(
            gpu,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, shared)
        );
        blocks
    };
    assert_eq!([blocks(1024, 0), blocks(256, 0), blocks(32, 0)], [2, 8, 32]);
    assert_eq!([blocks(256, 100 << 10), blocks(2048, 0)], [2, 0]);
    let (mut clusters, launched) = (0, config(1, 128, CUstream::NULL));
    ok!(gpu, cuOccupancyMaxActiveClusters(&mut clusters, function, &launched));
    assert!(clusters > 0);
}

#[test]
fn kernel_reports_binary_architecture() {
    let devices = vec![Profile::rtx4090()];
    let gpu = start(Options { kernels: Kernels::NoOp, devices, ..Options::default() });
    let function = load(&gpu, CUBIN, c"f");
    let (mut version, attribute) = (0, CUfunction_attribute::PTX_VERSION);
    ok!(gpu, cuFuncGetAttribute(&mut version, attribute, function));
    assert_eq!(version, 86, "the device's own is 89");
}

#[test]
fn extreme_devices_have_an_occupancy() {
    for number in [i32::MIN, 0, i32::MAX] {
        let devices = vec![Profile {
            multiprocessors: number,
            compute_capability: (number, number),
            clock_khz: number,
            memory_clock_khz: number,
            memory_bus_bits: number,
            l2_cache_bytes: number,
            ..Profile::t4()
        }];
        let gpu = start(Options { kernels: Kernels::NoOp, devices, ..Options::default() });
        let function = load(&gpu, CUBIN, c"f");
        let (mut blocks, mut threads, mut version) = (0, 0, 0);
        let found = call!(
            gpu,
            cuOccupancyMaxPotentialBlockSize(&mut blocks, &mut threads, function, None, 0, 0)
        );
        assert_eq!((found, threads), (OK, 1024));
        let attribute = CUfunction_attribute::BINARY_VERSION;
        ok!(gpu, cuFuncGetAttribute(&mut version, attribute, function));
        for attribute in (1..150).map(CUdevice_attribute) {
            let _ = call!(gpu, cuDeviceGetAttribute(&mut blocks, attribute, 0));
        }
    }
}

#[test]
fn invented_properties_need_no_op_kernels() {
    let gpu = device(Kernels::Own, Schedule::Immediate);
    let mut module = CUmodule::NULL;
    let refused = CUresult::ERROR_NOT_SUPPORTED;
    let code = call!(gpu, cuModuleLoadData(&mut module, CUBIN.as_ptr().cast()));
    assert_eq!(code, refused);
    assert_eq!(gpu.findings().unwrap()[0].kind, FindingKind::KernelRefused);
    let mut value = 0;
    let attribute = CUfunction_attribute::NUM_REGS;
    assert_eq!(call!(gpu, cuFuncGetAttribute(&mut value, attribute, CUfunction(1))), refused);
    assert_eq!(gpu.refused(), [("cuModuleLoadData", 1), ("cuFuncGetAttribute", 1)]);
}

#[test]
fn fresh_memory_reads_zero() {
    let gpu = no_op();
    let block = allocate(&gpu, 4096);
    let mut read = [1_u8; 64];
    ok!(gpu, cuMemcpyDtoH_v2(read.as_mut_ptr().cast(), block, 64));
    assert_eq!(read, [0; 64]);
    assert_eq!(gpu.findings().unwrap(), []);
    assert_eq!(gpu.counts().copies_to_host, 1);
}

#[test]
fn large_upload_keeps_no_content() {
    for schedule in [Schedule::Immediate, Schedule::OnDemand] {
        let gpu = device(Kernels::NoOp, schedule);
        let block = allocate(&gpu, 4 * MIB);
        let data = vec![7_u8; 4 * MIB];
        let mut read = vec![1_u8; MIB + 1];
        let mut copied = |bytes: usize| {
            let stream = CUstream::NULL;
            let from = data.as_ptr().cast();
            ok!(gpu, cuMemcpyHtoDAsync_v2(block, from, bytes, stream));
            let to = read.as_mut_ptr().cast();
            ok!(gpu, cuMemcpyDtoH_v2(to, block, bytes));
            assert!(read[..bytes].iter().all(|byte| *byte == read[0]));
            read[0]
        };
        assert_eq!(copied(MIB), 7, "{schedule:?}");
        assert_eq!(copied(MIB + 1), 0, "{schedule:?}");
    }
}

/// PTX of a kernel with three parameters: an address, a number, and a structure that contains
/// another address.
const PTX_OF_THREE: &[u8] = b".version 8.0\n.target sm_90\n.visible .entry three(\n\
    .param .u64 .ptr .global .align 1 three_0, .param .u32 three_1,\n\
    .param .align 8 .b8 three_2[16]\n) { ret; }\n\0";

/// Returns an ELF file that states the parameters of [`PTX_OF_THREE`]. The last parameter comes
/// first, as compilers write it.
fn cubin_of_three() -> Vec<u8> {
    let names = b"\0.nv.info.three\0";
    let mut attributes = vec![1, 0x50, 0, 0];
    for (index, offset, bytes) in [(2_u16, 16_u16, 16_u32), (1, 8, 4), (0, 0, 8)] {
        attributes.extend([4, 0x17, 12, 0, 0, 0, 0, 0]);
        attributes.extend([index.to_le_bytes(), offset.to_le_bytes()].concat());
        attributes.extend((bytes << 18 | 0x1f500).to_le_bytes());
    }
    let (names_at, attributes_at) = (64, 64 + names.len());
    let sections_at = attributes_at + attributes.len();
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    file[18..20].copy_from_slice(&190_u16.to_le_bytes());
    file[40..48].copy_from_slice(&(sections_at as u64).to_le_bytes());
    file[58..64].copy_from_slice(&[64, 0, 2, 0, 0, 0]);
    file.extend([&names[..], &attributes].concat());
    for (name, at, bytes) in [(0_u32, names_at, names.len()), (1, attributes_at, attributes.len())]
    {
        let mut section = [0; 64];
        section[..4].copy_from_slice(&name.to_le_bytes());
        section[24..32].copy_from_slice(&(at as u64).to_le_bytes());
        section[32..40].copy_from_slice(&(bytes as u64).to_le_bytes());
        file.extend(section);
    }
    file
}

/// Returns a fat binary with two entries: a compressed PTX text, and the ELF file with the kernel
/// `three`. `compressed` has the compression flags of the ELF file.
fn fat_binary_of_three(compressed: u64) -> Vec<u8> {
    let mut entries = Vec::new();
    for (kind, flags, content) in
        [(1_u16, 0x8000_u64, vec![1; 24]), (2, compressed, cubin_of_three())]
    {
        entries.extend([kind.to_le_bytes(), [1, 1]].concat());
        entries.extend(64_u32.to_le_bytes());
        entries.extend((content.len() as u64).to_le_bytes());
        entries.extend([0; 24]);
        entries.extend((0x11 | flags).to_le_bytes());
        entries.extend([0; 16]);
        entries.extend(content);
    }
    let size = (entries.len() as u64).to_le_bytes();
    [&FAT_BINARY[..8], &size, &entries].concat()
}

/// Launches the kernel `three` with `first` as its first argument. Its third argument is a
/// structure that contains `inner`.
fn launch_three(gpu: &Emulator, function: CUfunction, stream: CUstream, first: u64, inner: u64) {
    let (mut first, mut number, mut structure) = (first, 5_u32, [9, inner]);
    let mut arguments =
        [(&raw mut first).cast(), (&raw mut number).cast(), (&raw mut structure).cast()];
    let (to, none) = (arguments.as_mut_ptr(), ptr::null_mut());
    ok!(gpu, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, to, none));
}

#[test]
fn argument_of_a_kernel_reads_zero() {
    let elf = cubin_of_three();
    let fat_binary = fat_binary_of_three(0);
    let wrapper = [0x1_4662_43b1, fat_binary.as_ptr().expose_provenance() as u64, 0];
    let wrapper: Vec<u8> = wrapper.iter().flat_map(|word| word.to_le_bytes()).collect();
    for image in [PTX_OF_THREE, &elf, &fat_binary, &wrapper] {
        let gpu = no_op();
        let function = load(&gpu, image, c"three");
        let blocks = [0; 3].map(|_| allocate(&gpu, 3 * MIB));
        upload(&gpu, &blocks);
        launch_three(&gpu, function, CUstream::NULL, blocks[0], blocks[2]);
        assert_eq!(read(&gpu, &blocks), [0, 7, 0]);
        upload(&gpu, &blocks);
        assert_eq!(read(&gpu, &blocks), [7, 7, 7]);
    }
}

#[test]
fn unknown_parameters_change_nothing() {
    let mut damaged = cubin_of_three();
    damaged[40] = 0xff;
    // Compression flags: LZ4 and Zstandard.
    for image in [fat_binary_of_three(0x2000), fat_binary_of_three(0x8000), damaged] {
        let gpu = no_op();
        let function = load(&gpu, &image, c"three");
        let block = allocate(&gpu, 512);
        upload(&gpu, &[block]);
        launch_three(&gpu, function, CUstream::NULL, block, block);
        assert_eq!(read(&gpu, &[block]), [7]);
    }
}

#[test]
fn argument_in_a_buffer_reads_zero() {
    let gpu = no_op();
    let function = load(&gpu, CUBIN, c"any");
    let blocks = [0; 2].map(|_| allocate(&gpu, 512));
    upload(&gpu, &blocks);
    let (mut buffer, mut bytes) = ([3, blocks[1], blocks[0]], 16_usize);
    let key = |number| ptr::without_provenance_mut(number);
    let mut extra = [
        key(1),
        (&raw mut buffer).cast(),
        key(2),
        (&raw mut bytes).cast::<std::ffi::c_void>(),
        key(0),
    ];
    let (none, extra, stream) = (ptr::null_mut(), extra.as_mut_ptr(), CUstream::NULL);
    ok!(gpu, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, none, extra));
    // The third word is beyond the end of the buffer.
    assert_eq!(read(&gpu, &blocks), [7, 0]);
}

#[test]
fn kernel_changes_its_block_alone() {
    let gpu = no_op();
    let function = load(&gpu, PTX_OF_THREE, c"three");
    let at = allocate(&gpu, 4 * MIB);
    let parts = [at, at + 512, at + 1024, at + 1536];
    gpu.handed_out(at, 2048);
    gpu.handed_out(at + 512, 1024);
    upload(&gpu, &parts);
    launch_three(&gpu, function, CUstream::NULL, at + 516, 1);
    assert_eq!(read(&gpu, &parts), [7, 0, 0, 7]);
    // If no block is known at an address, the bytes from it to the allocation's end are forgotten.
    upload(&gpu, &parts);
    launch_three(&gpu, function, CUstream::NULL, 1, at + 1536);
    assert_eq!(read(&gpu, &parts), [7, 7, 7, 0]);
}

#[test]
fn graph_changes_uploads_at_each_launch() {
    let gpu = no_op();
    let function = load(&gpu, PTX_OF_THREE, c"three");
    let block = allocate(&gpu, 512);
    let (mut stream, mut graph, mut executable) =
        (CUstream::NULL, CUgraph::NULL, CUgraphExec::NULL);
    ok!(gpu, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
    let mode = CUstreamCaptureMode::GLOBAL;
    ok!(gpu, cuStreamBeginCapture_v2(stream, mode));
    launch_three(&gpu, function, stream, block, 0);
    ok!(gpu, cuStreamEndCapture(stream, &mut graph));
    ok!(gpu, cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    for _ in 0..2 {
        upload(&gpu, &[block]);
        assert_eq!(read(&gpu, &[block]), [7]);
        ok!(gpu, cuGraphLaunch(executable, stream));
        assert_eq!(read(&gpu, &[block]), [0]);
    }
}

#[test]
fn reported_change_reads_zero_after_launches() {
    let gpu = no_op();
    let function = load(&gpu, CUBIN, c"any");
    let blocks = [0; 2].map(|_| allocate(&gpu, 512));
    // A framework reports its own copies as changes too, but the emulator keeps the copied bytes.
    upload(&gpu, &blocks);
    gpu.changed(blocks[0], 4);
    assert_eq!(read(&gpu, &blocks), [7, 7]);
    // The copy wrote only 4 of the 8 bytes of this change, so the emulator forgets the range.
    gpu.changed(blocks[0], 8);
    assert_eq!(read(&gpu, &blocks), [0, 7]);
    assert_eq!(launch(&gpu, function, 1, 1), OK);
    gpu.changed(blocks[1], 4);
    assert_eq!(read(&gpu, &blocks), [0, 0]);
    gpu.changed(u64::MAX, u64::MAX);
    gpu.changed(0, 1);
}

/// Uploads four bytes to each address.
fn upload(gpu: &Emulator, addresses: &[u64]) {
    for address in addresses {
        let bytes = 7_u32.to_ne_bytes();
        ok!(gpu, cuMemcpyHtoD_v2(*address, bytes.as_ptr().cast(), 4));
    }
}

fn read(gpu: &Emulator, addresses: &[u64]) -> Vec<u32> {
    let read = |address: &u64| {
        let mut bytes = [1_u8; 4];
        ok!(gpu, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), *address, 4));
        u32::from_ne_bytes(bytes)
    };
    addresses.iter().map(read).collect()
}

#[test]
fn freed_memory_keeps_no_upload() {
    let gpu = no_op();
    for bytes in [512, 3 * MIB] {
        // Small allocations share a granule. The granule stays as long as `_kept` is live.
        let _kept = allocate(&gpu, 512);
        let first = allocate(&gpu, bytes);
        upload(&gpu, &[first]);
        assert_eq!(read(&gpu, &[first]), [7]);
        ok!(gpu, cuMemFree_v2(first));
        assert_eq!(read(&gpu, &[allocate(&gpu, bytes)]), [0]);
    }
    let (mut first, stream) = (0, CUstream::NULL);
    ok!(gpu, cuMemAllocAsync(&mut first, 512, stream));
    upload(&gpu, &[first]);
    ok!(gpu, cuMemFreeAsync(first, stream));
    ok!(gpu, cuMemAllocAsync(&mut first, 512, stream));
    assert_eq!(read(&gpu, &[first]), [0]);
}

#[test]
fn part_handed_out_again_reads_zero() {
    let gpu = no_op();
    let at = allocate(&gpu, 4 * MIB);
    let parts = [at, at + 512, at + 1024];
    upload(&gpu, &parts);
    assert_eq!(read(&gpu, &parts), [7, 7, 7]);
    gpu.handed_out(at, 1024);
    assert_eq!(read(&gpu, &parts), [0, 0, 7]);
    upload(&gpu, &parts);
    assert_eq!(read(&gpu, &parts), [7, 7, 7]);
    // The first two ranges belong to no allocation. The third range extends beyond its allocation.
    gpu.handed_out(0, 512);
    gpu.handed_out(u64::MAX, u64::MAX);
    gpu.handed_out(at + 512, u64::MAX);
    assert_eq!(read(&gpu, &parts), [7, 0, 0]);
}

#[test]
fn reused_mapped_part_reads_zero() {
    const PIECE: usize = 2 * MIB;
    let gpu = no_op();
    let properties = CUmemAllocationProp::device(0);
    let access = CUmemAccessDesc {
        location: CUmemLocation::device(0),
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let at = made!(gpu, cuMemAddressReserve(4 * PIECE, 0, 0, 0));
    // The third of the four pieces has no memory.
    let pieces = [0, 1, 3].map(|piece| at + (piece * PIECE) as u64);
    for piece in pieces {
        let memory = made!(gpu, cuMemCreate(PIECE, &properties, 0));
        ok!(gpu, cuMemMap(piece, PIECE, 0, memory, 0));
        ok!(gpu, cuMemSetAccess(piece, PIECE, &access, 1));
    }
    let parts = [at, pieces[1] - 512, pieces[1], pieces[2], pieces[2] + 512];
    upload(&gpu, &parts);
    gpu.handed_out(parts[1], pieces[2] + 512 - parts[1]);
    assert_eq!(read(&gpu, &parts), [7, 0, 0, 0, 7]);
}

#[test]
fn no_op_checks_bounds_without_order() {
    let gpu = no_op();
    let block = allocate(&gpu, 4 * MIB);
    for _ in 0..2 {
        let stream = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
        ok!(gpu, cuMemsetD8Async(block, 1, 64, stream));
    }
    assert_eq!(gpu.findings().unwrap(), []);

    let invalid = CUresult::ERROR_INVALID_VALUE;
    assert_eq!(call!(gpu, cuMemsetD8_v2(block, 1, 4 * MIB + 1)), invalid);
    ok!(gpu, cuMemFree_v2(block));
    assert_eq!(call!(gpu, cuMemFree_v2(block)), invalid);
    let kinds: Vec<_> = gpu.findings().unwrap().iter().map(|found| found.kind).collect();
    assert_eq!(kinds, [FindingKind::OutOfBounds, FindingKind::DoubleFree]);
}

#[test]
fn a_graph_keeps_its_launches() {
    let gpu = no_op();
    let function = load(&gpu, CUBIN, c"f");
    let (mut stream, mut graph, mut executable) =
        (CUstream::NULL, CUgraph::NULL, CUgraphExec::NULL);
    ok!(gpu, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
    let mode = CUstreamCaptureMode::GLOBAL;
    ok!(gpu, cuStreamBeginCapture_v2(stream, mode));
    let none = ptr::null_mut();
    for _ in 0..3 {
        ok!(gpu, cuLaunchKernelEx(&config(1, 1, stream), function, none, none));
    }
    ok!(gpu, cuStreamEndCapture(stream, &mut graph));
    assert_eq!(gpu.counts().launches_dropped, 0, "a capture runs nothing");

    let mut nodes = 0;
    ok!(gpu, cuGraphGetNodes(graph, ptr::null_mut(), &mut nodes));
    assert_eq!(nodes, 3);
    ok!(gpu, cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    for _ in 0..2 {
        ok!(gpu, cuGraphLaunch(executable, stream));
    }
    assert_eq!(gpu.counts().launches_dropped, 6);
}

#[test]
fn gpuheap_s_own_kernels_still_compute() {
    let gpu = no_op();
    let (input, output) = (allocate(&gpu, 4096), allocate(&gpu, 4096));
    ok!(gpu, cuMemsetD8_v2(input, 1, 4096));
    let launches: Vec<Launch> = unary(Unary::Negate, Type::I32, 1024, output, input);
    assert!(!launches.is_empty());
    for launched in launches {
        let ptx = std::ffi::CString::new(launched.kernel.ptx()).unwrap();
        let name = std::ffi::CString::new(launched.kernel.name()).unwrap();
        let function = load(&gpu, ptx.as_bytes_with_nul(), &name);
        let mut parameter = launched.words.as_slice().as_ptr().cast_mut().cast();
        let (grid, block, none) = (launched.grid, launched.block, ptr::null_mut());
        let (stream, to) = (CUstream::NULL, &raw mut parameter);
        ok!(gpu, cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, to, none));
    }
    let mut read = [0_i32; 1];
    ok!(gpu, cuMemcpyDtoH_v2(read.as_mut_ptr().cast(), output, 4));
    assert_eq!(read, [-0x0101_0101]);
    assert_eq!(gpu.counts().launches_dropped, 0);
}
