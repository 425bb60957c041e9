//! Tests of forks without exec. The child gets a clear error, and the parent continues. The tests
//! are a separate target, because no other thread may run tests during a fork.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Error, Heap, Limits, MemoryKind, PoolKind, Target, Tracking};

/// Lock that lets one test run at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn device() -> Device {
    match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => {
            let options = Options::with_device(Profile::with_memory(1 << 30));
            let options = Options { schedule: Schedule::OnDemand, ..options };
            Device::emulated_with(options).unwrap()
        }
    }
}

/// Number of messages that the library sent to this process's logger.
static SAID: AtomicU32 = AtomicU32::new(0);

/// A logger that counts messages.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &log::Record<'_>) {
        SAID.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self) {}
}

/// Forks this process. If the child hangs, an alarm ends it after ten seconds.
fn fork() -> libc::pid_t {
    // SAFETY: other threads may hold locks at the fork. The child takes none of these locks, as the
    // tests check. The child ends without returning to the test harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: no handler is set for the alarm's signal, so it ends the process.
        unsafe { libc::alarm(10) };
    }
    child
}

/// Ends a child, without the exit handlers of its parent.
fn end_child(code: i32) -> ! {
    // SAFETY: the call skips handlers and destructors, and the child's memory ends with the child.
    unsafe { libc::_exit(code) }
}

/// Waits for a child. Returns its wait status.
fn status_of(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a local variable, and the child is waited for only here.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

fn is_fork_error(error: &Error) -> bool {
    let text = error.to_string();
    text.contains("forked off after the device was opened") && text.contains("exec")
}

#[test]
fn forked_child_errs_parent_works() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    log::set_logger(&Logger).unwrap();
    log::set_max_level(log::LevelFilter::Debug);
    let device = device();
    let stream = device.stream().unwrap();
    let heap = Heap::new(&device).unwrap();
    let live = heap.allocate(1 << 20, &stream).unwrap();
    let event = stream.record().unwrap();
    let said = SAID.load(Ordering::Relaxed);
    assert!(said > 0);

    let child = fork();
    if child == 0 {
        let code = match () {
            () if !heap.allocate(64 << 20, &stream).is_err_and(|error| is_fork_error(&error)) => 1,
            () if !device.synchronize().is_err_and(|error| is_fork_error(&error)) => 2,
            () if !device.stream().is_err_and(|error| is_fork_error(&error)) => 3,
            () if !event.is_done().is_err_and(|error| is_fork_error(&error)) => 4,
            // SAFETY: the call is refused before it does anything.
            () if !unsafe { device.clone().reset() }.is_err_and(|error| is_fork_error(&error)) => 5,
            // If the parent had a real device open, the child cannot open that device, not even by
            // name.
            () if !device.is_emulated()
                && !Device::open(device.name()).is_err_and(|error| is_fork_error(&error)) =>
            {
                6
            }
            // A child can open an emulated device, even if the parent had one open.
            () if Device::open("emulated").and_then(|own| own.synchronize()).is_err() => 7,
            () => 0,
        };
        // Destructors make no driver call, as the emulator's counts show.
        let emulator = device.emulator().cloned();
        drop((live, event, stream, heap, device));
        let calls = emulator.map_or(0, |emulator| emulator.calls());
        let code = if calls == 0 { code } else { 8 };
        // A logger's lock may have been held at the fork, and waiting for it would hang the child.
        // So opening a device and a heap in the child must log nothing.
        let own = Device::open("emulated").and_then(|own| Heap::new(&own));
        let is_silent = own.is_ok() && SAID.load(Ordering::Relaxed) == said;
        let code = if is_silent { code } else { 9 };
        end_child(code)
    }
    assert_eq!(status_of(child), 0, "see the child's list");

    assert!(event.is_done().is_ok());
    drop(live);
    let block = heap.allocate(64 << 20, &stream).unwrap();
    drop((block, event));
    stream.synchronize().unwrap();
    heap.reclaim_all().unwrap();
    assert_eq!(heap.usage().unwrap().reserved, 0);
    if let Some(emulator) = device.emulator() {
        assert_eq!(emulator.findings().unwrap(), []);
    }
}

