//! Contexts, and each thread's stack of them.

use std::cell::RefCell;

use gpuheap_driver::CUresult;
use rustc_hash::FxHashMap;

pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) primary: bool,
    pub(crate) flags: u32,
    pub(crate) id: u64,
    /// What every call in it returns since it was lost.
    pub(crate) error: Option<CUresult>,
    /// The default stream that waits for all blocking streams.
    pub(crate) legacy: u32,
    /// Each thread's own default stream.
    pub(crate) per_thread: FxHashMap<u64, u32>,
    /// The devices whose memory it may reach.
    pub(crate) peers: Vec<usize>,
    pub(crate) limits: FxHashMap<i32, usize>,
    /// What it took of the device's memory.
    pub(crate) bytes: u64,
}

thread_local! {
    /// The stacks of this thread, one for each emulator that it has used.
    static STACKS: RefCell<Vec<(u64, Vec<usize>)>> = const { RefCell::new(Vec::new()) };
}

/// Works on this thread's stack of contexts of an emulator. Null entries (0) are legal.
pub(crate) fn with_stack<R>(instance: u64, f: impl FnOnce(&mut Vec<usize>) -> R) -> R {
    STACKS.with_borrow_mut(|stacks| {
        if let Some((_, stack)) = stacks.iter_mut().find(|(owner, _)| *owner == instance) {
            return f(stack);
        }
        let mut stack = Vec::new();
        let result = f(&mut stack);
        if !stack.is_empty() {
            stacks.push((instance, stack));
        }
        result
    })
}

/// The context on top of this thread's stack; 0 for none.
pub(crate) fn top(instance: u64) -> usize {
    STACKS.with_borrow(|stacks| {
        stacks
            .iter()
            .find(|(owner, _)| *owner == instance)
            .and_then(|(_, stack)| stack.last().copied())
            .unwrap_or(0)
    })
}

/// Forgets this thread's stack of an emulator that ends.
pub(crate) fn forget(instance: u64) {
    // A thread that is ending has no stacks any more.
    let _ = STACKS.try_with(|stacks| stacks.borrow_mut().retain(|(owner, _)| *owner != instance));
}

/// A number for the calling thread that no other thread of the process ever has.
pub(crate) fn this_thread() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static THIS: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    THIS.with(|id| *id)
}
