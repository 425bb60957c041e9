//! Checks the limits on a heap's reserved memory.

use gpuheap_pool::{GRANULE, Limits, PoolKind};

use crate::error::{Error, ErrorKind};
use crate::heap::store::pool_for;
use crate::kind::MemoryKind;
use crate::size::Bytes;
use crate::source::POOL_STEP;
use crate::total_limit::TotalLimit;

/// If both limits are set, checks that the soft limit does not exceed the hard limit.
pub(crate) fn check(limits: Limits) -> Result<(), Error> {
    match (limits.soft, limits.hard) {
        (Some(soft), Some(hard)) if soft > hard => Err(ErrorKind::BadSetting.error(format!(
            "the soft limit of {} is above the hard limit of {}, so it would never be reached; \
             lower the soft one, or raise the hard one",
            Bytes(soft),
            Bytes(hard)
        ))),
        _ => Ok(()),
    }
}

/// Checks that the hard limit is not below the smallest amount that a heap with `pool` takes from
/// the device.
pub(crate) fn check_usable(limits: Limits, pool: PoolKind) -> Result<(), Error> {
    let least = if pool == PoolKind::Driver { POOL_STEP } else { GRANULE };
    check_least("hard limit", limits.hard, least, pool)
}

/// Checks that the limit of pinned memory is not below the smallest amount of pinned memory that a
/// heap with `pool` takes.
pub(crate) fn check_pinned(limit: Option<u64>, pool: PoolKind) -> Result<(), Error> {
    let pool = pool_for(MemoryKind::Pinned, pool);
    // `split` takes a granule at a time. The other pools take the bytes of the request, because the
    // driver does not round pinned memory.
    let least = if pool == PoolKind::Split { GRANULE } else { 1 };
    check_least("pinned limit", limit, least, pool)
}

/// Checks that a heap with `pool` can count its memory under a total limit.
pub(crate) fn check_total(limit: Option<&TotalLimit>, pool: PoolKind) -> Result<(), Error> {
    match limit {
        Some(limit) if pool == PoolKind::Driver => Err(ErrorKind::BadSetting.error(format!(
            "a heap with the driver pool cannot be under the total limit of {}, because that pool \
             keeps memory that the heap does not count; use another pool, such as stitched",
            Bytes(limit.bytes())
        ))),
        limit => check_least("total limit", limit.map(TotalLimit::bytes), GRANULE, pool),
    }
}

fn check_least(name: &str, limit: Option<u64>, least: u64, pool: PoolKind) -> Result<(), Error> {
    match limit {
        Some(limit) if limit < least => Err(ErrorKind::BadSetting.error(format!(
            "the {name} of {} is below the {} that the {pool} pool takes from the driver at a \
             time, so the heap could hold nothing; set it to {} or more",
            Bytes(limit),
            Bytes(least),
            Bytes(least)
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::Device;
    use crate::emu::Profile;
    use crate::heap::Heap;
    use crate::kind::MemoryKind;
    use crate::source::PlainSource;
    use gpuheap_pool::testing::{PolicyCall, Watched};
    use gpuheap_pool::{PoolKind, Stitched, Tuning};

    const MIB: u64 = 1 << 20;

    #[test]
    fn soft_limit_below_live_searches_rarely() {
        for cache in [0, 1 << 20] {
            let device = Device::emulated(Profile::with_memory(1 << 30)).unwrap();
            let looks = Arc::new(AtomicU64::new(0));
            let source = PlainSource::new(device.context().clone(), MemoryKind::Device);
            let counted = looks.clone();
            let policy = Watched(Stitched::with(Tuning::default()), move |asked| {
                counted.fetch_add(u64::from(asked == PolicyCall::Release), Ordering::Relaxed);
            });
            let builder = Heap::builder(&device).thread_cache(cache).soft_limit(16 * MIB);
            let heap = builder.build_over(PoolKind::Stitched, (Box::new(policy), Box::new(source)));
            let stream = device.stream().unwrap();
            let hold = |bytes| heap.allocate(bytes, &stream).unwrap();
            let mut live: Vec<_> = (0..100).map(|_| hold(2 * MIB + 512)).collect();
            // Makes a chunk that has free room.
            drop(hold(100 << 10));
            let before = looks.load(Ordering::Relaxed);
            assert!(before < 10, "{before}");
            for _ in 0..100 {
                drop(hold(100 << 10));
                drop(hold(1000));
                let last = live.pop();
                drop(last);
                live.push(hold(2 * MIB + 512));
            }
            let looked = looks.load(Ordering::Relaxed) - before;
            assert!(looked < 4, "{looked} times for 300 frees");
            drop(live);
            let used = device.emulator().unwrap().usage(0).vmm;
            assert!(used <= 16 * MIB, "{used}");
        }
    }
}
