//! Records the driver calls that allocate and free memory.
#![allow(non_snake_case, reason = "named as in C")]

use std::ffi::{c_uint, c_void};

use gpuheap_capture::MemoryKind;
use gpuheap_driver::{CUdeviceptr, CUresult, CUstream};

use crate::layouts::{GraphAllocation, IpcHandle};
use crate::limit::{self, Charge};
use crate::recorder::{self, Block};
use crate::stacks::CallStack;
use crate::table::{In, Out};
use crate::threads::Guard;
use crate::{contexts, real, settings};

/// Pointer or handle of memory.
pub(crate) trait Number: Copy {
    fn number(self) -> u64;
}

impl Number for u64 {
    fn number(self) -> u64 {
        self
    }
}

impl<T> Number for *mut T {
    fn number(self) -> u64 {
        self.expose_provenance() as u64
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Request {
    kind: MemoryKind,
    bytes: usize,
    stream: CUstream,
}

impl Request {
    pub(crate) fn new(kind: MemoryKind, bytes: usize, stream: CUstream) -> Request {
        Request { kind, bytes, stream }
    }

    /// Passes on a call that writes an address to `place`, and records the memory.
    pub(crate) fn run<T: Number>(self, place: Out<T>, call: impl FnOnce() -> CUresult) -> CUresult {
        self.run_on(None, call, || Ok((place.get()?.number(), self.bytes)))
    }

    /// Passes on a call that allocates on a device, and records the memory. The default is the
    /// current device. After the call, `result` returns the address and the size.
    pub(crate) fn run_on(
        self,
        device: Option<i32>,
        call: impl FnOnce() -> CUresult,
        result: impl FnOnce() -> Result<(u64, usize), CUresult>,
    ) -> CUresult {
        let Some(_guard) = Guard::enter() else { return call() };
        let Some(recorder) = recorder::current() else { return call() };
        let (context, current) = contexts::current();
        let device = device.unwrap_or(current);
        if !context.is_null() {
            recorder.note_device(device, device == current);
        }
        let counted = if self.kind.counts_on_device() { self.bytes as u64 } else { 0 };
        let mut block = Block {
            kind: self.kind,
            device: u32::try_from(device).unwrap_or(0),
            context,
            stream: self.stream.0 as u64,
            address: 0,
            bytes: self.bytes as u64,
            charge: Charge::default(),
        };
        let pending = match limit::reserve(device, counted) {
            Ok(pending) => pending,
            Err(limit::Refused) => {
                let code = CUresult::ERROR_OUT_OF_MEMORY;
                recorder.failed(block, &stack(), code, true);
                return code;
            }
        };
        let code = call();
        // After a failure, the results still hold the program's bytes, so they are not read.
        match code.is_success().then(result) {
            Some(Ok((address, bytes))) => {
                block.address = address;
                block.bytes = bytes as u64;
                block.charge = pending.succeeded();
                recorder.allocated(block, &stack(), device == current);
            }
            _ => {
                pending.failed();
                if code == CUresult::ERROR_OUT_OF_MEMORY {
                    recorder.failed(block, &stack(), code, false);
                }
            }
        }
        code
    }
}

/// Returns the calling thread's stack, if the settings record stacks.
#[inline(never)]
pub(crate) fn stack() -> CallStack {
    match settings::get() {
        settings if settings.stacks && settings.output.is_some() => {
            CallStack::capture(settings.python)
        }
        _ => CallStack::empty(),
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Freed {
    space: u32,
    address: u64,
    stream: CUstream,
}

impl Freed {
    pub(crate) fn new(space: u32, pointer: impl Number, stream: CUstream) -> Freed {
        Freed { space, address: pointer.number(), stream }
    }
}

/// Passes on a free, and records it.
pub(crate) fn freed(freed: Freed, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(_guard) = Guard::enter() else { return call() };
    let Some(recorder) = recorder::existing() else { return call() };
    let Freed { space, address, stream } = freed;
    let block = recorder.freed(space, address, stream.0 as u64);
    let code = call();
    if let Some(block) = block {
        if has_freed(code) {
            block.charge.give_back();
        } else {
            recorder.free_failed(block);
        }
    }
    code
}

/// Returns `true` if the memory is free after a call that returned `code`. At the end of the
/// process, the driver has already freed all memory.
pub(crate) fn has_freed(code: CUresult) -> bool {
    code.is_success() || code == CUresult::ERROR_DEINITIALIZED
}

pub(crate) fn cuMemAllocPitch_v2(
    pointer: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width_bytes: usize,
    height: usize,
    element_bytes: c_uint,
) -> CUresult {
    /// Alignment of a row on NVIDIA's devices, in bytes. The driver returns the exact pitch.
    const ROW: usize = 512;
    let row = width_bytes.checked_next_multiple_of(ROW).unwrap_or(usize::MAX);
    let bytes = row.saturating_mul(height);
    Request::new(MemoryKind::Pitched, bytes, CUstream::NULL).run_on(
        None,
        || real::cuMemAllocPitch_v2(pointer, pitch, width_bytes, height, element_bytes),
        || Ok((pointer.get()?, pitch.get()?.saturating_mul(height))),
    )
}

pub(crate) fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    Request::new(MemoryKind::Registered, bytes, CUstream::NULL).run_on(
        None,
        || real::cuMemHostRegister_v2(pointer, bytes, flags),
        || Ok((pointer.number(), bytes)),
    )
}

pub(crate) fn cuIpcOpenMemHandle_v2(
    pointer: Out<CUdeviceptr>,
    handle: IpcHandle,
    flags: c_uint,
) -> CUresult {
    Request::new(MemoryKind::Imported, 0, CUstream::NULL).run_on(
        None,
        || real::cuIpcOpenMemHandle_v2(pointer, handle, flags),
        || {
            let (mut base, mut bytes) = (0, 0);
            let address = pointer.get()?;
            let _ = real::cuMemGetAddressRange_v2(&mut base, &mut bytes, address);
            Ok((address, bytes))
        },
    )
}

pub(crate) fn cuGraphAddMemAllocNode(
    node: Out<*mut c_void>,
    graph: *mut c_void,
    before: In<c_void>,
    count: usize,
    parameters: Out<GraphAllocation>,
) -> CUresult {
    let bytes = parameters.get().map_or(0, |parameters| parameters.bytes);
    Request::new(MemoryKind::Graph, bytes, CUstream::NULL).run_on(
        None,
        || real::cuGraphAddMemAllocNode(node, graph, before, count, parameters),
        || Ok((parameters.get()?.pointer, bytes)),
    )
}

pub(crate) fn cuGraphAddMemFreeNode(
    node: Out<*mut c_void>,
    graph: *mut c_void,
    before: In<c_void>,
    count: usize,
    pointer: CUdeviceptr,
) -> CUresult {
    freed(Freed::new(0, pointer, CUstream::NULL), || {
        real::cuGraphAddMemFreeNode(node, graph, before, count, pointer)
    })
}
