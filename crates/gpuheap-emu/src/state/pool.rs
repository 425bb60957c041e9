//! State of stream-ordered pools, of their memory, and of the streams that may take freed memory.

use std::ffi::c_int;

use gpuheap_driver::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUmemLocation,
};

use crate::state::arena::Arena;
use crate::state::stream::{OpRef, Stream};

/// Memory that a pool gives out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PoolMemory {
    /// Memory of the pool's device.
    Device,
    /// Memory of this process, counted as memory of the host.
    Host(CUmemLocation),
    /// Managed memory, with its preferred location.
    Managed(CUmemLocation),
}

/// The default pool and the current pool of host memory or of managed memory.
pub(crate) struct PoolsAt {
    pub(crate) memory: PoolMemory,
    pub(crate) default: usize,
    pub(crate) current: usize,
}

/// A pool. Its arena tracks only how much memory the pool needs. Virtual addresses are assigned
/// independently of the arena. They are not reused soon, so that the checks find a use after free.
pub(crate) struct Pool {
    /// Ordinal of the device; 0 for a pool that has no device.
    pub(crate) device: usize,
    pub(crate) memory: PoolMemory,
    /// Limit of the pool, in bytes; 0 if the pool has no limit.
    pub(crate) max_bytes: u64,
    pub(crate) is_default: bool,
    pub(crate) destroyed: bool,
    pub(crate) threshold: u64,
    pub(crate) follow_events: bool,
    /// True if another stream may take freed memory as soon as the free is done. If false, only the
    /// stream of the free may take the memory until the host waits.
    pub(crate) opportunistic: bool,
    pub(crate) internal_dependencies: bool,
    pub(crate) reserved_high: u64,
    /// Bytes handed out, as requested. `cuMemFree` does not subtract from this count (measured).
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    /// Number of allocations that are live or whose queued free is not done.
    pub(crate) live: u64,
    /// Access of other devices: ordinals and flags.
    pub(crate) access: Vec<(i32, i32)>,
    pub(crate) host_access: c_int,
    pub(crate) arena: Arena,
}

impl Pool {
    pub(crate) fn new(device: usize, memory: PoolMemory, max_bytes: u64, is_default: bool) -> Pool {
        Pool {
            device,
            memory,
            max_bytes,
            is_default,
            destroyed: false,
            threshold: 0,
            follow_events: true,
            opportunistic: true,
            internal_dependencies: true,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            live: 0,
            access: Vec::new(),
            host_access: match memory {
                PoolMemory::Host(_) => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                PoolMemory::Device | PoolMemory::Managed(_) => CU_MEM_ACCESS_FLAGS_PROT_NONE,
            },
            arena: Arena::default(),
        }
    }

    /// Returns whether the pool's memory is taken from its device.
    pub(crate) fn is_of_device(&self) -> bool {
        self.memory == PoolMemory::Device
    }

    /// Takes a place for `bytes` in the pool's memory, if `stream` may use such a place. Also
    /// returns the queued free that the stream must wait for, if any.
    pub(crate) fn take(
        &mut self,
        bytes: u64,
        stream: u32,
        state: &Stream,
    ) -> Option<(u64, Option<OpRef>)> {
        if let Some(place) = self.arena.take_own(bytes, stream) {
            return Some((place, None));
        }
        if let Some(place) = self.arena.take_idle(bytes) {
            return Some((place, None));
        }
        if self.follow_events
            && let Some(found) = self.arena.take_foreign(bytes, |op| state.has_waited_for(op))
        {
            return Some((found.0, Some(found.1)));
        }
        None
    }

    pub(crate) fn note_handed_out(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.arena.backed());
        self.live += 1;
    }
}
