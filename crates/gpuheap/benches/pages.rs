//! Measures the driver's calls for virtual memory, while the device is idle and while it works on
//! other memory. Runs on the GPU that `GPUHEAP_TEST_DEVICE` names: `cargo bench -p gpuheap --bench
//! pages`. On an emulated device, which is the default, the figures mean nothing: nothing is mapped
//! there.
//!
//! A row is a number of handles of one size, mapped one after the other. Its figures are medians in
//! µs. `create`, `map` and `release` are times per handle. `access` and `unmap` are times of one
//! call for the whole range. `busy` is measured while a stream fills 1 GiB over and over. `waits`
//! names the calls that returned only after all fills.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]
#![expect(clippy::print_stdout, reason = "its result is a table")]

use std::time::Instant;

use gpuheap::emu::Profile;
use gpuheap::{Block, Device, Event, Heap, Stream};
use gpuheap_driver::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CUresult, Driver, check,
};

const MIB: usize = 1 << 20;
const CALLS: [&str; 5] = ["create", "map", "access", "unmap", "release"];

/// Long-running work of one stream.
struct Work {
    stream: Stream,
    memory: Block,
    fills: usize,
}

/// Durations of one kind of call in µs, and `true` if one of the calls waited for the work.
#[derive(Default)]
struct Cost {
    times: Vec<f64>,
    waited: bool,
}

fn main() {
    let name = std::env::var("GPUHEAP_TEST_DEVICE").ok();
    // `cargo test` runs benches too, to see that they work.
    let tiny = name.is_none() || std::env::args().any(|argument| argument == "--test");
    let device = match name {
        Some(name) => Device::open(&name).unwrap(),
        None => Device::emulated(Profile::h200()).unwrap(),
    };
    if !device.describe().virtual_memory {
        println!("{} has no virtual memory management", device.name());
        return;
    }
    let heap = Heap::builder(&device).without_environment().build().unwrap();
    let stream = device.stream().unwrap();
    let memory = heap.allocate(if tiny { MIB } else { 1 << 30 } as u64, &stream).unwrap();
    // On an H200, the fills take half a second or more for each round of calls.
    let work = Work { stream, memory, fills: if tiny { 2 } else { 2000 } };
    let [least, recommended] =
        [CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED]
            .map(|option| granularity(&device, option));
    println!("{}: granularity {least}, recommended {recommended} bytes", device.name());
    println!("handles      device  {}  waits", CALLS.map(|call| format!("{call:>8}")).join(" "));
    for (count, size) in [
        (1, 2),
        (16, 2),
        (256, 2),
        (16, 8),
        (16, 16),
        (1, 32),
        (16, 32),
        (8, 128),
        (1, 512),
        (4, 512),
    ] {
        for busy in [false, true] {
            let rounds = if tiny { 1 } else { 9 };
            let costs = measure(&device, count, size * MIB, rounds, busy.then_some(&work));
            let cells = costs.each_ref().map(|cost| format!("{:>8.1}", median(&cost.times)));
            let waits = CALLS.iter().zip(&costs).filter(|(_, cost)| cost.waited);
            let waits: Vec<_> = waits.map(|(call, _)| *call).collect();
            println!(
                "{count:>3} x {size:>3} MiB {:>6}  {}  {}",
                if busy { "busy" } else { "idle" },
                cells.join(" "),
                waits.join(" ")
            );
        }
    }
}

fn measure(
    device: &Device,
    count: usize,
    size: usize,
    rounds: usize,
    work: Option<&Work>,
) -> [Cost; 5] {
    let mut costs: [Cost; 5] = Default::default();
    for _ in 0..rounds {
        let mut address = 0;
        call(device, |driver| {
            // SAFETY: `address` is a local variable, and the range is freed at the end of the case.
            unsafe { driver.cuMemAddressReserve(&mut address, count * size, 0, 0, 0) }
        });
        let end = work.map(|work| start(device, work));
        let end = end.as_ref();
        let mut handles: Vec<CUmemGenericAllocationHandle> = Vec::new();
        let properties = CUmemAllocationProp::device(device.ordinal());
        let access = CUmemAccessDesc {
            location: CUmemLocation::device(device.ordinal()),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the pointers are valid, addresses and handles were made here, and no work uses
        // them.
        unsafe {
            for _ in 0..count {
                let mut handle = 0;
                costs[0].time(device, end, |driver| {
                    driver.cuMemCreate(&mut handle, size, &properties, 0)
                });
                handles.push(handle);
            }
            for (index, handle) in handles.iter().enumerate() {
                let at = address + (index * size) as u64;
                costs[1].time(device, end, |driver| driver.cuMemMap(at, size, 0, *handle, 0));
            }
            let all = count * size;
            costs[2].time(device, end, |driver| driver.cuMemSetAccess(address, all, &access, 1));
            costs[3].time(device, end, |driver| driver.cuMemUnmap(address, all));
            for handle in handles {
                costs[4].time(device, end, |driver| driver.cuMemRelease(handle));
            }
            device.synchronize().unwrap();
            call(device, |driver| driver.cuMemAddressFree(address, all));
        }
    }
    costs
}

impl Cost {
    fn time(
        &mut self,
        device: &Device,
        end: Option<&Event>,
        work: impl FnOnce(&dyn Driver) -> CUresult,
    ) {
        // The call waited if the work runs before the call and has ended after it. If the work has
        // ended before the call, it is not known whether the call would have waited.
        let was_running = end.is_some_and(|end| !end.is_done().unwrap());
        let mut taken = 0.0;
        call(device, |driver| {
            let start = Instant::now();
            let code = work(driver);
            taken = start.elapsed().as_secs_f64() * 1e6;
            code
        });
        self.times.push(taken);
        self.waited |= was_running && end.is_some_and(|end| end.is_done().unwrap());
    }
}

/// Enqueues the work on the stream. Returns the event at its end.
fn start(device: &Device, Work { stream, memory, fills }: &Work) -> Event {
    for fill in 0..*fills {
        call(device, |driver| {
            let (address, bytes) = (memory.address(), memory.bytes() as usize);
            // SAFETY: the block is live, and the stream is alive.
            unsafe { driver.cuMemsetD8Async(address, fill as u8, bytes, stream.raw()) }
        });
    }
    stream.record().unwrap()
}

fn granularity(device: &Device, option: i32) -> usize {
    let (mut bytes, properties) = (0, CUmemAllocationProp::device(device.ordinal()));
    call(device, |driver| {
        // SAFETY: both pointers are valid.
        unsafe { driver.cuMemGetAllocationGranularity(&mut bytes, &properties, option) }
    });
    bytes
}

fn call(device: &Device, call: impl FnOnce(&dyn Driver) -> CUresult) {
    check("the driver", device.with_current(call).unwrap()).unwrap();
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
