//! Tests that a program can cause each kind of error.

use std::collections::HashSet;

use gpuheap::emu::{Fault, FaultPlan, Options, Profile};
use gpuheap::{
    Advice, Device, DeviceArray, Error, ErrorKind, Heap, Location, MemoryKind, PoolKind, Stream,
    Target, Tracking,
};
use gpuheap_driver::{CUresult, CUstreamCaptureMode};

use crate::support::{begin_capture, destroy_graph, end_capture};
use ndarray::{Array1, s};

/// A device of 1 GiB, with its heap and target.
struct Bench {
    device: Device,
    heap: Heap,
    target: Target,
}

impl Bench {
    fn new() -> Bench {
        Bench::with_profile(Profile::with_memory(1 << 30))
    }

    fn with_profile(profile: Profile) -> Bench {
        let device = Device::emulated_with(Options::with_device(profile)).unwrap();
        // A `split` pool makes the same driver calls on all devices, so tests can make one fail.
        let heap =
            Heap::builder(&device).pool(PoolKind::Split).track(Tracking::Off).build().unwrap();
        let target = heap.target().unwrap();
        Bench { device, heap, target }
    }

    fn numbers(&self) -> DeviceArray<u32> {
        self.target.array(&[1_u32, 2, 3]).unwrap()
    }

    /// Runs `work` while the call `symbol` fails.
    fn failing<R>(&self, symbol: &'static str, code: CUresult, work: impl FnOnce() -> R) -> R {
        let emulator = self.device.emulator().unwrap();
        emulator.set_faults(FaultPlan::new([Fault::nth(symbol, 1, code).onwards()]));
        let result = work();
        emulator.set_faults(FaultPlan::default());
        result
    }
}

fn wsl2() -> Bench {
    Bench::with_profile(Profile::wsl2_rtx4060())
}

/// Runs `work` while the stream captures a graph. The capture may break.
fn in_capture<R>(stream: &Stream, work: impl FnOnce() -> R) -> R {
    let device = stream.device();
    begin_capture(&device, stream.raw(), CUstreamCaptureMode::RELAXED);
    let result = work();
    if let Some(graph) = end_capture(&device, stream.raw()) {
        destroy_graph(&device, graph);
    }
    result
}

/// A call that fails, with the kind of its error and a part of the error's text.
type Case = (ErrorKind, &'static str, fn() -> Error);

/// Returns the error of a call that must fail.
#[track_caller]
fn error_of<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("a call succeeded that must fail"),
        Err(error) => error,
    }
}

