//! Reclaims memory from the other heaps of the process on a device or under a total limit, and
//! counts their memory.
//!
//! A request that finds the device full makes the other heaps give back cached memory. Several
//! threads may do so at the same time. Three rules prevent a deadlock:
//!
//! * While a thread visits another heap ([`Holders::visit`]), it holds no lock of its own heap. A
//!   thread holds the lock of one store at a time.
//! * The last attempts take turns ([`ReclaimTurn`](crate::device::ReclaimTurn)). A thread requests
//!   its turn with no store locked, and waits two seconds at most.
//! * During a visit or a turn, no code of the program is called, not even reclaimers of other
//!   heaps. Such code may need locks that a thread of the program holds.
//!
//! [`Holders::visit`]: crate::device::Holders::visit

use std::sync::Arc;

use gpuheap_pool::{Forecast, GRANULE, Headroom, Outlook, SourceResult, Stuck};

use crate::device::Context;
use crate::heap::HeapInner;
use crate::heap::store::{Store, StoreState};
use crate::heap::usage::OtherHeaps;
use crate::kind::MemoryKind;
use crate::total_limit::TotalLimit;

/// Maximum number of times that a request is repeated because other heaps gave back memory since
/// the last attempt. Without a bound, a request that competes with allocating threads might never
/// end.
pub(crate) const MOST_ROUNDS: u32 = 32;

/// Calls `visit` with each heap of the context, one after another. If this thread is visiting
/// already, does nothing. The caller holds no lock of any heap.
pub(crate) fn visit(context: &Context, mut visit: impl FnMut(&HeapInner)) {
    context.holders.visit(|holder| {
        if let Some(heap) = HeapInner::from_holder(holder) {
            visit(&heap);
        }
    });
}

impl Store {
    /// Makes other heaps of the process give back cached memory, until `bytes` were given back. If
    /// a limit refused `limited` bytes, visits only the heaps under the total limit. Returns the
    /// bytes that the driver regained; `None` without other heaps, or if the heap's own limit is
    /// the obstacle. Ignores failures: the caller's next attempt to allocate shows them.
    pub(crate) fn reclaim_from_others(&self, limited: Option<u64>, bytes: u64) -> Option<u64> {
        let is_total = limited.is_some();
        if let Some(refused) = limited {
            self.lock().left_of_total(refused)?;
        }
        let (mut is_any, mut regained) = (false, 0_u64);
        let mut reach = |give: &dyn Fn(&Store, u64) -> u64| {
            self.visit_others(is_total, |store| {
                is_any = true;
                if regained < bytes {
                    regained = regained.saturating_add(give(store, bytes - regained));
                }
            });
        };
        reach(&|store, bytes| store.give_back_unused(bytes));
        // Does not wait for another device: its work may wait for work that this thread has not
        // enqueued yet.
        let can_wait = |store: &Store| Arc::ptr_eq(&store.context, &self.context);
        reach(&|store, bytes| {
            if !can_wait(store) {
                return 0;
            }
            let _ = store.wait_for_pending();
            store.give_back_unused(bytes)
        });
        // Memory freed on a retired stream may have no fence, and a driver's pool may keep memory.
        // Both return only after a wait for the whole device.
        let mut needs_wait = false;
        self.visit_others(is_total, |store| {
            let state = store.lock();
            let needs = state.source.is_stream_ordered() || state.order.needs_device();
            needs_wait |= needs && can_wait(store);
        });
        if regained < bytes && needs_wait && !self.context.holders.is_any_capturing() {
            let _ = self.context.synchronize();
            self.visit_others(is_total, |store| {
                if regained < bytes {
                    regained = regained.saturating_add(store.give_back_unused(bytes - regained));
                }
            });
        }
        is_any.then_some(regained)
    }

    /// Gives back about `bytes` of unused memory. Returns the bytes that the driver regained.
    fn give_back_unused(&self, bytes: u64) -> u64 {
        let mut state = self.lock();
        let released = state.release(bytes).unwrap_or(0);
        let trimmed = state.source.trim().unwrap_or(0);
        self.note_soft_limit(&mut state);
        // Memory that is given back to a driver's pool returns to the device when the pool is
        // trimmed.
        if state.source.is_stream_ordered() { trimmed } else { released }
    }

    /// Sums the memory of this store's kind that other heaps of the process hold. Does not wait.
    /// For unified memory, this heap's own device memory is included. The caller holds no lock of
    /// any heap.
    pub(crate) fn others(&self) -> OtherHeaps {
        let mut others = OtherHeaps::default();
        self.visit_others(false, |store| {
            // Does not count unified memory: its pages migrate to the side that accessed them last.
            if store.kind == MemoryKind::Unified {
                return;
            }
            if let Ok(held) = store.lock().held() {
                others.reserved += held.reserved;
                others.cached += held.cached;
                others.spare += held.spare;
                others.may_stay += held.may_stay;
                others.stuck += held.stuck;
            }
        });
        if self.total.is_some() {
            self.visit_others(true, |store| {
                others.under_total += store.lock().held().map_or(0, |held| held.spare);
            });
        }
        // The sum over the heaps counts a shared granule once for each heap, but the device counts
        // the granule once.
        if !is_host(self.kind) {
            let again = self.context.granules.counted_again() * GRANULE;
            others.reserved = others.reserved.saturating_sub(again);
            others.cached = others.cached.min(others.reserved);
        }
        others
    }

