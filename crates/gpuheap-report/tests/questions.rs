//! Tests the answers that reports give, on programs for which the right answers are known.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use gpuheap_report::{At, Report, json, text};
use gpuheap_trace::capture::{Address, CaptureWriter, Record, Time};
use gpuheap_trace::{Format, MemoryKind, ReadOptions, Trace, TraceBuilder, read_bytes};

const MIB: u64 = 1 << 20;

/// Builds a log of blocks at fresh addresses.
struct Log {
    builder: TraceBuilder,
    next: u64,
}

impl Log {
    fn new() -> Self {
        Self { builder: TraceBuilder::new("made up", Format::RmmCsv), next: 1 }
    }

    fn at(&mut self, thread: u64) -> gpuheap_trace::At {
        self.next += 1;
        gpuheap_trace::At { time_ns: self.next * 1_000_000, stream: 0, thread, stack: 0 }
    }

    fn allocate(&mut self, thread: u64, bytes: u64) -> u64 {
        let at = self.at(thread);
        let address = self.next << 32;
        self.builder.allocate(at, address, bytes).unwrap();
        address
    }

    fn free(&mut self, thread: u64, address: u64, bytes: u64) {
        let at = self.at(thread);
        assert!(self.builder.free(at, address, bytes).unwrap());
    }
}

/// Returns the trace of a training run that keeps 20 MiB in each epoch.
fn growing_run() -> Trace {
    let mut log = Log::new();
    for _ in 0..20 {
        log.allocate(1, 8 * MIB);
    }
    for _ in 0..12 {
        for _ in 0..10 {
            let activations = log.allocate(1, 30 * MIB);
            let work = log.allocate(1, 3 * MIB);
            log.free(1, work, 3 * MIB);
            log.free(1, activations, 30 * MIB);
        }
        log.allocate(1, 20 * MIB);
    }
    log.builder.finish()
}

/// Returns the trace of four threads. The third thread leaves a block.
fn leaking_thread() -> Trace {
    let mut log = Log::new();
    for thread in [11, 12, 13, 14] {
        for _ in 0..4 {
            let block = log.allocate(thread, 5 * MIB);
            let other = log.allocate(thread, 2 * MIB);
            log.allocate(thread, MIB / 2);
            log.free(thread, block, 5 * MIB);
            if thread != 13 {
                log.free(thread, other, 2 * MIB);
            }
        }
    }
    log.builder.finish()
}

#[test]
fn growing_site_is_named() {
    let report = Report::new(&growing_run(), At::Peak).unwrap();
    let growing = &report.growing[0];
    assert_eq!(growing.site, "blocks of 20 MiB");
    assert!(growing.is_steady);
    insta::assert_snapshot!(text::render(&report));
}

#[test]
fn leaking_thread_is_named() {
    let report = Report::new(&leaking_thread(), At::Peak).unwrap();
    assert_eq!(report.left_by_thread[0].name, "thread 13");
    assert_eq!(report.left_by_thread[0].bytes, 10 * MIB);
    insta::assert_snapshot!(text::render(&report));
}

/// Reads a capture of these records.
fn read(records: &[Record<'_>]) -> Vec<Trace> {
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    writer.flush().unwrap();
    read_bytes("decode.4711.gph", &file, &ReadOptions::default().host_memory(true)).unwrap()
}

fn allocate(time: u64, thread: u32, kind: MemoryKind, stack: u32) -> Record<'static> {
    let (device, stream, address) = (0, 0, Address(time * MIB * 4));
    let (time, bytes) = (Time(time), 2 * MIB);
    Record::Allocate { time, thread, kind, device, stream, address, bytes, stack }
}

fn free(time: u64, thread: u32, allocated: u64) -> Record<'static> {
    let (time, space, stream, address) = (Time(time), 0, 0, Address(allocated * MIB * 4));
    Record::Free { time, thread, space, stream, address }
}

