//! Contexts, and each thread's stack of them.

use std::sync::{Arc, Weak};

use gpuheap_driver::CUresult;
use rustc_hash::FxHashMap;

#[derive(Default)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) primary: bool,
    /// Number of `cuCtxAttach` calls without a matching `cuCtxDetach`.
    pub(crate) attached: u64,
    pub(crate) flags: u32,
    pub(crate) id: u64,
    /// Error that every call in a lost context returns.
    pub(crate) error: Option<CUresult>,
    /// Default stream that waits for all blocking streams.
    pub(crate) legacy: u32,
    /// Each thread's own default stream, keyed by thread number.
    pub(crate) per_thread: FxHashMap<u64, u32>,
    /// Devices whose memory the context may use.
    pub(crate) peers: Vec<usize>,
    pub(crate) limits: FxHashMap<i32, usize>,
    /// Device memory that the context took, in bytes.
    pub(crate) bytes: u64,
}

/// Each thread's stack of current contexts, keyed by thread number.
///
/// The emulator's lock protects the stacks. When a thread ends, destructors of its thread-local
/// variables may call the driver. A stack in a thread-local variable could then already be
/// destroyed.
#[derive(Default)]
pub(crate) struct Stacks {
    of: FxHashMap<u64, Stack>,
    /// Number of stacks that triggers the next search for stacks of ended threads.
    tidy_at: usize,
}

struct Stack {
    /// Handles of contexts. Null entries (0) are allowed.
    contexts: Vec<usize>,
    /// Reference to the thread's `ALIVE`, valid until the destructors of the thread's variables
    /// run.
    thread: Weak<()>,
    /// True if the last search for ended threads found this thread ending. The thread may have made
    /// calls since then.
    was_ending: bool,
}

/// Number of stacks that triggers the first search for stacks of ended threads. Later searches run
/// whenever the number of stacks has doubled. This bounds the stacks that ended threads leave.
const TIDY_AT: usize = 64;

impl Stacks {
    /// Calls `work` with the calling thread's stack.
    pub(crate) fn with<R>(&mut self, work: impl FnOnce(&mut Vec<usize>) -> R) -> R {
        let thread = this_thread();
        if !self.of.contains_key(&thread) {
            self.tidy();
            let alive = ALIVE.try_with(Arc::downgrade).unwrap_or_default();
            let stack = Stack { contexts: Vec::new(), thread: alive, was_ending: false };
            self.of.insert(thread, stack);
        }
        match self.of.get_mut(&thread) {
            Some(stack) => work(&mut stack.contexts),
            None => work(&mut Vec::new()),
        }
    }

    /// Returns the context on top of the calling thread's stack; 0 if the stack is empty.
    pub(crate) fn top(&self) -> usize {
        self.of.get(&this_thread()).and_then(|stack| stack.contexts.last().copied()).unwrap_or(0)
    }

    /// Drops the stacks of ended threads. If a search finds a thread ending, its stack stays until
    /// the next search: destructors that have not run yet may need the stack's current context.
    fn tidy(&mut self) {
        if self.of.len() < self.tidy_at.max(TIDY_AT) {
            return;
        }
        self.of.retain(|_, stack| {
            let is_ending = stack.thread.strong_count() == 0;
            let stays = !is_ending || !(stack.was_ending || stack.contexts.is_empty());
            stack.was_ending = is_ending;
            stays
        });
        self.tidy_at = 2 * self.of.len();
    }
}

thread_local! {
    /// Value that lives as long as the thread.
    static ALIVE: Arc<()> = Arc::default();
}

/// Returns the calling thread's number. No other thread of the process ever has it. The number
/// needs no destructor, so a thread can call this function until the thread ends.
pub(crate) fn this_thread() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static THIS: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    THIS.with(|id| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that the number of stacks does not grow with the number of ended threads.
    #[test]
    fn stacks_of_ended_threads_go() {
        let mut stacks = Stacks::default();
        stacks.with(|stack| stack.push(1));
        for _ in 0..10 * TIDY_AT {
            std::thread::scope(|scope| {
                let push = || stacks.with(|stack| stack.push(7));
                scope.spawn(push).join().unwrap();
            });
        }
        assert!(stacks.of.len() <= 4 * TIDY_AT, "{}", stacks.of.len());
        assert_eq!(stacks.top(), 1, "a thread that lives keeps its own");
    }
}
