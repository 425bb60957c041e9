//! Can others read my data in memory that I freed, and how do I clear it?
//!
//! A free does not erase. Within a process, the next array with that memory can read the old bytes.
//! With a pool, this happens every time.
//!
//! The last part reads from another process. One child writes a marker to most of the free memory
//! and gives it back to the driver. A second child allocates memory and counts the markers that it
//! finds, once while the first child still runs and once after its end. This part needs a GPU: on
//! an emulated device, each process has its own memory.
//!
//!     cargo run --bin zero_before_free
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin zero_before_free

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error as StdError;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use gpuheap::{Bytes, Device, Error, Heap, Target};

const SECRET: &[u8; 24] = b"the key is 0451, tell no";
/// A value that another program is unlikely to write many times.
const MARKER: u64 = 0x0451_7E11_0451_7E11;
/// Size of each allocation that a child makes, in bytes.
const PIECE: u64 = 256 << 20;
/// Maximum number of bytes that a child reads. Each read copies the bytes to the host.
const READ: u64 = 1 << 30;

fn main() -> Result<(), Box<dyn StdError>> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;

    match std::env::args().nth(1).as_deref() {
        Some("write") => return write_and_release(&Heap::new(&device)?),
        Some(_) => return count_markers(&Heap::new(&device)?),
        None => {}
    }

    let heap = Heap::builder(&device).build()?;
    println!("a heap as it comes:");
    write_free_and_look(&heap.target()?, &heap.target()?)?;

    // Before a freed block is used again, the heap fills all its bytes with zeros. The fill is in
    // stream order: no thread waits.
    let heap = Heap::builder(&device).zero_on_free(true).build()?;
    println!("\na heap that is built with zero_on_free:");
    write_free_and_look(&heap.target()?, &heap.target()?)?;

    // If only one target of a heap has zero_on_free, only that target's arrays are filled.
    let heap = Heap::builder(&device).build()?;
    println!("\none target of a heap that does not:");
    write_free_and_look(&heap.target()?.zero_on_free(true), &heap.target()?)?;

    println!("\nanother process:");
    if device.is_emulated() {
        println!("  not measured on an emulated device: each process has memory of its own");
        return Ok(());
    }
    drop(heap);
    read_from_another_process()
}

/// Starts a child that writes markers to memory and releases it. Another child then counts the
/// markers in newly allocated memory, before and after the first child ends. Prints the counts.
fn read_from_another_process() -> Result<(), Box<dyn StdError>> {
    let mut writer = start("write")?;
    let mut words = BufReader::new(writer.stdout.take().ok_or("the child has no output")?);
    let mut line = String::new();
    words.read_line(&mut line)?; // after this line, the driver has the memory again
    println!("  {}", line.trim());
    println!("  while it still runs, another process finds {}", finding()?);
    writer.stdin.take().ok_or("the child has no input")?.write_all(b"end\n")?;
    writer.wait()?;
    println!("  after its end, another process finds {}", finding()?);
    Ok(())
}

/// Starts a child that counts the markers in newly allocated memory. Returns the child's output.
fn finding() -> Result<String, Box<dyn StdError>> {
    let mut reader = start("read")?;
    let mut text = String::new();
    reader.stdout.take().ok_or("the child has no output")?.read_to_string(&mut text)?;
    reader.wait()?;
    Ok(text.trim().to_owned())
}

fn start(part: &str) -> Result<Child, std::io::Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(part).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// Runs in the first child: fills three quarters of the free memory, and releases it.
fn write_and_release(heap: &Heap) -> Result<(), Box<dyn StdError>> {
    let status = heap.memory_status()?;
    let free = status.device_total - status.device_used.ok_or("the driver gives no figure")?;
    let target = heap.target()?;
    let pieces = (0..free / 4 * 3 / PIECE)
        .map(|_| target.filled(PIECE as usize / size_of::<u64>(), MARKER))
        .collect::<Result<Vec<_>, Error>>()?;
    let written = pieces.len() as u64 * PIECE;
    for piece in pieces {
        piece.release()?; // waits for the fill
    }
    println!("a process wrote a marker to {} and gave it to the driver", Bytes(written));
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Runs in the second child: allocates memory without writing it, and counts the markers there.
fn count_markers(heap: &Heap) -> Result<(), Box<dyn StdError>> {
    let target = heap.target()?;
    let mut held = Vec::new(); // so that no piece is read twice
    let (mut found, mut read) = (0, 0);
    while read < READ {
        let Ok(piece) = target.uninit::<u64, _>(PIECE as usize / size_of::<u64>()) else { break };
        // SAFETY: this process did not write the memory, but any 8 bytes of it are a valid `u64`.
        let piece = unsafe { piece.assume_written() };
        found += piece.to_vec()?.iter().filter(|&&word| word == MARKER).count() as u64 * 8;
        read += PIECE;
        held.push(piece);
    }
    println!("{} of markers in {}", Bytes(found), Bytes(read));
    Ok(())
}

/// Writes the secret, frees it, and reads the same memory through the next array.
fn write_free_and_look(secret: &Target, other: &Target) -> Result<(), Error> {
    let array = secret.array(SECRET)?;
    let address = array.device_ptr(secret.stream())?;
    array.free()?;

    let next = other.uninit::<u8, _>(SECRET.len())?;
    let is_same = next.device_ptr(other.stream())? == address;
    // SAFETY: every bit pattern is a `u8`, and the previous owner of the memory wrote these bytes.
    // Safe code cannot read an array that was never written.
    let found = unsafe { next.assume_written() }.to_vec()?;

    let text = match found.iter().all(|&byte| byte == 0) {
        true => "24 zeros".to_owned(),
        false => format!("{:?}", String::from_utf8_lossy(&found)),
    };
    println!("  the next array gets the same memory: {is_same}");
    println!("  and finds: {text}");
    Ok(())
}
