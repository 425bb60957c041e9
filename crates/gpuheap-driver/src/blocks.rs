//! Reports a heap's blocks to an emulated device.

use std::ffi::c_int;

use crate::types::{CUcontext, CUdeviceptr, CUstream};

/// Block of the driver's memory that a heap handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNote {
    /// Context of the block's device.
    pub context: CUcontext,
    /// First address.
    pub address: CUdeviceptr,
    /// Requested size, bytes: the part of the block that the caller may use.
    pub bytes: u64,
    /// Size after the heap's rounding, in bytes.
    pub room: u64,
    /// Stream on which the block is first used, or on which it is freed.
    pub stream: CUstream,
}

/// Checks with which an emulated device watches each block of a heap separately.
///
/// No real device implements this. `note` neither waits for the device nor calls the heap.
pub trait BlockChecks: Send + Sync {
    /// Records an event in the life of a block.
    fn note(&self, event: BlockEvent, block: &BlockNote);
}

/// Name (with a final null) of a function that an emulated libcuda exports. The function has the
/// type [`EmulatedBlock`] and gives access to [`BlockChecks`]. It is not part of the driver API.
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
    /// The block was handed out. The program may now use its first `bytes`.
    Allocated = 1,
    /// From now on, the first `bytes` of a live block may be used, and the block is no longer
    /// divided into parts. A heap notes this before it fills a whole block with zeros.
    Resized = 2,
    /// A live block was divided. From now on, its part of `bytes` at `address` is checked as a
    /// separate block. Outside of such parts, the block may not be used.
    Divided = 3,
    /// The block was freed. Its bytes count as never written.
    Freed = 4,
    /// The block was freed, and the heap has just filled it with zeros.
    FreedZeroed = 5,
}

impl BlockEvent {
    /// Returns the event with this number; `None` for an unknown number.
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
    fn note(&self, event: BlockEvent, block: &BlockNote) {
        self.report(event, block);
    }
}
