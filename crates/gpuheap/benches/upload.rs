//! Measures copies from the host to the device and back, on an emulated device or on
//! `GPUHEAP_TEST_DEVICE`: `cargo bench -p gpuheap --bench upload`.
//!
//! Prints the median GB/s of several runs, for sizes from 1 MiB to 1 GiB (16 MiB on an emulated
//! device). Each run includes the wait for its copy.
//!
//! * `plain up`, `plain down`: `cuMemcpyHtoD` and `cuMemcpyDtoH` of pageable memory;
//! * `ours up`, `ours down`: `write_from` into an array and `to_vec`, which makes a vector;
//! * `pinned up`, `pinned down`: copies of pinned memory, which show the speed of the link.
//!
//! The staging of copies is set by `GPUHEAP_TEST_THREADS`, `GPUHEAP_TEST_PIECE`,
//! `GPUHEAP_TEST_SLOTS` and `GPUHEAP_TEST_THRESHOLD` (bytes). Each is a list of values, separated
//! by commas.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]
#![expect(clippy::print_stdout, reason = "the result")]

use std::hint::black_box;
use std::time::Instant;

use gpuheap::emu::Profile;
use gpuheap::{Device, Heap, MemoryKind, Staging};
use gpuheap_driver::{CUresult, Driver, check};

fn main() {
    let device = match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => Device::emulated(Profile::h200()).unwrap(),
    };
    println!("{device}, {} cores", std::thread::available_parallelism().unwrap());
    let largest: usize = if device.is_emulated() { 16 << 20 } else { 1 << 30 };
    let sizes: Vec<usize> =
        (20..=30).map(|power| 1 << power).filter(|size| *size <= largest).collect();
    for size in &sizes {
        let [plain_up, plain_down, pinned_up, pinned_down] = driver_alone(&device, *size);
        println!(
            "{:>5} MiB: plain up {plain_up:5.1}, down {plain_down:5.1} GB/s; \
             pinned up {pinned_up:5.1}, down {pinned_down:5.1} GB/s",
            size >> 20
        );
        for staging in sweep() {
            let heap = Heap::builder(&device).without_environment().staging(staging);
            let [up, down] = ours(&heap.build().unwrap(), *size);
            let Staging { threads, piece, slots, threshold } = staging;
            println!(
                "           ours  up {up:5.1}, down {down:5.1} GB/s; {:4.2} and {:4.2} of plain \
                 ({threads} threads, {slots} pieces of {} KiB, from {} KiB on)",
                up / plain_up,
                down / plain_down,
                piece >> 10,
                threshold >> 10
            );
        }
    }
}

/// Returns all combinations of the values that the environment lists.
fn sweep() -> Vec<Staging> {
    let Staging { threads, piece, slots, threshold } = Staging::default();
    let mut all = Vec::new();
    for threads in list("GPUHEAP_TEST_THREADS", threads) {
        for piece in list("GPUHEAP_TEST_PIECE", piece) {
            for slots in list("GPUHEAP_TEST_SLOTS", slots) {
                for threshold in list("GPUHEAP_TEST_THRESHOLD", threshold) {
                    all.push(Staging { threads, piece, slots, threshold });
                }
            }
        }
    }
    all
}

fn list(name: &str, default: usize) -> Vec<usize> {
    match std::env::var(name) {
        Ok(list) => list.split(',').map(|one| one.trim().parse().unwrap()).collect(),
        Err(_) => vec![default],
    }
}

/// Returns the median GB/s of several runs, after a first run that is not counted.
fn rate(bytes: usize, mut copy: impl FnMut()) -> f64 {
    copy();
    let runs = ((2 << 30) / bytes).clamp(5, 31);
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            copy();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    bytes as f64 / times[runs / 2] / 1e9
}

fn ours(heap: &Heap, bytes: usize) -> [f64; 2] {
    let target = heap.target().unwrap();
    let source = vec![1_u8; bytes];
    let mut array = target.array(&source).unwrap();
    let up = rate(bytes, || {
        array.write_from(&source).unwrap();
        target.stream().synchronize().unwrap();
    });
    let down = rate(bytes, || drop(black_box(array.to_vec().unwrap())));
    [up, down]
}

/// Returns the rates of pageable copies up and down, and of pinned copies up and down.
fn driver_alone(device: &Device, bytes: usize) -> [f64; 4] {
    let heap = Heap::builder(device).without_environment().build().unwrap();
    let target = heap.target().unwrap();
    let array = target.filled(bytes, 0_u8).unwrap();
    let address = array.device_ptr(target.stream()).unwrap();
    let mut pinned = target.kind(MemoryKind::Pinned).filled(bytes, 1_u8).unwrap();
    let mut pinned = pinned.as_mut_slice().unwrap();
    let source = vec![1_u8; bytes];
    target.stream().synchronize().unwrap();
    let call = |name, call: &dyn Fn(&dyn Driver) -> CUresult| {
        check(name, device.with_current(|driver| call(driver)).unwrap()).unwrap();
    };
    let up = |from: &[u8]| {
        // SAFETY: both sides are `bytes` long, and stay alive until the copy has completed.
        call("cuMemcpyHtoD_v2", &|driver| unsafe {
            driver.cuMemcpyHtoD_v2(address, from.as_ptr().cast(), bytes)
        });
        device.synchronize().unwrap();
    };
    let down = |to: *mut u8| {
        // SAFETY: both sides are `bytes` long, and stay alive until the copy has completed.
        call("cuMemcpyDtoH_v2", &|driver| unsafe {
            driver.cuMemcpyDtoH_v2(to.cast(), address, bytes)
        });
    };
    [
        rate(bytes, || up(&source)),
        // Copies into memory that was not touched before, as `to_vec` does.
        rate(bytes, || {
            let mut fresh: Vec<u8> = Vec::with_capacity(bytes);
            down(fresh.as_mut_ptr());
            black_box(fresh.as_ptr());
        }),
        rate(bytes, || up(&pinned)),
        rate(bytes, || down(pinned.as_mut_ptr())),
    ]
}
