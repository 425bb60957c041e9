//! Tests of messages to the program's logger. Some loggers use the heap that sent the message.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Heap, PoolKind, Tracking};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::idle::wait_until;
use crate::support::{emulated, heap};

const MIB: u64 = 1 << 20;

/// Function of a test, called for each message with the message's level, target and text.
type Listener = Box<dyn FnMut(Level, &str, String)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Messages of threads that the library started.
static OTHERS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        if thread::current().name() == Some("gpuheap-idle") {
            others().push(format!("{} {}", record.target(), text));
        }
        // The listener is taken out during the call. A message that the listener itself causes is
        // then lost, and does not cause a panic.
        let Some(mut listener) = LISTENER.with(RefCell::take) else { return };
        listener(record.level(), record.target(), text);
        LISTENER.with(|kept| *kept.borrow_mut() = Some(listener));
    }

    fn flush(&self) {}
}

fn others() -> MutexGuard<'static, Vec<String>> {
    OTHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(listener: impl FnMut(Level, &str, String) + 'static) {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&Logger).unwrap();
        log::set_max_level(LevelFilter::Debug);
    });
    LISTENER.with(|kept| *kept.borrow_mut() = Some(Box::new(listener)));
}

/// Returns the messages of this thread while `work` runs.
fn messages_of(work: impl FnOnce()) -> Vec<String> {
    let messages = std::rc::Rc::<RefCell<Vec<String>>>::default();
    let inside = messages.clone();
    listen(move |level, target, text| {
        inside.borrow_mut().push(format!("{level} {target}: {text}"));
    });
    work();
    LISTENER.with(RefCell::take);
    messages.take()
}

/// Fills the heap's device with cached pieces, and requests more than any of them holds.
fn fill_up(device: &Device, heap: &Heap) {
    let stream = device.stream().unwrap();
    let blocks: Vec<_> = (0..7).map(|_| heap.allocate(32 * MIB, &stream).unwrap()).collect();
    drop(blocks);
    drop(heap.allocate(120 * MIB, &stream).unwrap());
}

#[test]
fn heap_logs_life_and_reclaim_steps() {
    let said = messages_of(|| {
        let device = emulated(256 * MIB, Schedule::Immediate);
        let builder = Heap::builder(&device).without_environment().pool(PoolKind::Simple);
        let heap = builder.hard_limit(250 * MIB).track(Tracking::Off).build().unwrap();
        fill_up(&device, &heap);
    });
    let said = said.join("\n");
    insta::assert_snapshot!(said);
}

#[test]
fn trims_and_wsl2_waits_are_logged() {
    let said = messages_of(|| {
        let profile = Profile { wsl2: true, ..Profile::with_memory(256 * MIB).without_context() };
        let device = Device::emulated(profile).unwrap();
        let builder = Heap::builder(&device).without_environment().pool(PoolKind::Driver);
        let heap = builder.build().unwrap();
        let stream = device.stream().unwrap();
        let _held = heap.allocate(160 * MIB, &stream).unwrap();
        heap.allocate(160 * MIB, &stream).unwrap_err();
    });
    for step in ["trimming the driver's pool", "waiting for the host's late release"] {
        let is_said =
            |one: &String| one.starts_with("DEBUG gpuheap::reclaim") && one.contains(step);
        assert!(said.iter().any(is_said), "{step}: {said:?}");
    }
}

#[test]
fn pool_replacement_is_logged() {
    let said = messages_of(|| {
        let device = Device::emulated(Profile::wsl2_rtx4060()).unwrap();
        drop(Heap::builder(&device).pool(PoolKind::Stitched).build().unwrap());
    });
    let expected = "split, because stitched cannot be had";
    assert!(
        said.iter().any(|one| one.starts_with("DEBUG gpuheap::heap") && one.contains(expected))
    );
}

#[test]
fn idle_trim_logs_returned_bytes() {
    listen(|_, _, _| ());
    let device = emulated(256 * MIB, Schedule::Immediate);
    let builder = Heap::builder(&device).pool(PoolKind::Split);
    let heap = builder.idle_trim(Duration::from_millis(5)).build().unwrap();
    drop(heap.allocate(64 * MIB, &device.stream().unwrap()).unwrap());
    wait_until("nothing is logged", || {
        let expected = "64 MiB of emulated";
        others().iter().any(|one| one.starts_with("gpuheap::reclaim") && one.contains(expected))
    });
}