/// In a child, the thread that uploads batches does not exist, and the child does not wait for it.
#[test]
fn forked_child_skips_batches() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = device();
    let target = device.heap().unwrap().target().unwrap();
    std::thread::scope(|threads| {
        let items = vec![vec![1_u8; 1 << 20]; 5];
        let mut near = target.batches(&items[..2]).prefetch(1);
        let mut batches = target.batches(items.clone()).prefetch_on(threads, 1).unwrap();
        let held = (near.next().unwrap().unwrap(), batches.next().unwrap().unwrap());
        let child = fork();
        if child == 0 {
            let code = match () {
                () if !near.next().unwrap().is_err_and(|error| is_fork_error(&error)) => 1,
                () if !batches.next().unwrap().is_err_and(|error| is_fork_error(&error)) => 2,
                () if batches.next().is_some() => 3,
                () => 0,
            };
            drop((near, batches, held));
            end_child(code)
        }
        assert_eq!(status_of(child), 0, "see the child's list");
        assert_eq!((near.count(), batches.count()), (1, 4));
    });
}

/// At a fork, other threads of the parent may hold any lock. No thread releases that lock in the
/// child, so no call in the child may wait for a lock.
#[test]
fn child_of_busy_parent_exits() {
    const FORKS: u32 = 60;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = device();
    for tracking in [Tracking::Counts, Tracking::Backtraces] {
        let heap = Heap::builder(&device).track(tracking).hard_limit(256 << 20).build().unwrap();
        let target = heap.target().unwrap();
        // Target with which the other threads make arrays. It is the current scope's target.
        let current = Mutex::new(target.clone());
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let _stop = Stop(&stop);
            for _ in 0..3 {
                threads.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let target = current.lock().unwrap().clone();
                        for kind in [MemoryKind::Device, MemoryKind::Pinned] {
                            // The scope may have ended, so the call may fail.
                            let _ = target.kind(kind).uninit::<u8, _>(5000);
                        }
                        heap.meter().unwrap().read().unwrap();
                    }
                });
            }
            // A lock guards names and figures of an emulated device. This thread holds that lock
            // most of the time.
            threads.spawn(|| {
                while let (Some(emulator), false) =
                    (device.emulator(), stop.load(Ordering::Relaxed))
                {
                    emulator.options();
                }
            });
            for _ in 0..FORKS {
                fork_once(&device, &heap, &target, &current);
            }
        });
        *current.lock().unwrap() = target.clone();
        let report = heap.flush().unwrap();
        assert!(report.kinds.iter().all(|kind| kind.live == 0), "{report}");
        assert_eq!(heap.leaks().unwrap().allocations, 0);
    }
    if let Some(emulator) = device.emulator() {
        assert_eq!(emulator.findings().unwrap(), []);
    }
}

