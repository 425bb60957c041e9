//! Overlap of batches: the part of copy or compute, whichever is shorter, that batches hide. Runs
//! on an emulated device or on `GPUHEAP_TEST_DEVICE`: `cargo bench -p gpuheap --bench batches`.
//!
//! The batches are pageable data of the host. The device works on each batch by copying it within
//! its memory, repeatedly, so that the work takes half as long as the upload, as long, or twice as
//! long:
//!
//! * `copy`: all uploads, waited for at the end;
//! * `compute`: all work, on one batch again and again;
//! * `no prefetch`, `prefetch(2)`: both together, with a loop that does not wait;
//! * `prefetch_on(2)` with a loop that waits for a result of every batch.
//!
//! Each line has its time, and the longer one of copy and compute divided by that time: 1 is the
//! best possible. `GPUHEAP_TEST_BYTES` and `GPUHEAP_TEST_BATCH` (bytes, a list with commas) set the
//! amount.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]
#![expect(clippy::print_stdout, reason = "the result")]

use std::time::Instant;

use gpuheap::emu::Profile;
use gpuheap::{Device, DeviceArray, Error, Heap, Target};

/// Number of runs, of which the fastest counts: other load on the machine only makes a run slower.
const RUNS: usize = 3;
/// Number of batches uploaded ahead.
const AHEAD: usize = 2;

fn main() {
    let device = match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => Device::emulated(Profile::h200()).unwrap(),
    };
    let (bytes, batches) = match device.is_emulated() {
        true => (32_usize << 20, "4194304"),
        false => (4 << 30, "67108864,268435456"),
    };
    let of = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let bytes: usize = of("GPUHEAP_TEST_BYTES", &bytes.to_string()).parse().unwrap();
    let data: Vec<u8> = (0..bytes).map(|nth| nth as u8).collect();
    println!("{device}, {} cores", std::thread::available_parallelism().unwrap());
    for batch in of("GPUHEAP_TEST_BATCH", batches).split(',') {
        sizes(&device, &data, batch.trim().parse().unwrap());
    }
}

fn sizes(device: &Device, data: &[u8], batch: usize) {
    let heap = Heap::builder(device).without_environment().build().unwrap();
    let target = heap.target().unwrap();
    let scratch = target.filled(batch, 0_u8).unwrap();
    let bench = Bench { target: &target, data, batch, scratch };
    let copy = bench.fastest(|| bench.copy());
    // Time that the device takes for one copy of all batches within its memory.
    let once = (bench.fastest(|| bench.compute(5)) - bench.fastest(|| bench.compute(1))) / 4.0;
    println!(
        "{} MiB in batches of {} MiB: copy {:.1} ms ({:.1} GB/s)",
        data.len() >> 20,
        batch >> 20,
        copy * 1e3,
        data.len() as f64 / copy / 1e9
    );
    for share in [0.5, 1.0, 2.0] {
        let times = ((share * copy / once).round() as usize).clamp(1, 10_000);
        let compute = bench.fastest(|| bench.compute(times));
        let best = copy.max(compute);
        println!("  work of {times} copies within the device: compute {:.1} ms", compute * 1e3);
        let report = |name: &str, time: f64| {
            println!("    {name:<15} {:8.1} ms  {:.2}", time * 1e3, best / time);
        };
        report("no prefetch", bench.fastest(|| bench.ahead(0, times)));
        report(&format!("prefetch({AHEAD})"), bench.fastest(|| bench.ahead(AHEAD, times)));
        report(&format!("prefetch_on({AHEAD})"), bench.fastest(|| bench.on_a_thread(times)));
    }
}

struct Bench<'a> {
    target: &'a Target,
    data: &'a [u8],
    batch: usize,
    scratch: DeviceArray<u8>,
}

impl Bench<'_> {
    /// Returns the fastest run's time in seconds.
    fn fastest(&self, run: impl Fn() -> Result<(), Error>) -> f64 {
        run().unwrap();
        let once = || {
            self.target.stream().synchronize().unwrap();
            let start = Instant::now();
            run().unwrap();
            self.target.stream().synchronize().unwrap();
            start.elapsed().as_secs_f64()
        };
        (0..RUNS).map(|_| once()).fold(f64::INFINITY, f64::min)
    }

    fn copy(&self) -> Result<(), Error> {
        for chunk in self.data.chunks(self.batch) {
            self.target.array(chunk)?;
        }
        Ok(())
    }

    fn compute(&self, times: usize) -> Result<(), Error> {
        let source = self.target.array(&self.data[..self.batch.min(self.data.len())])?;
        self.data.chunks(self.batch).try_for_each(|_| self.work(&source, times))
    }

    /// Enqueues copies of a batch within the device's memory.
    fn work(&self, batch: &DeviceArray<u8>, times: usize) -> Result<(), Error> {
        let stream = self.target.stream();
        let (from, to) = (batch.device_ptr(stream)?, self.scratch.device_ptr(stream)?);
        let length = batch.len();
        for _ in 0..times {
            let code = self.target.stream().device().with_current(|driver| {
                // SAFETY: both arrays have these bytes, and are freed in the stream's order.
                unsafe { driver.cuMemcpyDtoDAsync_v2(to, from, length, stream.raw()) }
            })?;
            assert!(code.is_success(), "{code:?}");
        }
        Ok(())
    }

    fn ahead(&self, count: usize, times: usize) -> Result<(), Error> {
        let batches = self.target.batches(self.data.chunks(self.batch)).prefetch(count);
        for batch in batches {
            self.work(&batch?, times)?;
        }
        Ok(())
    }

    fn on_a_thread(&self, times: usize) -> Result<(), Error> {
        std::thread::scope(|scope| {
            let batches = self.target.batches(self.data.chunks(self.batch));
            for batch in batches.prefetch_on(scope, AHEAD)? {
                let batch = batch?;
                self.work(&batch, times)?;
                // Computes a result, for which the host waits.
                self.scratch.slice(..1)?.to_vec()?;
            }
            Ok(())
        })
    }
}
