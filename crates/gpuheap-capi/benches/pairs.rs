//! Measures an allocation and its free through the C functions, and the same pair in Rust. Run with
//! `cargo bench -p gpuheap-capi --bench pairs`, on the emulator or, with `GPUHEAP_DEVICE=cuda:0`,
//! on a GPU.
//!
//! * `pair`: an allocation that hits the cache, and its free, with a stream for each thread;
//! * `live`: each thread exchanges a random one of 1,000 live blocks for a block of another size;
//! * `passed`: one thread allocates, another thread frees.
//!
//! Prints nanoseconds per pair and thread, and millions of pairs per second of all threads.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]
#![expect(clippy::print_stdout, reason = "it is what it is for")]

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use gpuheap::{Device, Heap, PoolKind, Stream};
use gpuheap_capi::{
    gpuheap_allocate, gpuheap_close, gpuheap_free, gpuheap_heap, gpuheap_status as Status,
};

const LIVE: usize = 1000;

fn main() {
    let device = match std::env::var("GPUHEAP_DEVICE") {
        Ok(name) => Device::open(&name),
        Err(_) => Device::emulated(gpuheap::emu::Profile::h200()),
    };
    let device = device.unwrap();
    let pool = std::env::var("GPUHEAP_POOL")
        .map_or(PoolKind::Split, |name| PoolKind::parse(&name).unwrap());
    let cores = std::thread::available_parallelism().unwrap().get();
    println!("{device:?}, {pool}, {cores} cores");
    for threads in [1, 2, 4, 8, 16].into_iter().filter(|threads| *threads <= 2 * cores) {
        let pairs = 100_000;
        for bytes in [1 << 10, 1 << 20] {
            show("pair, Rust", bytes, pairs, threads, || {
                rust_pairs(&device, pool, bytes, pairs, threads)
            });
            show("pair, C", bytes, pairs, threads, || {
                run(&device, pool, threads, |client, stream| {
                    for _ in 0..pairs {
                        client.free(client.allocate(black_box(bytes), stream));
                    }
                })
            });
        }
        let pairs = 50_000;
        show("live, C", 0, pairs, threads, || {
            run(&device, pool, threads, |client, stream| client.exchange(stream, pairs))
        });
    }
    let pairs = 50_000;
    show("passed, C", 1 << 10, pairs, 1, || passed(&device, pool, pairs));
}

fn show(what: &str, bytes: u64, pairs: u64, threads: usize, work: impl Fn() -> f64) {
    // Takes the best of 50 short runs, because other load on the machine only makes a run slower.
    let seconds = (0..50).map(|_| work()).fold(f64::INFINITY, f64::min);
    let pairs = pairs as f64;
    println!(
        "{what:10} {bytes:8} bytes {threads:3} threads {:8.1} ns {:8.2} M/s",
        seconds / pairs * 1e9,
        threads as f64 * pairs / seconds / 1e6
    );
}

fn rust_pairs(device: &Device, pool: PoolKind, bytes: u64, pairs: u64, threads: usize) -> f64 {
    let heap = Heap::builder(device).pool(pool).build().unwrap();
    let streams: Vec<_> = (0..threads).map(|_| device.stream().unwrap()).collect();
    timed(&streams, |stream| {
        for _ in 0..pairs {
            heap.allocate(black_box(bytes), stream).unwrap().free().unwrap();
        }
    })
}

/// Runs `work` on threads that share a heap and have a stream each. Returns the seconds that it
/// took.
fn run(
    device: &Device,
    pool: PoolKind,
    threads: usize,
    work: impl Fn(Client, *mut c_void) + Sync,
) -> f64 {
    let heap = Heap::builder(device).pool(pool).build().unwrap();
    let client = Client(gpuheap_heap::new(device, &heap));
    let streams: Vec<_> = (0..threads).map(|_| device.stream().unwrap()).collect();
    let seconds = timed(&streams, |stream| work(client, raw(stream)));
    // SAFETY: the heap is open, and no thread uses it after this call.
    assert_eq!(unsafe { gpuheap_close(client.0) }, Status::Ok);
    seconds
}

/// Times blocks that one thread allocates and another thread frees. Blocks are handed over in
/// batches, so that the hand-over adds little to the time.
fn passed(device: &Device, pool: PoolKind, pairs: u64) -> f64 {
    const BATCH: u64 = 100;
    let heap = Heap::builder(device).pool(pool).build().unwrap();
    let client = Client(gpuheap_heap::new(device, &heap));
    let stream = device.stream().unwrap();
    let (sender, receiver) = sync_channel::<Vec<usize>>(4);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for addresses in receiver {
                addresses.into_iter().for_each(|address| client.free(address as *mut c_void));
            }
        });
        let stream = raw(&stream);
        for _ in 0..pairs / BATCH {
            let batch = (0..BATCH).map(|_| client.allocate(1 << 10, stream) as usize);
            sender.send(batch.collect()).unwrap();
        }
        drop(sender);
    });
    let seconds = begun.elapsed().as_secs_f64();
    // SAFETY: the heap is open, and no thread uses it after this call.
    assert_eq!(unsafe { gpuheap_close(client.0) }, Status::Ok);
    seconds
}

/// Runs `work` on one thread for each stream, all started at once. Returns the seconds until the
/// last thread is done.
fn timed(streams: &[Stream], work: impl Fn(&Stream) + Sync) -> f64 {
    let start = Arc::new(Barrier::new(streams.len() + 1));
    let mut begun = Instant::now();
    std::thread::scope(|scope| {
        for stream in streams {
            let (start, work) = (start.clone(), &work);
            scope.spawn(move || {
                start.wait();
                work(stream);
            });
        }
        begun = Instant::now();
        start.wait();
    });
    begun.elapsed().as_secs_f64()
}

fn raw(stream: &Stream) -> *mut c_void {
    stream.raw().0 as *mut c_void
}

#[derive(Clone, Copy)]
struct Client(*mut gpuheap_heap);

// SAFETY: the functions may be called from any thread.
unsafe impl Send for Client {}
// SAFETY: the functions may be called from any thread.
unsafe impl Sync for Client {}

impl Client {
    fn allocate(self, bytes: u64, stream: *mut c_void) -> *mut c_void {
        let mut address = ptr::null_mut();
        // SAFETY: the heap is open, the stream is alive, and the pointer is valid.
        let status = unsafe { gpuheap_allocate(self.0, bytes, stream, &mut address) };
        assert_eq!(status, Status::Ok);
        address
    }

    fn free(self, address: *mut c_void) {
        // SAFETY: `run` closes the heap after the last of these calls.
        assert_eq!(unsafe { gpuheap_free(self.0, address) }, Status::Ok);
    }

    fn exchange(self, stream: *mut c_void, times: u64) {
        let mut random = 0x9e37_79b9_7f4a_7c15 ^ stream as u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut size = move || 1 + (next() & ((1 << (8 + next() % 10)) - 1));
        let mut live: Vec<_> = (0..LIVE).map(|_| self.allocate(size(), stream)).collect();
        let mut at = 0;
        for _ in 0..times {
            at = (at + size() as usize) % LIVE;
            self.free(std::mem::replace(&mut live[at], self.allocate(size(), stream)));
        }
        live.into_iter().for_each(|address| self.free(address));
    }
}
