//! Can others read what was in memory that I freed, and how do I leave nothing?
//!
//! What is left in memory that was freed, and how to leave nothing.
//!
//! A free does not erase. Whoever gets the memory next can read what was in it; within a process
//! that is a later array, and with a pool it is so every time.
//!
//!     cargo run --bin zero_before_free
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin zero_before_free

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::{Device, Error, Heap, Target};

const SECRET: &[u8; 24] = b"the key is 0451, tell no";

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;

    let heap = Heap::builder(&device).build()?;
    println!("a heap as it comes:");
    write_free_and_look(&heap.target()?, &heap.target()?)?;

    // The heap fills what is freed, rounding included, before anything else can have it. The fill
    // is in stream order: nobody waits.
    let heap = Heap::builder(&device).zero_on_free(true).build()?;
    println!("\na heap that is built with zero_on_free:");
    write_free_and_look(&heap.target()?, &heap.target()?)?;

    // Or one target does, so that only what is worth it costs a fill.
    let heap = Heap::builder(&device).build()?;
    println!("\none target of a heap that does not:");
    write_free_and_look(&heap.target()?.zero_on_free(true), &heap.target()?)
}

/// Writes the secret, frees it, and reads what the next array finds in the same memory.
fn write_free_and_look(secret: &Target, other: &Target) -> Result<(), Error> {
    let array = secret.array(SECRET)?;
    let address = array.device_ptr(secret.stream())?;
    array.free()?;

    let next = other.uninit::<u8, _>(SECRET.len())?;
    let is_same = next.device_ptr(other.stream())? == address;
    // SAFETY: any byte is a `u8`, and these were written, by the owner before. That it may be read
    // at all takes `unsafe`: an array that nobody wrote cannot be read in safe code.
    let found = unsafe { next.assume_written() }.to_vec()?;

    let text = match found.iter().all(|&byte| byte == 0) {
        true => "24 zeros".to_owned(),
        false => format!("{:?}", String::from_utf8_lossy(&found)),
    };
    println!("  the next array gets the same memory: {is_same}");
    println!("  and finds: {text}");
    Ok(())
}
