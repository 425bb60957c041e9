//! Does managed (unified) memory free itself, and is it slower?
//!
//! Host and device both access managed memory (unified, in gpuheap) in place. It does not free
//! itself. A drop frees a unified array like any other, and a forgotten array stays until the
//! process ends. `process_end` shows the end of a process with device and with unified memory.
//!
//!     cargo run --bin managed_memory
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin managed_memory
//!     GPUHEAP_DEVICE=emulated:wsl2-rtx4060 cargo run --bin managed_memory

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Instant;

use gpuheap::{Advice, Bytes, Device, DeviceArray, Error, Heap, Location, MemoryKind};

const LENGTH: usize = 1 << 20;
const BYTES: usize = 64 << 20;

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    let heap = device.heap()?;
    let target = heap.target()?;
    let unified = target.kind(MemoryKind::Unified);

    // The host writes in place, with ordinary writes and no copy.
    let mut array: DeviceArray<f32> = unified.zeroed(LENGTH)?;
    for (n, element) in array.as_mut_slice()?.iter_mut().enumerate() {
        *element = n as f32;
    }
    println!("written by the host: {:?}", array.as_slice()?[..4].to_vec());

    // Pages move to the side that accesses them, one fault at a time, unless they are prefetched.
    // Prefetching needs a device with concurrent managed access. Under WSL2 the driver moves the
    // whole allocation instead.
    if device.describe().concurrent_managed_access {
        array.advise(Advice::PreferredLocation(Location::Device))?;
        array.prefetch(Location::Device)?;
        println!("prefetched to the device, in stream order");
    } else {
        let error = array.prefetch(Location::Device).err();
        let text = error.map_or("no error".to_owned(), |error| error.to_string());
        println!(
            "not prefetched:\n  {}",
            text.replace(" with ", "\n  with ")
                .replace(", because", ",\n  because")
                .replace("; ", ";\n  ")
        );
    }

    // The device writes the same memory.
    array.slice_mut(..LENGTH / 2)?.fill(-1.0)?;

    // `as_slice` waits for the device's write. While the slice lives, the memory is not freed.
    {
        let seen = array.as_slice()?;
        println!("after the device: {:?} ... {:?}", &seen[..2], &seen[LENGTH - 2..]);
    }

    // Each kind of memory has separate statistics.
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        println!("{kind} memory, live: {} bytes", heap.usage_of(kind)?.live);
    }

    // Without unified memory, device memory and two copies give the same result, and the device
    // runs at full speed. If host and device alternate often, the copies are faster.
    let mut host: Vec<f32> = (0..LENGTH).map(|n| n as f32).collect();
    let mut own = target.array(&host)?;
    own.slice_mut(..LENGTH / 2)?.fill(-1.0)?;
    own.read_into(&mut host)?;
    println!("the same by copies: {}", host[..] == array.as_slice()?[..]);

    // An array's kind is fixed. `copy` keeps the kind. `copy_to` uses the kind of the target.
    let copy = array.copy()?;
    let moved = array.copy_to(&target)?;
    println!("a copy is {}, one made elsewhere is {}", copy.kind(), moved.kind());

    drop((array, copy, moved, own));
    heap.flush()?;
    println!("unified memory at the end: {} bytes", heap.usage_of(MemoryKind::Unified)?.reserved);

    println!("\nreleased to the driver; in use on the device by its own line:");
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        release(&heap, kind)?;
    }
    println!("\nforgotten, and then a flush:");
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        std::mem::forget(target.kind(kind).zeroed::<u8, _>(BYTES)?);
        heap.flush()?;
        let reserved = heap.usage_of(kind)?.reserved;
        println!("  {kind} memory: {} stay until the process ends", Bytes(reserved));
    }
    Ok(())
}

/// Times an array's release. Prints the device's used bytes before, during and after its life.
fn release(heap: &Heap, kind: MemoryKind) -> Result<(), Error> {
    let line = || heap.memory_status().map(|status| status.device_used);
    let show =
        |used: Option<u64>| used.map_or("unknown".to_owned(), |used| Bytes(used).to_string());
    let before = line()?;
    // The device fills the array, so that the pages are on the device.
    let array = heap.target()?.kind(kind).filled(BYTES, 1_u8)?;
    array.target().stream().synchronize()?;
    let during = line()?;
    let began = Instant::now();
    array.release()?;
    let took = began.elapsed().as_micros();
    let [before, during, after] = [before, during, line()?].map(show);
    println!("  {kind} memory: before {before}, with the array {during}, after {after}");
    println!("    the release took {took} µs");
    Ok(())
}
