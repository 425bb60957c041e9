//! Tests of heaps on the emulated library. The checks must find the same misuse of blocks as on an
//! in-process emulated device.

use std::ffi::CStr;
use std::ptr;

use gpuheap::{Device, DeviceArray, ErrorKind, Heap, PoolKind};
use gpuheap_capi::{gpuheap_last_error, gpuheap_open, gpuheap_status};

use crate::library;
use crate::planted::{self, Bug, By};

/// Size of a block small enough for a thread cache, in bytes.
const BYTES: u64 = 1000;

/// Returns texts of a bug: each finding that the checks report for the bug contains all of them.
fn texts_of(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::UseAfterFree => &[" bytes into a block of 1000 bytes at ", " and freed on stream "],
        Bug::OneByteMore => &[" uses 1001 bytes at ", ", 0 bytes into a block of 1000 bytes at "],
        Bug::IntoTheNeighbour => {
            &[" uses 1500 bytes at ", ", 0 bytes into a block of 1000 bytes at "]
        }
        Bug::NeverWritten => &[" were never written", ", of a block of 1000 bytes at "],
        Bug::UnorderedReuse => &["a block of 1000 bytes at ", " and nothing orders the two"],
    }
}

/// Kinds of pools that divide a driver allocation into blocks.
const POOLS: [PoolKind; 4] =
    [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched];

#[test]
fn planted_block_bugs_are_found() {
    let folder = library::folder(&[&library::LIBCUDA]);
    for schedule in ["immediate", "on-demand"] {
        for pool in POOLS {
            let variables = [
                ("GPUHEAP_EMULATED_CHECKS", "1"),
                ("GPUHEAP_EMULATED_SCHEDULE", schedule),
                ("GPUHEAP_POOL", pool.name()),
            ];
            let stderr = library::stderr_of("heap::runs_the_bugs", &folder, &variables);
            let mut sections = stderr.split("-- ").skip(1);
            for (bug, by) in Bug::ALL.into_iter().flat_map(|bug| By::ALL.map(|by| (bug, by))) {
                let what = format!("{pool}, {schedule}, {bug:?}, {by:?}:\n{stderr}");
                let (title, found) = sections.next().unwrap().split_once('\n').unwrap();
                assert_eq!(title, format!("{bug:?} {by:?}"), "{what}");
                // If a kernel accesses memory out of bounds, its context becomes unusable. The
                // context's memory cannot be freed, and is reported as leaked.
                let is_left =
                    |line: &&str| line.contains(" was live when cuDevicePrimaryCtxRelease");
                let found = found.lines().filter(|line| by == By::Calls || !is_left(line));
                let found: Vec<&str> = found.collect();
                assert!(!found.is_empty(), "nothing is found: {what}");
                for finding in found {
                    let is_of_bug = texts_of(bug).iter().all(|text| finding.contains(text));
                    assert!(is_of_bug && finding.starts_with("gpuheap: libcuda: "), "{what}");
                }
            }
        }
    }
    // With the checks off, the run writes no findings.
    let stderr = library::stderr_of("heap::runs_the_bugs", &folder, &[]);
    assert!(stderr.lines().all(|line| line.starts_with("-- ")), "{stderr}");
}

/// Runs each bug on a separate heap, so that findings of different bugs do not mix.
#[test]
#[ignore = "runs in a process of its own"]
fn runs_the_bugs() {
    for (bug, by) in Bug::ALL.into_iter().flat_map(|bug| By::ALL.map(|by| (bug, by))) {
        eprintln!("-- {bug:?} {by:?}");
        let device = Device::open("cuda:0").unwrap();
        assert!(device.emulator().is_none(), "the library is taken for a real driver");
        planted::run(&device, &Heap::new(&device).unwrap(), BYTES, bug, by);
    }
}

/// A correct program causes no findings.
#[test]
fn clean_heap_has_no_findings() {
    let folder = library::folder(&[&library::LIBCUDA]);
    for pool in PoolKind::ALL {
        let variables = [
            ("GPUHEAP_EMULATED_CHECKS", "1"),
            ("GPUHEAP_EMULATED_SCHEDULE", "seeded:3"),
            ("GPUHEAP_POOL", pool.name()),
        ];
        library::run_ignored_test("heap::runs_clean", &folder, &variables);
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn runs_clean() {
    let device = Device::open("cuda:0").unwrap();
    let heap = Heap::new(&device).unwrap();
    let streams = [(); 2].map(|()| device.stream().unwrap());
    for round in 0..10_u8 {
        for stream in &streams {
            let array = heap.on(stream).filled(1000 + usize::from(round), round).unwrap();
            let small: Vec<DeviceArray<u8>> =
                heap.on(stream).adapt(&vec![vec![1_u8; 100]; 3]).unwrap();
            let sum = (&array + &array).unwrap().to_vec().unwrap();
            assert!(sum.iter().all(|byte| *byte == 2 * round));
            assert_eq!(small[2].to_vec().unwrap(), [1; 100]);
        }
    }
    heap.reclaim_all().unwrap();
}

/// If the driver lacks the requested device, the Rust error and the C status agree.
#[test]
fn missing_device_is_refused() {
    let folder = library::folder(&[&library::LIBCUDA]);
    library::run_ignored_test("heap::asks_for_the_sixth", &folder, &[]);
}

#[test]
#[ignore = "runs in a process of its own"]
fn asks_for_the_sixth() {
    let error = Device::open("cuda:5").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    let mut heap = ptr::null_mut();
    // SAFETY: the name is a C string, null selects the default options, and `heap` is valid for a
    // write.
    let status = unsafe { gpuheap_open(c"cuda:5".as_ptr(), ptr::null(), &mut heap) };
    assert_eq!(status, gpuheap_status::Unavailable);
    // SAFETY: the returned text is never null, and is valid until this thread's next failed call.
    let text = unsafe { CStr::from_ptr(gpuheap_last_error()) }.to_str().unwrap();
    assert_eq!(text, format!("gpuheap_open: {error}"));
}
