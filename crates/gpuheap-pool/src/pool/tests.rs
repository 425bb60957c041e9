//! Tests every policy against a naive model without a driver. Checks that blocks do not overlap,
//! that reuse is ordered, that the statistics are exact, and that all memory is given back at the
//! end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::order::Order;
use crate::source::Limits;
use crate::source::{MemorySource, Segment};
use crate::stats::RunningStats;
use crate::stream::{StreamHandle, StreamRef};
use crate::testing::{
    Action, Clock, IgnoresStreams, LARGE_DEVICE, Model, Unannounced, cases, fewer, programs,
};

const STREAMS: usize = 4;

/// Upper bound of the random sizes, in bytes. [`Model`] visits each mapped chunk of a block, so
/// Miri needs a smaller bound.
const LARGE: u64 = if cfg!(miri) { 8 << 20 } else { 200 << 20 };
/// A size in bytes for which `binned` has no bin.
const BEYOND_BINS: u64 = if cfg!(miri) { LARGE } else { (128 << 20) + 1 };

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        1_u64..2048,
        Just(1 << 20),
        (1_u64 << 10)..(4 << 20),
        (1_u64 << 20)..LARGE,
        Just(BEYOND_BINS),
    ]
}

struct Live {
    key: u32,
    bytes: u64,
    block: u64,
    /// Physical pieces of the block.
    pieces: Vec<(u64, u64)>,
    /// Slot of the stream that used the block last.
    user: usize,
}

/// Naive model. It records each byte's owner, and the last work on every byte ever used.
struct World {
    policy: Box<dyn Policy>,
    model: Model,
    order: Order,
    stats: RunningStats,
    limits: Limits,
    stranded: Vec<Segment>,
    streams: Vec<StreamRef>,
    live: BTreeMap<u64, Live>,
    /// Number of failed requests.
    refused: u64,
    /// Used ranges of physical bytes, keyed by start. Each has its end, the stream that used the
    /// range last, and the clock of that stream.
    used: BTreeMap<u64, (u64, usize, Clock)>,
}

impl World {
    fn new(policy: Box<dyn Policy>, capacity: u64, immediate: bool) -> World {
        let mut order = Order::default();
        let mut model = Model::new(capacity);
        model.immediate = immediate;
        let streams = (0..STREAMS)
            .map(|n| {
                // The last stream ends unannounced, so it is fenced at every free.
                let guard = || if n == STREAMS - 1 { Unannounced::guard() } else { None };
                order.stream(100 + n as u64, StreamHandle(n + 10), guard, &mut model)
            })
            .collect();
        World {
            policy,
            model,
            order,
            stats: RunningStats::default(),
            limits: Limits::default(),
            stranded: Vec::new(),
            streams,
            live: BTreeMap::new(),
            refused: 0,
            used: BTreeMap::new(),
        }
    }

