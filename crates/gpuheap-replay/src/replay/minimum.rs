//! Finds the smallest device on which a replay through a pool does not run out of memory.

use super::Progress;
use crate::text::Amount;

/// Step of the search, in bytes. It is the granule of the driver.
pub(crate) const STEP: u64 = 2 << 20;
/// Largest device that is tried. A pool that runs out of memory on 16 TiB does so on any device.
pub(crate) const LARGEST: u64 = 16 << 40;

/// Result of a search for the smallest device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Minimum {
    /// The replay succeeded on a device of this many bytes, but not with 2 MiB less.
    Bytes(u64),
    /// The replay succeeds on no device. The text is the reason.
    Never(String),
}

impl Minimum {
    /// Returns the memory of the smallest device that is large enough; `None` if no device is.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(*bytes),
            Self::Never(_) => None,
        }
    }
}

/// Finds the smallest device by bisection between a size that is too small and a size that is
/// enough. Both final sizes were replayed.
///
/// A replay may succeed on some device and run out of memory on a larger one. Then the outcome
/// changes at several sizes, and the result is one of these sizes.
///
/// `attempt` replays on a device of the given bytes. It returns the peak of reserved bytes, or why
/// memory ran out. Sizes are multiples of `step`. `known_peak` is the peak of a replay on a device
/// that was large enough.
pub(crate) fn find<E>(
    step: u64,
    peak_live: u64,
    known_peak: Option<u64>,
    progress: &dyn Progress,
    attempt: impl Fn(u64) -> Result<Result<u64, String>, E>,
) -> Result<Minimum, E> {
    let attempt = |bytes: u64| {
        let result = attempt(bytes);
        progress.advance(1);
        result
    };
    progress.expect(2);
    // A device as large as the pool's peak on a larger device should be enough. The replay is still
    // run with that size, because free memory may affect the pool's decisions.
    let peak_reserved = match known_peak {
        Some(peak) => peak,
        None => match attempt(LARGEST)? {
            Ok(peak) => peak,
            Err(reason) => return Ok(Minimum::Never(reason)),
        },
    };
    let mut enough = peak_reserved.checked_next_multiple_of(step).unwrap_or(u64::MAX);
    while enough != 0 && attempt(enough)?.is_err() {
        match enough.checked_mul(2) {
            Some(larger) if larger <= LARGEST => enough = larger,
            _ => return Ok(Minimum::Never(format!("not even {} are enough", Amount(enough)))),
        }
    }
    // Every pool needs room for the live bytes.
    let mut too_small = peak_live.next_multiple_of(step).saturating_sub(step);
    progress.expect((enough.saturating_sub(too_small) / step).checked_ilog2().unwrap_or(0).into());
    loop {
        while enough.saturating_sub(too_small) > step {
            let middle = too_small + ((enough - too_small) / step / 2) * step;
            match attempt(middle)? {
                Ok(_) => enough = middle,
                Err(_) => too_small = middle,
            }
        }
        // `too_small` may still be the first lower bound. That bound was only computed, so a replay
        // checks that it is really too small.
        if enough <= step || too_small == 0 || attempt(too_small)?.is_err() {
            return Ok(Minimum::Bytes(enough));
        }
        enough = too_small;
        too_small = too_small.saturating_sub(step);
    }
}
