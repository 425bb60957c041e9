//! Records blocks of frameworks' pools. This library replaces the function by which PyTorch reports
//! blocks to its profiler. Hooks of other frameworks call this library from Python.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

use gpuheap_capture::MemoryKind;
use gpuheap_catch::loader;
use gpuheap_driver::torch::{C10, CUDA, Device, REPORT, Report};
use gpuheap_driver::{CUcontext, CUresult, CUstream};

use crate::allocate::{self, Freed};
use crate::limit::Charge;
use crate::recorder::{self, Block};
use crate::settings;
use crate::threads::{Guard, without_panic};

/// Records a block of PyTorch's pool on a device, and passes each report on.
// SAFETY: only PyTorch has a function of this name. This library is loaded before PyTorch's
// libraries, so this function replaces PyTorch's. It calls PyTorch's function last, with the same
// arguments.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
unsafe extern "C-unwind" fn report(
    block: *mut c_void,
    bytes: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    static PYTORCHS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    if device.kind == CUDA && settings::get().frameworks {
        let (address, device) = (block.addr() as u64, device.index.into());
        match u64::try_from(bytes) {
            Ok(bytes) => allocated_block(MemoryKind::PyTorch, device, address, bytes, 0, 0),
            Err(_) => freed_block(MemoryKind::PyTorch, address, 0),
        }
    }
    let mut found = PYTORCHS.load(Ordering::Relaxed);
    if found.is_null() {
        // If the function is not found, the next report searches again: the program may load
        // PyTorch later.
        without_panic(|| found = pytorchs().unwrap_or(ptr::null_mut()));
        PYTORCHS.store(found, Ordering::Relaxed);
    }
    if !found.is_null() {
        // SAFETY: the mangled name of a C++ function includes the function's type. PyTorch passed
        // these arguments for a call of the same function.
        unsafe {
            let report = mem::transmute::<*mut c_void, Report>(found);
            report(block, bytes, allocated, reserved, device);
        }
    }
}

/// Finds PyTorch's function.
fn pytorchs() -> Option<*mut c_void> {
    let found = loader::next(REPORT).or_else(|| loader::in_loaded(C10, REPORT))?;
    (found.addr() != (report as *const ()).addr()).then_some(found)
}

/// Records a block of a framework's pool. Leaves out the innermost `skipped` frames of Python: they
/// belong to the hook. `framework` is an index for [`kind_of`].
// SAFETY: no other library exports a symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_run_block_allocated(
    framework: u32,
    device: i32,
    address: u64,
    bytes: u64,
    stream: u64,
    skipped: u32,
) {
    if let Some(kind) = kind_of(framework) {
        allocated_block(kind, device, address, bytes, stream, skipped as usize);
    }
}

/// Records the free of a block that [`gpuheap_run_block_allocated`] recorded.
// SAFETY: no other library exports a symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_run_block_freed(framework: u32, address: u64, stream: u64) {
    if let Some(kind) = kind_of(framework) {
        freed_block(kind, address, stream);
    }
}

/// Returns the kind of a framework's blocks. The hook in Python defines the frameworks' numbers.
fn kind_of(framework: u32) -> Option<MemoryKind> {
    [MemoryKind::CuPy, MemoryKind::Rmm].get(framework as usize).copied()
}

fn allocated_block(
    kind: MemoryKind,
    device: i32,
    address: u64,
    bytes: u64,
    stream: u64,
    skipped: usize,
) {
    without_panic(|| {
        let Some(_guard) = Guard::enter() else { return };
        let Some(recorder) = recorder::current() else { return };
        let mut stack = allocate::stack();
        stack.skip_python(skipped);
        let device = u32::try_from(device).unwrap_or(0);
        // The block gets no context. Otherwise, the end of a context would be recorded as a free of
        // this block. It frees only the driver memory that contains the block.
        let (context, charge) = (CUcontext::NULL, Charge::default());
        let block = Block { kind, device, context, stream, address, bytes, charge };
        recorder.allocated(block, &stack, false);
    });
}

fn freed_block(kind: MemoryKind, address: u64, stream: u64) {
    without_panic(|| {
        let stream = CUstream(stream as usize);
        let _ = allocate::freed(Freed::new(kind.space(), address, stream), || CUresult::SUCCESS);
    });
}
