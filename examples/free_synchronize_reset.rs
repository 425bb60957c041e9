//! How do I flush GPU memory, and does a free, a wait or a reset give it back?
//!
//! Prints how much memory the driver reports in use after a free, a wait, a flush and a reset.
//!
//!     cargo run --bin free_synchronize_reset
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin free_synchronize_reset
//!
//! Runs by default on an emulated T4. Its context takes 104 MiB. On a GPU that other processes use,
//! the figure includes their memory.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use gpuheap::{Device, Heap, MemoryKind};

const BYTES: usize = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:t4"))?;
    let heap = Heap::new(&device)?;
    let target = heap.target()?;
    let first = used(&heap)?;
    let show = |what: &str, heap: &Heap| -> Result<(), Box<dyn Error>> {
        let change = used(heap)? as i64 - first as i64;
        println!("{what:<52} {:>+6} MiB", change >> 20);
        Ok(())
    };

    println!("in use at first, by the driver's account: {} MiB, the context's", first >> 20);
    println!("and against that:\n");

    let array = target.zeroed::<u8, _>(BYTES)?;
    show("an array of 256 MiB", &heap)?;

    // This heap can use the memory again immediately. The driver's figure does not change.
    array.free()?;
    show("freed: the heap keeps it", &heap)?;

    // A wait gives no memory back.
    device.synchronize()?;
    show("synchronised: nothing changes", &heap)?;

    let again = target.zeroed::<u8, _>(BYTES)?;
    show("another array: the same memory", &heap)?;
    drop(again);

    heap.flush()?;
    show("flushed: now it is the driver's", &heap)?;

    // These arrays are never freed. One is device memory, and one is pinned host memory.
    std::mem::forget(target.zeroed::<u8, _>(BYTES)?);
    std::mem::forget(target.kind(MemoryKind::Pinned).zeroed::<u8, _>(1 << 20)?);
    heap.flush()?;
    show("an array that was forgotten: a flush leaves it", &heap)?;

    // SAFETY: no other library and no other thread of this program uses the device. Raw addresses
    // and handles that were obtained before are not used again.
    let device = unsafe { device.reset() }?;
    let fresh = Heap::new(&device)?;
    show("reset: the context ended, with all that was in it", &fresh)?;

    // After the reset, an older object returns an error, and does not free its memory again.
    println!("\nan old target, after the reset:");
    match target.zeroed::<u8, _>(1) {
        Ok(_) => println!("  works"),
        Err(error) => println!("  {}", error.to_string().replace("; ", ";\n  ")),
    }
    Ok(())
}

/// Returns the bytes in use by all processes and contexts, as the driver reports them.
fn used(heap: &Heap) -> Result<u64, Box<dyn Error>> {
    let used = heap.memory_status()?.device_used;
    used.ok_or("the driver does not say how much memory is in use".into())
}
