//! Leak reports through the public face, on the emulator or on the device of `GPUHEAP_TEST_DEVICE`.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;

use std::process::Command;
use std::sync::{Arc, Mutex};

use gpuheap::emu::Schedule;
use gpuheap::{Consumer, Device, DeviceArray, Heap, MemoryKind, Target, Tracking, assert_no_leaks};
use support::{assert_all_returned, device};

fn heap(tracking: Tracking) -> (Device, Heap) {
    let device = device(1 << 30, Schedule::Seeded(3));
    let heap = Heap::builder(&device).track(tracking).build().unwrap();
    (device, heap)
}

#[test]
fn leaks_are_grouped_by_the_line_that_allocated() {
    for tracking in [Tracking::Counts, Tracking::Backtraces] {
        let (device, heap) = heap(tracking);
        let target = heap.target().unwrap();
        let mut arrays: Vec<DeviceArray<u8>> = Vec::new();
        let line = line!() + 2;
        for _ in 0..3 {
            arrays.push(target.zeroed(1000).unwrap());
        }
        let pinned = target.kind(MemoryKind::Pinned).array(&[1_u64; 8]).unwrap();
        let block = heap.allocate(5, target.stream()).unwrap();
        let leaks = heap.leaks().unwrap();
        assert_eq!((leaks.allocations, leaks.bytes), (5, 3069), "{leaks}");
        let most = &leaks.sites[0];
        assert_eq!((most.allocations, most.bytes, most.kind), (3, 3000, MemoryKind::Device));
        assert_eq!((most.at.file(), most.at.line()), (file!(), line));
        assert_eq!(leaks.sites[1].kind, MemoryKind::Pinned);
        assert_eq!(leaks.sites[2].bytes, 5);
        drop((arrays, pinned, block));
        assert_no_leaks(&heap.leaks().unwrap());
        assert_all_returned(&device, &heap, "grouped");
    }
}

/// Every way to make an array says the line of whoever called it, not one of gpuheap's own.
#[test]
fn every_way_to_make_an_array_is_the_callers() {
    let (_device, heap) = heap(Tracking::Backtraces);
    let target = heap.target().unwrap();
    let a = target.array(&[1_u8; 1]).unwrap();
    let made = [
        target.uninit::<u8, _>(1).unwrap().fill(1).unwrap(),
        target.zeroed(1).unwrap(),
        target.filled(1, 7).unwrap(),
        target.copy_of(&a).unwrap(),
        a.copy().unwrap(),
        a.copy_to(&target).unwrap(),
    ];
    let outstanding = heap.outstanding().unwrap();
    assert_eq!(outstanding.len(), made.len() + 1);
    for one in &outstanding {
        assert_eq!(one.at.file(), file!(), "{}", one.stack);
        let first = &one.stack.frames()[0];
        assert!(first.file.as_deref().is_some_and(|file| file.ends_with("leaks.rs")), "{first:?}");
        assert_eq!(first.line, Some(one.at.line()), "{first:?}");
    }
    drop((a, made));
}

#[test]
fn what_changed_between_two_moments_is_told() {
    let (_device, heap) = heap(Tracking::Counts);
    let target = heap.target().unwrap();
    let old = target.zeroed::<u8, _>(100).unwrap();
    let before = heap.snapshot().unwrap();
    let new = target.zeroed::<u8, _>(300).unwrap();
    drop(old);
    let change = heap.snapshot().unwrap().diff(&before);
    assert_eq!((change.allocations, change.bytes), (0, 200), "{change}");
    assert_eq!(change.changes.len(), 2, "{change}");
    drop(new);
}

