//! `--find-minimum`: the smallest emulated device on which a pool gets through a trace.

use gpuheap::emu::Profile;
use gpuheap::{Bytes, Error, OutOfMemory, PoolKind};

use super::engine::{Bounds, Outcome, Program, Target, probe};
use crate::progress::Progress;

/// Devices are told apart in steps of the driver's granule.
const STEP: u64 = 2 << 20;
/// What is too much for a device of 16 TiB is not the device's fault.
const LARGEST: u64 = 16 << 40;

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Minimum {
    /// Got through on a device of so many bytes, and not on one with 2 MiB less.
    Bytes(u64),
    /// No device is enough, and why.
    Never(String),
}

/// Bisects between a size that was too small and one that was enough, both by replays that were
/// really made. Nothing is assumed of the sizes in between: a pool that gets through on some
/// smaller device and not on a larger one may have several such borders, and this is one of them.
///
/// # Errors
///
/// As [`probe`].
pub(crate) fn find(
    program: &Program,
    pool: PoolKind,
    target: &Target,
    bounds: Bounds,
    known: &Outcome,
    progress: &Progress,
) -> Result<Minimum, Error> {
    let Target::Emulated { profile, delay } = target else {
        return Ok(Minimum::Never("a real device has the size that it has".to_owned()));
    };
    let attempt = |bytes: u64| {
        let profile = Profile { memory_bytes: bytes, ..profile.clone() };
        let result = probe(program, pool, &Target::Emulated { profile, delay: *delay }, bounds);
        progress.advance(1);
        result
    };
    progress.expect(2);
    // A pool that is never refused on a large device is not refused where that has just as much
    // as it took. Whether this is so is tried, for a pool might look at what is free.
    let peak_reserved = match known.stop {
        None => known.peak_reserved,
        Some(_) => match attempt(LARGEST)? {
            Ok(peak_reserved) => peak_reserved,
            Err(evidence) => return Ok(Minimum::Never(reason(&evidence))),
        },
    };
    let mut enough = peak_reserved.next_multiple_of(STEP);
    while enough != 0 && attempt(enough)?.is_err() {
        match enough.checked_mul(2) {
            Some(larger) if larger <= LARGEST => enough = larger,
            _ => return Ok(Minimum::Never(format!("not even {} are enough", Bytes(enough)))),
        }
    }
    // What is live has to fit, whatever the pool.
    let mut too_small = program.peak_live().next_multiple_of(STEP).saturating_sub(STEP);
    progress.expect((enough.saturating_sub(too_small) / STEP).checked_ilog2().unwrap_or(0).into());
    loop {
        while enough - too_small > STEP {
            let middle = too_small + ((enough - too_small) / STEP / 2) * STEP;
            match attempt(middle)? {
                Ok(_) => enough = middle,
                Err(_) => too_small = middle,
            }
        }
        // The first lower bound was reckoned; if the search ended on it, it is tried as well.
        if enough <= STEP || too_small == 0 || attempt(too_small)?.is_err() {
            return Ok(Minimum::Bytes(enough));
        }
        enough = too_small;
        too_small = too_small.saturating_sub(STEP);
    }
}

fn reason(evidence: &OutOfMemory) -> String {
    match evidence.limit {
        Some(limit) => format!("the limit of {} is in the way, not the device", Bytes(limit)),
        None => format!("not even {} are enough", Bytes(LARGEST)),
    }
}
