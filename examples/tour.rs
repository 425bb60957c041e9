//! How do I use GPU arrays without managing memory by hand?
//!
//! Shows in one program: upload, types, status, reclaim, early free, leaks, batches.
//!
//!     cargo run --bin tour
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin tour

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::{Device, DeviceArray, Diagonal, Error, Heap, PoolKind, Tracking};

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:16GiB"))?;
    let heap = Heap::builder(&device).pool(PoolKind::Binned).track(Tracking::Counts).build()?;
    let target = heap.target()?;

    println!("-- up, and verified");
    let host: Vec<i64> = (1..=3).collect();
    let array = target.array(&host)?;
    println!("{array:?}");
    println!("the same as on the host: {}", array.to_vec()? == host);

    println!("\n-- a wrapper keeps its type, and cu narrows its elements");
    let diagonal: Diagonal<DeviceArray<f32>> = target.cu(&Diagonal([1, 2]))?;
    println!("{diagonal:?}");
    drop((array, diagonal));

    println!("\n-- status, before and after");
    heap.reclaim_all()?;
    print_status(&heap)?;
    let array = target.zeroed::<i64, _>(1024)?;
    print_status(&heap)?;
    drop(array);
    println!("dropped; the pool keeps it:");
    print_status(&heap)?;

    println!("\n-- reclaim gives it to the driver");
    println!("{} bytes", heap.reclaim_all()?);
    print_status(&heap)?;

    println!("\n-- an early free, and a use after it");
    let mine = target.array(&[1, 2, 3])?.into_shared();
    let yours = mine.clone();
    mine.free_early()?;
    match yours.to_vec() {
        Ok(elements) => println!("{elements:?}"),
        Err(error) => println!("error: {}", error.to_string().replace("; ", ";\n  ")),
    }

    println!("\n-- a leak, found");
    std::mem::forget(target.filled(1000, 1.0_f32)?);
    let leaks = heap.leaks()?;
    for site in &leaks.sites {
        println!("{} bytes that nobody can free, made in line {}", site.bytes, site.at.line());
    }
    println!("the status lists what is outstanding:\n{}", heap.memory_status()?);

    println!("\n-- batches, one on the device at a time");
    let batches = [([1_i64], [2_i64]), ([3], [4])];
    for (number, batch) in target.batches(batches).enumerate() {
        let (a, b) = batch?; // freed when the next one's turn comes
        println!("Batch {}: {:?}", number + 1, (&a + &b)?.to_vec()?);
    }
    Ok(())
}

fn print_status(heap: &Heap) -> Result<(), Error> {
    let status = heap.memory_status()?.to_string();
    // The third line of the status has the figures of the heap's pool.
    println!("  {}", status.lines().nth(2).unwrap_or_default());
    Ok(())
}
