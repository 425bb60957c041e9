//! If the missing bytes that an error reports are freed, the request succeeds. If the amount is not
//! known, the error reports none.

use gpuheap::emu::{Fault, FaultPlan, Options, Profile, Schedule};
use gpuheap::{Block, Cause, Device, Fit, Heap, Limits, OutOfMemory, PoolKind, Stream};
#[cfg(feature = "arrays")]
use gpuheap::{Error, MemoryKind};
use gpuheap_driver::CUresult;
use gpuheap_pool::testing::{Action, programs};
use proptest::prelude::*;

use crate::support::{assert_all_returned, emulated, fill, heap};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DEVICE: u64 = 160 * MIB;
/// Number of bytes of the device that another heap holds in pieces.
const HOG: u64 = 32 * MIB;
const PIECE: u64 = 2 * MIB;

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let bytes = prop_oneof![
        1_u64..5000,
        1_u64..(3 * MIB),
        (1_u64..40).prop_map(|halves| halves * MIB / 2),
        (1_u64..90).prop_map(|mib| mib * MIB + 1),
    ];
    programs(bytes, 2, 3, 70)
}

/// Parameters of a scene, except the pool.
#[derive(Clone, Copy, Debug)]
struct Set {
    /// Hard limit of the heap in bytes.
    limit: Option<u64>,
    /// `true` if another heap holds a part of the device.
    hogs: bool,
    /// Schedule of the device's work. Memory that is freed before its work is done is pending.
    schedule: Schedule,
}

fn sets() -> impl Strategy<Value = Set> {
    let schedule = prop_oneof![
        Just(Schedule::Immediate),
        Just(Schedule::OnDemand),
        any::<u64>().prop_map(Schedule::Seeded),
    ];
    (any::<bool>(), any::<bool>(), schedule).prop_map(|(limited, hogs, schedule)| Set {
        limit: limited.then_some(64 * MIB),
        hogs,
        schedule,
    })
}

/// Heap whose memory is freed so that a failed request succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Hog,
    Here,
    /// All memory of the other heap is freed first, and then memory of this heap.
    Both,
}

/// A heap under test, and another heap's blocks on the same device.
struct Scene {
    /// The streams. All requests are on the first stream.
    streams: [Stream; 2],
    heap: Heap,
    hog: Vec<Block>,
    live: Vec<Block>,
}

impl Scene {
    fn new(pool: PoolKind, set: Set, device: u64) -> Scene {
        let Set { limit, hogs, schedule } = set;
        let device = emulated(device, schedule);
        let streams = [(); 2].map(|()| device.stream().unwrap());
        let other = heap(&device, PoolKind::None);
        let pieces = if hogs { HOG / PIECE } else { 0 };
        let hog = (0..pieces).map(|_| other.allocate(PIECE, &streams[0]).unwrap()).collect();
        let heap = heap(&device, pool);
        // In the pool `driver`, a hard limit that was set in the builder cannot be raised. This
        // test raises the limit later, so it sets the limit only after the heap is built.
        heap.set_limits(Limits { soft: None, hard: limit }).unwrap();
        Scene { streams, heap, hog, live: Vec::new() }
    }

    /// Runs a program up to its first request that fails. Returns that request.
    fn run(&mut self, actions: &[Action]) -> Option<(usize, OutOfMemory)> {
        for (at, action) in actions.iter().enumerate() {
            match *action {
                Action::Allocate { bytes, stream } => {
                    self.streams.swap(0, stream);
                    match self.heap.allocate(bytes, &self.streams[0]) {
                        Ok(block) => {
                            // Enqueues work on the block, so that its free has something to wait
                            // for.
                            fill(&block, 1, &self.streams[0]);
                            self.live.push(block);
                        }
                        Err(error) => return Some((at, error.out_of_memory().unwrap().clone())),
                    }
                }
                Action::Free { index, .. } if !self.live.is_empty() => {
                    drop(self.live.swap_remove(index % self.live.len()));
                }
                _ => {}
            }
        }
        None
    }

    fn succeeds(&self, error: &OutOfMemory, what: &str) -> Result<(), TestCaseError> {
        let again = self.heap.allocate(error.requested, &self.streams[0]);
        prop_assert!(again.is_ok(), "{}: {}; again: {}", what, error, again.unwrap_err());
        Ok(())
    }

