//! What is managed (unified) memory, and does it free itself?
//!
//! Unified memory: one array that host and device both touch in place.
//!
//!     cargo run --bin managed_memory
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin managed_memory
//!     GPUHEAP_DEVICE=emulated:wsl2-rtx4060 cargo run --bin managed_memory

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::{Advice, Device, DeviceArray, Error, Location, MemoryKind};

const LENGTH: usize = 1 << 20;

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    let heap = device.heap()?;
    let target = heap.target()?;
    let unified = target.kind(MemoryKind::Unified);

    // The host writes in place. Nothing is copied, and a write is an ordinary write.
    let mut array: DeviceArray<f32> = unified.zeroed(LENGTH)?;
    for (n, element) in array.as_mut_slice()?.iter_mut().enumerate() {
        *element = n as f32;
    }
    println!("written by the host: {:?}", array.as_slice()?[..4].to_vec());

    // Pages go to whoever touches them, one fault at a time, unless they are sent first. That
    // takes a device that can share them; under WSL2 the driver moves all of it or nothing.
    if device.describe().concurrent_managed_access {
        array.advise(Advice::PreferredLocation(Location::Device))?;
        array.prefetch(Location::Device)?;
        println!("prefetched to the device, in stream order");
    } else {
        let error = array.prefetch(Location::Device).err();
        println!("not prefetched: {}", error.map_or("no error".to_owned(), |e| e.to_string()));
    }

    // The device writes the same memory.
    array.slice_mut(..LENGTH / 2)?.fill(-1.0)?;

    // The borrow waits for that. While it lives, the memory stays, whatever is freed.
    {
        let seen = array.as_slice()?;
        println!("after the device: {:?} ... {:?}", &seen[..2], &seen[LENGTH - 2..]);
    }

    // It counts in an account of its own, not in the device's.
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        println!("{kind} memory, live: {} bytes", heap.usage_of(kind)?.live);
    }

    // The same with the device's own memory: two copies, and the device at its full speed. Which is
    // better depends on how often the sides take turns.
    let mut host: Vec<f32> = (0..LENGTH).map(|n| n as f32).collect();
    let mut own = target.array(&host)?;
    own.slice_mut(..LENGTH / 2)?.fill(-1.0)?;
    own.read_into(&mut host)?;
    println!("the same by copies: {}", host[..] == array.as_slice()?[..]);

    // A kind is a choice of where an array is made; nothing else differs. Copies keep it.
    let copy = array.copy()?;
    let moved = array.copy_to(&target)?;
    println!("a copy is {}, one made elsewhere is {}", copy.kind(), moved.kind());

    drop((array, copy));
    heap.flush()?;
    println!("unified memory at the end: {} bytes", heap.usage_of(MemoryKind::Unified)?.reserved);
    Ok(())
}
