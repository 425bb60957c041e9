//! How do I allocate and free GPU memory, and see that it happened?
//!
//! Follows one array from its allocation to its free. Each step prints three figures: of the device
//! (all processes and contexts, from the driver), of this heap and of its pool.
//!
//!     cargo run --bin allocate_and_free
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin allocate_and_free

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::{Device, Heap, PoolKind};

fn main() -> Result<(), gpuheap::Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    // A heap for this part of the program only. `device.heap()` is shared by the whole process.
    let heap = Heap::builder(&device).pool(PoolKind::Binned).build()?;
    let target = heap.target()?;
    print_usage("at first", &heap)?;

    // Memory is taken from the driver when it is first needed.
    let array = target.zeroed::<i64, _>(1024)?;
    print_usage("an array of 1024 integers of 64 bits", &heap)?;

    // A drop is a free. The pool keeps the memory, so the driver sees no difference.
    drop(array);
    print_usage("dropped", &heap)?;

    // The next array of that size needs no driver call.
    let calls = heap.usage()?.driver_calls;
    let array = target.uninit::<i64, _>(1024)?;
    let between = heap.usage()?.driver_calls - calls;
    println!("another one: {between} calls of the driver\n");

    // `free` frees as a drop does, and returns the error if the free fails.
    array.fill(7)?.free()?;

    // Gives the memory back to the driver. Other processes can then allocate it.
    let bytes = heap.reclaim_all()?;
    println!("reclaimed {bytes} bytes\n");
    print_usage("at last", &heap)
}

fn print_usage(when: &str, heap: &Heap) -> Result<(), gpuheap::Error> {
    let status = heap.memory_status()?.to_string();
    println!("{when}:\n  {}\n", status.replace('\n', "\n  "));
    Ok(())
}