/// Returns records that define a library, a frame in each of `functions`, and two threads.
fn library(path: &str, functions: &[&'static str]) -> Vec<Record<'static>> {
    let path: &str = String::leak(path.to_owned());
    let mut records = vec![
        Record::Module { path, build_id: "", start: 0x1000, end: 0x2000, base: 0x1000 },
        Record::Text { text: "/home/a/decode.cpp" },
    ];
    for (number, text) in (1..).zip(functions) {
        let (function, file, line) = (number + 1, 1, 10 * number);
        records.push(Record::Text { text });
        records.push(Record::Frame { function, file, line });
    }
    records.extend([
        Record::ThreadStart { time: Time(0), id: 7, name: "main" },
        Record::ThreadStart { time: Time(0), id: 8, name: "worker" },
    ]);
    records
}

/// Returns the capture of a program with pinned memory and a worker that never frees its blocks.
fn captured_worker(kind: MemoryKind) -> Vec<Trace> {
    let mut records = vec![
        Record::Process {
            pid: 4711,
            parent: 1,
            started_unix_ns: 0,
            program: "/opt/decode",
            arguments: "./decode\0--threads\x004\0",
        },
        Record::Device { ordinal: 0, name: "H200", bytes: 1 << 37 },
        Record::Text { text: "take" },
        Record::Text { text: "/home/a/pool.py" },
        Record::Text { text: "decode" },
        Record::Frame { function: 1, file: 2, line: 10 },
        Record::Frame { function: 3, file: 2, line: 16 },
        Record::Stack { addresses: vec![].into(), frames: vec![1, 2].into() },
        Record::ThreadStart { time: Time(0), id: 4711, name: "decode" },
        Record::ThreadStart { time: Time(1), id: 4712, name: "worker" },
        allocate(10, 1, MemoryKind::Device, 1),
        allocate(11, 1, MemoryKind::Pinned, 1),
    ];
    records.extend((20..30).map(|time| allocate(time, 2, kind, 1)));
    records.push(Record::ThreadEnd { time: Time(50_000_000), thread: 2, name: "worker" });
    read(&records)
}

#[test]
fn ended_thread_is_named() {
    let reports: Vec<Report> = captured_worker(MemoryKind::Device)
        .iter()
        .map(|trace| Report::new(trace, At::Peak).unwrap())
        .collect();
    let [device, host] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(device.left_by_ended_threads.as_ref().unwrap()[0].bytes, 20 * MIB);
    assert_eq!(device.left_by_stack[0].frames.len(), 2);
    assert!(host.is_host && !device.is_host);
    insta::assert_snapshot!(format!("{}\n{}", text::render(device), text::render(host)));
}

#[test]
fn pooled_blocks_are_not_left_by_threads() {
    let report = Report::at_peak(&captured_worker(MemoryKind::PyTorch)[0]);
    assert_eq!(report.left_by_thread[0].name, "thread 4712 (worker), ended");
    assert_eq!(report.left_by_ended_threads, Some(vec![]));
}

#[test]
fn freed_run_leaves_nothing() {
    let mut log = Log::new();
    for _ in 0..20 {
        let block = log.allocate(1, MIB);
        log.free(1, block, MIB);
    }
    let report = Report::new(&log.builder.finish(), At::Peak).unwrap();
    assert!(report.left.is_empty() && report.growing.is_empty());
    assert_eq!(report.temporary[0].allocations, 20);
    insta::assert_snapshot!(text::render(&report));
}

#[test]
fn unknown_event_names_last() {
    let error = Report::new(&leaking_thread(), At::Event(1000)).unwrap_err();
    assert_eq!(error, "made up: there is no event 1000; give one from 0 to 76");
}

#[test]
fn nested_ranges_count_once() {
    let mut address = 0;
    let mut allocate = |thread| {
        address += 0x1000;
        let (address, kind) = (Address(address), MemoryKind::Device);
        let (time, device, stream, bytes, stack) = (Time(1), 0, 0, 10, 0);
        Record::Allocate { time, thread, kind, device, stream, address, bytes, stack }
    };
    let start = |thread| Record::RangeStart { time: Time(1), thread, name: 1 };
    let end = |range| Record::RangeEnd { time: Time(1), range };
    let trace = read(&[
        Record::Text { text: "step" },
        Record::ThreadStart { time: Time(0), id: 7, name: "" },
        Record::ThreadStart { time: Time(0), id: 8, name: "" },
        start(1),
        allocate(1),
        start(0),
        start(2),
        allocate(1),
        allocate(2),
        end(2),
        allocate(1),
        allocate(2),
        end(1),
        end(3),
        allocate(1),
    ])
    .remove(0);
    let ranges = Report::new(&trace, At::Peak).unwrap().ranges;
    assert_eq!((ranges[0].ranges, ranges[0].allocations, ranges[0].left_bytes), (3, 5, 50));
}

/// Four workers allocate blocks, one after the other or in turn. Only the third keeps its blocks.
#[test]
fn thread_that_grows_is_named() {
    for takes_turns in [false, true] {
        let mut log = Log::new();
        let mut steps: Vec<u64> = (0..160).map(|step| step / 40).collect();
        if takes_turns {
            steps = (0..160).map(|step| step % 4).collect();
        }
        for worker in steps {
            let block = log.allocate(worker, MIB);
            let frame = log.allocate(worker, 4 * MIB);
            if worker != 2 {
                log.free(worker, block, MIB);
            }
            log.free(worker, frame, 4 * MIB);
        }
        let growing = &Report::at_peak(&log.builder.finish()).growing[0];
        assert_eq!((&*growing.site, growing.is_steady), ("blocks of 1 MiB", true));
        assert_eq!(growing.thread.as_deref(), Some("thread 2"), "{takes_turns}");
    }
}

#[test]
fn blocks_of_libraries_stand_apart() {
    let mut records = library("/opt/lib64/libcublas.so.12", &["gemm", "take"]);
    let stack = |addresses: Vec<u64>, frame| Record::Stack {
        addresses: addresses.into(),
        frames: vec![frame].into(),
    };
    records.extend([stack(vec![0x1101], 1), stack(vec![], 2)]);
    records.extend((1..8).map(|time| allocate(time, 1, MemoryKind::Device, 1)));
    records.push(allocate(8, 1, MemoryKind::Device, 2));
    let report = Report::at_peak(&read(&records)[0]);
    assert_eq!((&*report.left[0].name, report.left.len()), ("decode.cpp:20 in take", 1));
    assert_eq!(report.left_by_stack[0].frames, ["decode.cpp:20 in take"]);
    let text = text::render(&report);
    insta::assert_snapshot!(text.split("\n\n").skip(2).collect::<Vec<_>>().join("\n\n"));
}

#[test]
fn every_form_notes_unrecorded_pools() {
    for (pool, way) in [
        ("c10::cuda::CUDACachingAllocator::take", "gpuheap run --frameworks"),
        ("rmm::mr::pool::take", "record with gpuheap run --frameworks"),
    ] {
        let mut records = library("/opt/decode", &["step", pool]);
        records.push(Record::Stack { addresses: vec![].into(), frames: vec![1, 2].into() });
        records.extend((1..40).map(|time| allocate(time, 1, MemoryKind::Device, 1)));
        let traces = read(&records);
        let report = Report::at_peak(&traces[0]);
        let text = text::render(&report);
        assert!(!report.growing[0].is_steady && !text.contains("steadily"), "{text}");
        assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(way), "{text}");
        let json = json::render(&[report]).unwrap();
        assert!(
            json.contains("\"steady\": false") && json.contains(way.split('=').next().unwrap())
        );
        let row = text.lines().find(|line| line.contains("segments")).unwrap();
        assert_eq!(text.matches(row).count(), 1, "the note is printed once");
    }
}

#[test]
fn callers_that_leak_free_nothing() {
    let mut records = library("/opt/decode", &["take", "keep", "work"]);
    for caller in [2, 3] {
        records.push(Record::Stack { addresses: vec![].into(), frames: vec![1, caller].into() });
    }
    records.push(Record::Device { ordinal: 0, name: "T4", bytes: 16 << 30 });
    records.push(Record::DriverMemory { time: Time(0), device: 0, free: 1, total: 2 });
    for time in (0..40).map(|step| 10 * step) {
        records.push(allocate(time + 1, 2, MemoryKind::Device, 1));
        records.push(allocate(time + 2, 2, MemoryKind::Device, 2));
        records.push(free(time + 3, 2, time + 2));
    }
    records.push(free(500, 2, 1));
    let report = Report::at_peak(&read(&records)[0]);
    let [temporary] = &report.temporary[..] else { panic!("{:?}", report.temporary) };
    let named = (&*temporary.site, temporary.caller.as_deref(), temporary.allocations);
    assert_eq!(named, ("decode.cpp:10 in take", Some("decode.cpp:30 in work"), 40));
    insta::assert_snapshot!(text::render(&report));
}

/// The system gives the id of an ended thread to a later thread.
#[test]
fn threads_of_one_id_have_rows() {
    let start = |time| Record::ThreadStart { time: Time(time), id: 4711, name: "worker" };
    let (time, name) = (Time(2_000_000), "worker");
    let traces = read(&[
        start(0),
        allocate(1_000_000, 1, MemoryKind::Device, 0),
        Record::ThreadEnd { time, thread: 1, name },
        start(3_000_000),
        allocate(4_000_000, 2, MemoryKind::Device, 0),
    ]);
    let report = Report::new(&traces[0], At::End).unwrap();
    let names: Vec<_> = report.left_by_thread.iter().map(|holder| &*holder.name).collect();
    let first = "thread 4711 (worker) from 0.000 s, ended";
    assert_eq!(names, [first, "thread 4711 (worker) from 0.003 s"]);
}
