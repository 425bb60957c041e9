//! Tools for tests: a memory source, policies, random programs, and numbers of test cases.

mod model;

use std::sync::Arc;

use proptest::prelude::*;

pub use model::{Clock, LARGE_DEVICE, Model};

use crate::{
    Cached, Environment, Forecast, Granted, Held, Moments, Order, Outlook, Policy, Request,
    Segment, Served, SourceResult, Stitched, StreamGuard, StreamHandle, StreamRef,
};

/// Returns `many`. Under Miri, returns an eighth of it, because tests run a thousand times slower
/// there.
pub const fn fewer(many: usize) -> usize {
    if cfg!(miri) { many / 8 } else { many }
}

/// Returns the configuration of a property test with `cases` cases. Under Miri two cases run, and
/// no failures are kept, because Miri has no folder for them.
pub fn cases(cases: u32) -> ProptestConfig {
    if cfg!(miri) {
        return ProptestConfig {
            cases: 2,
            failure_persistence: None,
            max_shrink_iters: 0,
            ..ProptestConfig::default()
        };
    }
    ProptestConfig { cases, ..ProptestConfig::default() }
}

/// Random numbers with a known sequence for each seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// Returns the next number, less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Action of a random program over blocks and streams. A test skips the actions that the tested
/// type does not support.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Allocates a block for use on a stream.
    Allocate {
        /// Size in bytes.
        bytes: u64,
        /// Index of the stream.
        stream: usize,
    },
    /// Moves a live block to a stream, ordered after its earlier uses. The index is taken modulo
    /// the number of live blocks.
    Move {
        /// Index of the block.
        index: usize,
        /// Index of the stream.
        stream: usize,
    },
    /// Frees a live block after work on a stream. The index is taken modulo the number of live
    /// blocks.
    Free {
        /// Index of the block.
        index: usize,
        /// Index of the stream.
        stream: usize,
    },
    /// Completes the work of a stream.
    Complete {
        /// Index of the stream.
        stream: usize,
    },
    /// Releases cached memory.
    Release {
        /// Target, in bytes.
        bytes: u64,
    },
    /// Begins a capture on a stream, or ends the current capture.
    Capture {
        /// Index of the stream.
        stream: usize,
    },
    /// Makes one of the next driver calls fail.
    Fail {
        /// Number of the call that fails; 1 is the next call.
        ahead: u64,
    },
}

/// Returns random programs of at most `length` actions. For each `frees` frees, there are about
/// `10 - frees` allocations. The sizes of blocks are drawn from `sizes`.
pub fn programs(
    sizes: impl Strategy<Value = u64>,
    streams: usize,
    frees: u32,
    length: usize,
) -> impl Strategy<Value = Vec<Action>> {
    let (index, stream) = (any::<usize>, 0..streams);
    let of_stream = stream.clone();
    let action = prop_oneof![
        10 - frees => (sizes, stream.clone())
            .prop_map(|(bytes, stream)| Action::Allocate { bytes, stream }),
        frees => (index(), stream.clone()).prop_map(|(index, stream)| Action::Free { index, stream }),
        2 => (index(), stream.clone()).prop_map(|(index, stream)| Action::Move { index, stream }),
        2 => stream.prop_map(|stream| Action::Complete { stream }),
        1 => prop_oneof![Just(u64::MAX), 1_u64..(64 << 20)]
            .prop_map(|bytes| Action::Release { bytes }),
        1 => of_stream.prop_map(|stream| Action::Capture { stream }),
        1 => (1_u64..5).prop_map(|ahead| Action::Fail { ahead }),
    ];
    prop::collection::vec(action, 1..length)
}

/// Guard for a stream that ends unannounced. Each free on that stream is fenced at once.
#[derive(Default)]
pub struct Unannounced(Arc<Moments>);

impl Unannounced {
    /// Returns a guard for [`Order::stream`].
    pub fn guard() -> Option<Box<dyn StreamGuard>> {
        Some(Box::<Unannounced>::default())
    }
}

impl StreamGuard for Unannounced {
    fn is_abandoned(&self) -> bool {
        false
    }

    fn is_foreign(&self) -> bool {
        true
    }

    fn is_unannounced(&self) -> bool {
        true
    }

    fn is_retired(&self) -> bool {
        false
    }

    fn moments(&self) -> &Arc<Moments> {
        &self.0
    }

    fn completed(&self) -> u64 {
        0
    }

    fn refuse_work(&self) {}

    fn complete(&self) {}

    fn is_of_capture(&self) -> bool {
        false
    }

    fn may_capture(&self) -> bool {
        false
    }
}

/// Forwards each call of [`Policy`] that a test policy does not change to the policy in the first
/// field.
macro_rules! pass_on_other_calls {
    () => {
        fn release_at(&mut self, address: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
            self.0.release_at(address, env)
        }

        fn forecast(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast {
            self.0.forecast(bytes, outlook)
        }

        fn cached(&self, stream: Option<StreamRef>, order: &Order) -> Cached {
            self.0.cached(stream, order)
        }

        fn held(&self) -> Held {
            self.0.held()
        }

        fn live(&self) -> Vec<Segment> {
            self.0.live()
        }
    };
}

/// Test policy that ignores stream order: it calls the policy `split` always with one stream.
pub struct IgnoresStreams(Stitched);

impl Default for IgnoresStreams {
    fn default() -> IgnoresStreams {
        IgnoresStreams(Stitched::in_segments())
    }
}

impl Policy for IgnoresStreams {
    fn allocate(&mut self, request: Request, env: &mut Environment<'_>) -> Granted {
        let first = env.order.stream(100, StreamHandle(10), || None, env.source);
        self.0.allocate(Request { stream: first, ..request }, env)
    }

    fn free(&mut self, key: u32, _stream: StreamRef, env: &mut Environment<'_>) -> SourceResult {
        let first = env.order.stream(100, StreamHandle(10), || None, env.source);
        self.0.free(key, first, env)
    }

    fn release(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        self.0.release(target, env)
    }

    pass_on_other_calls!();
}

/// Call that a [`Watched`] policy is about to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyCall {
    /// A free of a block.
    Free,
    /// A release. It visits all free blocks.
    Release,
}

/// `stitched` with a callback that runs before each call.
pub struct Watched<F>(pub Stitched, pub F);

impl<F: FnMut(PolicyCall) + Send> Policy for Watched<F> {
    fn allocate(&mut self, request: Request, env: &mut Environment<'_>) -> Granted {
        self.0.allocate(request, env)
    }

    fn reuse(&mut self, request: Request, env: &mut Environment<'_>) -> Served {
        self.0.reuse(request, env)
    }

    fn free(&mut self, key: u32, stream: StreamRef, env: &mut Environment<'_>) -> SourceResult {
        (self.1)(PolicyCall::Free);
        self.0.free(key, stream, env)
    }

    fn release(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        (self.1)(PolicyCall::Release);
        self.0.release(target, env)
    }

    fn release_freed(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        self.0.release_freed(target, env)
    }

    fn has_freed(&self) -> bool {
        self.0.has_freed()
    }

    pass_on_other_calls!();
}
