//! Tests the reader of captures. A damaged file is an error, or is read up to the damage.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::borrow::Cow;
use std::io::Read as _;

use flate2::Compression;
use flate2::read::GzEncoder;
use gpuheap_trace::capture::{Address, CaptureWriter, Count, Deltas, Record, Time, header};
use gpuheap_trace::{
    Error, MemoryKind, Op, Place, ReadOptions, RecordingEnd, Taken, Trace, WarningKind, read_bytes,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

#[test]
fn capture_keeps_all_facts() {
    let traces = read(&small(), true).unwrap();
    let [device, host] = &traces[..] else { panic!("{traces:?}") };
    assert_eq!(
        (device.format().as_str(), device.device(), host.device()),
        ("capture", Some(1), None)
    );
    let summary = device.summary();
    assert_eq!((summary.peak_live_bytes, summary.left_live), (3000, 1));
    assert_eq!((device.kind(0), device.kind(1)), (MemoryKind::Device, MemoryKind::Physical));
    assert_eq!(host.kind(0), MemoryKind::Pinned);
    assert_eq!(device.threads(), Some(&[7, 9][..]));
    let worker = device.thread_info(1).unwrap();
    assert_eq!((&*worker.name, worker.is_main, worker.ended_ns), ("worker", false, Some(50)));
    assert!(device.thread_info(0).unwrap().is_main);
    let frames: Vec<_> = device.stack(device.events()[0].stack).collect();
    let shown: Vec<_> = frames.iter().map(|frame| (&*frame.function, frame.line)).collect();
    assert_eq!(shown, [("gone.so+0x20", 0), ("0x4f", 0), ("train", 12)]);
    let recording = device.recording().unwrap();
    assert_eq!((recording.pid, recording.arguments.len()), (7, 2));
    assert_eq!((recording.end.clone(), recording.ended_ns), (RecordingEnd::Exit, 60));
    assert_eq!(recording.device(1).unwrap().limit, Some(5000));
    let coverage = recording.devices[0].coverage.unwrap();
    assert_eq!((coverage.used, coverage.recorded), (4000, 3000));
    assert_eq!(read(&small(), false).unwrap().len(), 1);
}

/// The file is read in parts. Some records cross into the next part, and one is longer than a part.
#[test]
fn records_cross_parts_of_file() {
    let mut file = start();
    let mut deltas = Deltas::default();
    let long = "x".repeat(1_000_000);
    for time in 1..=100_000 {
        if time % 40_000 == 0 {
            Record::Text { text: &long }.encode(&mut deltas, &mut file);
        }
        let block = allocate(time, MemoryKind::Device, 0x1000 * (time + 7 * (time % 3)), 500);
        block.encode(&mut deltas, &mut file);
    }
    let mut packed = Vec::new();
    GzEncoder::new(&file[..], Compression::fast()).read_to_end(&mut packed).unwrap();
    for bytes in [&file, &packed] {
        let traces = read(bytes, false).unwrap();
        assert_eq!((traces[0].allocations(), traces[0].warnings().len()), (100_000, 0));
    }
    file.extend([9, 0x80]);
    let cut = read(&file, false).unwrap();
    assert_eq!(cut[0].warnings()[0].first, Place::Byte(file.len() as u64));
}

#[test]
fn failed_free_keeps_block_live() {
    let mut file = start();
    let mut deltas = Deltas::default();
    let mut add = |record: Record<'_>| record.encode(&mut deltas, &mut file);
    add(Record::Device { ordinal: 0, name: "H200", bytes: 1 << 37 });
    add(allocate(1, MemoryKind::Device, 0x1000, 500));
    add(Record::Free { time: Time(2), thread: 0, space: 0, stream: 0, address: Address(0x1000) });
    add(Record::FreeFailed { time: Time(3), space: 0, address: Address(0x1000) });
    add(Record::DriverMemory { time: Time(4), device: 0, free: 100, total: 1000 });
    let traces = read(&file, false).unwrap();
    assert_eq!(traces[0].summary().left_live, 1);
    assert_eq!(traces[0].events().len(), 1);
    let device = &traces[0].recording().unwrap().devices[0];
    assert_eq!(device.coverage.unwrap().recorded, 500);
}

#[test]
fn ranges_beyond_bound_are_left_out() {
    let mut file = start();
    let mut deltas = Deltas::default();
    let mut add = |record: Record<'_>| record.encode(&mut deltas, &mut file);
    let start = Record::RangeStart { time: Time(1), thread: 1, name: 0 };
    add(Record::ThreadStart { time: Time(1), id: 7, name: "" });
    (0..4097).for_each(|_| add(start.clone()));
    for range in [4097, 1] {
        add(Record::RangeEnd { time: Time(1), range });
    }
    add(start);
    add(allocate(1, MemoryKind::Device, 0x1000, 500));
    let trace = &read(&file, false).unwrap()[0];
    let lengths: Vec<_> = trace.ranges().iter().map(|range| range.events.len()).collect();
    assert_eq!((lengths.len(), lengths[0], lengths[4096]), (4097, 0, 1));
    let [warning] = trace.warnings() else { panic!("{:?}", trace.warnings()) };
    assert_eq!((&warning.kind, warning.count), (&WarningKind::LostRange, 1));
    // The trace lists the thread that opened the ranges, although that thread has no memory event.
    let thread = trace.ranges()[0].thread.unwrap();
    assert_eq!(trace.threads().unwrap()[thread as usize], 7);
}

/// Terminals show the names of a file.
#[test]
fn names_have_no_control_characters() {
    let mut file = start();
    let mut deltas = Deltas::default();
    let name = "a\u{1b}[31m\u{9b}b";
    for record in [
        Record::Process { pid: 1, parent: 1, started_unix_ns: 0, program: name, arguments: name },
        Record::Device { ordinal: 0, name, bytes: 1 },
        Record::Module { path: name, build_id: "", start: 0x20, end: 0x40, base: 0 },
        Record::Text { text: name },
        Record::Frame { function: 1, file: 1, line: 1 },
        Record::Stack { addresses: vec![0x21].into(), frames: vec![1].into() },
        Record::ThreadStart { time: Time(0), id: 1, name },
        Record::ThreadStart { time: Time(0), id: 2, name: "" },
        allocate_on(1, 1),
        allocate_on(2, 1),
        Record::ThreadEnd { time: Time(2), thread: 2, name },
        Record::End { time: Time(3), reason: name },
    ] {
        record.encode(&mut deltas, &mut file);
    }
    let traces = read(&file, false).unwrap();
    let recording = traces[0].recording().unwrap();
    assert!(matches!(&recording.end, RecordingEnd::Stopped(reason) if &**reason == "a [31m b"));
    let infos = [0, 1].map(|thread| traces[0].thread_info(thread).unwrap().clone());
    let shown = format!("{recording:?} {infos:?}");
    assert!(!shown.contains("\\u{1b}") && !shown.contains("\\u{9b}"), "{shown}");
    for frame in traces[0].stack(1) {
        let clean = |text: &str| !text.contains(char::is_control);
        assert!(clean(&frame.function) && clean(&frame.file), "{frame:?}");
    }
}

/// A stack names the files that were loaded when it was recorded, even if another library is later
/// loaded at the same addresses.
#[test]
fn stack_has_files_of_its_time() {
    let module = |path, range: std::ops::Range<u64>| Record::Module {
        path,
        build_id: "",
        start: range.start,
        end: range.end,
        base: range.start,
    };
    let stack =
        |address: u64| Record::Stack { addresses: vec![address].into(), frames: vec![].into() };
    let mut file = start();
    let mut deltas = Deltas::default();
    for record in [
        Record::ThreadStart { time: Time(0), id: 1, name: "" },
        module("/gone/a.so", 0x1000..0x3000),
        stack(0x2001),
        module("/gone/b.so", 0x2000..0x2800),
        stack(0x2001),
        stack(0x1001),
        module("/gone/a.so", 0x9000..0xb000),
        stack(0xa001),
        allocate_on(1, 1),
        allocate_on(1, 2),
        allocate_on(1, 3),
        allocate_on(1, 4),
    ] {
        record.encode(&mut deltas, &mut file);
    }
    let trace = &read(&file, false).unwrap()[0];
    let sites: Vec<_> = trace.events().iter().map(|event| trace.site(event.stack)).collect();
    assert_eq!(sites, ["a.so+0x1000", "b.so+0x0", "0x1000", "a.so+0x1000"]);
    let modules: Vec<_> = trace.events().iter().map(|event| trace.module(event.stack)).collect();
    assert_eq!(modules, [Some("a.so"), Some("b.so"), None, Some("a.so")]);
}

#[test]
fn handles_are_apart_from_pointers() {
    let mut file = start();
    let mut deltas = Deltas::default();
    let mut add = |record: Record<'_>| record.encode(&mut deltas, &mut file);
    add(allocate(1, MemoryKind::Device, 0x1000, 500));
    add(allocate(2, MemoryKind::Physical, 0x1000, 700));
    add(Record::Free { time: Time(3), thread: 0, space: 1, stream: 0, address: Address(0x1000) });
    let traces = read(&file, false).unwrap();
    let live: Vec<_> = traces[0].events().iter().map(|event| event.op).collect();
    assert_eq!(live[2], Op::Free { allocation: 1 });
}

#[test]
fn mapped_rest_is_no_damage() {
    let mut file = start();
    allocate(1, MemoryKind::Device, 0x1000, 500).encode(&mut Deltas::default(), &mut file);
    file.extend([0; 4096]);
    let traces = read(&file, false).unwrap();
    assert_eq!(traces[0].warnings(), []);
    assert_eq!(traces[0].recording().unwrap().end, RecordingEnd::Unknown);
}

#[test]
fn other_files_are_clear_errors() {
    let newer = [&header()[..8], &[2, 0][..], &small()[10..]].concat();
    let unknown = [&start()[..], &[200, 1, 2][..]].concat();
    let mut wrong_stack = start();
    let fail = Record::Fail {
        time: Time(1),
        thread: 0,
        kind: MemoryKind::Device,
        device: 0,
        stream: 0,
        bytes: 1,
        stack: 9,
        code: 2,
        is_limit: 0,
    };
    fail.encode(&mut Deltas::default(), &mut wrong_stack);
    for (file, said) in [
        (&newer[..], "format 2, and this version of gpuheap reads format 1"),
        (&unknown, "byte 10: has an invalid record"),
        (&wrong_stack, "byte 10: has an invalid record"),
        (&start(), "without an allocation"),
        (&header()[..9], "ends within the header"),
        (b"\x89GPH\n\x1a\n\0\0\0", "header is damaged"),
    ] {
        let error = read(file, false).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// Asserts the event size that docs/recording.md states for repeated stacks and usual sizes.
#[test]
fn usual_event_is_small() {
    const PAIRS: u64 = 1000;
    let mut file = start();
    let mut deltas = Deltas::default();
    let empty = file.len();
    for pair in 0..PAIRS {
        let address = 0x7f00_0000_0000 + (pair * 7919 % 512) * (2 << 20);
        let time = pair * 20_000;
        allocate(time, MemoryKind::Device, address, 20 << 20).encode(&mut deltas, &mut file);
        let address = Address(address);
        let time = Time(time + 9000);
        let free = Record::Free { time, thread: 0, space: 0, stream: 0x5555_1234_0000, address };
        free.encode(&mut deltas, &mut file);
    }
    let average = (file.len() - empty) as u64 / (2 * PAIRS);
    assert!(average <= 40, "{average} bytes an event");
}

/// Driver memory with blocks of a pool becomes a segment. If a second pool makes its block inside
/// the block of another pool, the trace leaves the inner block out.
#[test]
fn blocks_of_pools_lie_in_segments() {
    const PLAIN: u64 = 0x7000_0000;
    const MAPPED: u64 = 0x9000_0000;
    let free = |time, space, address| {
        let (time, address) = (Time(time), Address(address));
        Record::Free { time, thread: 0, space, stream: 0, address }
    };
    let records = [
        allocate(1, MemoryKind::Device, PLAIN, 2000),
        allocate(2, MemoryKind::PyTorch, PLAIN, 600),
        allocate(3, MemoryKind::Device, PLAIN + 5000, 70),
        allocate(4, MemoryKind::Physical, 3, 4096),
        Record::Map { time: Time(5), address: Address(MAPPED), bytes: 4096, handle: 3 },
        allocate(6, MemoryKind::CuPy, MAPPED + 1024, 512),
        allocate(7, MemoryKind::PyTorch, MAPPED + 1024, 512),
        free(8, 4, MAPPED + 1024),
        free(9, 5, MAPPED + 1024),
        Record::Unmap { time: Time(10), address: Address(MAPPED), bytes: 4096 },
        free(11, 1, 3),
        free(12, 4, PLAIN),
        free(13, 0, PLAIN),
    ];
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    let trace = read(&file, true).unwrap().remove(0);
    let segment = |taken, address, bytes| match taken {
        true => Op::SegmentTaken { address, bytes },
        false => Op::SegmentGivenBack { address, bytes },
    };
    let block = |allocation, bytes| Op::Allocate { allocation, bytes };
    let ops: Vec<_> = trace.events().iter().map(|event| event.op).collect();
    assert_eq!(
        ops,
        [
            segment(true, PLAIN, 2000),
            block(0, 600),
            block(1, 70),
            segment(true, MAPPED, 4096),
            block(2, 512),
            Op::Free { allocation: 2 },
            segment(false, MAPPED, 4096),
            Op::Free { allocation: 0 },
            segment(false, PLAIN, 2000),
        ]
    );
    assert!(trace.segments_at_end().is_empty());
    let kinds: Vec<_> = (0..3).map(|block| trace.kind(block)).collect();
    assert_eq!(kinds, [MemoryKind::PyTorch, MemoryKind::Device, MemoryKind::CuPy]);
    let mut cut = Vec::new();
    let mut writer = CaptureWriter::new(&mut cut).unwrap();
    records[..3].iter().for_each(|record| writer.write(record).unwrap());
    let held = read(&cut, true).unwrap().remove(0);
    assert_eq!(Taken::after(&held, 3).unwrap().ranges().next(), Some((PLAIN, PLAIN + 2000, 0)));
    let driver = read_bytes("run.gph", &file, &ReadOptions::default().pools(false)).unwrap();
    let summary = driver[0].summary();
    assert_eq!((summary.peak_live_bytes, summary.left_live_bytes), (2000 + 70 + 4096, 70));
}

proptest! {
    #[test]
    fn records_survive_round_trip(records in vec(record(), 0..40)) {
        let mut bytes = Vec::new();
        let mut deltas = Deltas::default();
        let mut last = 0;
        let mut expected = Vec::new();
        for mut record in records {
            if let Record::Allocate { time, .. } | Record::Free { time, .. } | Record::Map { time, .. } | Record::Folded { time, .. } | Record::End { time, .. } = &mut record {
                last = last.max(time.0);
                *time = Time(last);
            }
            record.encode(&mut deltas, &mut bytes);
            expected.push(record);
        }
        let mut deltas = Deltas::default();
        let mut input = &bytes[..];
        for record in &expected {
            let decoded = Record::decode(&mut deltas, &mut input).unwrap();
            prop_assert_eq!(decoded.as_ref(), Some(record));
        }
        prop_assert_eq!(Record::decode(&mut deltas, &mut input), Ok(None));
    }

    #[test]
    fn cut_file_is_read_partly(cut in 0_usize..1000) {
        let whole = small();
        let cut = cut % whole.len();
        match read(&whole[..cut], true) {
            Ok(traces) => {
                let mut warnings = traces.iter().flat_map(|trace| trace.warnings());
                let is_cut = |kind: &WarningKind| matches!(kind, WarningKind::BrokenOff(_));
                prop_assert!(warnings.all(|warning| is_cut(&warning.kind)), "{:?}", traces);
            }
            Err(error) => prop_assert!(!error.to_string().contains("invalid"), "{}", error),
        }
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..300)) {
        let _ = read(&[&header()[..], &noise].concat(), true);
    }
}

fn record() -> impl Strategy<Value = Record<'static>> {
    let kind = select(MemoryKind::ALL);
    prop_oneof![
        select(vec!["", "name", "größer"]).prop_map(|text| Record::Text { text }),
        (vec(any::<u64>(), 0..9), vec(any::<u32>(), 0..4)).prop_map(|(addresses, frames)| {
            Record::Stack { addresses: Cow::Owned(addresses), frames: Cow::Owned(frames) }
        }),
        (any::<u64>(), kind.clone(), any::<[u32; 3]>(), any::<[u64; 3]>()).prop_map(
            |(time, kind, [thread, device, stack], [stream, address, bytes])| Record::Allocate {
                time: Time(time),
                thread,
                kind,
                device,
                stream,
                address: Address(address),
                bytes,
                stack,
            }
        ),
        (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(time, address, space)| {
            Record::Free {
                time: Time(time),
                thread: 1,
                space,
                stream: 0,
                address: Address(address),
            }
        }),
        (any::<u64>(), any::<[u64; 3]>()).prop_map(|(time, [address, bytes, handle])| {
            Record::Map { time: Time(time), address: Address(address), bytes, handle }
        }),
        (any::<u64>(), kind, any::<[u64; 3]>()).prop_map(|(time, kind, counts)| {
            let [count, bytes, largest] = counts.map(Count);
            let (time, thread, device, stack) = (Time(time), 1, 0, 2);
            Record::Folded { time, thread, kind, device, stack, count, bytes, largest }
        }),
        any::<u64>().prop_map(|time| Record::End { time: Time(time), reason: "" }),
    ]
}

fn allocate(time: u64, kind: MemoryKind, address: u64, bytes: u64) -> Record<'static> {
    let (time, address) = (Time(time), Address(address));
    Record::Allocate { time, thread: 0, kind, device: 0, stream: 0, address, bytes, stack: 0 }
}

