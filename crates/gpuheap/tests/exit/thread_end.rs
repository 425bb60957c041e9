//! Tests of the library's values that a program stores in thread-local variables. Such a value may
//! be dropped at its thread's end after the library's own thread-local variables. The drop must
//! neither abort nor lose memory.
//!
//! An abort ends the process, so every case runs in a child, which is this program again. The child
//! names each case before it runs.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_void;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gpuheap::emu::{Options, Profile};
use gpuheap::{Device, DeviceArray, Heap, MemoryKind, Meter, PoolKind, Tracking};

const CHILD: &str = "GPUHEAP_TEST_THREAD_END";

type Values = RefCell<Vec<Box<dyn Any>>>;

thread_local! {
    /// Values that the thread registers before it uses a device. They are dropped after the
    /// library's thread-locals.
    static EARLY: Values = const { RefCell::new(Vec::new()) };
    /// Values that the thread registers after it used a device. They are dropped before the
    /// library's thread-locals.
    static LATE: Values = const { RefCell::new(Vec::new()) };
}

/// Makes a value. The heap's other handles are dropped before the thread ends, so the value may be
/// the heap's last owner.
type Make = fn(&Heap) -> Box<dyn Any>;

const VALUES: [(&str, Make); 16] = [
    ("stream", |heap| Box::new(heap.target().unwrap().stream().device().stream().unwrap())),
    ("default stream", |heap| Box::new(heap.target().unwrap().stream().clone())),
    ("event", |heap| Box::new(heap.target().unwrap().stream().record().unwrap())),
    ("timed event", |heap| Box::new(heap.target().unwrap().stream().record_timed().unwrap())),
    ("device", |heap| Box::new(heap.target().unwrap().stream().device())),
    ("heap", |heap| {
        drop(heap.target().unwrap().zeroed::<u8, _>(5000).unwrap());
        Box::new(heap.clone())
    }),
    ("target", |heap| Box::new(heap.target().unwrap())),
    ("block", |heap| Box::new(heap.allocate(5000, heap.target().unwrap().stream()).unwrap())),
    ("array", |heap| Box::new(zeroed(heap, MemoryKind::Device))),
    ("unified array", |heap| Box::new(zeroed(heap, MemoryKind::Unified))),
    ("pinned array", |heap| Box::new(zeroed(heap, MemoryKind::Pinned))),
    ("shared array", |heap| Box::new(zeroed(heap, MemoryKind::Device).into_shared())),
    ("unwritten array", |heap| Box::new(heap.target().unwrap().uninit::<u8, _>(5000).unwrap())),
    ("registered array", |heap| {
        Box::new(heap.target().unwrap().register(vec![5_u8; 5000]).unwrap())
    }),
    ("batches", |heap| {
        let mut batches = heap.target().unwrap().batches(vec![vec![1_u8; 5000]; 4]).prefetch(2);
        let first = batches.next();
        Box::new((batches, first))
    }),
    ("reclaimer", |heap| {
        Box::new((heap.register_reclaimer(|_| 0), heap.meter().ok().map(Meter::with_thread)))
    }),
];

fn zeroed(heap: &Heap, kind: MemoryKind) -> DeviceArray<u8> {
    heap.target().unwrap().kind(kind).zeroed(5000).unwrap()
}

#[test]
fn thread_locals_drop_at_thread_end() {
    if let Ok(case) = std::env::var(CHILD) {
        return run(&case);
    }
    succeeds("threads");
    succeeds("key");
    let stderr = succeeds("handler");
    let told = "gpuheap: the handler given to Heap::on_thread_end panicked with \"on purpose\"; the \
                report that it was given:\nThread 'loader' (";
    assert!(stderr.contains(told), "{stderr}");
    assert!(stderr.contains("1 allocation outstanding: 4.88 KiB from 1 site"), "{stderr}");
    // If a thread calls `exit`, its thread-locals are dropped too, on the main thread or another.
    for pool in PoolKind::ALL {
        for order in ["early", "late"] {
            succeeds(&format!("exit {} {order}", pool.name()));
        }
    }
}

/// Runs a case in a child. The child has to succeed.
fn succeeds(case: &str) -> String {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "thread_end::thread_locals_drop_at_thread_end", "--nocapture"])
        .env(CHILD, case)
        .output()
        .unwrap();
    let [stdout, stderr] =
        [child.stdout, child.stderr].map(|text| String::from_utf8(text).unwrap());
    let last = stdout.lines().rfind(|line| line.starts_with("case ")).unwrap_or("none");
    assert!(child.status.success(), "{case}: {} in {last}\n{stderr}", child.status);
    stderr
}

fn run(case: &str) {
    match case.split(' ').collect::<Vec<_>>()[..] {
        ["threads"] => on_threads(),
        ["handler"] => handlers_allocate(),
        ["key"] => in_key_destructors(),
        ["exit", pool, order] => at_exit(PoolKind::parse(pool).unwrap(), order == "early"),
        _ => panic!("{case}"),
    }
}

/// Makes the device of one case, with the emulator's checks on.
fn device() -> Device {
    match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => {
            let profile = Profile::with_memory(256 << 20);
            Device::emulated_with(Options::with_device(profile)).unwrap()
        }
    }
}

/// Makes a heap, and a value with each of `makes`. Keeps the values until this thread ends, in
/// `EARLY` or `LATE`.
fn keep(device: &Device, pool: PoolKind, tracking: Tracking, is_early: bool, makes: &[Make]) {
    if is_early {
        EARLY.with(|values| assert!(values.borrow().is_empty()));
    }
    let heap = Heap::builder(device).pool(pool).track(tracking).build().unwrap();
    heap.on_thread_end(|_| ());
    // Allocates, so that the library registers the destructors of its own thread-locals.
    drop(zeroed(&heap, MemoryKind::Device));
    let values = makes.iter().map(|make| make(&heap)).collect();
    if is_early { EARLY.set(values) } else { LATE.set(values) }
}