/// Memory that runs out says which lines hold the most of it.
#[test]
fn leaks_and_changes_are_had_as_json() {
    let (_device, heap) = heap(Tracking::Counts);
    let before = heap.snapshot().unwrap();
    let array = heap.target().unwrap().uninit::<u8, _>(1000).unwrap();
    let leaks = heap.leaks().unwrap().to_json();
    let start = r#"{"tracking":"counts","allocations":1,"bytes":1000,"sites":[{"at":"#;
    assert!(leaks.starts_with(start), "{leaks}");
    let diff = heap.snapshot().unwrap().diff(&before).to_json();
    assert!(diff.contains(r#""allocations":1,"bytes":1000,"changes":[{"at":"#), "{diff}");
    drop(array);
}

#[test]
fn running_out_names_the_largest_consumers() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = Heap::builder(&device).track(Tracking::Backtraces).hard_limit(64 << 20).build();
    let heap = heap.unwrap();
    let target = heap.target().unwrap();
    let line = line!() + 1;
    let most = [0, 1].map(|_| target.zeroed::<u8, _>(20 << 20).unwrap());
    let less = target.zeroed::<u8, _>(4 << 20).unwrap();
    let other_kind = target.kind(MemoryKind::Pinned).zeroed::<u8, _>(30 << 20).unwrap();
    let error = target.zeroed::<u8, _>(30 << 20).unwrap_err();
    let consumers = &error.out_of_memory().unwrap().consumers;
    assert_eq!(consumers.len(), 2, "{error}");
    let Consumer { at, allocations, bytes } = consumers[0];
    assert_eq!((at.line(), allocations, bytes), (line, 2, 40 << 20));
    let text = format!("most is held by {}:{line} (40.000 MiB in 2), ", file!());
    assert!(error.to_string().contains(&text), "{error}");
    drop((most, less, other_kind));
}

/// What people ask: the thread ended, why is its memory still there?
#[test]
fn what_a_thread_leaves_behind_is_reported_by_its_name() {
    let (_device, heap) = heap(Tracking::Counts);
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = told.clone();
    heap.on_thread_end(move |end| listener.lock().unwrap().push(end.clone()));
    let left: Arc<Mutex<Vec<DeviceArray<u8>>>> = Arc::default();
    let target = heap.target().unwrap();
    let spawn = |name: &str, keeps: bool| {
        let (target, left): (Target, _) = (target.clone(), left.clone());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let array = target.zeroed(4096).unwrap();
            if keeps {
                left.lock().unwrap().push(array);
            }
        });
        thread.unwrap().join().unwrap();
    };
    spawn("loader", true);
    spawn("tidy", false);
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].leaks.bytes, 4096);
    assert!(told[0].to_string().contains("loader"), "{}", told[0]);
    let leaks = heap.leaks().unwrap();
    assert!(leaks.sites[0].threads[0].ended, "{leaks}");
    assert_eq!(left.lock().unwrap()[0].to_vec().unwrap(), [0; 4096]);
}

#[test]
fn untracked_heaps_say_how_to_track() {
    let (_device, heap) = heap(Tracking::Off);
    let text = heap.leaks().unwrap_err().to_string();
    assert!(text.contains("HeapBuilder::track") && text.contains("GPUHEAP_TRACK"), "{text}");
    assert_eq!(heap.snapshot().unwrap_err().to_string(), text);
}

/// Settings of the environment reach a heap, and the builder wins over them. A child of this program
/// has them, since they are read once in a process.
#[test]
fn the_environment_is_heard_and_the_builder_wins() {
    const CHILD: &str = "GPUHEAP_TEST_ENVIRONMENT_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let device = Device::open("emulated:1GiB").unwrap();
        let heap = Heap::new(&device).unwrap();
        assert_eq!(heap.pool(), gpuheap::PoolKind::Binned);
        assert_eq!(heap.limits().hard, Some(512 << 20));
        assert_eq!(heap.limits().soft, Some(10_000));
        assert_eq!(heap.tracking(), Tracking::Counts);
        let own = Heap::builder(&device).track(Tracking::Off).hard_limit(5 << 20).build().unwrap();
        assert_eq!((own.tracking(), own.limits().hard), (Tracking::Off, Some(5 << 20)));
        let bare = Heap::builder(&device).without_environment().build().unwrap();
        assert_eq!((bare.limits().hard, bare.pool()), (None, gpuheap::PoolKind::Split));
        return;
    }
    let run = |limit: &str| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_environment_is_heard_and_the_builder_wins", "--nocapture"])
            .env(CHILD, "1")
            .env("GPUHEAP_POOL", "binned")
            .env("GPUHEAP_MEMORY_LIMIT", limit)
            .env("GPUHEAP_SOFT_MEMORY_LIMIT", "10000")
            .env("GPUHEAP_TRACK", "counts")
            .output()
            .unwrap()
    };
    let good = run("50%");
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    let bad = run("half");
    assert!(!bad.status.success());
    let text = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(text.contains("GPUHEAP_MEMORY_LIMIT is set to 'half'"), "{text}");
}

/// A handler that holds tracked memory of the heap may be replaced: it ends with no lock held.
#[test]
fn a_handler_that_holds_an_array_can_be_replaced() {
    let (device, heap) = heap(Tracking::Counts);
    let array = heap.target().unwrap().zeroed::<u8, _>(100).unwrap();
    heap.on_thread_end(move |_| assert!(!array.is_empty()));
    heap.on_thread_end(|_| ());
    assert_no_leaks(&heap.leaks().unwrap());
    assert_all_returned(&device, &heap, "handler");
}