const CASES: &[Case] = &[
    (ErrorKind::OutOfMemory, "is larger than the device", || {
        error_of(Bench::new().target.zeroed::<u8, _>(8 << 30))
    }),
    (ErrorKind::OutOfMemory, "a batch has one row at least", || {
        let bench = Bench::new();
        let _held = bench.target.zeroed::<u8, _>(900 << 20).unwrap();
        let rows = ndarray::Array2::<u8>::zeros((2, 300 << 20));
        let batches = bench.target.batches_by_memory(&rows, 1.0);
        match batches {
            Err(error) => error,
            Ok(mut batches) => error_of(batches.next().unwrap()),
        }
    }),
    (ErrorKind::OutOfMemory, "cuStreamCreate", || {
        let bench = Bench::new();
        bench.failing("cuStreamCreate", CUresult::ERROR_OUT_OF_MEMORY, || {
            error_of(bench.device.stream())
        })
    }),
    (ErrorKind::Freed, "freed at", || {
        let shared = Bench::new().numbers().into_shared();
        shared.free_early().unwrap();
        error_of(shared.to_vec())
    }),
    (ErrorKind::Busy, "borrowed", || {
        let bench = wsl2();
        let mut unified = bench.target.kind(MemoryKind::Unified).filled(3, 1_u8).unwrap();
        let _borrowed = unified.as_mut_slice().unwrap();
        error_of(bench.target.filled(3, 1_u8))
    }),
    (ErrorKind::Busy, "once both are reached", || {
        let options = Options::with_device(Profile::with_memory(1 << 30));
        let schedule = gpuheap::emu::Schedule::OnDemand;
        let device = Device::emulated_with(Options { schedule, ..options }).unwrap();
        let (heap, stream) = (Heap::new(&device).unwrap(), device.stream().unwrap());
        let early = stream.record_timed().unwrap();
        let _array = heap.on(&stream).filled(1000, 1_u8).unwrap();
        error_of(stream.record_timed().unwrap().elapsed_since(&early))
    }),
    (ErrorKind::Ended, "ended, and no array can be made in it", || {
        let (target, _) = Bench::new().heap.scope(|scope| scope.target().unwrap());
        error_of(target.zeroed::<u8, _>(1))
    }),
    (ErrorKind::Ended, "there is no batch to give back", || {
        let rows = Array1::<u32>::zeros(10);
        error_of(Bench::new().target.batches_by_memory(&rows, 0.5).unwrap().halve())
    }),
    (ErrorKind::Gone, "was reset", || {
        let Bench { device, heap, target } = Bench::new();
        drop(heap);
        // SAFETY: the device runs nothing, and nothing else uses it.
        let _device = unsafe { device.reset() }.unwrap();
        error_of(target.zeroed::<u8, _>(1))
    }),
    (ErrorKind::WrongShape, "is not within the leading axis", || {
        error_of(Bench::new().numbers().slice(2..9).map(drop))
    }),
    (ErrorKind::WrongShape, "index 3 is not within", || {
        error_of(Bench::new().numbers().index(3).map(drop))
    }),
    (ErrorKind::WrongShape, "does not hold", || {
        error_of(Bench::new().numbers().reshape((2, 2)).map(drop))
    }),
    (ErrorKind::WrongShape, "and the source 2", || {
        let bench = Bench::new();
        let two = bench.target.array(&[1_u32, 2]).unwrap();
        error_of(bench.numbers().copy_from(&two))
    }),
    (ErrorKind::WrongShape, "the slice to read it into", || {
        error_of(Bench::new().numbers().read_into(&mut [0; 5]))
    }),
    (ErrorKind::WrongShape, "do not go together", || {
        let bench = Bench::new();
        error_of(bench.numbers() + bench.target.array(&[1_u32, 2]).unwrap())
    }),
    (ErrorKind::WrongShape, "cannot take in place", || {
        let bench = Bench::new();
        let table = bench.target.filled((2, 3), 1_u32).unwrap();
        error_of(bench.numbers().add_assign(&table))
    }),
    (ErrorKind::WrongShape, "there is no axis 1", || error_of(Bench::new().numbers().sum_axis(1))),
    (ErrorKind::WrongShape, "of no elements", || {
        error_of(Bench::new().target.filled(0, 1_u32).unwrap().max())
    }),
    (ErrorKind::WrongShape, "is no order of the axes", || {
        error_of(Bench::new().numbers().copy_permuted(7))
    }),
    (ErrorKind::WrongShape, "the slice does not fit", || {
        error_of(Bench::new().numbers().copy_slice(s![5..9]))
    }),
    (ErrorKind::WrongShape, "cannot be repeated", || {
        error_of(Bench::new().numbers().broadcast_to(4))
    }),
    (ErrorKind::WrongShape, "give a key for each row", || {
        let bench = Bench::new();
        let keys = bench.target.array(&[0_u32, 1]).unwrap();
        error_of(bench.numbers().sum_by_key(&keys, 2))
    }),
    (ErrorKind::WrongShape, "has no rows to make batches of", || {
        let single = ndarray::arr0(1_u32);
        error_of(Bench::new().target.batches_by_memory(&single, 0.5).map(drop))
    }),
    (ErrorKind::WrongType, "cannot be read as", || {
        error_of(Bench::new().target.filled(3, 1_u8).unwrap().reinterpret::<u32>().map(drop))
    }),
    (ErrorKind::WrongDevice, "use a stream of the heap's own device", || {
        let stream = Bench::new().device.stream().unwrap();
        error_of(Bench::new().heap.allocate(1, &stream))
    }),
    (ErrorKind::WrongDevice, "arithmetic is done on one device", || {
        error_of(Bench::new().numbers() + Bench::new().numbers())
    }),
    (ErrorKind::WrongDevice, "which cannot reach its memory", || {
        let stream = Bench::new().device.stream().unwrap();
        error_of(Bench::new().numbers().device_ptr(&stream))
    }),
    (ErrorKind::WrongDevice, "know nothing of each other", || {
        let [one, other] = [(); 2].map(|()| Bench::new().device.stream().unwrap());
        error_of(one.wait(&other.record().unwrap()))
    }),
    (ErrorKind::WrongDevice, "have no clock in common", || {
        let [one, other] =
            [(); 2].map(|()| Bench::new().device.stream().unwrap().record_timed().unwrap());
        error_of(one.elapsed_since(&other))
    }),
    (ErrorKind::WrongDevice, "knows nothing of", || {
        let unified = Bench::new().target.kind(MemoryKind::Unified).filled(3, 1_u8).unwrap();
        error_of(unified.prefetch(Location::Other(Bench::new().device)))
    }),
    (ErrorKind::WrongMemory, "the host cannot read an array", || {
        error_of(Bench::new().numbers().as_slice().map(drop))
    }),
    (ErrorKind::WrongMemory, "because its pages never move", || {
        error_of(Bench::new().numbers().advise(Advice::ReadMostly))
    }),
    (ErrorKind::WrongMemory, "is no vector that was registered", || {
        error_of(Bench::new().numbers().unregister())
    }),
    (ErrorKind::WrongMemory, "registered memory is the program's own", || {
        error_of(Bench::new().target.kind(MemoryKind::Registered).filled(3, 1_u8))
    }),
    (ErrorKind::Overlap, "the right side overlaps", || {
        let bench = Bench::new();
        let whole = bench.target.filled(9, 1_u32).unwrap();
        let address = whole.device_ptr(whole.target().stream()).unwrap();
        // SAFETY: the memory has these elements and outlives both arrays.
        let [mut left, right] = [address, address + 4]
            .map(|address| unsafe { bench.target.wrap::<u32, _>(address, 8).unwrap() });
        error_of(left.add_assign(&right))
    }),
    (ErrorKind::TooLarge, "larger than any memory", || {
        error_of(Bench::new().target.zeroed::<u64, _>(usize::MAX))
    }),
    (ErrorKind::InvalidData, "is no valid bool", || {
        let bytes = Bench::new().target.filled(3, 7_u8).unwrap();
        error_of(bytes.reinterpret::<bool>().unwrap().to_vec())
    }),
    (ErrorKind::InvalidData, "2 of 3 keys are not within 0..2", || {
        let bench = Bench::new();
        error_of(bench.numbers().sum_by_key(&bench.numbers(), 2))
    }),
    (ErrorKind::InvalidArgument, "is no part of the memory", || {
        let rows = Array1::<u32>::zeros(10);
        error_of(Bench::new().target.batches_by_memory(&rows, 1.5).map(drop))
    }),
    (ErrorKind::InvalidArgument, "keeps no time", || {
        let stream = Bench::new().device.stream().unwrap();
        error_of(stream.record().unwrap().elapsed_since(&stream.record().unwrap()))
    }),
    (ErrorKind::BadPointer, "cannot be wrapped: it is null", || {
        // SAFETY: the call is refused, so the address is never used.
        error_of(unsafe { Bench::new().target.wrap::<u32, _>(0, 3) })
    }),
    (ErrorKind::BadPointer, "the driver does not know it", || {
        // SAFETY: the call is refused, so the address is never used.
        error_of(unsafe { Bench::new().target.wrap::<u32, _>(0x1000, 3) })
    }),
    (ErrorKind::BadSetting, "'gpu0' is not a device", || error_of(Device::open("gpu0"))),
    (ErrorKind::BadSetting, "is neither a profile nor a size", || {
        error_of(Device::open("emulated:h100"))
    }),
    (ErrorKind::BadSetting, "in steps of", || error_of(Device::open("emulated:16"))),
    (ErrorKind::BadSetting, "is above the hard limit", || {
        let device = Device::open("emulated:1GiB").unwrap();
        error_of(Heap::builder(&device).soft_limit(512 << 20).hard_limit(256 << 20).build())
    }),
    (ErrorKind::NotTracked, "allocations are not tracked", || error_of(Bench::new().heap.leaks())),
    (ErrorKind::Unsupported, "has no stream-ordered pools", || {
        let device = Device::emulated(Profile { pools: false, ..Profile::t4() }).unwrap();
        error_of(Heap::builder(&device).pool(PoolKind::Driver).build())
    }),
    (ErrorKind::Unsupported, "lacks concurrent", || {
        let unified = wsl2().target.kind(MemoryKind::Unified).filled(3, 1_u8).unwrap();
        error_of(unified.advise(Advice::ReadMostly).and(unified.prefetch(Location::Device)))
    }),
    (ErrorKind::StreamUnusable, "was retired", || {
        let bench = Bench::new();
        let own = bench.device.stream().unwrap();
        // SAFETY: the stream lives until the end of this function.
        let stream = unsafe { bench.device.foreign_stream(own.raw()) }.unwrap();
        drop(bench.heap.allocate(1, &stream).unwrap());
        bench.heap.retire(&stream).unwrap();
        error_of(stream.record())
    }),
    (ErrorKind::Capturing, "is capturing a graph", || {
        let bench = Bench::new();
        let (array, stream) = (bench.numbers(), bench.device.stream().unwrap());
        in_capture(&stream, || error_of(array.device_ptr(&stream)))
    }),
    (ErrorKind::Panicked, "panicked: as planned", || {
        let bench = Bench::new();
        let whole = bench.numbers();
        let address = whole.device_ptr(whole.target().stream()).unwrap();
        let owner = |_: u64, _: &Stream| panic!("as planned");
        // SAFETY: the memory has these elements and outlives the array.
        error_of(unsafe { bench.target.wrap_owned::<u32, _>(address, 3, owner) }.unwrap().free())
    }),
    (ErrorKind::NoDevice, "", || error_of(Device::open("cuda:1000"))),
    (ErrorKind::Driver, "cuStreamCreate", || {
        let bench = Bench::new();
        bench.failing("cuStreamCreate", CUresult::ERROR_UNKNOWN, || error_of(bench.device.stream()))
    }),
    (ErrorKind::Driver, "(kernel ", || {
        let bench = Bench::new();
        let (one, other) = (bench.numbers(), bench.numbers());
        bench.failing("cuLaunchKernel", CUresult::ERROR_UNKNOWN, || error_of(one + other))
    }),
];

#[test]
fn errors_have_documented_kinds() {
    let wrong: Vec<String> = CASES.iter().filter_map(|case| try_case(case).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn try_case((kind, text, call): &Case) -> Result<(), String> {
    let error = call();
    let said = format!("{kind:?} is {:?}: {error}", error.kind());
    let is_right = error.kind() == *kind
        && error.to_string().contains(text)
        && error.is_freed() == (*kind == ErrorKind::Freed)
        && error.is_gone() == (*kind == ErrorKind::Gone)
        && (error.out_of_memory().is_none() || *kind == ErrorKind::OutOfMemory)
        && (error.driver().is_some() || *kind != ErrorKind::Driver);
    if is_right { Ok(()) } else { Err(format!("{said}; expected '{text}'")) }
}

/// Error kinds that no test causes. A test cannot take all of a host's memory or threads without
/// harm to other tests.
const UNTESTED: [ErrorKind; 1] = [ErrorKind::HostResources];

#[test]
fn every_error_kind_occurs() {
    let seen: HashSet<ErrorKind> = CASES.iter().map(|case| case.0).chain(UNTESTED).collect();
    let lacking: Vec<_> = ErrorKind::ALL.iter().filter(|kind| !seen.contains(kind)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}