/// Drops each of `VALUES` on a separate thread, in every pool. The value is dropped before or after
/// the library's thread-locals.
fn on_threads() {
    let device = device();
    for pool in PoolKind::ALL {
        for (name, make) in VALUES {
            for is_early in [true, false] {
                for tracking in [Tracking::Off, Tracking::Counts] {
                    say(&format!("{name} in {}, early: {is_early}, {tracking}", pool.name()));
                    let device = device.clone();
                    let work = move || keep(&device, pool, tracking, is_early, &[make]);
                    thread::spawn(work).join().unwrap();
                }
            }
        }
        if let Some(emulator) = device.emulator() {
            let usage = emulator.usage(0);
            assert_eq!((usage.plain, usage.pools, usage.vmm), (0, 0, 0), "{}", pool.name());
            assert_eq!(emulator.findings().unwrap(), [], "{}", pool.name());
        }
    }
}

/// Keeps all of `VALUES` in thread-locals. Their destructors run when this thread calls `exit`.
fn at_exit(pool: PoolKind, is_early: bool) {
    let makes = VALUES.map(|(_, make)| make);
    keep(&device(), pool, Tracking::Counts, is_early, &makes);
    std::process::exit(0)
}

/// Uses the library in a destructor of a pthread key. Such a destructor runs after the destructors
/// of thread-local variables, and may be its thread's first use of the library. In the third round
/// of destructors, std's own record of the thread no longer exists.
fn in_key_destructors() {
    let mut key = 0;
    // SAFETY: `key` is a local variable, and the destructor lives as long as the process.
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(use_and_close)) }, 0);
    KEY.store(key, Ordering::Relaxed);
    for pool in PoolKind::ALL {
        for tracking in [Tracking::Off, Tracking::Counts] {
            say(&format!("key in {}, {tracking}", pool.name()));
            let device = device();
            let builder = Heap::builder(&device).pool(pool).track(tracking);
            let heap = builder.idle_trim(Duration::from_secs(3600)).build().unwrap();
            let work = move || {
                leave_to_key(Box::new((heap, 1)));
                // Makes std create its record of the thread, so that std drops the record before
                // the third round of destructors.
                drop(thread::current());
            };
            thread::spawn(work).join().unwrap();
            assert_eq!(USED.swap(0, Ordering::Relaxed), 1);
            if let Some(emulator) = device.emulator() {
                let usage = emulator.usage(0);
                assert_eq!((usage.plain, usage.pools, usage.vmm), (0, 0, 0), "{}", pool.name());
            }
        }
    }
}

/// Number of heaps that were used in the destructor of a pthread key.
static USED: AtomicU64 = AtomicU64::new(0);
static KEY: AtomicU32 = AtomicU32::new(0);

/// Stores a heap and the number of the next round of destructors in the pthread key. In that round,
/// pthread passes both to the key's destructor, `use_and_close`.
fn leave_to_key(late: Box<(Heap, u32)>) {
    let (key, late) = (KEY.load(Ordering::Relaxed), Box::into_raw(late));
    // SAFETY: the key is valid, and only its destructor uses the box that it points to.
    assert_eq!(unsafe { libc::pthread_setspecific(key, late.cast()) }, 0);
}

/// Uses the heap and drops it. A panic in this function would end the process.
extern "C" fn use_and_close(late: *mut c_void) {
    // SAFETY: the pointer is a box that was given to this call alone.
    let mut late = unsafe { Box::from_raw(late.cast::<(Heap, u32)>()) };
    if late.1 < 3 {
        late.1 += 1;
        return leave_to_key(late);
    }
    let (heap, _) = *late;
    drop(zeroed(&heap, MemoryKind::Device));
    heap.close();
    USED.fetch_add(1, Ordering::Relaxed);
}

/// A handler of a thread's end may use the heap. It does not matter which was registered first: the
/// handler or the heap's thread-locals.
fn handlers_allocate() {
    for is_early in [true, false] {
        say(&format!("handler, early: {is_early}"));
        let device = device();
        let heap = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
        let (told, kept) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let listener = (told.clone(), kept.clone(), heap.target().unwrap());
        heap.on_thread_end(move |end| {
            let (told, kept, target) = &listener;
            drop(target.zeroed::<u8, _>(300).unwrap());
            kept.lock().unwrap().push(target.filled(200, 2_u8).unwrap());
            told.lock().unwrap().push(end.leaks.bytes);
        });
        let left = heap.clone();
        let work = move || {
            if !is_early {
                // Uses the device first.
                left.target().unwrap().stream().synchronize().unwrap();
            }
            std::mem::forget(zeroed(&left, MemoryKind::Device));
        };
        thread::spawn(work).join().unwrap();
        assert_eq!(*told.lock().unwrap(), [5000]);
        assert_eq!(kept.lock().unwrap()[0].to_vec().unwrap(), [2; 200]);
    }
    let heap = Heap::builder(&device()).track(Tracking::Counts).build().unwrap();
    heap.on_thread_end(|_| panic!("on purpose"));
    let work = move || std::mem::forget(zeroed(&heap, MemoryKind::Device));
    thread::Builder::new().name("loader".to_owned()).spawn(work).unwrap().join().unwrap();
}

fn say(case: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\ncase {case}").unwrap();
    stdout.flush().unwrap();
}
