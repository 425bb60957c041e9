//! Bytes that a section of code allocates, their peak, and its time in memory management.
//!
//! Each thread counts for itself, and only inside a block of [`allocated!`](crate::allocated) or
//! [`time!`](crate::time). Only `time!` reads the clock.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::size::Bytes;

/// Runs its body in place, and evaluates to `(value, `[`Allocated`]`)`: the body's value, and the
/// allocations of this thread during the body, of any kind and from any heap.
///
/// `?`, `return` and `break` leave the body as they leave any block. Blocks may be nested; an outer
/// block also counts the allocations of the inner ones.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let (array, allocated) = gpuheap::allocated! {
///     drop(target.zeroed::<u8, _>(1000)?);
///     target.array(&[1_i64, 2, 3])?
/// };
/// assert_eq!((allocated.allocations, allocated.bytes), (2, 1000 + array.bytes()));
/// assert_eq!(allocated.peak, 1000);
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

/// Runs its body in place, and evaluates to `(value, `[`Timed`]`)`: the body's value, its duration,
/// and this thread's allocations and time in memory management.
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

/// Allocations of a thread in a section of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Allocated {
    /// Bytes, as requested.
    pub bytes: u64,
    /// Number of allocations.
    pub allocations: u64,
    /// The most bytes that were live at once, beyond those live at the start. Counts the
    /// allocations of this thread, less its frees: memory that another thread frees stays live
    /// here. [`RegionUsage::peak`] is the peak of one heap, for all threads.
    ///
    /// [`RegionUsage::peak`]: crate::RegionUsage::peak
    pub peak: u64,
}

/// Duration of a section of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Timed {
    /// Time from start to end.
    pub elapsed: Duration,
    /// Allocations of the thread.
    pub allocated: Allocated,
    /// Time that this thread spent in allocating and freeing.
    pub memory_management: Duration,
}

impl Timed {
    /// Returns the fraction of the time spent in memory management, from 0 to 1.
    pub fn share(&self) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        if elapsed > 0.0 { self.memory_management.as_secs_f64() / elapsed } else { 0.0 }
    }
}

/// `3 GPU allocations: 4.000 MiB, peak 2.000 MiB`. The peak is left out if it equals the total.
impl fmt::Display for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.allocations == 1 { "" } else { "s" };
        write!(f, "{} GPU allocation{plural}: {}", self.allocations, Bytes(self.bytes))?;
        if self.peak == self.bytes { Ok(()) } else { write!(f, ", peak {}", Bytes(self.peak)) }
    }
}

/// `  0.001234 seconds (3 GPU allocations: 4.000 MiB, 12.34% memory management)`; zeros are left
/// out.
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
    /// Number of blocks of `allocated!` and `time!` that this thread is in. A request outside of
    /// them reads nothing else here.
    static BLOCKS: Cell<u32> = const { Cell::new(0) };
    /// Number of blocks of `time!` among them.
    static TIMED: Cell<u32> = const { Cell::new(0) };
    /// Allocations and frees of this thread in blocks.
    static TALLY: Cell<Tally> =
        const { Cell::new(Tally { bytes: 0, allocations: 0, live: 0, peak: 0 }) };
    /// This thread's time in memory management in `time!` blocks.
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// `true` while this thread's time is being measured. Reclaim steps call functions that free,
    /// and their time counts once.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Allocations and frees of a thread.
#[derive(Clone, Copy, Debug)]
struct Tally {
    bytes: u64,
    allocations: u64,
    /// Bytes allocated less bytes freed. Negative if more was freed.
    live: i64,
    /// Maximum of `live` since the innermost block began.
    peak: i64,
}

/// Counts an allocation of this thread.
#[inline]
pub(crate) fn note(bytes: u64) {
    if BLOCKS.get() != 0 {
        count(bytes);
    }
}

/// Counts a free by this thread.
#[inline]
pub(crate) fn note_freed(bytes: u64) {
    if BLOCKS.get() != 0 {
        count_freed(bytes);
    }
}

#[cold]
fn count(bytes: u64) {
    let mut counts = TALLY.get();
    counts.bytes = counts.bytes.saturating_add(bytes);
    counts.allocations += 1;
    counts.live = counts.live.wrapping_add_unsigned(bytes);
    counts.peak = counts.peak.max(counts.live);
    TALLY.set(counts);
}

