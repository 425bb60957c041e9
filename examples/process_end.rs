//! Why does dedicated GPU memory not clear after my program ended?
//!
//! Memory does not outlive its process, however the process ends.
//!
//! This program starts itself as a child, which takes memory and ends by returning, by `exit`, or
//! by an abort, in the middle of its work and with nothing freed. The parent watches what the
//! driver calls free.
//!
//!     cargo run --bin process_end
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin process_end
//!
//! An emulated device is part of its process, so there the parent cannot see the child's memory,
//! and what is shown is only that the child had it and is gone.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpuheap::{Device, Heap};

const BYTES: usize = 512 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    let heap = Heap::new(&device)?;
    if let Some(how) = std::env::args().nth(1) {
        return hold_and_end(&heap, &how);
    }
    if device.is_emulated() {
        println!("an emulated device: each process has its own, and sees only that\n");
    }
    for how in ["return", "exit", "abort"] {
        let before = used(&heap)?;
        let mut child = start(how)?;
        let mut words = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
        let mut line = String::new();
        words.read_line(&mut line)?; // it holds its memory now
        println!("{how}: the child says: {}", line.trim());
        let during = used(&heap)?;
        // The child ends when it is told to.
        child.stdin.take().ok_or("the child has no input")?.write_all(b"end\n")?;
        let status = child.wait()?;
        let patience = Instant::now() + Duration::from_secs(30);
        // The driver takes a process down in its own time, which is mostly none.
        while used(&heap)? > before && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(50));
        }
        let after = used(&heap)?;
        println!("  it ended {}", if status.success() { "in good order" } else { "by a signal" });
        if !device.is_emulated() {
            let [before, during, after] = [before, during, after].map(|bytes| bytes >> 20);
            println!("  in use before, during and after: {before}, {during}, {after} MiB");
            println!("  all of it came back: {}", after <= before);
        }
    }
    Ok(())
}

fn start(how: &str) -> Result<Child, std::io::Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(how).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// The child: takes memory that nothing will free, has work in flight, and ends.
fn hold_and_end(heap: &Heap, how: &str) -> Result<(), Box<dyn Error>> {
    let mut array = heap.target()?.filled(BYTES, 1_u8)?;
    let (mine, all) = (heap.usage()?.live >> 20, used(heap)? >> 20);
    println!("I hold {mine} MiB, and the driver calls {all} MiB in use");
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    array.fill(2)?;
    std::mem::forget(array);
    match how {
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        _ => Ok(()),
    }
}

/// Bytes in use by all processes, as the driver says.
fn used(heap: &Heap) -> Result<u64, Box<dyn Error>> {
    let used = heap.memory_status()?.device_used;
    used.ok_or("the driver does not say how much memory is in use".into())
}