    fn act<R>(&mut self, work: impl FnOnce(&mut dyn Policy, &mut Environment<'_>) -> R) -> R {
        let mut env = Environment {
            source: &mut self.model,
            order: &mut self.order,
            stats: &mut self.stats,
            limits: self.limits,
            stranded: &mut self.stranded,
        };
        work(&mut *self.policy, &mut env)
    }

    fn allocate(&mut self, bytes: u64, stream: usize) -> Result<(), String> {
        let stream = self.streams[stream];
        let Ok(grant) = self.act(|policy, env| policy.allocate(Request { bytes, stream }, env))
        else {
            self.refused += 1;
            return Ok(());
        };
        let range = grant.address..grant.address + grant.bytes;
        if grant.bytes < bytes {
            return Err(format!("{} bytes for {bytes}", grant.bytes));
        }
        let Some(pieces) = self.model.physical(grant.address, grant.bytes) else {
            return Err(format!("{range:x?} is in no segment"));
        };
        for (other, live) in &self.live {
            for &(start, end) in &live.pieces {
                if pieces.iter().any(|piece| piece.0 < end && start < piece.1) {
                    return Err(format!("{range:x?} overlaps {other:x}"));
                }
            }
        }
        for (at, piece) in pieces.iter().enumerate() {
            if pieces[..at].iter().any(|other| other.0 < piece.1 && piece.0 < other.1) {
                return Err(format!("{range:x?} has {piece:x?} twice"));
            }
            let overlapping: Vec<_> = self
                .used
                .range(..piece.1)
                .filter(|(_, (end, _, _))| *end > piece.0)
                .map(|(_, (_, owner, clock))| (*owner, clock.clone()))
                .collect();
            for (owner, clock) in overlapping {
                if !self.model.is_ordered(owner, &clock, stream) {
                    return Err(format!("{range:x?} is reused on {stream:?}, not after {owner}"));
                }
            }
        }
        self.stats.count_allocation(bytes, grant.bytes);
        let live = Live { key: grant.key, bytes, block: grant.bytes, pieces, user: stream.slot() };
        self.use_block(range.start, &live, stream);
        self.live.insert(range.start, live);
        Ok(())
    }

    fn free(&mut self, index: usize, stream: usize) {
        let Some(start) = self.live.keys().nth(index % self.live.len().max(1)).copied() else {
            return;
        };
        let Some(live) = self.live.remove(&start) else { return };
        // A program must order the freeing stream after the stream that used the block.
        let user = live.user;
        let capturing = |slot| self.model.capturing == Some(slot);
        // A capturing stream cannot be ordered with another stream, so the stream that used the
        // block also frees it then.
        let stream = if capturing(user) || capturing(stream) { user } else { stream };
        let stream = self.streams[stream];
        if user != stream.slot() {
            let user = self.streams[user];
            let failing = self.model.fail_call.take();
            let fence = self.model.record(user).unwrap();
            self.model.order_after(stream, fence).unwrap();
            self.model.forget(fence);
            self.model.fail_call = failing;
        }
        self.use_block(start, &live, stream);
        self.stats.count_free(live.bytes, live.block);
        let _ = self.act(|policy, env| policy.free(live.key, stream, env));
    }

    fn use_block(&mut self, address: u64, live: &Live, stream: StreamRef) {
        let clock = self.model.work(stream);
        self.model.uses(address, live.block, stream.slot());
        for &(start, end) in &live.pieces {
            self.use_range(start, end, stream, clock.clone());
        }
    }

    fn use_range(&mut self, start: u64, end: u64, stream: StreamRef, clock: Clock) {
        let overlapping: Vec<_> =
            self.used.range(..end).filter(|(_, (e, _, _))| *e > start).map(|(s, _)| *s).collect();
        for other in overlapping {
            let Some((other_end, owner, other_clock)) = self.used.remove(&other) else { continue };
            if other < start {
                self.used.insert(other, (start, owner, other_clock.clone()));
            }
            if other_end > end {
                self.used.insert(end, (other_end, owner, other_clock));
            }
        }
        self.used.insert(start, (end, stream.slot(), clock));
    }

    fn check_stats(&self) -> Result<(), String> {
        let taken = self.model.taken();
        let live: u64 = self.live.values().map(|live| live.bytes).sum();
        let blocks: u64 = self.live.values().map(|live| live.block).sum();
        let cached = self.policy.cached(None, &self.order).bytes;
        let found = (self.stats.taken, self.stats.live, self.stats.live_blocks, cached);
        if found != (taken, live, blocks, taken - blocks) {
            return Err(format!(
                "taken, live, blocks, cached are {found:?}, not {:?}",
                (taken, live, blocks, taken - blocks)
            ));
        }
        let mut granted: Vec<_> = self.policy.live().iter().map(|s| (s.address, s.bytes)).collect();
        granted.sort_unstable();
        let expected: Vec<_> = self.live.iter().map(|(start, live)| (*start, live.block)).collect();
        if granted != expected {
            Err(format!("{granted:?} are live, not {expected:?}"))
        } else {
            Ok(())
        }
    }

    fn run(&mut self, actions: &[Action]) -> Result<(), String> {
        for action in actions {
            match *action {
                Action::Allocate { bytes, stream } => self.allocate(bytes, stream)?,
                Action::Free { index, stream } => self.free(index, stream),
                Action::Complete { stream } => self.model.complete(stream),
                Action::Move { .. } => {}
                Action::Release { bytes } => {
                    let _ = self.act(|policy, env| match env.limits.soft {
                        Some(_) => policy.release_freed(bytes, env),
                        None => policy.release(bytes, env),
                    });
                }
                // The last stream is transient: it may end unannounced. `Order` never queries
                // whether such a stream captures a graph, so no capture begins on it here.
                Action::Capture { stream } if stream == STREAMS - 1 => {}
                Action::Capture { stream } => {
                    let ended = self.model.capturing.is_some();
                    self.model.capturing = (!ended).then_some(stream);
                }
                Action::Fail { ahead } => self.model.fail_call = Some(self.model.calls() + ahead),
            }
            self.check_stats()?;
        }
        (self.model.fail_call, self.model.capturing) = (None, None);
        while !self.live.is_empty() {
            self.free(0, 0);
        }
        (0..STREAMS).for_each(|slot| self.model.complete(slot));
        self.order.poll(&mut self.model).map_err(|error| format!("{error:?}"))?;
        // A fence of a transient stream may have failed. The free then stays pending until that
        // stream's next free or a wait for the whole device. The next two lines are such a wait.
        self.model.all_known();
        self.order.complete_all(&mut self.model);
        self.order.poll(&mut self.model).map_err(|error| format!("{error:?}"))?;
        if self.limits.soft.is_some() {
            let released = self.act(|policy, env| policy.release_freed(u64::MAX, env));
            released.map_err(|error| format!("{error:?}"))?;
            // Memory taken for a request that then fails stays cached. `release_freed` finds only
            // memory that the program freed, so not this memory.
            let grew = |action: &Action| !matches!(action, Action::Fail { .. });
            if self.stats.taken > 0 && self.refused == 0 && actions.iter().all(grew) {
                return Err(format!("{} bytes were freed and not noted", self.stats.taken));
            }
        }
        let released = self.act(|policy, env| policy.release(u64::MAX, env));
        released.map_err(|error| format!("{error:?}"))?;
        self.check_stats()?;
        match self.stats.taken {
            0 if self.model.mappings() > 0 || self.model.addresses() > 0 => {
                Err("addresses never came back".to_owned())
            }
            0 => Ok(()),
            left => Err(format!("{left} bytes never came back")),
        }
    }
}

fn policies() -> Vec<(&'static str, Box<dyn Policy>)> {
    vec![
        ("none", Box::new(Direct::default())),
        ("simple", Box::new(Simple::default())),
        ("binned", Box::new(Binned::default())),
        ("split", Box::new(Stitched::in_segments())),
        ("stitched", Box::new(Stitched::default())),
        (
            "stitched, packing",
            Box::new(Stitched::with(Tuning { slack: 0, allows_waste: false, ..Tuning::default() })),
        ),
    ]
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn policies_match_naive_model(
        actions in programs(sizes(), STREAMS, 5, fewer(140)),
        immediate in any::<bool>(),
        small_device in any::<bool>(),
        limit in prop::option::of(Just(300_u64 << 20)),
        soft in prop::option::of(Just(0)),
    ) {
        for (name, policy) in policies() {
            let capacity = if small_device { 512 << 20 } else { LARGE_DEVICE };
            let mut world = World::new(policy, capacity, immediate);
            world.limits = Limits { hard: limit, soft };
            let outcome = world.run(&actions);
            prop_assert!(outcome.is_ok(), "{name}: {}", outcome.unwrap_err());
            prop_assert!(world.model.reserved_peak().unwrap() <= capacity, "{name}");
            if let Some(limit) = limit {
                prop_assert!(world.model.reserved_peak().unwrap() <= limit, "{name}");
            }
        }
    }
}

#[test]
fn model_detects_policy_ignoring_streams() {
    let mut world = World::new(Box::new(IgnoresStreams::default()), 1 << 40, false);
    let actions = [
        Action::Allocate { bytes: 4096, stream: 1 },
        Action::Free { index: 0, stream: 1 },
        Action::Allocate { bytes: 4096, stream: 2 },
    ];
    let caught = world.run(&actions).unwrap_err();
    assert!(caught.contains("not after 1"), "{caught}");
}

#[test]
fn block_crosses_streams_without_new_memory() {
    for (name, policy) in policies().into_iter().skip(1) {
        let mut world = World::new(policy, 1 << 40, false);
        world.allocate(4096, 1).unwrap();
        world.free(0, 1);
        let taken = world.stats.taken;
        world.allocate(4096, 2).unwrap();
        assert_eq!(world.stats.taken, taken, "{name}: the other stream's block was there");
    }
}