#[cold]
fn count_freed(bytes: u64) {
    let counts = TALLY.get();
    TALLY.set(Tally { live: counts.live.wrapping_sub_unsigned(bytes), ..counts });
}

/// Measures this thread's time in memory management until it is dropped, in blocks of `time!`.
#[inline]
pub(crate) fn memory_management() -> Option<Spending> {
    if BLOCKS.get() == 0 {
        return None;
    }
    Spending::begin()
}

/// A measurement of time in memory management, from creation to drop.
pub(crate) struct Spending {
    start: Instant,
    /// Time spent before the measurement.
    before: Duration,
}

impl Spending {
    #[cold]
    fn begin() -> Option<Spending> {
        if TIMED.get() == 0 || INSIDE.replace(true) {
            return None;
        }
        Some(Spending { start: Instant::now(), before: SPENT.get() })
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        let spent = self.start.elapsed();
        INSIDE.set(false);
        // This time includes a nested block in a reclaimer, which may have added its own time.
        SPENT.set(self.before.saturating_add(spent));
    }
}

/// Measurement of [`allocated!`](crate::allocated) while its body runs. However the body is left,
/// the measurement ends with it.
#[doc(hidden)]
#[must_use]
pub struct Counting {
    before: Tally,
    /// The measurement belongs to the thread that began it.
    on_this_thread: PhantomData<*const ()>,
}

impl Counting {
    #[doc(hidden)]
    pub fn begin() -> Counting {
        BLOCKS.set(BLOCKS.get() + 1);
        let before = TALLY.get();
        TALLY.set(Tally { peak: before.live, ..before });
        Counting { before, on_this_thread: PhantomData }
    }

    #[doc(hidden)]
    pub fn end(self) -> Allocated {
        let (before, now) = (self.before, TALLY.get());
        Allocated {
            bytes: now.bytes - before.bytes,
            allocations: now.allocations - before.allocations,
            peak: u64::try_from(now.peak.wrapping_sub(before.live)).unwrap_or(0),
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let counts = TALLY.get();
        // The peak of an inner block is a lower bound of the outer one's.
        TALLY.set(Tally { peak: counts.peak.max(self.before.peak), ..counts });
        BLOCKS.set(BLOCKS.get().saturating_sub(1));
    }
}

/// Measurement of [`time!`](crate::time) while its body runs. However the body is left, the
/// measurement ends with it.
#[doc(hidden)]
#[must_use]
pub struct Timing {
    counting: Option<Counting>,
    spent: Duration,
    /// `true` if the block is itself part of memory management, as in a reclaimer.
    inside: bool,
    start: Instant,
}

impl Timing {
    #[doc(hidden)]
    pub fn begin() -> Timing {
        TIMED.set(TIMED.get() + 1);
        let (counting, spent) = (Some(Counting::begin()), SPENT.get());
        let inside = INSIDE.replace(false);
        Timing { counting, spent, inside, start: Instant::now() }
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
        TIMED.set(TIMED.get().saturating_sub(1));
        INSIDE.set(self.inside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `true` if memory management would be timed now.
    fn is_timed() -> bool {
        memory_management().is_some()
    }

    #[test]
    fn time_is_measured_in_blocks_only() {
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

    #[test]
    fn timed_display_omits_zeros() {
        let timed = |allocations, bytes, peak, micros| Timed {
            elapsed: Duration::from_micros(1234),
            allocated: Allocated { bytes, allocations, peak },
            memory_management: Duration::from_micros(micros),
        };
        for (timed, text) in [
            (timed(0, 0, 0, 0), "  0.001234 seconds"),
            (timed(1, 4, 4, 0), "  0.001234 seconds (1 GPU allocation: 4 bytes)"),
            (timed(0, 0, 0, 617), "  0.001234 seconds (50.00% memory management)"),
            (
                timed(3, 4 << 20, 2 << 20, 617),
                "  0.001234 seconds (3 GPU allocations: 4.000 MiB, peak 2.000 MiB, 50.00% memory \
                 management)",
            ),
        ] {
            assert_eq!(timed.to_string(), text);
        }
    }
}
