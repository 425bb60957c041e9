//! Why is memory still there after my thread ended?
//!
//! Shows threads that leak memory, the report that finds them, and three ways to avoid leaks.
//!
//! The driver knows no owner of memory but the context, so the end of a thread frees nothing.
//! Arrays on the thread's stack are dropped. Arrays that were forgotten or are in a cycle stay.
//!
//!     cargo run --bin leaking_threads
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin leaking_threads

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::cell::RefCell;
use std::rc::Rc;

use gpuheap::{Device, DeviceArray, Error, Heap, Tracking};

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    // `Counts` records the line and the thread. `Backtraces` would add the call stack.
    let heap = Heap::builder(&device).track(Tracking::Counts).build()?;

    // At its end, each thread reports the memory that it leaves, by default to stderr.
    heap.on_thread_end(|end| {
        println!("  '{}' ended and left {} bytes", end.name, end.leaks.bytes);
    });

    println!("threads that leak:");
    run("forgets", &heap, forgets)?;
    run("cycle", &heap, cycle)?;

    println!("threads that do not:");
    run("owns", &heap, owns)?;
    run("frees", &heap, frees)?;
    run("scoped", &heap, scoped)?;

    // The report groups leaks by the line that allocated them, largest first.
    let leaks = heap.leaks()?;
    println!("\n{} bytes are outstanding, by line and thread:", leaks.bytes);
    for site in &leaks.sites {
        let thread = &site.threads[0];
        let state = if thread.ended { "ended" } else { "runs" };
        let file = site.at.file().rsplit('/').next().unwrap_or_default();
        let (bytes, line, name) = (site.bytes, site.at.line(), &thread.name);
        println!("  {bytes} bytes at {file}:{line} by '{name}', which {state}");
    }
    println!("\nthe same as people print it:\n\n{leaks}");
    Ok(())
}

/// Forgets the array, so that nothing drops it.
fn forgets(heap: &Heap) -> Result<(), Error> {
    std::mem::forget(heap.target()?.zeroed::<u8, _>(300_000)?);
    Ok(())
}

/// Makes two nodes that hold each other: neither reference count reaches zero.
fn cycle(heap: &Heap) -> Result<(), Error> {
    struct Node {
        _data: DeviceArray<u8>,
        other: RefCell<Option<Rc<Node>>>,
    }
    let node = |other| -> Result<Rc<Node>, Error> {
        let data = heap.target()?.zeroed(100_000)?;
        Ok(Rc::new(Node { _data: data, other: RefCell::new(other) }))
    };
    let first = node(None)?;
    let second = node(Some(first.clone()))?;
    *first.other.borrow_mut() = Some(second);
    Ok(())
}

/// Frees by ownership. The end of the function drops its arrays, even after an error.
fn owns(heap: &Heap) -> Result<(), Error> {
    let array = heap.target()?.filled(500_000, 1_u8)?;
    array.slice(..10)?.to_vec()?;
    Ok(())
}

/// Frees the array explicitly by one handle, although a reference cycle leaks another handle.
fn frees(heap: &Heap) -> Result<(), Error> {
    let array = heap.target()?.zeroed::<u8, _>(500_000)?.into_shared();
    let handles = Rc::new(RefCell::new(Vec::<Box<dyn std::any::Any>>::new()));
    handles.borrow_mut().push(Box::new(array.clone()));
    handles.borrow_mut().push(Box::new(handles.clone())); // the cycle
    array.free_early()?;
    Ok(())
}

/// Lets a scope free the memory of code that may leak. At its end, the scope frees all arrays.
fn scoped(heap: &Heap) -> Result<(), Error> {
    let (result, report) = heap.thread_scope(|_| forgets(heap).and_then(|()| cycle(heap)));
    println!("  the scope freed {} arrays, {} bytes", report.freed, report.freed_bytes);
    result
}

fn run(name: &str, heap: &Heap, work: fn(&Heap) -> Result<(), Error>) -> Result<(), Error> {
    let (before, shared) = (heap.usage()?.live, heap.clone());
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared));
    thread.expect("a thread can be had").join().expect("no thread panics")?;
    println!("  after '{name}': {} bytes more are live", heap.usage()?.live - before);
    Ok(())
}
