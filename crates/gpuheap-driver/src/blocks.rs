//! Reports of a heap's blocks to an emulated device.

use std::ffi::c_int;

use crate::types::{CUcontext, CUdeviceptr, CUstream};

/// A block that a heap handed out from memory of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNote {
    /// Context of the block's device.
    pub context: CUcontext,
    /// First address.
    pub address: CUdeviceptr,
    /// Requested size, bytes: the part of the block that the caller may use.
    pub bytes: u64,
    /// Size after the heap's rounding, bytes.
    pub room: u64,
    /// Stream in whose order the block is first used, or in whose order it is freed.
    pub stream: CUstream,
}

/// Checks of an emulated device that watch each block of a heap separately.
///
/// No real device implements this. None of the functions blocks on the device or calls back.
pub trait BlockChecks: Send + Sync {
    /// Records that a block was handed out. From now on, the first `bytes` of the block may be
    /// used.
    fn allocated(&self, block: &BlockNote);

    /// Records that from now on the first `bytes` of a live block may be used, and that the block
    /// is no longer divided into parts. A heap calls this before it fills a whole block with zeros.
    fn resized(&self, block: &BlockNote);

    /// Records that from now on `bytes` at `address`, a part of a live block, are checked as a
    /// separate block. Outside of such parts, the block may not be used.
    fn divided(&self, part: &BlockNote);

    /// Records that a block was freed. Its bytes count as never written, unless the heap has just
    /// filled them with zeros.
    fn freed(&self, block: &BlockNote, zeroed: bool);
}

/// Symbol, with a final null, of the function that gives access to an emulated libcuda's
/// [`BlockChecks`]. The function's type is [`EmulatedBlock`]. The symbol is not part of the driver
/// API.
pub const EMULATED_BLOCK: &str = "gpuheap_emulated_block\0";

/// Type of the function [`EMULATED_BLOCK`]. Arguments: event, context, address, bytes, room,
/// stream. Returns 1 if the checks are on, else 0.
pub type EmulatedBlock =
    unsafe extern "C" fn(c_int, CUcontext, CUdeviceptr, u64, u64, CUstream) -> c_int;

/// Event in the life of a block, numbered for [`EmulatedBlock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum BlockEvent {
    /// No event. Queries whether the checks are on.
    Ask = 0,
    /// A call of [`BlockChecks::allocated`].
    Allocated = 1,
    /// A call of [`BlockChecks::resized`].
    Resized = 2,
    /// A call of [`BlockChecks::divided`].
    Divided = 3,
    /// A call of [`BlockChecks::freed`] with `zeroed` false.
    Freed = 4,
    /// A call of [`BlockChecks::freed`] with `zeroed` true.
    FreedZeroed = 5,
}

impl BlockEvent {
    /// Returns the event with this number; `None` for a number that no event has.
    pub fn from_number(number: c_int) -> Option<BlockEvent> {
        use BlockEvent::*;
        [Ask, Allocated, Resized, Divided, Freed, FreedZeroed]
            .into_iter()
            .find(|event| *event as c_int == number)
    }
}

/// The checks of an emulated libcuda, reached through its exported function.
#[derive(Clone, Copy)]
pub(crate) struct LibraryChecks {
    function: EmulatedBlock,
}

impl LibraryChecks {
    /// Returns the checks that `function` gives access to; `None` if they are off.
    ///
    /// # Safety
    ///
    /// `function` is the symbol [`EMULATED_BLOCK`] of a library that is not unloaded while the
    /// result lives.
    pub(crate) unsafe fn new(function: EmulatedBlock) -> Option<LibraryChecks> {
        let checks = LibraryChecks { function };
        let nothing = BlockNote {
            context: CUcontext::NULL,
            address: 0,
            bytes: 0,
            room: 0,
            stream: CUstream::NULL,
        };
        (checks.report(BlockEvent::Ask, &nothing) == 1).then_some(checks)
    }

    fn report(&self, event: BlockEvent, block: &BlockNote) -> c_int {
        let BlockNote { context, address, bytes, room, stream } = *block;
        // SAFETY: the function takes numbers, and handles that it does not dereference. The
        // contract of `new` keeps the function's library loaded.
        unsafe { (self.function)(event as c_int, context, address, bytes, room, stream) }
    }
}

impl BlockChecks for LibraryChecks {
    fn allocated(&self, block: &BlockNote) {
        self.report(BlockEvent::Allocated, block);
    }

    fn resized(&self, block: &BlockNote) {
        self.report(BlockEvent::Resized, block);
    }

    fn divided(&self, part: &BlockNote) {
        self.report(BlockEvent::Divided, part);
    }

    fn freed(&self, block: &BlockNote, zeroed: bool) {
        let event = if zeroed { BlockEvent::FreedZeroed } else { BlockEvent::Freed };
        self.report(event, block);
    }
}
