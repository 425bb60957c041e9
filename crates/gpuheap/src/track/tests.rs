//! Tests of the tracker with made-up addresses, without a device.

use crate::Caller;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use super::*;

fn allocate(tracker: &Tracker, bytes: u64) -> TrackId {
    allocate_at(tracker, bytes, Location::caller()).unwrap()
}

#[track_caller]
fn here() -> Caller {
    Location::caller()
}

fn allocate_at(tracker: &Tracker, bytes: u64, at: Caller) -> Option<TrackId> {
    static ADDRESS: AtomicU64 = AtomicU64::new(0x7f00_0000_0000);
    let address = ADDRESS.fetch_add(bytes.max(1), Ordering::Relaxed);
    tracker.allocated(address, bytes, MemoryKind::Device, 0, at)
}

#[test]
#[cfg_attr(miri, ignore = "a snapshot: insta runs cargo to find the folder")]
fn tracking_parses_listed_names() {
    for tracking in Tracking::ALL {
        assert_eq!(Tracking::parse(tracking.name()), Ok(tracking));
    }
    insta::assert_snapshot!(
        Tracking::parse("on").unwrap_err(),
        @"'on' is not a kind of tracking; write off, counts, backtraces"
    );
}

#[test]
fn tracking_off_fails_leak_assertion() {
    let tracker = Tracker::new(Tracking::Off);
    assert_eq!(allocate_at(&tracker, 8, here()), None);
    let leaks = tracker.leaks();
    assert!(leaks.is_empty() && tracker.outstanding().is_empty());
    assert_eq!(leaks.to_string(), "Outstanding allocations are not known: tracking is off");
    assert_eq!(tracker.snapshot().diff(&tracker.snapshot()).changes.len(), 0);
    assert!(std::panic::catch_unwind(|| assert_no_leaks(&leaks)).is_err());
}

#[test]
fn leaks_group_by_line_and_kind() {
    let tracker = Tracker::new(Tracking::Counts);
    let (small, large) = (here(), here());
    let ids: Vec<_> = (0..3).map(|_| allocate_at(&tracker, 8, small).unwrap()).collect();
    allocate_at(&tracker, 4096, large).unwrap();
    allocate_at(&tracker, 0, large).unwrap();
    tracker.allocated(1, 100, MemoryKind::Pinned, 0, small).unwrap();
    tracker.freed(ids[1], None);

    let leaks = tracker.leaks();
    assert_eq!((leaks.allocations, leaks.bytes), (5, 4212));
    let sites: Vec<_> =
        leaks.sites.iter().map(|site| (site.at, site.kind, site.allocations, site.bytes)).collect();
    assert_eq!(
        sites,
        [
            (large, MemoryKind::Device, 2, 4096),
            (small, MemoryKind::Pinned, 1, 100),
            (small, MemoryKind::Device, 2, 16),
        ]
    );
    assert!(leaks.sites.iter().all(|site| site.oldest >= site.youngest));
    assert!(leaks.sites[2].oldest > leaks.sites[2].youngest);
    let [only] = &leaks.sites[2].threads[..] else { panic!("{leaks}") };
    assert_eq!((only.allocations, only.bytes, only.ended), (2, 16, false));
    // Under Miri, threads have no name in the operating system.
    if !cfg!(miri) {
        let name: String = thread::current().name().unwrap().chars().take(15).collect();
        assert_eq!(only.name, name);
    }

    let json = serde_json::to_value(&leaks).unwrap();
    assert_eq!(json["sites"][0]["at"], large.to_string());
    assert_eq!(json["sites"][0]["kind"], "device");
    assert!(json["sites"][0]["oldest_seconds"].is_f64());
    assert_eq!(json["sites"][0]["stack"]["frames"][0]["line"], large.line());
}

/// If several crates use a generic function, the compiler stores its lines at several addresses.
/// The test imitates this.
#[test]
fn line_at_several_addresses_is_merged() {
    let tracker = Tracker::new(Tracking::Counts);
    let at = here();
    static AGAIN: OnceLock<Location<'static>> = OnceLock::new();
    let again = AGAIN.get_or_init(|| *at);
    for at in [at, again, at, again] {
        allocate_at(&tracker, 8, at);
    }
    let leaks = tracker.leaks();
    let [site] = &leaks.sites[..] else { panic!("{leaks}") };
    assert_eq!(site.allocations, 4);
}