/// Forks a process with thread caches. The child returns a block to a cache of the parent, makes
/// caches of a new heap, and closes all caches at its exit. Meanwhile threads and heaps of the
/// parent begin and end.
#[test]
fn child_has_separate_thread_caches() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = device();
    let heap = Heap::builder(&device).track(Tracking::Off).build().unwrap();
    let stream = device.stream().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _stop = Stop(&stop);
        for _ in 0..3 {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let own = Heap::new(&device).unwrap();
                    let thread = std::thread::spawn({
                        let (heap, stream) = (heap.clone(), device.stream().unwrap());
                        move || {
                            let kept = own.allocate(5000, &stream).unwrap();
                            drop(heap.allocate(5000, &stream).unwrap());
                            drop((own, kept));
                        }
                    });
                    heap.usage().unwrap();
                    thread.join().unwrap();
                }
            });
        }
        for _ in 0..60 {
            let seen = Shared::new();
            let blocks = [5000, 1 << 20].map(|bytes| heap.allocate(bytes, &stream).unwrap());
            let child = fork();
            if child > 0 {
                seen.wait_for(child);
                continue;
            }
            let [first, second] = blocks;
            seen.expect_return(|| drop(first));
            seen.expect_refused(|| second.free());
            seen.expect_refused(|| heap.allocate(5000, &stream));
            seen.expect_return(|| {
                let own = Device::open("emulated:64MiB").unwrap();
                let (heap, stream) = (Heap::new(&own).unwrap(), own.stream().unwrap());
                (0..3).for_each(|_| drop(heap.allocate(5000, &stream).unwrap()));
                seen.expect(heap.usage().is_ok_and(|usage| usage.stats.frees == 3));
            });
            seen.at(Location::caller());
            if device.is_emulated() {
                // `exit` also closes the thread caches that the child inherited from its parent.
                std::process::exit(0)
            }
            end_child(0)
        }
    });
    heap.reclaim_all().unwrap();
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.reserved), (0, 0));
    if let Some(emulator) = device.emulator() {
        assert_eq!(emulator.findings().unwrap(), []);
    }
}

/// Forks while another thread of the parent holds the lock of a foreign stream to retire it.
#[test]
fn child_forked_during_retire_exits() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = device();
    let heap = Heap::new(&device).unwrap();
    let own = device.stream().unwrap();
    let event = own.record().unwrap();
    // SAFETY: the stream lives as long as it is used.
    let stream = unsafe { device.foreign_stream(own.raw()) }.unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _stop = Stop(&stop);
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                heap.retire(&stream).unwrap();
            }
        });
        for _ in 0..200 {
            let seen = Shared::new();
            let child = fork();
            if child > 0 {
                seen.wait_for(child);
                continue;
            }
            seen.expect_refused(|| stream.record());
            seen.expect_refused(|| stream.wait(&event));
            seen.expect_refused(|| stream.synchronize());
            seen.expect_refused(|| stream.is_done());
            seen.expect_harmless(|| stream.is_capturing());
            seen.expect_refused(|| heap.retire(&stream));
            seen.at(Location::caller());
            end_child(0)
        }
    });
}

