//! Tests of leak reports through the public interface, on the emulator or on the device that
//! `GPUHEAP_TEST_DEVICE` names.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;

use std::process::Command;
use std::sync::{Arc, Mutex};

use gpuheap::emu::Schedule;
use gpuheap::{
    Consumer, Device, DeviceArray, Heap, MemoryKind, PoolKind, Target, Tracking, assert_no_leaks,
};
use support::{assert_all_returned, device};

fn heap(tracking: Tracking) -> (Device, Heap) {
    let device = device(1 << 30, Schedule::Seeded(3));
    let heap = Heap::builder(&device).track(tracking).build().unwrap();
    (device, heap)
}

#[test]
fn leaks_are_grouped_by_line() {
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

/// Every way to make an array records the caller's line, not a line of gpuheap.
#[test]
fn every_array_constructor_names_caller() {
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
fn meter_lists_changes() {
    let (_device, heap) = heap(Tracking::Counts);
    let target = heap.target().unwrap();
    let old = target.zeroed::<u8, _>(100).unwrap();
    let meter = heap.meter().unwrap();
    let new = target.zeroed::<u8, _>(300).unwrap();
    drop(old);
    let change = meter.read().unwrap().changes;
    assert_eq!((change.allocations, change.bytes), (0, 200), "{change}");
    assert_eq!(change.changes.len(), 2, "{change}");
    drop(new);
}

#[test]
fn leaks_and_changes_print_json() {
    let (_device, heap) = heap(Tracking::Counts);
    let meter = heap.meter().unwrap();
    let array = heap.target().unwrap().uninit::<u8, _>(1000).unwrap();
    let leaks = heap.leaks().unwrap().to_json();
    let start = r#"{"tracking":"counts","allocations":1,"bytes":1000,"sites":[{"at":"#;
    assert!(leaks.starts_with(start), "{leaks}");
    let diff = meter.read().unwrap().changes.to_json();
    assert!(diff.contains(r#""allocations":1,"bytes":1000,"changes":[{"at":"#), "{diff}");
    drop(array);
}

/// If memory runs out, the error names the lines that hold the most of it.
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
    let Consumer { at, allocations, bytes, .. } = consumers[0];
    assert_eq!((at.line(), allocations, bytes), (line, 2, 40 << 20));
    let text = format!("most is held by {}:{line} (40 MiB in 2), ", file!());
    assert!(error.to_string().contains(&text), "{error}");
    drop((most, less, other_kind));
}

/// The report answers a common question: why is memory of a thread still live after the thread
/// ended?
#[test]
fn thread_leftovers_name_the_thread() {
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

/// If the program has no handler, the end of a thread is reported on stderr. The end of the main
/// thread is not reported, because it is the end of the program.
///
/// One child of this program shows the report of a thread. The other child runs its test on a
/// thread of the harness, and forks there. That thread is the main thread of the forked process, so
/// its end has no report.
#[test]
#[cfg(unix)]
fn thread_end_prints_program_end_not() {
    const CHILD: &str = "GPUHEAP_TEST_THREAD_END_CHILD";
    const LINE: u32 = line!() + 4;
    fn leak() {
        let device = Device::open("emulated:1GiB").unwrap();
        let heap = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
        std::mem::forget(heap.target().unwrap().zeroed::<u8, _>(4096).unwrap());
        assert_eq!(heap.leaks().unwrap().bytes, 4096);
    }
    match std::env::var(CHILD).as_deref() {
        Ok("loader") => {
            let thread = std::thread::Builder::new().name("loader".to_owned()).spawn(leak);
            thread.unwrap().join().unwrap();
            std::process::exit(0)
        }
        Ok(_) => {
            // SAFETY: this process has opened no device yet. Its only other thread, the test
            // harness's, waits for this thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the call only sets the time at which a child that hangs is ended.
                unsafe { libc::alarm(10) };
                leak();
                // Runs the destructors of thread-local values.
                std::process::exit(0)
            }
            let mut status = 0;
            // SAFETY: the pointer is valid for the call, and the child was forked above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            let well = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            std::process::exit(if well { 0 } else { 1 })
        }
        Err(_) => {}
    }
    let stderr = |thread: &str| {
        let name = "thread_end_prints_program_end_not";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, thread)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stderr).into_owned();
        assert!(child.status.success(), "{thread}: {}: {text}", child.status);
        text
    };
    let text = stderr("loader");
    let told: Vec<_> = text.lines().skip_while(|line| !line.starts_with("gpuheap: ")).collect();
    let id = told[0].strip_prefix("gpuheap: Thread 'loader' (").unwrap();
    let id = id.strip_suffix(") ended and left behind or handed on:").unwrap();
    assert!(id.parse::<u32>().is_ok(), "{text}");
    assert_eq!(told[1..3], ["1 allocation outstanding: 4 KiB from 1 site", ""], "{text}");
    assert!(told[3].starts_with("4 KiB in 1 allocation of device memory, "), "{text}");
    assert_eq!(told[4], format!("by thread 'loader' ({id}, ended): 4 KiB"), "{text}");
    assert_eq!(told[5..], [format!(" [1] at {}:{LINE}", file!())], "{text}");
    assert_eq!(stderr("main"), "");
}

/// The status has the figures, the limits, and a paragraph for each allocation, oldest first.
#[test]
fn status_names_allocations_by_line() {
    for tracking in [Tracking::Counts, Tracking::Backtraces] {
        let device = device(1 << 30, Schedule::Immediate);
        let builder = Heap::builder(&device).pool(PoolKind::Binned).track(tracking);
        let heap = builder.soft_limit(256 << 20).hard_limit(512 << 20).build().unwrap();
        let target = heap.target().unwrap();
        let first = line!() + 1;
        let a = target.zeroed::<i64, _>(1024).unwrap();
        let b = target.kind(MemoryKind::Pinned).array(&[1_u8, 2, 3]).unwrap();
        drop(target.zeroed::<u8, _>(5000).unwrap());
        let c = heap.allocate(0, target.stream()).unwrap();
        let lines = [(first, 8192), (first + 1, 3), (first + 3, 0)];
        let addresses = [a.device_ptr(target.stream()), b.device_ptr(target.stream())];
        let [a_at, b_at] = addresses.map(|address| format!("{:#x}", address.unwrap()));

        let status = heap.memory_status().unwrap();
        let text = status.to_string().replace(&a_at, "A").replace(&b_at, "B");
        let blocks: Vec<&str> = text.split("\n\n").collect();
        let [figures, blocks @ ..] = &blocks[..] else { panic!("{text}") };
        let figures: Vec<_> = figures.lines().collect();
        assert!(figures[0].starts_with("Effective GPU memory usage: "), "{text}");
        assert_eq!(
            figures[1..],
            [
                "CUDA GPU memory usage: 16 KiB",
                "BinnedPool usage: 16 KiB (8 KiB allocated, 8 KiB cached)",
                "Memory limit: soft = 256 MiB, hard = 512 MiB",
                "Pinned memory usage: 4 bytes (4 bytes allocated, 0 cached)",
            ],
            "{text}"
        );
        let heads = ["8 KiB at A", "3 bytes at B", "0 at 0x0"];
        assert_eq!(blocks.len(), heads.len(), "{text}");
        for ((block, head), (line, _)) in blocks.iter().zip(heads).zip(lines) {
            let block: Vec<_> = block.lines().collect();
            assert_eq!(block[0], format!("Outstanding memory allocation of {head}"), "{text}");
            let caller = format!(" at {}:{line}", file!());
            assert!(
                block[1].starts_with(" [1] ")
                    && block[1].trim_end_matches(" [inlined]").ends_with(&caller),
                "{text}"
            );
            match tracking {
                Tracking::Counts => assert_eq!(block[1..], [format!(" [1]{caller}")]),
                _ => assert!(block.len() > 2 && block[2].starts_with(" [2] "), "{text}"),
            }
        }

        let json: serde_json::Value = serde_json::from_str(&status.to_json()).unwrap();
        assert_eq!(
            (json["soft_limit"].as_u64(), json["hard_limit"].as_u64()),
            (Some(256 << 20), Some(512 << 20))
        );
        let listed = json["outstanding"].as_array().unwrap();
        assert_eq!(listed.len(), lines.len());
        for (one, (line, bytes)) in listed.iter().zip(lines) {
            assert_eq!(one["bytes"], bytes);
            let at = one["at"].as_str().unwrap();
            assert!(at.starts_with(&format!("{}:{line}:", file!())), "{at}");
            let frame = &one["stack"]["frames"][0];
            assert_eq!(
                (frame["file"].as_str(), frame["line"].as_u64()),
                (Some(file!()), Some(u64::from(line)))
            );
        }
        let addresses = listed.iter().map(|one| format!("{:#x}", one["address"].as_u64().unwrap()));
        assert_eq!(addresses.collect::<Vec<_>>(), [a_at, b_at, "0x0".to_owned()]);
        assert_eq!(
            listed.iter().map(|one| &one["kind"]).collect::<Vec<_>>(),
            ["device", "pinned", "device"]
        );
        drop((a, b, c));
        let text = heap.memory_status().unwrap().to_string();
        assert_eq!((text.lines().count(), text.contains("Outstanding")), (5, false), "{text}");
        assert_all_returned(&device, &heap, "status");
    }
}

#[test]
fn untracked_heaps_say_how_to_track() {
    let (_device, heap) = heap(Tracking::Off);
    let text = heap.leaks().unwrap_err().to_string();
    assert!(text.contains("HeapBuilder::track") && text.contains("GPUHEAP_TRACK"), "{text}");
    let changes = heap.meter().unwrap().read().unwrap().changes.to_string();
    assert!(changes.ends_with("tracking is off"), "{changes}");
}

/// Environment variables configure a heap, and the builder overrides them. A child process runs
/// with the variables, because a process reads them only once.
#[test]
fn builder_overrides_environment() {
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
        assert_eq!((bare.limits().hard, bare.pool()), (None, gpuheap::PoolKind::Stitched));
        return;
    }
    let run = |limit: &str| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "builder_overrides_environment", "--nocapture"])
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

/// A handler that holds tracked memory of the heap may be replaced, because it is dropped with no
/// lock held.
#[test]
fn handler_holding_array_is_replaceable() {
    let (device, heap) = heap(Tracking::Counts);
    let array = heap.target().unwrap().zeroed::<u8, _>(100).unwrap();
    heap.on_thread_end(move |_| assert!(!array.is_empty()));
    heap.on_thread_end(|_| ());
    assert_no_leaks(&heap.leaks().unwrap());
    assert_all_returned(&device, &heap, "handler");
}
