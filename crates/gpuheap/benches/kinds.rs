//! Measures each kind of memory on the GPU that `GPUHEAP_TEST_DEVICE` names: `cargo bench -p
//! gpuheap --bench kinds`. On an emulated device, which is the default, the figures mean nothing:
//! all its memory is the host's.
//!
//! A row measures an array of 256 MiB. `made` is its allocation by the driver, and `again` is its
//! allocation from the heap's cache. `host` is a write by the host in place. `up` and `down` are
//! copies from and to a vector. `first` and `then` are reads by the device, through a copy into
//! device memory. `first` is the first read after the host wrote, and `then` is the median of later
//! reads. `prefetched` is unified memory that is prefetched before each read.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]
#![expect(clippy::print_stdout, reason = "its result is a table")]

use std::time::Instant;

use gpuheap::emu::Profile;
use gpuheap::{Device, DeviceArray, Heap, Location, MemoryKind, Target};

const ROUNDS: usize = 5;

fn main() {
    let name = std::env::var("GPUHEAP_TEST_DEVICE").ok();
    // `cargo test` runs benches too, to see that they work.
    let tiny = name.is_none() || std::env::args().any(|argument| argument == "--test");
    let bytes: usize = if tiny { 4 << 20 } else { 256 << 20 };
    let device = match name {
        Some(name) => Device::open(&name).unwrap(),
        None => Device::emulated(Profile::h200()).unwrap(),
    };
    let heap = Heap::builder(&device).without_environment().build().unwrap();
    let target = heap.target().unwrap();
    println!("{bytes} bytes on {}", device.name());
    println!("            made    again     host       up     down    first     then");
    println!("              us       us     GB/s     GB/s     GB/s     GB/s     GB/s");
    let kinds = [
        ("device", MemoryKind::Device),
        ("unified", MemoryKind::Unified),
        ("prefetched", MemoryKind::Unified),
        ("pinned", MemoryKind::Pinned),
        ("registered", MemoryKind::Registered),
    ];
    for (name, kind) in kinds {
        heap.flush().unwrap();
        let row = measure(&target, kind, name == "prefetched", bytes);
        println!("{name:<10} {}", row.map(|cell| format!("{cell:>8}")).join(" "));
    }
}

fn measure(target: &Target, kind: MemoryKind, prefetch: bool, bytes: usize) -> [String; 7] {
    let host = vec![1_u8; bytes];
    let make = || -> DeviceArray<u8> {
        match kind {
            MemoryKind::Registered => target.register(host.clone()).unwrap(),
            kind => target.kind(kind).zeroed(bytes).unwrap(),
        }
    };
    let mut into = target.zeroed::<u8, _>(bytes).unwrap();
    target.stream().synchronize().unwrap();

    let made = match kind {
        MemoryKind::Registered => {
            let source = host.clone();
            let start = Instant::now();
            let array = target.register(source).unwrap();
            let made = start.elapsed();
            drop(array);
            made
        }
        kind => {
            let start = Instant::now();
            let array = target.kind(kind).uninit::<u8, _>(bytes).unwrap();
            let made = start.elapsed();
            drop(array);
            made
        }
    };
    let again = median(|| {
        let start = Instant::now();
        match kind {
            MemoryKind::Registered => return None,
            kind => drop(target.kind(kind).uninit::<u8, _>(bytes).unwrap()),
        }
        Some(start.elapsed().as_secs_f64())
    });

    let mut array = make();
    target.stream().synchronize().unwrap();
    let in_place = kind != MemoryKind::Device;
    let write = median(|| {
        in_place.then(|| {
            let mut slice = array.as_mut_slice().unwrap();
            let start = Instant::now();
            slice.fill(2);
            start.elapsed().as_secs_f64()
        })
    });
    let mut read = |array: &DeviceArray<u8>| {
        let start = Instant::now();
        if prefetch {
            array.prefetch(Location::Device).unwrap();
        }
        into.copy_from(array).unwrap();
        into.stream().synchronize().unwrap();
        start.elapsed().as_secs_f64()
    };
    let first = read(&array);
    let then = median(|| Some(read(&array)));
    let up = median(|| {
        let start = Instant::now();
        array.write_from(&host).unwrap();
        array.stream().synchronize().unwrap();
        Some(start.elapsed().as_secs_f64())
    });
    let down = median(|| {
        let start = Instant::now();
        drop(array.to_vec().unwrap());
        Some(start.elapsed().as_secs_f64())
    });

    let micros = |seconds: Option<f64>| match seconds {
        Some(seconds) => format!("{:.1}", seconds * 1e6),
        None => "-".to_owned(),
    };
    let rate = |seconds: Option<f64>| match seconds {
        Some(seconds) => format!("{:.1}", bytes as f64 / seconds / 1e9),
        None => "-".to_owned(),
    };
    [
        micros(Some(made.as_secs_f64())),
        micros(again),
        rate(write),
        rate(up),
        rate(down),
        rate(Some(first)),
        rate(then),
    ]
}

/// Returns the median of a few measurements; `None` if nothing could be measured.
fn median(mut measure: impl FnMut() -> Option<f64>) -> Option<f64> {
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect::<Option<_>>()?;
    times.sort_by(f64::total_cmp);
    times.get(ROUNDS / 2).copied()
}
