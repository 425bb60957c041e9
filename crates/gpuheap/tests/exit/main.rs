//! Checks that all memory of a process is returned, however the process ends. The memory is device,
//! unified and pinned memory, live and cached.
//!
//! The child is this program again. If the device is emulated, its memory belongs to the child, so
//! the test checks only how the child ends. If the device is real (`GPUHEAP_TEST_DEVICE=cuda:0`),
//! this process queries the driver for the used memory before, during and after the child's life.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod thread_end;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpuheap::{Device, Heap, MemoryKind};

const CHILD: &str = "GPUHEAP_TEST_EXIT_CHILD";

/// Returns the size in bytes of each array that the child holds.
fn bytes(device: &Device) -> usize {
    if device.is_emulated() { 4 << 20 } else { 256 << 20 }
}

fn device() -> Device {
    Device::open(std::env::var("GPUHEAP_TEST_DEVICE").as_deref().unwrap_or("emulated:4GiB"))
        .unwrap()
}

#[test]
fn process_exit_frees_everything() {
    if let Ok(how) = std::env::var(CHILD) {
        hold_and_end(&how);
    }
    let device = device();
    let heap = Heap::new(&device).unwrap();
    // Takes the memory that this process itself needs, before the test measures `before`.
    let _own = heap.target().unwrap().zeroed::<u8, _>(1).unwrap();
    let before = free_bytes(&device);
    for how in ["exit", "drop", "panic", "abort", "kill"] {
        let mut child = start(how);
        let held = free_bytes(&device);
        if !device.is_emulated() {
            // The child holds two device arrays, and cached memory of a third. Its unified arrays
            // are also on the device, because they were written there. Its pinned ones are not.
            let taken = before.saturating_sub(held);
            assert!(taken >= 3 * bytes(&device) as u64, "{how}: the child holds {taken} bytes");
        }
        if how == "kill" {
            child.kill().unwrap();
        } else {
            child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        }
        let status = child.wait().unwrap();
        let succeeds = matches!(how, "exit" | "drop");
        assert_eq!(status.success(), succeeds, "{how}: {status}");
        // The driver takes memory back when the process is torn down, perhaps a moment later.
        let patience = Instant::now() + Duration::from_secs(30);
        while free_bytes(&device) < before && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(100));
        }
        let after = free_bytes(&device);
        assert!(after >= before, "{how}: {} bytes did not come back", before - after);
    }
}

fn free_bytes(device: &Device) -> u64 {
    let (mut free, mut total) = (0, 0);
    let asked = device.with_current(|driver| {
        // SAFETY: both pointers are valid for the call.
        unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) }
    });
    assert!(asked.unwrap().is_success());
    free as u64
}

/// Starts this test as a child and waits until it holds its memory.
fn start(how: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_exit_frees_everything", "--nocapture"])
        .env(CHILD, how)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("holding")), "{how}: the child ended early");
    child
}

fn hold_and_end(how: &str) -> ! {
    let device = device();
    let heap = Heap::new(&device).unwrap();
    let bytes = bytes(&device);
    let mut held = Vec::new();
    for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
        let target = heap.target().unwrap().kind(kind);
        for _ in 0..2 {
            held.push(target.filled(bytes, 1_u8).unwrap());
        }
        drop(target.filled(bytes, 2_u8).unwrap());
    }
    // Enqueues work that is still in flight when the process ends.
    held[0].fill(3).unwrap();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(b"holding\n").unwrap();
    stdout.flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    match how {
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        "panic" => {
            // Unwinds through this frame. Destructors run, and the harness ends with an error.
            std::panic::resume_unwind(Box::new("the child was told to panic"))
        }
        _ => {
            drop((held, heap, device));
            std::process::exit(0)
        }
    }
}
