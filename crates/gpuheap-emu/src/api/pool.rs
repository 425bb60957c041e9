//! Stream-ordered allocation and its pools.

use super::prelude::*;
use crate::api::pinned::page_bytes;
use crate::state::access::AccessKind;
use crate::state::arena::{CHUNK, POOL_ALIGN};
use crate::state::device::Owner;
use crate::state::pool::{Pool, PoolMemory};
use crate::state::slots::GRANULE;
use crate::state::space::Kind;
use crate::state::stream::{OpRef, Work};

/// Largest limit that a pool accepts, in bytes. It is the size of the user address space. On an
/// H200 with driver 580, a limit of 2^40 was accepted and a limit of 2^50 was refused.
const MAX_POOL_BYTES: u64 = 1 << 47;

impl Call<'_> {
    pub(crate) fn cuMemAllocAsync(
        &mut self,
        (pointer, bytes, stream): args::cuMemAllocAsync,
    ) -> Outcome {
        let stream = self.stream(stream)?;
        let device = self.device_of_stream(stream);
        let pool = self.device_with_pools(device as CUdevice)?.current_pool;
        self.allocate_from(pointer, bytes, pool, stream)
    }

    pub(crate) fn cuMemAllocFromPoolAsync(
        &mut self,
        (pointer, bytes, pool, stream): args::cuMemAllocFromPoolAsync,
    ) -> Outcome {
        let stream = self.stream(stream)?;
        self.pool(pool)?;
        self.allocate_from(pointer, bytes, pool.0, stream)
    }

    pub(crate) fn cuMemFreeAsync(&mut self, (pointer, stream): args::cuMemFreeAsync) -> Outcome {
        let stream = self.stream(stream)?;
        if pointer == 0 {
            return Ok(());
        }
        self.refuse_while_recording(stream)?;
        let found =
            self.state.space.get(pointer).map(|found| (found.kind, found.bytes, found.freed));
        match found {
            Some((Kind::Pool { pool, place, taken, .. }, bytes, None)) => {
                self.begin(stream);
                self.note_access(stream, pointer, bytes, AccessKind::Free);
                // The records must be complete before the free is queued. `enqueue` may run
                // callbacks, and meanwhile another thread may take the emulator's lock.
                let op = OpRef { stream, id: self.state.next_op };
                let done = self.can_run_now();
                if let Some(found) = self.state.space.get_mut(pointer) {
                    found.freed = Some(op);
                }
                if let Some(found) = self.state.pools.get_mut(pool) {
                    let anybodys = done && found.opportunistic;
                    found.arena.give(place, taken, (!anybodys).then_some(op));
                    found.used = found.used.saturating_sub(bytes);
                }
                self.enqueue(stream, Work::FreePool(pointer), &[]);
                Ok(())
            }
            // Memory of `cuMemAlloc` has no stream order, so the call waits here for the stream.
            Some((Kind::Small { .. } | Kind::Large { .. }, _, None)) => {
                if let Some(op) = self.state.last_op(stream) {
                    self.complete(op);
                }
                self.cuMemFree_v2(pointer)
            }
            // Managed memory is not freed (measured).
            Some((Kind::Managed { .. }, ..)) => {
                self.find_bad_free(pointer);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }
            _ => {
                self.find_bad_free(pointer);
                Err(INVALID_VALUE)
            }
        }
    }

    pub(crate) fn cuMemPoolCreate(&mut self, (pool, properties): args::cuMemPoolCreate) -> Outcome {
        pool.require()?;
        let asked = properties.get()?;
        let (device, memory) = self.memory_of_new_pool(&asked)?;
        // Rounds the limit up to whole chunks, as a real driver does (measured).
        let max_bytes = (asked.max_size as u64).checked_next_multiple_of(CHUNK);
        let max_bytes = max_bytes.filter(|bytes| *bytes <= MAX_POOL_BYTES);
        let max_bytes = max_bytes.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let made = Pool::new(device, memory, max_bytes, false);
        let handle = self.state.pools.insert(made);
        pool.write(CUmemoryPool(handle))
    }

    pub(crate) fn cuMemPoolDestroy(&mut self, pool: CUmemoryPool) -> Outcome {
        let found = self.pool(pool)?;
        fail_if(found.is_default, INVALID_VALUE)?;
        let device = found.device;
        found.destroyed = true;
        let device = &mut self.state.devices[device];
        if device.current_pool == pool.0 {
            device.current_pool = device.default_pool;
        }
        for at in self.state.pools_at.iter_mut().filter(|at| at.current == pool.0) {
            at.current = at.default;
        }
        self.pool_emptied(pool.0);
        Ok(())
    }

    pub(crate) fn cuMemPoolTrimTo(&mut self, (pool, keep): args::cuMemPoolTrimTo) -> Outcome {
        self.pool(pool)?;
        self.shrink_pool(pool.0, keep as u64);
        Ok(())
    }

    pub(crate) fn cuMemPoolSetAttribute(
        &mut self,
        (pool, attribute, value): args::cuMemPoolSetAttribute,
    ) -> Outcome {
        type A = CUmemPool_attribute;
        let found = self.pool(pool)?;
        // SAFETY: the caller passes a pointer to an `int` for the attributes that are switches, and
        // to a `u64` for the other attributes.
        let (flag, number) = unsafe { (value.cast::<c_int>(), value.cast::<u64>()) };
        let flag = || flag.get().map(|value| value != 0);
        // A high-water mark accepts only 0, which resets the mark to the current value.
        let back = || match number.get()? {
            0 => Ok(()),
            _ => Err(INVALID_VALUE),
        };
        match attribute {
            A::REUSE_FOLLOW_EVENT_DEPENDENCIES => found.follow_events = flag()?,
            A::REUSE_ALLOW_OPPORTUNISTIC => found.opportunistic = flag()?,
            A::REUSE_ALLOW_INTERNAL_DEPENDENCIES => found.internal_dependencies = flag()?,
            A::RELEASE_THRESHOLD => found.threshold = number.get()?,
            A::RESERVED_MEM_HIGH => {
                back()?;
                found.reserved_high = found.arena.backed();
            }
            A::USED_MEM_HIGH => {
                back()?;
                found.used_high = found.used;
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    pub(crate) fn cuMemPoolGetAttribute(
        &mut self,
        (pool, attribute, value): args::cuMemPoolGetAttribute,
    ) -> Outcome {
        type A = CUmemPool_attribute;
        let found = self.pool(pool)?;
        // SAFETY: the caller passes a pointer to an `int` for the attributes that are switches, and
        // to a `u64` for the other attributes.
        let (flag, number) = unsafe { (value.cast::<c_int>(), value.cast::<u64>()) };
        let flag = |set: bool| flag.write(c_int::from(set));
        let number = |bytes: u64| number.write(bytes);
        match attribute {
            A::REUSE_FOLLOW_EVENT_DEPENDENCIES => flag(found.follow_events),
            A::REUSE_ALLOW_OPPORTUNISTIC => flag(found.opportunistic),
            A::REUSE_ALLOW_INTERNAL_DEPENDENCIES => flag(found.internal_dependencies),
            A::RELEASE_THRESHOLD => number(found.threshold),
            A::RESERVED_MEM_CURRENT => number(found.arena.backed()),
            A::RESERVED_MEM_HIGH => number(found.reserved_high),
            A::USED_MEM_CURRENT => number(found.used),
            A::USED_MEM_HIGH => number(found.used_high),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn pool(&mut self, pool: CUmemoryPool) -> Outcome<&mut Pool> {
        self.initialised()?;
        let found = self.state.pools.get_mut(pool.0).filter(|found| !found.destroyed);
        found.ok_or(INVALID_VALUE)
    }

    /// Completes the free of pool memory, in its stream's order.
    pub(crate) fn pool_free_done(&mut self, address: u64, op: OpRef) {
        let Some(gone) = self.state.space.remove(address) else { return };
        self.note_removed(&gone);
        self.forget_range(address, &gone);
        let Kind::Pool { pool, mapped, .. } = gone.kind else { return };
        self.drop_pool_memory(address, gone.bytes, mapped);
        if let Some(found) = self.state.pools.get_mut(pool) {
            if found.opportunistic {
                found.arena.free_done(op);
            }
            found.live -= 1;
        }
        self.pool_emptied(pool);
    }

    /// If a destroyed pool has no allocations left, returns its memory to the device.
    pub(crate) fn pool_emptied(&mut self, pool: usize) {
        let Some(found) = self.state.pools.get(pool) else { return };
        if found.destroyed && found.live == 0 {
            let (device, bytes) = (found.device, found.arena.backed());
            if self.state.pools.remove(pool).is_some_and(|gone| gone.is_of_device()) {
                self.release(device, Owner::Pool, bytes);
            }
        }
    }

    /// Forgets the content of pool memory that was freed.
    pub(crate) fn drop_pool_memory(&mut self, address: u64, bytes: u64, mapped: usize) {
        match mapped {
            0 => self.drop_pages(address, bytes),
            _ => self.state.retired.push((address, mapped)),
        }
    }

    /// Shrinks a device's pools, and the pools without a device, to their release thresholds. A
    /// wait for a stream, event or context calls this.
    pub(crate) fn release_idle(&mut self, device: usize) {
        self.shrink_each(device, |pool| pool.threshold);
    }

    /// Shrinks each pool of a device to `keep` bytes. Memory that is not idle stays in the pool.
    pub(crate) fn shrink_pools(&mut self, device: usize, keep: u64) {
        self.shrink_each(device, |pool| if pool.is_of_device() { keep } else { u64::MAX });
    }

    fn shrink_each(&mut self, device: usize, keep: impl Fn(&Pool) -> u64) {
        let state = &mut *self.state;
        let calls = state.calls.total;
        let (streams, idle) = (&state.streams, state.pending == 0);
        let done =
            |op: OpRef| idle || streams.at(op.stream).is_none_or(|found| found.is_done(op.id));
        let mut gone = 0;
        let concerned = |pool: &&mut Pool| pool.device == device || !pool.is_of_device();
        for pool in state.pools.iter_mut().filter(concerned) {
            pool.arena.mark_idle(done);
            let keep = keep(pool);
            if pool.arena.backed() > keep {
                let shrunk = pool.arena.shrink(keep);
                gone += if pool.is_of_device() { shrunk } else { 0 };
            }
        }
        if gone != 0 {
            state.devices[device].release(Owner::Pool, gone, calls);
        }
    }

    fn shrink_pool(&mut self, pool: usize, keep: u64) {
        let Some(found) = self.state.pools.get_mut(pool) else { return };
        let (device, gone) = (found.device, found.arena.shrink(keep));
        if found.is_of_device() {
            self.release(device, Owner::Pool, gone);
        }
    }

    fn allocate_from(
        &mut self,
        pointer: Out<CUdeviceptr>,
        bytes: usize,
        pool: usize,
        stream: u32,
    ) -> Outcome {
        let out_of_memory = CUresult::ERROR_OUT_OF_MEMORY;
        pointer.require()?;
        if bytes == 0 {
            return pointer.write(0);
        }
        self.refuse_while_recording(stream)?;
        let bytes = bytes as u64;
        if let Some(found) = self.state.pools.get(pool).filter(|found| found.is_of_device()) {
            self.note_request(found.device, bytes, pointer.address());
        }
        let taken = bytes.checked_next_multiple_of(POOL_ALIGN).ok_or(out_of_memory)?;
        let on_host = self.state.pools.get(pool).is_some_and(|pool| !pool.is_of_device());
        let (place, wait) = self.place_in(pool, taken, stream).ok_or(out_of_memory)?;
        let (address, mapped) = if on_host {
            if self.state.pending == 0 {
                self.state.unmap_retired();
            }
            (self.map_managed(bytes), page_bytes(bytes) as usize)
        } else {
            (self.state.space.find_gap(taken, POOL_ALIGN).ok_or(out_of_memory), 0)
        };
        let Some(found) = self.state.pools.get_mut(pool) else { return Err(out_of_memory) };
        let address = match address {
            Ok(address) => address,
            Err(code) => {
                found.arena.give(place, taken, None);
                return Err(code);
            }
        };
        found.note_handed_out(bytes);
        let (device, managed) = (found.device, matches!(found.memory, PoolMemory::Managed(_)));
        let context = self.state.streams.at(stream).map_or(0, |stream| stream.context);
        self.insert(address, bytes, Kind::Pool { pool, place, taken, mapped }, context, device);
        if let Some(made) = self.state.space.get_mut(address) {
            made.sync_memops = managed;
        }
        self.begin(stream);
        if let Some(op) = wait.filter(|op| !self.state.is_done(*op)) {
            self.enqueue(stream, Work::Nothing, &[op]);
        }
        self.note_access(stream, address, bytes, AccessKind::Allocate);
        if on_host {
            self.host_wrote(address, bytes);
        }
        pointer.write(address)
    }

    /// Finds a place in a pool. Tries memory of the pool, then new memory of the device, then
    /// memory that another stream's queued free will release.
    fn place_in(&mut self, pool: usize, bytes: u64, stream: u32) -> Option<(u64, Option<OpRef>)> {
        let state = &mut *self.state;
        let found = state.pools.get_mut(pool)?;
        if let Some(place) = found.take(bytes, stream, state.streams.at(stream)?) {
            return Some(place);
        }
        let (device, bound) = (found.device, found.max_bytes);
        let of_device = found.is_of_device();
        // If the device has no whole chunk left, the pool takes half a chunk, then a quarter, and
        // so on (measured).
        for unit in std::iter::successors(Some(CHUNK), |unit| Some(unit / 2)) {
            if unit < GRANULE {
                break;
            }
            let found = self.state.pools.get_mut(pool)?;
            let (place, more) = found.arena.growth(bytes, stream, unit);
            let within = bound == 0 || found.arena.backed() + more <= bound;
            if !within || of_device && !self.charge(device, Owner::Pool, more) {
                continue;
            }
            // To make room, `charge` may have returned idle chunks of this pool. So calls `growth`
            // again. If the address or the number of bytes differs now, undoes the charge.
            let found = self.state.pools.get_mut(pool)?;
            if found.arena.growth(bytes, stream, unit) == (place, more) {
                found.arena.grow(place, more, bytes);
                return Some((place, None));
            }
            if of_device {
                self.release(device, Owner::Pool, more);
            }
        }
        let found = self.state.pools.get_mut(pool)?;
        if found.internal_dependencies {
            let (place, op) = found.arena.take_foreign(bytes, |_| true)?;
            return Some((place, Some(op)));
        }
        None
    }
}