#[test]
#[cfg_attr(miri, ignore = "a snapshot: insta runs cargo to find the folder")]
fn leaks_display_sites_and_threads() {
    let tracker = Tracker::new(Tracking::Counts);
    let at = here();
    let named = thread::Builder::new().name("loader".to_owned());
    tracker.set_on_thread_end(|_| ());
    thread::scope(|scope| {
        let body = || {
            allocate_at(&tracker, 8192, at);
            allocate_at(&tracker, 8192, at);
            allocate_at(&tracker, 8, here());
        };
        named.spawn_scoped(scope, body).unwrap().join().unwrap();
    });
    insta::assert_snapshot!(redacted(&tracker.leaks().to_string()), @r"
    3 allocations outstanding: 16.01 KiB from 2 sites

    16 KiB in 2 allocations of device memory, N TIME to N TIME old
    by thread 'loader' (ID, ended): 16 KiB
     [1] at crates/gpuheap/src/track/tests.rs:LINE

    8 bytes in 1 allocation of device memory, N TIME old
    by thread 'loader' (ID, ended): 8 bytes
     [1] at crates/gpuheap/src/track/tests.rs:LINE
    ");
    let empty = Tracker::new(Tracking::Counts).leaks();
    assert_eq!(empty.to_string(), "0 allocations outstanding: 0");
}

/// Replaces times, identifiers and lines, because they differ from run to run.
fn redacted(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let words = line.split(' ').map(|word| {
            let number = word.trim_start_matches('(').trim_end_matches([',', ')']);
            match word.split_once(".rs:") {
                Some((file, _)) => format!("{file}.rs:LINE"),
                None if word.starts_with('(') && number.parse::<u64>().is_ok() => {
                    word.replace(number, "ID")
                }
                None => word.to_owned(),
            }
        });
        let mut words: Vec<_> = words.collect();
        for at in 1..words.len() {
            if ["µs", "ms", "s"].contains(&words[at].as_str()) {
                words[at - 1] = "N".to_owned();
                words[at] = "TIME".to_owned();
            }
        }
        out += words.join(" ").trim_end();
        out += "\n";
    }
    out
}

#[test]
fn second_free_of_identifier_is_ignored() {
    let tracker = Tracker::new(Tracking::Counts);
    let first = allocate(&tracker, 8);
    let second = allocate(&tracker, 16);
    tracker.freed(first, None);
    tracker.freed(first, None);
    assert_eq!(tracker.leaks().bytes, 16);
    assert_eq!(allocate(&tracker, 32), first, "identifiers are used again");
    tracker.freed(second, None);
    tracker.freed(first, None);
    assert_no_leaks(&tracker.leaks());
    assert_eq!(tracker.outstanding().len(), 0);
}

#[test]
#[should_panic = "1 allocation outstanding: 8 bytes from 1 site"]
fn leak_assertion_panics_with_report() {
    let tracker = Tracker::new(Tracking::Counts);
    allocate(&tracker, 8);
    assert_no_leaks(&tracker.leaks());
}

