//! What a piece of code allocates, and how much of its time goes into memory management.
//!
//! Every thread counts for itself. Counting costs two additions an allocation; the clock is read
//! only while a [`time!`](crate::time) block runs on the thread.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::size::Bytes;

/// Runs its body in place and evaluates to its value and what this thread allocated in it, of any
/// kind, from any heap: `(value, `[`Allocated`]`)`.
///
/// `?`, `return` and `break` leave the body as they leave any block. Blocks may be nested.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let (array, allocated) = gpuheap::allocated! { target.array(&[1_i64, 2, 3])? };
/// assert_eq!((allocated.allocations, allocated.bytes), (1, array.bytes()));
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! allocated {
    ($($body:tt)*) => {{
        let counting = $crate::Counting::begin();
        let value = { $($body)* };
        (value, counting.end())
    }};
}

/// Runs its body in place and evaluates to its value and how long it took, with what this thread
/// allocated in it and its time in memory management: `(value, `[`Timed`]`)`.
///
/// `?`, `return` and `break` leave the body as they leave any block. Blocks may be nested.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let (_array, timed) = gpuheap::time! { target.zeroed::<f32, _>(1 << 20)? };
/// assert!(timed.to_string().contains("1 GPU allocation: 4.000 MiB"));
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! time {
    ($($body:tt)*) => {{
        let timing = $crate::Timing::begin();
        let value = { $($body)* };
        (value, timing.end())
    }};
}

/// What a thread allocated in a piece of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Allocated {
    /// Bytes, as requested.
    pub bytes: u64,
    /// How many allocations.
    pub allocations: u64,
}

/// How long a piece of code took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timed {
    /// From its begin to its end.
    pub elapsed: Duration,
    /// What the thread allocated.
    pub allocated: Allocated,
    /// The thread's time in allocating and freeing.
    pub memory_management: Duration,
}

impl Timed {
    /// The share of memory management in the time, from 0 to 1.
    pub fn share(&self) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        if elapsed > 0.0 { self.memory_management.as_secs_f64() / elapsed } else { 0.0 }
    }
}

impl fmt::Display for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.allocations == 1 { "" } else { "s" };
        write!(f, "{} GPU allocation{plural}: {}", self.allocations, Bytes(self.bytes))
    }
}

/// `  0.001234 seconds (3 GPU allocations: 4.000 MiB, 12.34% memory management)`; what is zero is
/// left out.
impl fmt::Display for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:10.6} seconds", self.elapsed.as_secs_f64())?;
        let percent = self.share() * 100.0;
        match (self.allocated.allocations > 0, !self.memory_management.is_zero()) {
            (true, true) => write!(f, " ({}, {percent:.2}% memory management)", self.allocated),
            (true, false) => write!(f, " ({})", self.allocated),
            (false, true) => write!(f, " ({percent:.2}% memory management)"),
            (false, false) => Ok(()),
        }
    }
}

thread_local! {
    /// What this thread ever allocated.
    static ALLOCATED: Cell<Allocated> =
        const { Cell::new(Allocated { bytes: 0, allocations: 0 }) };
    /// Its time in memory management while it was measured.
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// How many `time!` blocks it is in.
    static BLOCKS: Cell<u32> = const { Cell::new(0) };
    /// Whether its time is being taken already: the ladder calls what frees.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Notes an allocation of this thread.
#[inline]
pub(crate) fn note(bytes: u64) {
    // Not by `LocalKey::set`, which is a call that is not inlined: 4 ns of 30.
    ALLOCATED.with(|allocated| {
        let Allocated { bytes: before, allocations } = allocated.get();
        let bytes = before.saturating_add(bytes);
        allocated.set(Allocated { bytes, allocations: allocations + 1 });
    });
}

/// Takes this thread's time in memory management until it is dropped, where anybody asks for it.
#[inline]
pub(crate) fn memory_management() -> Option<Spending> {
    if BLOCKS.get() == 0 || INSIDE.replace(true) {
        return None;
    }
    Some(Spending { start: Instant::now() })
}

/// While it lives, this thread is in memory management.
pub(crate) struct Spending {
    start: Instant,
}

impl Drop for Spending {
    fn drop(&mut self) {
        let spent = self.start.elapsed();
        INSIDE.set(false);
        SPENT.set(SPENT.get().saturating_add(spent));
    }
}

/// What [`allocated!`](crate::allocated) keeps while its body runs.
#[doc(hidden)]
#[must_use]
pub struct Counting {
    before: Allocated,
    /// It is about the thread that it was made on.
    on_this_thread: PhantomData<*const ()>,
}

impl Counting {
    #[doc(hidden)]
    pub fn begin() -> Counting {
        Counting { before: ALLOCATED.get(), on_this_thread: PhantomData }
    }

    #[doc(hidden)]
    pub fn end(self) -> Allocated {
        let (before, now) = (self.before, ALLOCATED.get());
        Allocated {
            bytes: now.bytes - before.bytes,
            allocations: now.allocations - before.allocations,
        }
    }
}

/// What [`time!`](crate::time) keeps while its body runs; left by any way, it ends the measurement.
#[doc(hidden)]
#[must_use]
pub struct Timing {
    counting: Option<Counting>,
    spent: Duration,
    start: Instant,
}

impl Timing {
    #[doc(hidden)]
    pub fn begin() -> Timing {
        BLOCKS.set(BLOCKS.get() + 1);
        let (counting, spent) = (Some(Counting::begin()), SPENT.get());
        Timing { counting, spent, start: Instant::now() }
    }

    #[doc(hidden)]
    pub fn end(mut self) -> Timed {
        let elapsed = self.start.elapsed();
        let allocated = self.counting.take().map_or_else(Allocated::default, Counting::end);
        let memory_management = SPENT.get().saturating_sub(self.spent);
        Timed { elapsed, allocated, memory_management }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        BLOCKS.set(BLOCKS.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the clock would be read now.
    fn is_timed() -> bool {
        memory_management().is_some()
    }

    #[test]
    fn the_clock_is_read_in_time_blocks_only_however_they_are_left() {
        assert!(!is_timed());
        let _ = crate::time! {
            let _ = crate::time! { assert!(is_timed()) };
            assert!(is_timed());
            let _inside = memory_management();
            assert!(!is_timed(), "what is being timed already is not timed twice");
        };
        assert!(!is_timed());
        let left = || -> Option<()> {
            let ((), _) = crate::time! { None? };
            Some(())
        };
        assert_eq!(left(), None);
        assert!(!is_timed());
        let panicked =
            std::panic::catch_unwind(|| crate::time! { if is_timed() { panic!("on purpose") } });
        assert!(panicked.is_err());
        assert!(!is_timed());
    }
}
