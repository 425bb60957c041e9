//! Measures what each pool pays so that a second device can access its memory, on the first two
//! GPUs of a machine: `GPUHEAP_TEST_TWO_DEVICES=1 cargo bench -p gpuheap --bench devices`. On
//! emulated devices, which are the default, the figures mean nothing.
//!
//! `grow` is the time to take a block of 32 MiB from the driver. `back` is the time to give one
//! back in a flush. `pair` is an allocation of 1 MiB from the heap's cache and its free. `copy` is
//! the bandwidth of a copy of 256 MiB to the other device's heap. Each figure is measured before
//! the other device has access to the heap's memory, and again afterwards.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]
#![expect(clippy::print_stdout, reason = "its result is a table")]

use std::time::{Duration, Instant};

use gpuheap::emu::{Options, Profile};
use gpuheap::{Device, Heap, PoolKind, Stream};

const ROUNDS: usize = 5;

fn main() {
    let is_real = std::env::var_os("GPUHEAP_TEST_TWO_DEVICES").is_some();
    // `cargo test` runs benches too, to see that they work.
    let tiny = !is_real || std::env::args().any(|argument| argument == "--test");
    let (blocks, pairs, copied) = if tiny { (2, 10, 1 << 20) } else { (64, 10_000, 256 << 20) };
    let devices: [Device; 2] = match is_real {
        true => ["cuda:0", "cuda:1"].map(|name| Device::open(name).unwrap()),
        false => {
            let profile = || Profile::with_memory(4 << 30).without_context();
            let devices = vec![profile(), profile()];
            let options = Options { devices, ..Options::default() };
            Device::emulated_devices(options).unwrap().try_into().unwrap()
        }
    };
    println!("{} and {}", devices[0].name(), devices[1].name());
    println!("pool      peer      grow     back     pair     copy");
    println!("                      us       us       ns     GB/s");
    for pool in [PoolKind::Stitched, PoolKind::Split, PoolKind::Binned, PoolKind::Simple] {
        let heaps = [&devices[0], &devices[1]]
            .map(|device| Heap::builder(device).without_environment().pool(pool).build().unwrap());
        let stream = devices[0].stream().unwrap();
        let far = devices[1].stream().unwrap();
        for peer in [false, true] {
            if peer && !open_to_peer(&heaps[0], &stream, &far) {
                println!("{:<9} the devices have no access to each other", pool.name());
                continue;
            }
            let (grow, back) = growth(&heaps[0], &stream, blocks);
            let pair = pair(&heaps[0], &stream, pairs);
            let copy = copy(&heaps, copied);
            let yes = if peer { "yes" } else { "no" };
            println!("{:<9} {yes:<5} {grow:>8.1} {back:>8.1} {pair:>8.1} {copy:>8.1}", pool.name());
        }
    }
}

/// Gives the other device access to all memory of the heap. Returns `false` if that is impossible.
fn open_to_peer(heap: &Heap, near: &Stream, far: &Stream) -> bool {
    let array = heap.on(near).filled(1 << 20, 1_u8).unwrap();
    array.device_ptr(far).is_ok()
}

/// Returns how long it takes, in µs, to get a block of 32 MiB from the driver and to return it.
fn growth(heap: &Heap, stream: &Stream, blocks: usize) -> (f64, f64) {
    let mut times = [(0.0, 0.0); ROUNDS];
    for time in &mut times {
        heap.flush().unwrap();
        let began = Instant::now();
        let live: Vec<_> = (0..blocks).map(|_| heap.allocate(32 << 20, stream).unwrap()).collect();
        let taken = began.elapsed();
        drop(live);
        stream.synchronize().unwrap();
        let began = Instant::now();
        heap.flush().unwrap();
        *time = (micros(taken) / blocks as f64, micros(began.elapsed()) / blocks as f64);
    }
    (median(times.map(|time| time.0)), median(times.map(|time| time.1)))
}

/// Returns the time, in ns, to allocate 1 MiB from the cache and free it.
fn pair(heap: &Heap, stream: &Stream, pairs: usize) -> f64 {
    median([(); ROUNDS].map(|()| {
        let began = Instant::now();
        for _ in 0..pairs {
            drop(heap.allocate(1 << 20, stream).unwrap());
        }
        micros(began.elapsed()) * 1e3 / pairs as f64
    }))
}

/// Returns the bandwidth of a copy to the other device, GB/s.
fn copy(heaps: &[Heap; 2], bytes: usize) -> f64 {
    let source = heaps[0].target().unwrap().filled(bytes, 1_u8).unwrap();
    let mut target = heaps[1].target().unwrap().zeroed::<u8, _>(bytes).unwrap();
    let synchronize = |target: &gpuheap::DeviceArray<u8>| target.stream().synchronize().unwrap();
    median([(); ROUNDS].map(|()| {
        synchronize(&target);
        let began = Instant::now();
        target.copy_from(&source).unwrap();
        synchronize(&target);
        bytes as f64 / began.elapsed().as_secs_f64() / 1e9
    }))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut values: [f64; ROUNDS]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[ROUNDS / 2]
}
