//! How do I work on data that is larger than GPU memory?
//!
//! Makes an array that is too large for the device, shows the error, and does the work in pieces.
//!
//!     cargo run --bin too_large
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin too_large
//!
//! Runs by default on an emulated device of 64 MiB. On a GPU, a limit replaces the small device, so
//! that the program does not take minutes.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::ndarray::Array1;
use gpuheap::{Device, Error, Heap};

const LIMIT: u64 = 64 << 20;

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:64MiB"))?;
    let heap = Heap::builder(&device).hard_limit(LIMIT).build()?;
    let target = heap.target()?;

    // 96 MiB of numbers.
    let data: Array1<f32> = (0..24 << 20).map(|n| (n % 1000) as f32).collect();
    let bytes = (data.len() * size_of::<f32>()) as u64;

    println!("all of it at once:");
    match target.array(&data) {
        Ok(_) => println!("  fits"),
        // The error names the cause, the missing bytes and the remedies, and has fields with them.
        Err(error) => {
            println!("  {}", error.to_string().replace("; ", ";\n  ").replace(" (", "\n  ("));
            if let Some(evidence) = error.out_of_memory() {
                let short_by = evidence
                    .short_by
                    .map_or("an unknown number of".to_owned(), |bytes| (bytes >> 20).to_string());
                println!("  so {short_by} MiB too much");
            }
        }
    }

    // `would_fit` answers beforehand, without an error and without taking memory.
    println!("\nwould it fit? {}", heap.would_fit(bytes)?);
    println!("would a quarter? {}", heap.would_fit(bytes / 4)?);

    // A batch takes a quarter of the available memory, to leave room for the work itself. Each
    // batch is freed before the next one is made, and the next batch reuses its memory. Memory is
    // taken from the driver once.
    println!("\nin batches:");
    let (mut sum, mut largest) = (0.0, f32::MIN);
    let meter = heap.meter()?;
    for (number, batch) in target.batches_by_memory(&data, 0.25)?.enumerate() {
        let batch = batch?;
        sum += f64::from((&batch * 2.0)?.mean()?) * batch.len() as f64;
        largest = largest.max(batch.max()?);
        println!("  batch {number}: {} MiB", batch.bytes() >> 20);
    }
    println!("  the mean of twice the numbers: {:.1}", sum / data.len() as f64);
    println!("  the largest: {largest}");

    println!("\nfrom the driver: {} MiB in all", meter.read()?.taken >> 20);
    println!("never more than: {} MiB", heap.usage()?.reserved_peak >> 20);

    // The host computes the mean too, for comparison.
    let mean = data.iter().map(|&x| f64::from(x) * 2.0).sum::<f64>() / data.len() as f64;
    println!("the same on the host: {}", (mean - sum / data.len() as f64).abs() < 0.01);
    Ok(())
}