    /// Visits the other stores of the process that use the same memory. Stores of device and
    /// unified memory use the device's memory; stores of pinned memory use the host's memory. With
    /// `is_total`, visits the other stores under the total limit.
    fn visit_others(&self, is_total: bool, mut work: impl FnMut(&Store)) {
        let total = self.total.as_ref().filter(|_| is_total);
        let is_other = |store: &Store| match (total, &store.total) {
            (None, _) => is_host(store.kind) == is_host(self.kind),
            (Some(own), theirs) => theirs.as_ref().is_some_and(|theirs| theirs.is_same(own)),
        };
        for context in total.map_or_else(|| vec![self.context.clone()], TotalLimit::contexts) {
            let is_elsewhere = !Arc::ptr_eq(&context, &self.context);
            let _no_reset = is_elsewhere.then(|| context.no_reset());
            if context.check_alive().is_err() {
                continue;
            }
            visit(&context, |heap| {
                let others = heap.stores().filter(|store| store.number != self.number);
                others.filter(|store| is_other(store)).for_each(&mut work);
            });
        }
    }
}

fn is_host(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Pinned | MemoryKind::Registered)
}

impl StoreState {
    /// Sums the memory held now; blocks in threads' caches count as cached.
    pub(crate) fn held(&mut self) -> SourceResult<OtherHeaps> {
        self.flush_caches();
        let reserved = self.source.reserved()?;
        let is_ordered = self.source.is_stream_ordered();
        let taken = if is_ordered { reserved } else { self.stats.taken };
        let stuck = self.stuck();
        let forecast = self.spare_forecast(&stuck);
        let (spare, may_stay) = (self.regained(&forecast)?, self.may_stay(&forecast)?);
        let stuck = if stuck.is_empty() { 0 } else { self.spare(&Stuck::default())? - spare };
        let cached = taken.saturating_sub(self.granted);
        Ok(OtherHeaps { reserved, cached, spare, may_stay, stuck, under_total: 0 })
    }

    /// Returns the frees that no wait can complete now, for example because of a capture.
    pub(crate) fn stuck(&mut self) -> Stuck {
        self.order.stuck(&mut *self.source)
    }

    /// Returns the bytes in whole segments that can return to the driver once all frees but `stuck`
    /// have completed.
    pub(crate) fn spare(&mut self, stuck: &Stuck) -> SourceResult<u64> {
        let forecast = self.spare_forecast(stuck);
        self.regained(&forecast)
    }

    fn spare_forecast(&self, stuck: &Stuck) -> Forecast {
        let outlook = Outlook { stats: &self.stats, headroom: Headroom::default(), stuck };
        let mut forecast = self.policy.forecast(GRANULE, &outlook);
        forecast.spare.extend_from_slice(&self.stranded);
        forecast
    }

    /// Returns the bytes that the driver regains if the spare segments are given back. Includes the
    /// free bytes of a driver's pool, if a wait can complete all frees in that pool.
    pub(crate) fn regained(&mut self, forecast: &Forecast) -> SourceResult<u64> {
        match forecast.driver_is_stuck {
            true => Ok(forecast.spare.iter().map(|segment| segment.bytes).sum()),
            false => self.source.regained(&forecast.spare),
        }
    }

    /// Returns how many of the [`regained`](StoreState::regained) bytes the driver may keep,
    /// because they share a granule or a growth step with memory in use.
    pub(crate) fn may_stay(&mut self, forecast: &Forecast) -> SourceResult<u64> {
        match forecast.driver_is_stuck {
            true => Ok(0),
            false => self.source.may_stay(&forecast.spare),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use gpuheap_pool::testing::fewer;

    use crate::emu::Profile;
    use crate::{Device, Heap, PoolKind};

    const MIB: u64 = 1 << 20;

    fn device() -> Device {
        Device::emulated(Profile::with_memory(64 * MIB).without_context()).unwrap()
    }

    fn heap(device: &Device) -> Heap {
        Heap::builder(device).pool(PoolKind::Stitched).thread_cache(0).build().unwrap()
    }

    /// Two heaps cache the whole device. Both then request three quarters of it at the same time.
    #[test]
    fn one_of_two_large_requests_succeeds() {
        let device = device();
        let heaps = [heap(&device), heap(&device)];
        let barrier = Barrier::new(2);
        for round in 0..fewer(200) {
            let served = thread::scope(|scope| {
                let requests = heaps.each_ref().map(|heap| {
                    scope.spawn(|| {
                        let stream = heap.own_stream().unwrap();
                        let parts = [(); 2].map(|()| heap.allocate(16 * MIB, stream));
                        drop(parts);
                        barrier.wait();
                        let block = heap.allocate(48 * MIB, stream);
                        barrier.wait();
                        block.is_ok()
                    })
                });
                requests.map(|request| request.join().unwrap())
            });
            assert!(served[0] || served[1], "round {round}");
        }
    }

    /// This test takes the turn itself, so a request has to wait for it in its last reclaim step.
    /// The test of two large requests would succeed without turns, because its requests are tried
    /// again.
    #[test]
    fn last_reclaim_step_waits_for_turn() {
        let device = device();
        let heap = heap(&device);
        let stream = device.stream().unwrap();
        let live = heap.allocate(40 * MIB, &stream).unwrap();
        let (send, is_last) = channel();
        // A request calls the reclaimers before its last reclaim step, in which it takes the turn.
        let _reclaimer = heap.register_reclaimer(move |_| {
            let _ = send.send(());
            0
        });
        let turn = device.context().turn.take();
        let start = Instant::now();
        thread::scope(|scope| {
            let request = scope.spawn(|| heap.allocate(40 * MIB, &stream).is_ok());
            is_last.recv().unwrap();
            thread::sleep(Duration::from_millis(50));
            let has_waited = !request.is_finished();
            // A request waits two seconds at most. If the machine stalls for that long, the wait
            // may have ended before this check.
            assert!(has_waited || start.elapsed() > Duration::from_secs(1));
            drop(turn);
            assert!(!request.join().unwrap());
        });
        drop(live);
    }
}
