//! Why does dedicated GPU memory not clear after my program ended?
//!
//! Memory does not outlive its process, however the process ends. If the figure stays up, a process
//! still runs: a child, a worker, or a program in another container.
//!
//! This program starts itself as a child. The child takes memory and ends in one of five ways: it
//! frees everything first, returns, calls `exit`, aborts with device memory, or aborts with unified
//! memory. The parent reads the device's figure (bytes in use, from the driver) before, during and
//! after, and the time that the end took.
//!
//!     cargo run --bin process_end
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin process_end
//!
//! Without a GPU, parent and child share an emulated device through an account file. Memory that
//! one process takes is not available to the other. As on a GPU, the end of a process gives its
//! memory back.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuheap::emu::{Account, Options, Profile};
use gpuheap::{Bytes, Device, Heap, MemoryKind};

const BYTES: usize = 512 << 20;

/// Ways in which a child ends. Each has the child's argument and the text that the parent prints.
const ENDS: [(&str, &str); 5] = [
    ("frees", "it frees its memory and returns"),
    ("returns", "it returns, with nothing freed"),
    ("exits", "it calls exit, with nothing freed"),
    ("aborts", "it aborts, with nothing freed"),
    ("aborts_unified", "it aborts, and the memory is unified"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    if let Some(how) = arguments.next() {
        let account = arguments.next().ok_or("the child has no account")?;
        return hold_and_end(&Heap::new(&open(Path::new(&account))?)?, &how);
    }
    let file = account();
    let result = watch_children(&file);
    // A GPU has no such file.
    let _ = std::fs::remove_file(&file);
    result
}

/// Returns the file by which the parent and its children share an emulated device.
fn account() -> PathBuf {
    std::env::temp_dir().join(format!("gpuheap-process-end-{}", std::process::id()))
}

/// Opens the device that `GPUHEAP_DEVICE` names. `account` is the file that emulated devices share.
fn open(account: &Path) -> Result<Device, Box<dyn Error>> {
    let name = std::env::var("GPUHEAP_DEVICE").unwrap_or_else(|_| "emulated:4GiB".to_owned());
    // An emulated device that is opened by name belongs to one process. So emulated devices are
    // opened from a profile below, to share them with the child.
    let Some(profile) = name.strip_prefix("emulated") else { return Ok(Device::open(&name)?) };
    let profiles = Profile::list(profile.strip_prefix(':').unwrap_or("h200"));
    let devices = profiles.ok_or_else(|| format!("GPUHEAP_DEVICE: {name} is no device"))?;
    let mut options = Options { devices, checks: false, ..Options::default() };
    options.account = Some(Arc::new(Account::open(account)?));
    Ok(Device::emulated_with(options)?)
}

/// Runs in the parent: starts a child for each of [`ENDS`], and reads the device's bytes in use.
fn watch_children(account: &Path) -> Result<(), Box<dyn Error>> {
    let device = open(account)?;
    let heap = Heap::new(&device)?;
    for (how, text) in ENDS {
        let before = used(&heap)?;
        let mut child = start(how, account)?;
        let mut words = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
        let mut line = String::new();
        words.read_line(&mut line)?; // after this line, the child holds its memory
        println!("{text}\n  child: {}", line.trim());
        let during = used(&heap)?;

        let told = Instant::now();
        child.stdin.take().ok_or("the child has no input")?.write_all(b"end\n")?;
        let mut rest = String::new();
        words.read_to_string(&mut rest)?;
        let status = child.wait()?;
        let ended = told.elapsed();
        // The driver takes the memory back when the process ends, usually before `wait` returns.
        while used(&heap)? > before && told.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (back, after) = (told.elapsed(), used(&heap)?);

        rest.lines().for_each(|line| println!("  child: {line}"));
        let end = if status.success() { "in good order" } else { "by a signal" };
        println!("  it ended {end}, {} ms after it was told to", ended.as_millis());
        println!("  the device's line before: {}", Bytes(before));
        println!("  while the child ran:      {}", Bytes(during));
        println!("  after its end:            {}", Bytes(after));
        println!("  all of it came back: {}, {} ms", after <= before, back.as_millis());
    }
    Ok(())
}

fn start(how: &str, account: &Path) -> Result<Child, std::io::Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(how).arg(account);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// Runs in a child: takes memory, starts work, and ends in the way that `how` names.
fn hold_and_end(heap: &Heap, how: &str) -> Result<(), Box<dyn Error>> {
    let kind = match how {
        "aborts_unified" => MemoryKind::Unified,
        _ => MemoryKind::Device,
    };
    let mut array = heap.target()?.kind(kind).filled(BYTES, 1_u8)?;
    let live = heap.usage_of(kind)?.live;
    println!("holds {} of {kind} memory; device in use: {}", Bytes(live), Bytes(used(heap)?));
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    array.fill(2)?;
    if how == "frees" {
        let began = Instant::now();
        array.release()?; // waits for the fill, then gives the memory to the driver
        let took = began.elapsed().as_micros();
        println!("released it in {took} µs; device in use: {}", Bytes(used(heap)?));
        return Ok(());
    }
    std::mem::forget(array);
    match how {
        "exits" => std::process::exit(0),
        "returns" => Ok(()),
        _ => std::process::abort(),
    }
}

/// Returns the bytes in use by all processes, as the driver reports them.
fn used(heap: &Heap) -> Result<u64, Box<dyn Error>> {
    let used = heap.memory_status()?.device_used;
    used.ok_or("the driver does not say how much memory is in use".into())
}
