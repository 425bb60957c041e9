//! The checks: what they look for, and where the emulator tells them what happens.

use std::fmt;

use crate::api::Access;
use crate::emulator::Call;
use crate::state::space::Allocation;
use crate::state::vmm::Mapping;

/// What the checks found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What kind of misuse.
    pub kind: FindingKind,
    /// What happened: the call, addresses, sizes, streams.
    pub text: String,
}

/// A kind of misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// Memory was freed that had been freed before.
    DoubleFree,
    /// A pointer was freed that no allocation starts at, or by the wrong function.
    WrongFree,
    /// A copy or fill uses memory after its free.
    UseAfterFree,
    /// A copy or fill goes beyond the allocation it starts in.
    OutOfBounds,
    /// A copy or fill uses an address where nothing is.
    WildPointer,
    /// The host reads device memory that was never written.
    Uninitialised,
    /// Memory was live when its context was destroyed.
    Leak,
    /// Two streams use the same bytes, one of them writes, and nothing orders them.
    Unordered,
    /// A kernel was to be loaded: the emulator runs none.
    KernelRefused,
    /// The driver was called from one of its callbacks.
    CalledFromCallback,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Default)]
pub(crate) struct Checker {}

#[derive(Clone, Default)]
pub(crate) struct Clock {}

impl Call<'_> {
    pub(crate) fn find(&mut self, kind: FindingKind, text: String) {
        self.state.findings.push(Finding { kind, text });
    }
    pub(crate) fn find_callback_misuse(&mut self) {}
    pub(crate) fn find_bad_free(&mut self, _a: u64) {}
    pub(crate) fn find_leak(&mut self, _a: u64) {}
    pub(crate) fn find_wild(&mut self, _a: u64, _n: u64) {}
    pub(crate) fn find_out_of_bounds(&mut self, _a: u64, _n: u64) {}
    pub(crate) fn find_use_after_free(&mut self, _a: u64, _n: u64) {}
    pub(crate) fn begin(&mut self, _s: u32) {}
    pub(crate) fn clock_of(&self, _s: u32) -> Option<Box<Clock>> {
        None
    }
    pub(crate) fn note_access(&mut self, _s: u32, _a: u64, _n: u64, _x: Access) {}
    pub(crate) fn note_copy(
        &mut self,
        _s: u32,
        _t: crate::api::Side,
        _f: crate::api::Side,
        _w: u64,
        _h: u64,
    ) {
    }
    pub(crate) fn note_unmap(&mut self, _a: u64, _m: &Mapping) {}
    pub(crate) fn stream_waits_for(&mut self, _s: u32, _e: gpuheap_driver::CUevent) {}
    pub(crate) fn stream_gone(&mut self, _s: u32) {}
    pub(crate) fn host_learns(&mut self, _c: Option<&Clock>) {}
    pub(crate) fn host_waits_for_stream(&mut self, _s: u32) {}
    pub(crate) fn host_waits_for_event(&mut self, _e: gpuheap_driver::CUevent) {}
    pub(crate) fn host_waits_for_context(&mut self, _c: u32) {}
    pub(crate) fn host_wrote(&mut self, _a: u64, _n: u64) {}
    pub(crate) fn forget_range(&mut self, _a: u64, _x: &Allocation) {}
}
