//! How do I allocate and free GPU memory, and see that it happened?
//!
//! One array from its making to its end, with the heap's figures at each step.
//!
//!     cargo run --bin allocate_and_free
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin allocate_and_free

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::{Device, Heap, PoolKind};

fn main() -> Result<(), gpuheap::Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    // A heap of our own, so that nothing else is in its figures. `device.heap()` is the shared one.
    let heap = Heap::builder(&device).pool(PoolKind::Binned).build()?;
    let target = heap.target()?;
    show("at first", &heap)?;

    // Memory is taken from the driver when it is first needed.
    let array = target.zeroed::<i64, _>(1024)?;
    show("an array of 1024 integers of 64 bits", &heap)?;

    // A drop is a free. The pool keeps the memory, so the driver sees no difference.
    drop(array);
    show("dropped", &heap)?;

    // The next array of that size costs no call of the driver.
    let calls = heap.usage()?.driver_calls;
    let array = target.uninit::<i64, _>(1024)?;
    let between = heap.usage()?.driver_calls - calls;
    println!("another one: {between} calls of the driver\n");

    // A free is a drop that tells what went wrong, if anything.
    array.fill(7)?.free()?;

    // Only now does the driver get it back, and with it everybody else.
    let bytes = heap.reclaim_all()?;
    println!("reclaimed {bytes} bytes");
    show("at last", &heap)
}

fn show(when: &str, heap: &Heap) -> Result<(), gpuheap::Error> {
    let status = heap.memory_status()?.to_string();
    // The first line is about the whole device and all its processes.
    let own: Vec<&str> = status.lines().skip(1).collect();
    println!("{when}:\n  {}\n", own.join("\n  "));
    Ok(())
}