/// Stops the other threads when it is dropped, even if a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn fork_once(device: &Device, heap: &Heap, target: &Target, current: &Mutex<Target>) {
    let seen = Shared::new();
    let array = target.filled(100, 1_u8).unwrap();
    let mut pinned = target.kind(MemoryKind::Pinned).filled(100, 2_u8).unwrap();
    let lent = target.kind(MemoryKind::Pinned).filled(100, 3_u8).unwrap();
    let borrow = lent.as_slice().unwrap();
    let shared = target.filled(100, 4_u8).unwrap().into_shared();
    let registered = target.register(vec![5_u8; 100]).unwrap();
    let other = target.register(vec![6_u8; 100]).unwrap();
    let block = heap.allocate(100, target.stream()).unwrap();
    let event = target.stream().record().unwrap();
    let meter = heap.meter().unwrap().with_thread();
    let unwritten = target.uninit::<u8, _>(10).unwrap();
    let mut batches = target.batches(vec![vec![7_u8; 100]; 4]).prefetch(2);
    let batch = batches.next();
    let reclaimer = heap.register_reclaimer(|_| 0);
    let (child, report) = heap.scope(|scope| {
        *current.lock().unwrap() = scope.target().unwrap();
        std::mem::forget(scope.target().unwrap().uninit::<u8, _>(100).unwrap());
        let child = fork();
        if child == 0 {
            seen.expect_return(|| format!("{scope:?} {:?}", scope.heap()));
            seen.expect_refused(|| scope.target().and_then(|target| target.uninit::<u8, _>(1)));
            // The scope ends next, in the child too. If that hangs, this line is reported.
            seen.at(Location::caller());
        }
        child
    });
    if child > 0 {
        seen.wait_for(child);
        assert!(report.freed > 0, "{report}");
        assert_eq!(array.to_vec().unwrap(), [1; 100]);
        assert_eq!(borrow[..], [3; 100]);
        assert_eq!(registered.unregister().unwrap(), [5; 100]);
        return;
    }

    seen.expect(report.freed == 0);
    seen.expect_refused(|| array.to_vec());
    seen.expect_refused(|| array.copy());
    seen.expect_refused(|| array.device_ptr(target.stream()));
    seen.expect_refused(|| &array + 1);
    seen.expect_refused(|| array.sum());
    seen.expect_refused(|| pinned.add_assign(&array));
    seen.expect_refused(|| pinned.as_slice().map(|slice| slice[0]));
    seen.expect_refused(|| pinned.as_mut_slice().map(|slice| slice[0]));
    seen.expect_refused(|| pinned.fill(9));
    seen.expect_refused(|| shared.to_vec());
    seen.expect_refused(|| shared.free_early());
    seen.expect_refused(|| registered.as_slice().map(|slice| slice[0]));
    seen.expect_refused(|| registered.unregister());
    seen.expect_refused(|| target.register(vec![1_u8]).map_err(Error::from));
    seen.expect_refused(|| target.kind(MemoryKind::Unified).zeroed::<u8, _>(1));
    seen.expect_refused(|| heap.allocate(1, target.stream()));
    seen.expect_refused(|| heap.target());
    seen.expect_refused(|| heap.scope(|scope| scope.target()).0);
    seen.expect_refused(|| heap.thread_scope(|_| target.zeroed::<u8, _>(1)).0);
    seen.expect_refused(|| heap.usage());
    seen.expect_refused(|| heap.memory_status());
    seen.expect_refused(|| heap.flush());
    seen.expect_refused(|| heap.would_fit(1));
    seen.expect_refused(|| heap.reclaim(1));
    seen.expect_refused(|| heap.reclaim_all());
    seen.expect_refused(|| heap.set_limits(Limits::default()));
    seen.expect_refused(|| heap.retry(|| heap.usage()));
    seen.expect_refused(|| device.flush());
    seen.expect_refused(|| device.heap());
    seen.expect_refused(|| Heap::builder(device).pool(PoolKind::Simple).build());
    seen.expect_refused(|| event.synchronize());
    for kind in MemoryKind::ALL {
        seen.expect_harmless(|| heap.usage_of(kind));
    }
    seen.expect_harmless(|| heap.leaks());
    seen.expect_harmless(|| heap.outstanding());
    seen.expect_refused(|| heap.meter());
    seen.expect_refused(|| meter.read());
    seen.expect_return(|| heap.on_thread_end(|_| {}));
    seen.expect_return(|| heap.limits());
    seen.expect_return(|| drop(heap.register_reclaimer(|_| 0)));
    seen.expect_return(|| format!("{heap:?} {array:?} {shared:?} {target:?} {}", array.is_freed()));
    seen.expect_return(|| {
        format!("{device:?} {device} {:?} {}", device.describe(), device.describe())
    });
    seen.expect_return(|| format!("{:?} {event:?} {block:?} {meter:?}", target.stream()));
    seen.expect_return(|| {
        format!("{unwritten:?} {batches:?} {batch:?} {reclaimer:?} {pinned:?} {other:?}")
    });
    seen.expect_return(|| {
        (array.device(), array.stream(), array.target(), array.kind(), target.stream().device())
    });
    seen.expect_return(|| {
        (heap.pool(), device.name(), device.total_memory(), device.is_emulated())
    });
    seen.expect_refused(|| device.clone().with_current(|_| ()));
    seen.expect_refused(|| device.can_reach(device));
    seen.expect_refused(|| target.stream().record());
    seen.expect_refused(|| target.stream().is_done());
    seen.expect_refused(|| target.stream().is_capturing());
    seen.expect_refused(|| target.stream().wait(&event));
    seen.expect_refused(|| batches.next().unwrap_or_else(|| heap.target().map(|_| unreachable!())));
    seen.expect_return(|| drop((unwritten, batches, batch, reclaimer, meter)));
    if let Some(emulator) = device.emulator() {
        // Like a real driver, the emulator has no device in a child.
        let mut context = gpuheap::driver::CUcontext::NULL;
        // SAFETY: the emulator refuses the call, and would write only to a local variable.
        let code = unsafe { device.driver().cuCtxGetCurrent(&mut context) };
        seen.expect(code == gpuheap::driver::CUresult::ERROR_NOT_INITIALIZED);
        seen.expect((emulator.calls(), emulator.findings().is_err()) == (1, true));
        seen.expect(emulator.usage(0) == gpuheap::emu::Usage::default());
        seen.expect_return(|| (emulator.options(), emulator.time(), emulator.calls_of("cuInit")));
        seen.expect_return(|| emulator.set_faults(gpuheap::emu::FaultPlan::default()));
        seen.expect_return(|| emulator.advance(std::time::Duration::from_secs(1)));
        seen.expect_return(|| emulator.set_time(std::time::Duration::from_secs(1)));
        seen.expect_return(|| emulator.run_to_idle());
        seen.expect_return(|| drop(emulator.clone()));
    }
    seen.expect_return(|| shared.clone());
    seen.expect_return(|| target.stream().clone());
    if device.is_emulated() {
        // Reads `borrow` only on an emulated device: page-locked memory of a real device may be
        // missing in a child.
        seen.expect(borrow[..] == [3; 100]);
    }
    seen.expect_return(|| drop(borrow));
    seen.expect_return(|| drop((array, pinned, lent, shared, other)));
    seen.expect_return(|| drop((block, event)));
    seen.at(Location::caller());
    if device.is_emulated() {
        std::process::exit(0)
    }
    end_child(0)
}