#[test]
#[cfg_attr(miri, ignore = "a snapshot: insta runs cargo to find the folder")]
fn diff_lists_growth_and_decrease() {
    let tracker = Tracker::new(Tracking::Counts);
    let (stays, goes, comes) = (here(), here(), here());
    allocate_at(&tracker, 1, stays);
    let gone = allocate_at(&tracker, 4096, goes).unwrap();
    let before = tracker.snapshot();
    tracker.freed(gone, None);
    allocate_at(&tracker, 8, comes);
    allocate_at(&tracker, 8, comes);
    let after = tracker.snapshot();
    assert_eq!((before.allocations(), before.bytes()), (2, 4097));

    let diff = after.diff(&before);
    let changes: Vec<_> =
        diff.changes.iter().map(|change| (change.at, change.allocations, change.bytes)).collect();
    assert_eq!(changes, [(comes, 2, 16), (goes, -1, -4096)]);
    assert_eq!((diff.allocations, diff.bytes), (1, -4080));
    insta::assert_snapshot!(redacted(&diff.to_string()), @r"
    -3.98 KiB in +1 allocation in N TIME at 2 sites

    +16 bytes in 2 allocations of device memory
     [1] at crates/gpuheap/src/track/tests.rs:LINE

    -4 KiB in 1 allocation of device memory
     [1] at crates/gpuheap/src/track/tests.rs:LINE
    ");
    assert!(after.diff(&after).is_empty());
    assert!(after.diff(&after).to_string().starts_with("Nothing changed in "));
}

#[test]
#[cfg_attr(miri, ignore = "it makes return addresses up anew each time")]
fn equal_stacks_share_a_site() {
    let tracker = Tracker::new(Tracking::Backtraces);
    for _ in 0..100 {
        allocate(&tracker, 8);
    }
    let other = allocate(&tracker, 8);
    assert_eq!(tracker.lock().sites.len(), 2);
    let leaks = tracker.leaks();
    assert_eq!(leaks.sites.iter().map(|site| site.allocations).collect::<Vec<_>>(), [100, 1]);
    // A site outlives its freed allocations, so that the next allocation there reuses the site.
    tracker.freed(other, None);
    assert_eq!(tracker.lock().sites.len(), 2);
    assert_eq!(tracker.leaks().sites.len(), 1);
}

/// Sites that never repeat do not fill the memory. A site in a snapshot stays, because a comparison
/// with a later snapshot needs it.
#[test]
fn sites_without_allocations_are_removed() {
    let tracker = Tracker::new(Tracking::Counts);
    let kept = here();
    let kept_id = allocate_at(&tracker, 8, kept).unwrap();
    let before = tracker.snapshot();
    tracker.freed(kept_id, None);
    let live = allocate_at(&tracker, 16, here()).unwrap();
    let mut state = tracker.lock();
    for number in 0..if cfg!(miri) { 200 } else { 20_000 } {
        let key = site::SiteKey::from_number(number);
        let index = state.sites.allocated(&key, here(), MemoryKind::Device, 1);
        state.sites.freed(index, 1);
    }
    assert!(state.sites.len() < 10_000, "{}", state.sites.len());
    drop(state);
    allocate_at(&tracker, 8, kept);
    let diff = tracker.snapshot().diff(&before);
    assert_eq!(diff.changes.iter().map(|change| change.bytes).collect::<Vec<_>>(), [16]);
    tracker.freed(live, None);
    assert_eq!(tracker.leaks().bytes, 8);
}

#[inline(never)]
fn outer(tracker: &Tracker) -> Caller {
    let at = inner(tracker);
    std::hint::black_box(at)
}

#[inline(always)]
fn inner(tracker: &Tracker) -> Caller {
    let at = public(tracker);
    std::hint::black_box(at)
}

/// Imitates a public function of gpuheap. Stacks leave out gpuheap's own frames, so they begin with
/// the caller of this function.
#[track_caller]
#[inline(never)]
fn public(tracker: &Tracker) -> Caller {
    let at = Location::caller();
    let _ = std::hint::black_box(allocate_at(tracker, 8, at));
    at
}

#[test]
#[cfg_attr(miri, ignore = "it resolves no address that was kept as a number")]
fn stack_starts_at_caller() {
    let tracker = Tracker::new(Tracking::Backtraces);
    let at = outer(&tracker);
    let all = tracker.outstanding();
    let [one] = &all[..] else { panic!("{all:?}") };
    let frames = one.stack.frames();
    let shown = one.to_string();
    assert!(!one.stack.lacks_line_tables() && !one.stack.is_cut(), "{shown}");

    let name = |frame: &Frame| frame.name.clone().unwrap_or_default();
    // With line tables alone, names lack their modules.
    assert!(["gpuheap::track::tests::inner", "inner"].contains(&&*name(&frames[0])), "{shown}");
    assert_eq!(frames[0].file.as_deref(), Some(at.file()));
    assert_eq!(frames[0].line, Some(at.line()));
    assert!(frames[0].inlined, "{shown}");
    assert!(name(&frames[1]).ends_with("outer"), "{shown}");
    assert_eq!(frames[1].file.as_deref(), Some(at.file()), "as short as the first frame's");
    assert!(!frames[1].inlined, "{shown}");
    let this = "stack_starts_at_caller";
    assert!(frames.iter().any(|frame| name(frame).contains(this)), "{shown}");
    assert!(!shown.contains("__rust_begin_short_backtrace"), "{shown}");
    assert!(!shown.contains("::h") && !shown.contains("backtrace::"), "{shown}");

    let mut text = String::new();
    all.iter().for_each(|one| text.push_str(&format!("\n{one}\n")));
    let lines: Vec<_> = text.lines().collect();
    let block = format!("Outstanding memory allocation of 8 bytes at {:#x}", one.address);
    let first = format!(" [1] {} at {}:{} [inlined]", name(&frames[0]), at.file(), at.line());
    assert_eq!(lines[..3], ["", &block, &first]);
}

#[test]
#[cfg_attr(miri, ignore = "a snapshot: insta runs cargo to find the folder")]
fn thread_end_is_reported_by_name() {
    let tracker = Tracker::new(Tracking::Counts);
    let ends = Arc::new(Mutex::new(Vec::new()));
    let seen = ends.clone();
    tracker.set_on_thread_end(move |end: &ThreadEnd| {
        seen.lock().unwrap().push(end.clone());
        panic!("a handler's panic goes no further");
    });
    allocate(&tracker, 1);
    let run = |name: &str, body: &(dyn Fn() + Sync)| {
        let builder = thread::Builder::new().name(name.to_owned());
        // Joins the thread explicitly: a scope does not wait for the end of thread-local variables.
        thread::scope(|scope| builder.spawn_scoped(scope, body).unwrap().join().unwrap());
    };
    let handed_on = Mutex::new(None);
    run("tidy", &|| tracker.freed(allocate(&tracker, 8), None));
    run("idle", &|| ());
    run("untidy", &|| {
        allocate(&tracker, 4096);
        allocate(&tracker, 4096);
    });
    run("producer", &|| *handed_on.lock().unwrap() = Some(allocate(&tracker, 16)));

    let ends = ends.lock().unwrap();
    let told: Vec<_> =
        ends.iter().map(|end| (&*end.name, end.leaks.allocations, end.leaks.bytes)).collect();
    assert_eq!(told, [("untidy", 2, 8192), ("producer", 1, 16)]);
    insta::assert_snapshot!(redacted(&ends[0].to_string()), @r"
    Thread 'untidy' (ID) ended and left behind or handed on:
    2 allocations outstanding: 8 KiB from 1 site

    8 KiB in 2 allocations of device memory, N TIME to N TIME old
    by thread 'untidy' (ID, ended): 8 KiB
     [1] at crates/gpuheap/src/track/tests.rs:LINE
    ");
    let leaks = tracker.leaks();
    let threads = leaks.sites.iter().flat_map(|site| &site.threads);
    let ended: Vec<_> = threads.filter(|thread| thread.ended).map(|thread| &*thread.name).collect();
    assert_eq!(ended, ["untidy", "producer"], "{leaks}");

    // If a thread has ended and all its allocations are freed, a new thread reuses its entry.
    tracker.freed(handed_on.lock().unwrap().unwrap(), None);
    let places = tracker.lock().threads.len();
    for _ in 0..10 {
        run("tidy", &|| tracker.freed(allocate(&tracker, 8), None));
    }
    assert_eq!(tracker.lock().threads.len(), places);
}

/// A tracker that was dropped before a thread ends reports nothing. The thread's other trackers
/// report.
#[test]
fn each_tracker_reports_thread_end() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let trackers: Vec<_> = (0..3).map(|_| Tracker::new(Tracking::Counts)).collect();
    for (number, tracker) in trackers.iter().enumerate() {
        let told = told.clone();
        tracker.set_on_thread_end(move |end| {
            told.lock().unwrap().push((number, end.leaks.bytes));
        });
    }
    let kept = [trackers[0].clone(), trackers[2].clone()];
    thread::spawn(move || {
        for (tracker, bytes) in trackers.iter().zip([1, 2, 3]) {
            allocate(tracker, bytes);
        }
        drop(trackers);
    })
    .join()
    .unwrap();
    assert_eq!(*told.lock().unwrap(), [(0, 1), (2, 3)]);
    drop(kept);
}

#[test]
fn eight_threads_count_exactly() {
    let steps = if cfg!(miri) { 6 } else { 2000 };
    let all = [Tracking::Counts, Tracking::Backtraces];
    for tracking in all.into_iter().take(if cfg!(miri) { 1 } else { 2 }) {
        let tracker = Tracker::new(tracking);
        tracker.set_on_thread_end(|_| ());
        let left = Mutex::new(Vec::new());
        let work = |number: u64| {
            let mut held = Vec::new();
            for step in 0..steps {
                held.push(allocate(&tracker, number + step));
                if step % 3 != 0 {
                    tracker.freed(held.swap_remove(step as usize % held.len()), None);
                }
            }
            // Other threads free the rest.
            left.lock().unwrap().extend(held);
        };
        thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || work(number));
            }
        });
        let left = left.into_inner().unwrap();
        let (leaks, snapshot) = (tracker.leaks(), tracker.snapshot());
        assert_eq!(leaks.allocations, left.len() as u64);
        assert_eq!(left.len() as u64, 8 * steps.div_ceil(3));
        assert_eq!((leaks.allocations, leaks.bytes), (snapshot.allocations(), snapshot.bytes()));
        let threads = leaks.sites.iter().flat_map(|site| &site.threads);
        assert_eq!(threads.map(|thread| thread.bytes).sum::<u64>(), leaks.bytes);
        left.into_iter().for_each(|id| tracker.freed(id, None));
        assert_no_leaks(&tracker.leaks());
        assert_eq!(tracker.snapshot().bytes(), 0);
    }
}