    /// Frees `bytes` of the other heap's blocks, in `hog`. Returns `false` if fewer bytes are live.
    fn free_hog(&mut self, bytes: u64) -> bool {
        let left = self.hog.len().checked_sub(bytes.div_ceil(PIECE) as usize);
        left.inspect(|left| self.hog.truncate(*left)).is_some()
    }

    /// Frees `bytes` of the given heaps. Returns `false` if fewer bytes are live.
    fn free_at(&mut self, at: Where, bytes: u64) -> bool {
        match at {
            Where::Hog => self.free_hog(bytes),
            Where::Here => self.free(bytes),
            Where::Both => {
                let held = self.hog.len() as u64 * PIECE;
                self.hog.clear();
                self.free(bytes.saturating_sub(held))
            }
        }
    }

    /// Frees live blocks until `bytes` have returned to the driver. Returns `false` if fewer bytes
    /// were live.
    fn free(&mut self, bytes: u64) -> bool {
        let reserved = |heap: &Heap| {
            heap.reclaim_all().unwrap();
            heap.usage().unwrap().reserved
        };
        let before = reserved(&self.heap);
        while before - reserved(&self.heap) < bytes {
            let Some(block) = self.live.pop() else { return false };
            drop(block);
        }
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn short_by_bytes_suffice(actions in actions(), set in sets()) {
        for pool in PoolKind::ALL {
            assert_enough(pool, &actions, set)?;
        }
    }

    /// If one thread uses a heap and all work is completed, the forecast of `would_fit` is exact.
    #[test]
    fn forecast_equals_bytes_taken(actions in actions(), limited: bool, slack: bool) {
        let pools = PoolKind::ALL.into_iter().filter(|pool| *pool != PoolKind::Driver);
        for pool in pools {
            assert_foreseen(pool, &actions, limited, slack)?;
        }
    }

    /// On a device that is far from full, the pool `stitched` takes more memory than a request
    /// needs. It then never has to map free pieces together for a large request.
    #[test]
    fn forecast_holds_on_large_device(
        actions in actions(),
        limit in prop::option::of(Just(64 * GIB)),
    ) {
        let device = emulated(128 * GIB, Schedule::Immediate);
        let mut builder = Heap::builder(&device);
        if let Some(limit) = limit {
            builder = builder.hard_limit(limit);
        }
        let heap = builder.build().unwrap();
        let stream = device.stream().unwrap();
        let mut live = Vec::new();
        for action in &actions {
            match *action {
                Action::Allocate { bytes, .. } => {
                    let fit = heap.would_fit(bytes).unwrap();
                    let meter = heap.meter().unwrap();
                    live.push(heap.allocate(bytes, &stream).unwrap());
                    let taken = meter.read().unwrap().taken;
                    let Fit::Yes { take, .. } = fit else { panic!("{bytes}: {fit}") };
                    prop_assert_eq!(take, taken, "{}: {}", bytes, fit);
                }
                Action::Free { index, .. } if !live.is_empty() => {
                    drop(live.swap_remove(index % live.len()));
                }
                _ => {}
            }
        }
        let usage = heap.usage().unwrap();
        let room = limit.unwrap_or(128 * GIB);
        prop_assert!(usage.reserved_peak <= usage.live_peak / 100 * 105 + room / 50 + 4 * MIB);
        drop(live);
        assert_all_returned(&device, &heap, "stitched");
    }
}

/// Runs a program up to its first request that fails. Then applies each remedy that the error
/// names, one at a time.
fn assert_enough(pool: PoolKind, actions: &[Action], set: Set) -> Result<(), TestCaseError> {
    let mut scene = Scene::new(pool, set, DEVICE);
    let Some((at, error)) = scene.run(actions) else { return Ok(()) };
    let again = || {
        let mut again = Scene::new(pool, set, DEVICE);
        again.run(&actions[..=at]).map(|_| again)
    };
    let short_by = error.short_by.unwrap();
    // The sizes of the pieces of a driver's pool are not known in advance.
    if pool != PoolKind::Driver {
        let mut before = Scene::new(pool, set, DEVICE);
        assert!(before.run(&actions[..at]).is_none());
        // Tests with pending frees, and with all frees completed.
        for scene in [&before, &scene] {
            let fit = scene.heap.would_fit(error.requested).unwrap();
            let Fit::No { short_by: foreseen, cause, .. } = fit else { panic!("{fit}: {error}") };
            prop_assert_eq!((foreseen, cause), (short_by, error.cause), "{} {}", pool, error);
        }
    }
    let (on_limit, on_device) = (error.limit_short_by, error.device_short_by.unwrap());
    prop_assert_eq!(short_by, on_limit.max(on_device), "{}", error);
    let text = error.remedy();
    if on_limit > 0 {
        let limits = Limits { soft: None, hard: Some(set.limit.unwrap() + on_limit) };
        if on_device == 0 {
            scene.heap.set_limits(limits).unwrap();
            scene.succeeds(&error, "the limit raised")?;
        } else if error.cause != Cause::LargerThanDevice {
            prop_assert!(text.contains(" and free "), "{}", text);
            let mut ways = 0;
            for place in [Where::Hog, Where::Here, Where::Both] {
                let mut scene = again().unwrap();
                scene.heap.set_limits(limits).unwrap();
                if scene.free_at(place, on_device) {
                    scene.succeeds(&error, &format!("the limit raised and freed: {place:?}"))?;
                    ways += 1;
                }
            }
            prop_assert!(ways > 0, "{}: there is not so much", error);
        }
    } else {
        let mut scene = again().unwrap();
        if scene.free_hog(on_device) {
            scene.succeeds(&error, "what others held freed")?;
        }
    }
    let mut scene = again().unwrap();
    if text.contains("first, in whole segments") {
        prop_assert!(error.live > 0, "{}", error);
        prop_assert!(scene.free(short_by), "{}: there is not so much", error);
        scene.succeeds(&error, "live memory freed")?;
    }
    // The remedy "use a device with ... more" is checked only for the pool `none`. A pool that
    // caches would serve the earlier requests in another way on a larger device.
    let more = text.split_once("use a device with ").filter(|_| pool == PoolKind::None);
    if let Some((_, more)) = more {
        let more = gpuheap::Size::parse(more.split(" more").next().unwrap()).unwrap().to_bytes(0);
        let mut larger = Scene::new(pool, set, DEVICE + more);
        let again = larger.run(&actions[..=at]);
        prop_assert!(again.is_none(), "{}; again: {}", error, again.unwrap().1);
    }
    Ok(())
}

/// Runs a program on a separate heap, and compares each request with its forecast.
fn assert_foreseen(
    pool: PoolKind,
    actions: &[Action],
    limited: bool,
    slack: bool,
) -> Result<(), TestCaseError> {
    let device = emulated(DEVICE, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let mut builder = Heap::builder(&device).pool(pool).slack(if slack { 1.0 } else { 0.0 });
    if limited {
        builder = builder.hard_limit(64 * MIB);
    }
    let heap = builder.build().unwrap();
    let mut live = Vec::new();
    for action in actions {
        match *action {
            // All requests are on one stream. With two streams, the heap would take more memory
            // than forecast instead of waiting.
            Action::Allocate { bytes, .. } => {
                let fit = heap.would_fit(bytes).unwrap();
                let meter = heap.meter().unwrap();
                let allocated = heap.allocate(bytes, &stream);
                // In pools other than `split` and `stitched`, a small request may succeed although
                // the forecast is no. The driver may have room for it in a granule that is in use.
                let maps = matches!(pool, PoolKind::Split | PoolKind::Stitched);
                let certain = maps || bytes > 2 * MIB;
                let agree = fit.is_yes() == allocated.is_ok();
                prop_assert!(agree || !certain && allocated.is_ok(), "{} {}: {}", pool, bytes, fit);
                let Ok(block) = allocated else { continue };
                live.push(block);
                if !agree {
                    continue;
                }
                let since = meter.read().unwrap();
                let Fit::Yes { take, .. } = fit else { unreachable!() };
                // A request that is served from several free pieces may take more than forecast.
                let exact = match pool {
                    PoolKind::Stitched => (take == 0) == (since.taken == 0),
                    _ => take == since.taken,
                };
                prop_assert!(
                    exact || since.given_back > 0,
                    "{} {}: {}, and it took {:?}",
                    pool,
                    bytes,
                    fit,
                    since
                );
            }
            Action::Free { index, .. } if !live.is_empty() => {
                drop(live.swap_remove(index % live.len()));
            }
            _ => {}
        }
    }
    drop(live);
    assert_all_returned(&device, &heap, pool.name());
    Ok(())
}

/// A small run is a part of the pool for small requests. After its last block is freed, the run
/// keeps its memory, and a range for large requests maps the same memory. A large request in that
/// range takes no new memory, as forecast.
#[test]
fn range_over_small_run_takes_nothing() {
    let allocate = |bytes| Action::Allocate { bytes, stream: 0 };
    let free = |index| Action::Free { index, stream: 0 };
    let program = [
        allocate(17 * MIB / 2),
        allocate(23 * MIB / 2),
        allocate(25 * MIB + 1),
        free(5721755506901390002),
        allocate(19 * MIB),
        free(3024605707250121562),
        allocate(37 * MIB + 1),
        allocate(65537),
        free(1616450201109101227),
        allocate(1),
        free(13376237353017495959),
        allocate(12 * MIB),
    ];
    assert_foreseen(PoolKind::Stitched, &program, true, false).unwrap();
}

/// Parameters of a heap that is alone on its device. It has a limit, and work is done immediately.
fn limited() -> Set {
    Set { limit: Some(64 * MIB), hogs: false, schedule: Schedule::Immediate }
}

/// The small blocks share a chunk with free bytes. `short_by` must not count on these bytes: if the
/// small blocks are freed, the whole chunk returns to the driver.
#[test]
fn short_by_holds_in_any_order() {
    for pool in PoolKind::ALL {
        for large_first in [false, true] {
            let mut scene = Scene::new(pool, limited(), DEVICE);
            for bytes in [13 * MIB / 2, 27 * MIB / 2, 1, 1, 1] {
                scene.live.push(scene.heap.allocate(bytes, &scene.streams[0]).unwrap());
            }
            let error = scene.heap.allocate(44 * MIB + 1, &scene.streams[0]).unwrap_err();
            let evidence = error.out_of_memory().unwrap().clone();
            if large_first {
                scene.live.reverse();
            }
            assert!(scene.free(evidence.short_by.unwrap()), "{pool}: {error}");
            scene.succeeds(&evidence, &format!("{pool}, {large_first}")).unwrap();
        }
    }
}

#[test]
fn oversized_request_counts_live_bytes() {
    for pool in PoolKind::ALL {
        let mut scene = Scene::new(pool, limited(), GIB);
        scene.live.push(scene.heap.allocate(32 * MIB, &scene.streams[0]).unwrap());
        let error = scene.heap.allocate(96 * MIB, &scene.streams[0]).unwrap_err();
        let evidence = error.out_of_memory().unwrap();
        assert_eq!(evidence.cause, Cause::LargerThanLimit, "{pool}: {error}");
        let text = error.to_string();
        assert!(!text.contains("free "), "nothing that is freed is enough: {text}");
        let hard = Some(64 * MIB + evidence.limit_short_by);
        scene.heap.set_limits(Limits { soft: None, hard }).unwrap();
        scene.live.push(scene.heap.allocate(96 * MIB, &scene.streams[0]).unwrap());
    }
}

#[test]
fn fixed_limit_is_no_remedy() {
    for pool in PoolKind::ALL {
        let device = emulated(GIB, Schedule::Immediate);
        let stream = device.stream().unwrap();
        let build = |limit| Heap::builder(&device).pool(pool).hard_limit(limit).build().unwrap();
        let tight = build(64 * MIB);
        let live = tight.allocate(40 * MIB, &stream).unwrap();
        for bytes in [40 * MIB, 100 * MIB] {
            let error = tight.allocate(bytes, &stream).unwrap_err();
            let evidence = error.out_of_memory().unwrap();
            let (text, fit) = (error.to_string(), tight.would_fit(bytes).unwrap().to_string());
            let raised = 64 * MIB + evidence.limit_short_by;
            let limits = Limits { soft: None, hard: Some(raised) };
            assert_eq!(evidence.limit_is_fixed, pool == PoolKind::Driver, "{pool}: {text}");
            assert_eq!(
                tight.set_limits(limits).is_err(),
                evidence.limit_is_fixed,
                "{pool}: {text}"
            );
            for said in [&text, &fit] {
                assert_eq!(said.contains("raise the limit"), !evidence.limit_is_fixed, "{said}");
                assert_eq!(said.contains("build a heap with"), evidence.limit_is_fixed, "{said}");
            }
            tight.set_limits(Limits { soft: None, hard: Some(64 * MIB) }).unwrap();
            let other = build(raised);
            let again = other.allocate(40 * MIB, &stream).unwrap();
            drop(other.allocate(bytes, &stream).unwrap());
            drop(again);
        }
        drop(live);
        assert_all_returned(&device, &tight, pool.name());
    }
}

#[test]
fn rounding_past_limit_is_reported() {
    let device = emulated(GIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let heap = Heap::builder(&device).pool(PoolKind::Binned).hard_limit(100 * MIB).build().unwrap();
    let error = heap.allocate(65 * MIB, &stream).unwrap_err().to_string();
    let expected = "out of GPU memory: 65 MiB requested, 28 MiB short, because the request, \
                    which the binned pool rounds up to 128 MiB, is larger than the limit; raise \
                    the limit by 28 MiB (";
    assert!(error.starts_with(expected), "{error}");
}

/// Makes a device whose driver reports 256 MiB more than it has.
fn wsl2() -> Device {
    let options =
        Options { schedule: Schedule::Immediate, ..Options::with_device(Profile::wsl2_rtx4060()) };
    Device::emulated_with(options).unwrap()
}

#[test]
fn driver_refusal_is_not_device_full() {
    for pool in PoolKind::ALL {
        let device = wsl2();
        let stream = device.stream().unwrap();
        let heap = Heap::builder(&device).pool(pool).hard_limit(8 * GIB).build().unwrap();
        let bytes = 76 * GIB / 10;
        let fit = heap.would_fit(bytes).unwrap();
        assert!(matches!(fit, Fit::Perhaps { .. }) && !fit.is_yes(), "{pool}: {fit}");
        assert!(fit.to_string().starts_with("perhaps, by taking 7.6"), "{fit}");
        let error = heap.allocate(bytes, &stream).unwrap_err();
        let evidence = error.out_of_memory().unwrap();
        let text = error.to_string();
        assert_eq!((evidence.cause, evidence.short_by), (Cause::Refused, None), "{pool}: {text}");
        let free = evidence.device_free.unwrap();
        assert!(free >= evidence.needed && evidence.needed >= bytes, "{pool}: {text}");
        for part in [
            "7.60 GiB requested, but the driver refuses 7.60",
            "that it calls free",
            "programs of Windows",
            "promised elsewhere",
            "the largest request that would succeed is not known",
        ] {
            assert!(text.contains(part), "{pool}: no '{part}' in {text}");
        }
        assert!(!text.contains("full") && !text.contains(" first"), "{pool}: {text}");
        // The driver reports more memory than the device has, but the device's own 7 GiB are free.
        drop(heap.allocate(7 * GIB, &stream).unwrap());
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// If `would_fit` returns yes, the request succeeds, and if it returns no, the request fails. This
/// driver reports too much free memory: for requests of nearly all of it, the result is "perhaps".
#[test]
fn overpromising_driver_gives_perhaps() {
    for pool in PoolKind::ALL {
        for live in [0, 3] {
            let device = wsl2();
            let stream = device.stream().unwrap();
            let builder = Heap::builder(&device).pool(pool).without_environment();
            let heap = builder.build().unwrap();
            let _live = heap.allocate(live * GIB, &stream).unwrap();
            let mut perhaps = 0;
            for at in 0..=32 {
                let bytes = at * GIB / 4 + 1;
                let fit = heap.would_fit(bytes).unwrap();
                let served = heap.allocate(bytes, &stream).is_ok();
                heap.reclaim_all().unwrap();
                match fit {
                    Fit::Yes { .. } => assert!(served, "{pool} {live} {bytes}: {fit}"),
                    // Larger requests would fail too, so the loop ends here. On WSL2 each failed
                    // request waits 2 s for freed memory that the host returns late.
                    Fit::No { .. } => {
                        assert!(!served, "{pool} {live} {bytes}: {fit}");
                        break;
                    }
                    _ => perhaps += 1,
                }
            }
            assert!((1..=10).contains(&perhaps), "{pool} {live}: {perhaps}");
        }
    }
}

#[test]
fn refused_bytes_are_not_promised_again() {
    let device = emulated(GIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let heap = heap(&device, PoolKind::None);
    let emulator = device.emulator().unwrap();
    assert_eq!(heap.would_fit(800 * MIB).unwrap(), heap.would_fit(800 * MIB).unwrap());
    let refusal = Fault::nth("cuMemAlloc_v2", 1, CUresult::ERROR_OUT_OF_MEMORY).onwards();
    emulator.set_faults(FaultPlan::new([refusal]));
    let error = heap.allocate(800 * MIB, &stream).unwrap_err();
    emulator.set_faults(FaultPlan::default());
    let evidence = error.out_of_memory().unwrap();
    assert_eq!((evidence.cause, evidence.device_free), (Cause::Refused, Some(GIB)), "{error}");
    for (bytes, certain) in [(800, false), (900, false), (797, true), (1, true)] {
        let fit = heap.would_fit(bytes * MIB).unwrap();
        assert_eq!(fit.is_yes(), certain, "{bytes}: {fit}");
    }
}

#[test]
fn unreported_memory_stays_unknown() {
    for pool in PoolKind::ALL {
        let device = emulated(256 * MIB, Schedule::Immediate);
        let stream = device.stream().unwrap();
        let heap = heap(&device, pool);
        let _live = heap.allocate(100 * MIB, &stream).unwrap();
        let emulator = device.emulator().unwrap();
        let silent = Fault::nth("cuMemGetInfo_v2", 1, CUresult::ERROR_UNKNOWN).onwards();
        emulator.set_faults(FaultPlan::new([silent]));
        let error = heap.allocate(200 * MIB, &stream).unwrap_err();
        let fit = heap.would_fit(200 * MIB).unwrap();
        let too_large = heap.would_fit(300 * MIB).unwrap();
        let cached = heap.would_fit(0).unwrap();
        emulator.set_faults(FaultPlan::default());
        let evidence = error.out_of_memory().unwrap();
        let text = error.to_string();
        assert_eq!((evidence.device_free, evidence.foreign), (None, None), "{pool}: {text}");
        assert_eq!((evidence.short_by, evidence.device_short_by), (None, None), "{pool}: {text}");
        assert_eq!(evidence.device, Some(256 * MIB), "{pool}: {text}");
        assert!(
            text.contains("256 MiB, of which the driver does not say how much is free"),
            "{text}"
        );
        for made_up in [" 0 ", "foreign", "short", "full"] {
            assert!(!text.contains(made_up), "{pool}: {text}");
        }
        assert!(matches!(fit, Fit::Perhaps { free: None, .. }), "{pool}: {fit}");
        let text = fit.to_string();
        assert!(text.ends_with(", which does not say how much is free"), "{pool}: {text}");
        let is_too_large = matches!(too_large, Fit::No { cause: Cause::LargerThanDevice, .. });
        assert!(is_too_large, "{pool}: {too_large}");
        assert!(cached.is_yes());
    }
}

/// Allocates `held` bytes and then 21 MiB of pinned memory, in a heap with a pinned limit.
#[cfg(feature = "arrays")]
fn pinned(pool: PoolKind, limit: u64, held: usize) -> Result<(), Error> {
    let device = emulated(1 << 30, Schedule::Immediate);
    let heap = Heap::builder(&device).without_environment().pool(pool).pinned_limit(limit);
    let target = heap.build().unwrap().target().unwrap().kind(MemoryKind::Pinned);
    let _held = target.uninit::<u8, _>(held).unwrap();
    target.uninit::<u8, _>(21 << 20).map(drop)
}

/// The error names a limit. If its text does not say "at least", the request fits that limit.
#[test]
#[cfg(feature = "arrays")]
fn pinned_error_names_sufficient_limit() {
    for pool in PoolKind::ALL {
        for held in [0, 2 << 20] {
            let error = pinned(pool, 3 * MIB, held).unwrap_err();
            let remedy = error.out_of_memory().unwrap().remedy();
            let is_least = remedy.starts_with("raise pinned_limit by at least ");
            assert_eq!(is_least, held > 0 && pool != PoolKind::None, "{pool}: {remedy}");
            let again = pinned(pool, 3 * MIB + error.out_of_memory().unwrap().limit_short_by, held);
            assert!(is_least || again.is_ok(), "{pool}: {remedy}; {again:?}");
        }
    }
}
