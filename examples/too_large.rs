//! An array that is too large for the device: the error, and the same work in pieces.
//!
//!     cargo run --example too_large
//!     GPUHEAP_DEVICE=cuda:0 cargo run --example too_large
//!
//! By default on an emulated device of 64 MiB. On a GPU a limit stands for the small device, so
//! that the program does not take minutes.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::{Device, Error, Heap};

const LIMIT: u64 = 64 << 20;

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:64MiB"))?;
    let heap = Heap::builder(&device).hard_limit(LIMIT).build()?;
    let target = heap.target()?;

    // 96 MiB of numbers.
    let data: Vec<f32> = (0..24 << 20).map(|n| (n % 1000) as f32).collect();
    let bytes = size_of_val(&data[..]) as u64;

    println!("all of it at once:");
    match target.array(&data) {
        Ok(_) => println!("  fits"),
        // The cause, the bytes that are missing, and what would help. Programs read the fields.
        Err(error) => {
            println!("  {error}");
            if let Some(evidence) = error.out_of_memory() {
                println!("  so {} MiB too much", evidence.short_by >> 20);
            }
        }
    }

    // The same could have been asked before, without an error and without taking anything.
    println!("\nwould it fit? {}", heap.would_fit(bytes)?);
    println!("would a quarter? {}", heap.would_fit(bytes / 4)?);

    // In pieces. A piece is freed at the end of its turn, and its memory serves the next one: the
    // driver is asked once. A quarter of the limit leaves room for what the work itself needs.
    println!("\nin pieces:");
    let (mut sum, mut largest) = (0.0, f32::MIN);
    let before = heap.usage()?;
    for (number, piece) in data.chunks(LIMIT as usize / 4 / size_of::<f32>()).enumerate() {
        let up = target.array(piece)?;
        sum += f64::from((&up * 2.0)?.mean()?) * piece.len() as f64;
        largest = largest.max(up.max()?);
        println!("  piece {number}: {} MiB", up.bytes() >> 20);
    }
    println!("  the mean of twice the numbers: {:.1}", sum / data.len() as f64);
    println!("  the largest: {largest}");

    let after = heap.usage()?;
    println!("\nfrom the driver: {} MiB in all", after.since(&before).taken >> 20);
    println!("never more than: {} MiB", after.reserved_peak >> 20);

    // On the host, to compare with.
    let mean = data.iter().map(|&x| f64::from(x) * 2.0).sum::<f64>() / data.len() as f64;
    println!("the same on the host: {}", (mean - sum / data.len() as f64).abs() < 0.01);
    Ok(())
}