/// Source line that a child reached last, in memory that parent and child share.
struct Shared(*mut AtomicU32);

impl Shared {
    fn new() -> Shared {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: the call makes a new mapping at an address that the kernel chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        Shared(page.cast())
    }

    fn at(&self, line: &Location<'_>) {
        // SAFETY: the page is mapped, and filled with zeros.
        unsafe { &*self.0 }.store(line.line(), Ordering::Relaxed);
    }

    fn line(&self) -> u32 {
        // SAFETY: the page is mapped, and filled with zeros.
        unsafe { &*self.0 }.load(Ordering::Relaxed)
    }

    /// Waits for the child, and asserts that it succeeded.
    fn wait_for(&self, child: libc::pid_t) {
        let status = status_of(child);
        let line = self.line();
        let hung = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM;
        assert!(!hung, "the child hung after line {line}");
        assert_eq!(status, 0, "the child failed after line {line}");
    }

    /// Ends the child if the condition is false.
    #[track_caller]
    fn expect(&self, is_so: bool) {
        self.at(Location::caller());
        if !is_so {
            end_child(1)
        }
    }

    #[track_caller]
    fn expect_return<T>(&self, call: impl FnOnce() -> T) {
        self.at(Location::caller());
        call();
    }

    /// Expects that the call succeeds or returns the error of a forked child.
    #[track_caller]
    fn expect_harmless<T>(&self, call: impl FnOnce() -> Result<T, Error>) {
        self.at(Location::caller());
        self.expect(call().err().is_none_or(|error| is_fork_error(&error)));
    }

    /// Expects that the call returns the error of a forked child.
    #[track_caller]
    fn expect_refused<T>(&self, call: impl FnOnce() -> Result<T, Error>) {
        self.at(Location::caller());
        self.expect(call().is_err_and(|error| is_fork_error(&error)));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the page belongs to this value, and no child is left.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}