fn allocate_on(thread: u32, stack: u32) -> Record<'static> {
    Record::Allocate {
        time: Time(1),
        thread,
        kind: MemoryKind::Device,
        device: 0,
        stream: 0,
        address: Address(u64::from(stack * 16 + thread) << 12),
        bytes: 1,
        stack,
    }
}

fn start() -> Vec<u8> {
    header().to_vec()
}

fn read(file: &[u8], host_memory: bool) -> Result<Vec<Trace>, Error> {
    read_bytes("run.gph", file, &ReadOptions::default().host_memory(host_memory))
}

/// Returns a capture with every kind of record.
fn small() -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file).unwrap();
    let allocation = |time, thread, kind, address, bytes, stack| Record::Allocate {
        time: Time(time),
        thread,
        kind,
        device: 1,
        stream: 0,
        address: Address(address),
        bytes,
        stack,
    };
    for record in [
        Record::Process {
            pid: 7,
            parent: 1,
            started_unix_ns: 5,
            program: "/bin/a",
            arguments: "a\0b\0",
        },
        Record::Device { ordinal: 1, name: "H200", bytes: 1 << 37 },
        Record::Limit { device: 1, bytes: 5000 },
        Record::Module { path: "/nowhere/gone.so", build_id: "", start: 0x20, end: 0x40, base: 0 },
        Record::Text { text: "train" },
        Record::Text { text: "train.py" },
        Record::Frame { function: 1, file: 2, line: 12 },
        Record::Stack { addresses: vec![0x21, 0x50].into(), frames: vec![1].into() },
        Record::ThreadStart { time: Time(0), id: 7, name: "a" },
        Record::ThreadStart { time: Time(1), id: 9, name: "" },
        Record::DriverMemory { time: Time(2), device: 1, free: 9_000, total: 10_000 },
        allocation(10, 1, MemoryKind::Device, 0x1000, 1000, 1),
        allocation(20, 2, MemoryKind::Physical, 0x1000, 2000, 0),
        allocation(21, 2, MemoryKind::Pinned, 0x5000, 64, 0),
        Record::DriverMemory { time: Time(22), device: 1, free: 6_000, total: 10_000 },
        Record::Free { time: Time(40), thread: 1, space: 0, stream: 0, address: Address(0x1000) },
        Record::ThreadEnd { time: Time(50), thread: 2, name: "worker" },
        Record::End { time: Time(60), reason: "" },
    ] {
        writer.write(&record).unwrap();
    }
    file
}
