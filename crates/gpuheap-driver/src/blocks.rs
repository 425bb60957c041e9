//! Notes of a heap's blocks to an emulated device.

use std::ffi::c_int;

use crate::types::{CUcontext, CUdeviceptr, CUstream};

/// A block that a heap handed out of memory that it took from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNote {
    /// The context of its device.
    pub context: CUcontext,
    /// Its first address.
    pub address: CUdeviceptr,
    /// Its size as requested, bytes: what its user may use.
    pub bytes: u64,
    /// Its size with the heap's rounding, bytes.
    pub room: u64,
    /// The stream in whose order it is used first, or freed.
    pub stream: CUstream,
}

/// An emulated device whose checks judge each block of a heap on its own.
///
/// No real device has this. None of the functions blocks on the device or calls back.
pub trait BlockChecks: Send + Sync {
    /// Records that a block was handed out. From now on `bytes` of it may be used.
    fn allocated(&self, block: &BlockNote);

    /// Records that `bytes` of the live block may be used from now on. A heap that fills a whole block
    /// with zeros says so before. Parts of it are one block again.
    fn resized(&self, block: &BlockNote);

    /// Records that a range of a live block is used on its own from now on: `bytes` at `address`. The
    /// rest of the block may not be used, other parts apart.
    fn divided(&self, part: &BlockNote);

    /// Records that a block was freed. What it holds counts as never written, unless the heap just
    /// filled it with zeros.
    fn freed(&self, block: &BlockNote, zeroed: bool);
}

/// The symbol that an emulated libcuda has for [`BlockChecks`], with a null at its end, of the type
/// [`EmulatedBlock`]. It is not part of the driver API.
pub const EMULATED_BLOCK: &str = "gpuheap_emulated_block\0";

/// The function behind [`EMULATED_BLOCK`]: what happens, context, address, bytes, room, stream. Returns
/// 1 if the checks are on, else 0.
pub type EmulatedBlock =
    unsafe extern "C" fn(c_int, CUcontext, CUdeviceptr, u64, u64, CUstream) -> c_int;

/// Event in the life of a block, as [`EmulatedBlock`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum BlockEvent {
    /// Nothing: asks whether the checks are on.
    Ask = 0,
    /// [`BlockChecks::allocated`].
    Allocated = 1,
    /// [`BlockChecks::resized`].
    Resized = 2,
    /// [`BlockChecks::divided`].
    Divided = 3,
    /// [`BlockChecks::freed`], not zeroed.
    Freed = 4,
    /// [`BlockChecks::freed`], zeroed.
    FreedZeroed = 5,
}

impl BlockEvent {
    /// The event with this number; `None` for a number that no event has.
    pub fn from_number(number: c_int) -> Option<BlockEvent> {
        use BlockEvent::*;
        [Ask, Allocated, Resized, Divided, Freed, FreedZeroed]
            .into_iter()
            .find(|event| *event as c_int == number)
    }
}

/// The checks behind an emulated libcuda's function.
#[derive(Clone, Copy)]
pub(crate) struct LibraryChecks {
    function: EmulatedBlock,
}

impl LibraryChecks {
    /// The checks behind `function`, if they are on.
    ///
    /// # Safety
    ///
    /// `function` is the symbol [`EMULATED_BLOCK`] of a library that is never unloaded while the result
    /// lives.
    pub(crate) unsafe fn new(function: EmulatedBlock) -> Option<LibraryChecks> {
        let checks = LibraryChecks { function };
        let nothing = BlockNote {
            context: CUcontext::NULL,
            address: 0,
            bytes: 0,
            room: 0,
            stream: CUstream::NULL,
        };
        (checks.tell(BlockEvent::Ask, &nothing) == 1).then_some(checks)
    }

    fn tell(&self, event: BlockEvent, block: &BlockNote) -> c_int {
        let BlockNote { context, address, bytes, room, stream } = *block;
        // SAFETY: the function takes numbers and handles that it does not follow, and its library is
        // loaded, which `new` was promised.
        unsafe { (self.function)(event as c_int, context, address, bytes, room, stream) }
    }
}

impl BlockChecks for LibraryChecks {
    fn allocated(&self, block: &BlockNote) {
        self.tell(BlockEvent::Allocated, block);
    }

    fn resized(&self, block: &BlockNote) {
        self.tell(BlockEvent::Resized, block);
    }

    fn divided(&self, part: &BlockNote) {
        self.tell(BlockEvent::Divided, part);
    }

    fn freed(&self, block: &BlockNote, zeroed: bool) {
        let event = if zeroed { BlockEvent::FreedZeroed } else { BlockEvent::Freed };
        self.tell(event, block);
    }
}
