//! Questions that the text answers, on programs with a known answer.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use gpuheap_report::{At, Report, text};
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

/// Returns the trace of four threads of which the third leaves a block.
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
    let mut report = Report::new(&growing_run(), At::Peak).unwrap();
    let growing = &report.growing[0];
    assert_eq!(growing.site, "blocks of 20 MiB");
    assert!(growing.is_steady());
    insta::assert_snapshot!(text::render(&report));
    report.unrecorded_pools = vec!["PyTorch"];
    let text = text::render(&report);
    assert_eq!(text.matches("segments of PyTorch's").count(), 2);
    assert!(!text.contains("steadily"), "{text}");
}

#[test]
fn leaking_thread_is_named() {
    let report = Report::new(&leaking_thread(), At::Peak).unwrap();
    assert_eq!(report.left_by_thread[0].name, "thread 13");
    assert_eq!(report.left_by_thread[0].bytes, 10 * MIB);
    insta::assert_snapshot!(text::render(&report));
}

/// Returns the capture of a program with a worker that leaves blocks, and with pinned memory.
fn captured_worker(kind: MemoryKind) -> Vec<Trace> {
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file).unwrap();
    let allocate = |time, thread, kind, stack| Record::Allocate {
        time: Time(time),
        thread,
        kind,
        device: 0,
        stream: 0,
        address: Address(time * MIB * 4),
        bytes: 2 * MIB,
        stack,
    };
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
    for record in records {
        writer.write(&record).unwrap();
    }
    writer.flush().unwrap();
    read_bytes("decode.4711.gph", &file, &ReadOptions::default().host_memory(true)).unwrap()
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
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file).unwrap();
    let mut address = 0;
    let mut allocate = |thread| {
        address += 0x1000;
        let (address, kind) = (Address(address), MemoryKind::Device);
        let (time, device, stream, bytes, stack) = (Time(1), 0, 0, 10, 0);
        Record::Allocate { time, thread, kind, device, stream, address, bytes, stack }
    };
    let start = |thread| Record::RangeStart { time: Time(1), thread, name: 1 };
    let end = |range| Record::RangeEnd { time: Time(1), range };
    for record in [
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
    ] {
        writer.write(&record).unwrap();
    }
    let trace = read_bytes("run.gph", &file, &ReadOptions::default()).unwrap().remove(0);
    let ranges = Report::new(&trace, At::Peak).unwrap().ranges;
    assert_eq!((ranges[0].ranges, ranges[0].allocations, ranges[0].left_bytes), (3, 5, 50));
}