/// Calls the library from the logger: allocates, reads statistics, clones and drops, and opens the
/// device's own heap and another heap. If the library logged with one of its locks held, one of
/// these calls would block forever.
#[test]
fn logger_may_use_logged_heap() {
    for pool in PoolKind::ALL {
        let device = emulated(256 * MIB, Schedule::Immediate);
        let heap = heap(&device, pool);
        let count = std::rc::Rc::new(RefCell::new(0));
        let (counted, inside, own) = (count.clone(), heap.clone(), device.clone());
        listen(move |_, _, text| {
            *counted.borrow_mut() += 1;
            let stream = own.stream().unwrap();
            // The request may fail, because the device is full.
            drop(inside.allocate(300 * MIB, &stream));
            drop(inside.allocate(1000, &stream));
            inside.memory_status().unwrap();
            inside.flush().unwrap();
            inside.would_fit(40 * MIB).unwrap();
            drop(own.heap().unwrap());
            drop(Heap::builder(&own).pool(pool).build().unwrap());
            let stream = own.stream().unwrap();
            let other = inside.clone();
            thread::spawn(move || drop(other.allocate(2000, &stream))).join().unwrap();
            assert!(!text.is_empty());
        });
        fill_up(&device, &heap);
        drop(device.heap().unwrap());
        let stream = device.stream().unwrap();
        let _held = heap.allocate(100 * MIB, &stream).unwrap();
        heap.allocate(200 * MIB, &stream).unwrap_err();
        drop(heap);
        LISTENER.with(RefCell::take);
        // Counts a message for each reclaim step of the failed request, two for the opening and
        // closing of the device's heap, and one for the closing of `heap`.
        assert!(*count.borrow() > 6, "{pool}: {}", count.borrow());
    }
}

/// A block keeps a heap alive after its last handle was dropped. If a flush of the device made a
/// new handle of that heap, the handle's drop would log the close again.
#[test]
fn outlived_heap_logs_close_once() {
    let profile = Profile::with_memory(64 * MIB).without_context();
    let devices = vec![profile.clone(), profile];
    let options = Options { devices, ..Options::default() };
    let mut devices = Device::emulated_devices(options).unwrap();
    let (owner, reader) = (devices.remove(1), devices.remove(0));
    let said = messages_of(|| {
        let heap = heap(&owner, PoolKind::Stitched);
        let block = heap.allocate(1000, &owner.stream().unwrap()).unwrap();
        drop(heap);
        for _ in 0..3 {
            owner.flush().unwrap();
        }
        // `can_reach` must log nothing while it holds locks of the library, because a logger that
        // uses the library would then wait for these locks forever.
        assert!(reader.can_reach(&owner).unwrap());
        drop(block);
        owner.flush().unwrap();
    });
    for life in ["opened", "closed"] {
        let count = said.iter().filter(|one| one.contains(&format!("{life} a stitched"))).count();
        assert_eq!(count, 1, "{life}: {said:#?}");
    }
}

/// The logger resets the device while the heap logs its close. Close and reset both wait for the
/// heap's thread that trims idle memory. The reset must not wait for the close.
#[test]
fn logger_may_reset_during_close() {
    let closing = thread::spawn(|| {
        let device = emulated(256 * MIB, Schedule::Immediate);
        let builder = Heap::builder(&device).pool(PoolKind::Split);
        let heap = builder.idle_trim(Duration::from_secs(3600)).build().unwrap();
        let (own, count) = (device.clone(), std::rc::Rc::new(RefCell::new(0)));
        let counted = count.clone();
        let block = heap.allocate(1000, &device.stream().unwrap()).unwrap();
        listen(move |_, _, text| {
            if text.starts_with("closed") {
                *counted.borrow_mut() += 1;
                // SAFETY: no memory is used by its address, and no other thread uses the device.
                drop(unsafe { own.clone().reset() }.unwrap());
            }
        });
        heap.close();
        LISTENER.with(RefCell::take);
        drop(block);
        assert_eq!(*count.borrow(), 1);
    });
    wait_until("the close waits for itself", || closing.is_finished());
    closing.join().unwrap();
}

#[test]
fn a_logger_that_panics_harms_nothing() {
    let device = emulated(256 * MIB, Schedule::Immediate);
    let count = std::rc::Rc::new(RefCell::new(0));
    let counted = count.clone();
    LISTENER.with(RefCell::take);
    // A listener that panicked is dropped, so a new listener is set before each call.
    let again = move || {
        let counted = counted.clone();
        listen(move |_, _, _| {
            *counted.borrow_mut() += 1;
            std::panic::resume_unwind(Box::new("as planned"));
        });
    };
    again();
    let heap = heap(&device, PoolKind::Simple);
    again();
    fill_up(&device, &heap);
    again();
    drop(heap);
    assert!(*count.borrow() >= 3, "{}", count.borrow());
    LISTENER.with(RefCell::take);
}

/// The heap ends with its thread, and calls the logger of these tests. The logger then panics,
/// because its own thread-local variable no longer exists. The thread still has to end cleanly.
#[test]
fn heap_in_thread_local_ends_cleanly() {
    struct Last(RefCell<Option<Heap>>);
    thread_local! {
        static LAST: Last = const { Last(RefCell::new(None)) };
    }
    listen(|_, _, _| ());
    LISTENER.with(RefCell::take);
    let ended = thread::spawn(|| {
        LAST.with(|last| {
            let device = emulated(256 * MIB, Schedule::Immediate);
            *last.0.borrow_mut() = Some(heap(&device, PoolKind::Split));
        });
        listen(|_, _, _| ());
    });
    ended.join().unwrap();
}
