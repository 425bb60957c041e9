//! State of the emulated driver.

pub(crate) mod access;
pub(crate) mod arena;
pub(crate) mod blocks;
pub(crate) mod calls;
pub(crate) mod capture;
pub(crate) mod changes;
pub(crate) mod checker;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod module;
pub(crate) mod parameters;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod ranges;
pub(crate) mod slots;
pub(crate) mod space;
pub(crate) mod stream;
pub(crate) mod user_object;
pub(crate) mod vmm;

use crate::finding::Findings;
use crate::handles::{HandleKind, Handles};
use crate::{Kernels, Options, Schedule};

use calls::{Calls, Counts};
use capture::{Captures, Event};
use changes::Changes;
use checker::Checker;
use context::{Context, Stacks};
use device::Device;
use module::{Function, Module};
use physical::Pages;
use pool::{Pool, PoolMemory, PoolsAt};
use space::{Kind, Space};
use stream::Stream;
use vmm::Vmm;

/// State that the emulator's lock protects.
pub(crate) struct State {
    pub(crate) options: Options,
    pub(crate) initialised: bool,
    pub(crate) closing: bool,
    pub(crate) calls: Calls,
    pub(crate) counts: Counts,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Handles<Context>,
    pub(crate) stacks: Stacks,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) captures: Captures,
    pub(crate) modules: Handles<Module>,
    pub(crate) functions: Handles<Function>,
    pub(crate) pools: Handles<Pool>,
    pub(crate) vmm: Vmm,
    pub(crate) space: Space,
    pub(crate) pages: Pages,
    /// Ranges that the program wrote, and blocks of its allocators. For kernels that are not run.
    pub(crate) changes: Changes,
    /// Host memory that is pinned or managed, in bytes.
    pub(crate) pinned_bytes: u64,
    /// Default and current pools of host memory and of managed memory, made at their first use.
    pub(crate) pools_at: Vec<PoolsAt>,
    /// Freed blocks from pools of host or managed memory. In a faulty program, queued work may
    /// still use these blocks, so they stay mapped until no work is queued.
    pub(crate) retired: Vec<(u64, usize)>,
    /// Virtual time, in nanoseconds.
    pub(crate) clock: u64,
    /// Id of the next queued work.
    pub(crate) next_op: u64,
    /// Number of pieces of work queued in all streams.
    pub(crate) pending: usize,
    /// Streams with queued work, by index.
    pub(crate) active: Vec<u32>,
    next_id: u64,
    random: u64,
    pub(crate) checker: Option<Box<Checker>>,
    pub(crate) findings: Findings,
}

impl State {
    pub(crate) fn new(options: Options) -> State {
        let mut pools = Handles::new(HandleKind::Pool);
        let devices = options
            .shown()
            .into_iter()
            .filter_map(|number| Some((number, options.devices.get(number)?)))
            .enumerate()
            .map(|(ordinal, (number, profile))| {
                let pool = pools.insert(Pool::new(ordinal, PoolMemory::Device, 0, true));
                let account = options.account.clone().map(|account| (account, number));
                Device::new(profile.clone(), number, pool, account)
            })
            .collect();
        State {
            initialised: false,
            closing: false,
            calls: Calls::new(),
            devices,
            contexts: Handles::new(HandleKind::Context),
            stacks: Stacks::default(),
            streams: Handles::new(HandleKind::Stream),
            events: Handles::new(HandleKind::Event),
            captures: Captures::new(),
            modules: Handles::new(HandleKind::Module),
            functions: Handles::new(HandleKind::Function),
            pools,
            vmm: Vmm::new(),
            space: Space::new(),
            changes: Changes::default(),
            pages: match options.kernels {
                Kernels::Own => Pages::default(),
                Kernels::NoOp => Pages::new(0),
            },
            counts: Counts::default(),
            pinned_bytes: 0,
            pools_at: Vec::new(),
            retired: Vec::new(),
            clock: 0,
            next_op: 1,
            pending: 0,
            active: Vec::new(),
            next_id: first_id(),
            random: match options.schedule {
                Schedule::Seeded(seed) => seed ^ 0x9e37_79b9_7f4a_7c15,
                _ => 0,
            },
            checker: options.checks.then(Box::default),
            findings: Findings::default(),
            options,
        }
    }

    /// Returns a number that this emulator has not returned before.
    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Unmaps the freed blocks of host pools.
    pub(crate) fn unmap_retired(&mut self) {
        for (address, mapped) in self.retired.drain(..) {
            host::unmap(address, mapped);
        }
    }

    /// Returns the limit that a [`FaultPlan`](crate::FaultPlan) sets for each device's memory, in
    /// bytes; `u64::MAX` if there is no limit.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.options.faults.memory_limit().unwrap_or(u64::MAX)
    }

    /// Returns the schedule's next random number below `bound` (splitmix64).
    pub(crate) fn random(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for (address, allocation) in self.space.iter() {
            match allocation.kind {
                Kind::Managed { mapped, .. }
                | Kind::Pinned { mapped, .. }
                | Kind::Pool { mapped: mapped @ 1.., .. } => host::unmap(address, mapped),
                _ => {}
            }
        }
        self.unmap_retired();
    }
}

/// Returns the first id of a new emulator. Streams and contexts of different emulators have
/// different ids.
fn first_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static EMULATORS: AtomicU64 = AtomicU64::new(0);
    EMULATORS.fetch_add(1, Ordering::Relaxed) << 32
}
