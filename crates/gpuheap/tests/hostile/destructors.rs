//! Tests of program code that could do harm because it runs when a heap, a thread or a scope ends.

use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{DeviceArray, Error, Heap, PoolKind, SharedArray, Target, Tracking};

use crate::support::{Bomb, device, heap, two_devices};

const MIB: u64 = 1 << 20;

/// A value with a destructor that reads an array of the program.
struct Reads(Mutex<Option<SharedArray<u8>>>, Sender<&'static str>);

impl Drop for Reads {
    fn drop(&mut self) {
        let array = self.0.lock().unwrap().take().unwrap();
        let _ = self.1.send("begins");
        let _ = array.to_vec();
        let _ = self.1.send("ends");
    }
}

/// Makes an array on the first of two heaps of a device. A worker thread then gives a stream of
/// another device access to both heaps' memory. Meanwhile the second heap is dropped, and ends on
/// the worker. Its end drops the handler for ends of threads, with the value that `held` returns.
fn ends_while_a_peer_is_let_in(
    held: impl FnOnce(&SharedArray<u8>) -> Box<dyn Send + Sync>,
) -> (SharedArray<u8>, std::thread::JoinHandle<Result<u64, Error>>) {
    let [owner, user] = two_devices(1 << 30, Schedule::Immediate);
    let [first, second] = [PoolKind::Stitched; 2].map(|pool| heap(&owner, pool));
    let stream = owner.stream().unwrap();
    let array = first.on(&stream).filled(3 << 20, 7_u8).unwrap().into_shared();
    drop(second.allocate(3 * MIB, &stream).unwrap());
    let held = held(&array);
    second.on_thread_end(move |_| {
        let _ = &held;
    });
    let slow = |nth| Fault::slow("cuMemSetAccess", nth, Duration::from_millis(500));
    let emulator = owner.emulator().unwrap();
    emulator.set_faults(FaultPlan::new([slow(1), slow(2), slow(3)]));
    let (theirs, same) = (user.stream().unwrap(), array.clone());
    let worker = std::thread::spawn(move || same.device_ptr(&theirs));
    std::thread::sleep(Duration::from_millis(150));
    // The worker holds this heap too at this point, so the heap ends later, on the worker.
    drop(second);
    (array, worker)
}

/// The library calls code of the program without an array's lock, so the code may read an array.
#[test]
fn destructor_reads_peer_array() {
    let (send, said) = channel();
    let (_array, worker) =
        ends_while_a_peer_is_let_in(|array| Box::new(Reads(Mutex::new(Some(array.clone())), send)));
    assert_eq!(said.recv_timeout(Duration::from_secs(10)), Ok("begins"));
    assert_eq!(said.recv_timeout(Duration::from_secs(5)), Ok("ends"), "waits for itself");
    worker.join().unwrap().unwrap();
}

struct Locks(Arc<Mutex<()>>);

impl Drop for Locks {
    fn drop(&mut self) {
        drop(self.0.lock());
    }
}

/// The library holds no array's lock while it calls code of the program. Here a destructor takes a
/// lock of the program, while the thread that holds this lock reads the array.
#[test]
fn destructor_takes_program_lock() {
    let own: Arc<Mutex<()>> = Arc::default();
    let (array, worker) = ends_while_a_peer_is_let_in(|_| Box::new(Locks(own.clone())));
    let (send, read) = channel();
    std::thread::spawn(move || {
        let _own = own.lock();
        let _ = send.send(array.to_vec().unwrap().len());
    });
    assert_eq!(read.recv_timeout(Duration::from_secs(6)), Ok(3 << 20), "wait for each other");
    worker.join().unwrap().unwrap();
}

/// When a thread ends, a handler frees all memory that the thread left. The last free ends the heap
/// and drops the handler itself, in the destructor of a thread-local variable.
#[test]
fn handler_frees_threads_leftovers() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
    let left: Arc<Mutex<Vec<DeviceArray<u8>>>> = Arc::default();
    let (all, bomb) = (left.clone(), Bomb);
    heap.on_thread_end(move |_| {
        let _ = &bomb;
        all.lock().unwrap().clear();
    });
    let thread = std::thread::spawn(move || {
        left.lock().unwrap().push(heap.target().unwrap().filled(100, 1_u8).unwrap());
    });
    thread.join().unwrap();
}

/// Nested scopes are made on a large stack, and their chain is dropped on a small stack.
#[test]
fn target_keeps_chain_of_scopes() {
    fn nest(heap: &Heap, depth: usize) -> Target {
        let next = |scope: &gpuheap::Scope| match depth {
            0 => scope.target().unwrap(),
            _ => nest(heap, depth - 1),
        };
        heap.thread_scope(next).0
    }
    let heap = heap(&device(1 << 30, Schedule::Immediate), PoolKind::Split);
    let on_stack_of = |bytes| std::thread::Builder::new().stack_size(bytes);
    let target = on_stack_of(1 << 30).spawn(move || nest(&heap, 20_000)).unwrap().join().unwrap();
    on_stack_of(128 << 10).spawn(move || drop(target)).unwrap().join().unwrap();
}

struct Last(RefCell<Option<Box<dyn FnOnce()>>>);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

thread_local! {
    static LAST: Last = const { Last(RefCell::new(None)) };
}

/// The destructor of a thread-local variable uses a thread scope. The variable was registered
/// before the library's variables, so its destructor runs after theirs.
#[test]
fn thread_scope_ends_with_thread() {
    let heap = heap(&device(1 << 30, Schedule::Immediate), PoolKind::Split);
    let (send, said) = channel();
    let work = move || {
        let target = heap.target().unwrap();
        LAST.with(|last| {
            *last.0.borrow_mut() = Some(Box::new(move || {
                let (array, report) = heap.thread_scope(|_| target.filled(500, 4_u8).unwrap());
                send.send((array.is_freed(), report.freed)).unwrap();
            }));
        });
        // Registers the library's thread-local variables after `LAST`: they are dropped first.
        let other = heap_of_its_own();
        other.thread_scope(|scope| drop(scope.target().unwrap().filled(5, 1_u8)));
    };
    std::thread::spawn(work).join().unwrap();
    assert_eq!(said.recv(), Ok((true, 1)));
}

fn heap_of_its_own() -> Heap {
    heap(&device(1 << 30, Schedule::Immediate), PoolKind::Split)
}
