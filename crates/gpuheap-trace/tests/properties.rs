//! Compares the readers and the writer with naive models, and reads randomly damaged files.

mod support;

use std::path::Path;

use gpuheap_trace::{
    At, Format, Op, ReadOptions, Trace, TraceBuilder, read, read_bytes, write_rmm_csv,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use support::pickle::{Data, encode, entry, segment, snapshot};
use support::{HEADER, assert_keeps_its_word, gzip, read_one};

/// Asserts that these bytes give valid traces, or an error of one line.
fn survives(bytes: &[u8]) {
    for recorded_only in [false, true] {
        let options = ReadOptions::default().recorded_only(recorded_only);
        match read_bytes("random", bytes, &options) {
            Ok(traces) => {
                assert!(!traces.is_empty());
                traces.iter().for_each(assert_keeps_its_word);
            }
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
}

fn ops(trace: &Trace) -> Vec<Op> {
    trace.events().iter().map(|event| event.op).collect()
}

/// Returns the peak of live bytes after these events, counted anew for each event.
fn naive_peak(ops: &[Op], from: usize) -> u64 {
    let live_after = |end: usize| {
        let mut live = Vec::new();
        for op in &ops[..end] {
            match *op {
                Op::Allocate { allocation, bytes } => live.push((allocation, bytes)),
                Op::Free { allocation } => live.retain(|&(other, _)| other != allocation),
                _ => {}
            }
        }
        live.iter().map(|&(_, bytes)| bytes).sum()
    };
    (from..=ops.len()).map(live_after).max().unwrap_or(0)
}

/// Row of a log. Logs use few pointers, so that double allocations and unknown frees occur.
#[derive(Debug, Clone)]
struct Row {
    action: &'static str,
    pointer: u64,
    size: u64,
    stream: &'static str,
    thread: u64,
}

impl Row {
    fn line(&self, index: usize) -> String {
        let Self { action, pointer, size, stream, thread } = self;
        format!("{thread},10:00:00.{index:06},{action},{pointer:#x},{size},{stream}\n")
    }

    /// Returns `true` if the thread later requests as many bytes again on the same stream, and
    /// succeeds. All its requests on the stream in between have this size, and are refused.
    fn is_met_later(&self, later: &[Row]) -> bool {
        let is_default = |row: &Row| matches!(row.stream, "0" | "0x0" | "(nil)");
        let same_stream =
            |row: &Row| row.stream == self.stream || (is_default(row) && is_default(self));
        let mut requests = later
            .iter()
            .filter(|row| row.action != "free" && row.thread == self.thread && same_stream(row));
        let next = requests.find(|row| row.action == "allocate" || row.size != self.size);
        next.is_some_and(|row| row.action == "allocate" && row.size == self.size)
    }
}

fn row() -> impl Strategy<Value = Row> {
    let action = prop_oneof![
        6 => Just("allocate"),
        5 => Just("free"),
        1 => Just("allocate failure"),
    ];
    let stream = prop::sample::select(vec!["0", "0x0", "(nil)", "0x21f2a2b0", "0x7"]);
    (action, 0_u64..6, 0_u64..4, stream, 1_u64..4).prop_map(
        |(action, pointer, size, stream, thread)| Row { action, pointer, size, stream, thread },
    )
}

/// Naive model of a log. It keeps a list of live blocks and searches it from the end.
#[derive(Default)]
struct NaiveLog {
    ops: Vec<Op>,
    /// Row of each op.
    rows: Vec<u32>,
    live: Vec<(u32, u64, u64)>,
    allocations: u32,
    unknown_frees: u64,
    inferred_frees: u64,
}

impl NaiveLog {
    fn of(rows: &[Row]) -> Self {
        let mut log = Self::default();
        for (index, (row, number)) in rows.iter().zip(1..).enumerate() {
            match row.action {
                "allocate" => log.allocate(row.pointer, row.size),
                "free" => log.free(row.pointer, row.size),
                _ if row.is_met_later(&rows[index + 1..]) => {
                    log.ops.push(Op::Retry { bytes: row.size });
                }
                _ => log.ops.push(Op::Fail { bytes: row.size }),
            }
            log.rows.resize(log.ops.len(), number);
        }
        log
    }

    fn allocate(&mut self, pointer: u64, bytes: u64) {
        let lost =
            self.live.iter().position(|&(_, at, size)| at == pointer && size > 0 && bytes > 0);
        if let Some(lost) = lost {
            self.inferred_frees += 1;
            self.end(lost);
        }
        let allocation = self.allocations;
        self.allocations += 1;
        self.live.push((allocation, pointer, bytes));
        self.ops.push(Op::Allocate { allocation, bytes });
    }

    fn free(&mut self, pointer: u64, bytes: u64) {
        let last = |wanted_empty: bool| {
            self.live
                .iter()
                .rposition(|&(_, at, size)| at == pointer && (size == 0) == wanted_empty)
        };
        match last(bytes == 0).or_else(|| last(bytes != 0)) {
            Some(index) => self.end(index),
            None => self.unknown_frees += 1,
        }
    }

    fn end(&mut self, index: usize) {
        let (allocation, ..) = self.live.remove(index);
        self.ops.push(Op::Free { allocation });
    }

    fn assert_is(&self, trace: &Trace) {
        assert_eq!(ops(trace), self.ops);
        let numbers: Vec<_> = trace.events().iter().map(|event| event.number).collect();
        assert_eq!(numbers, self.rows);
        assert_eq!(trace.unknown_frees(), self.unknown_frees);
        assert_eq!(trace.inferred_frees(), self.inferred_frees);
        let summary = trace.summary();
        assert_eq!(summary.peak_live_bytes, naive_peak(&self.ops, 0));
        assert_eq!(summary.left_live_bytes, self.live.iter().map(|&(.., size)| size).sum::<u64>());
    }
}

/// State of an address in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Held {
    Nothing,
    Live(i64),
    Pending(i64),
}

const ADDRESSES: usize = 6;

/// Moves an address to its next state: live, pending, then free. Returns the entry for the change.
fn next_step(held: &mut Held, address: usize, size: i64) -> Data {
    let (action, size, after) = match *held {
        Held::Nothing => ("alloc", size, Held::Live(size)),
        Held::Live(size) => ("free_requested", size, Held::Pending(size)),
        Held::Pending(size) => ("free_completed", size, Held::Nothing),
    };
    *held = after;
    entry(action, address_of(address), size, 0)
}

fn address_of(index: usize) -> i64 {
    0x1000 + 512 * index as i64
}

fn segment_of(held: &[Held]) -> Data {
    let blocks: Vec<_> = held
        .iter()
        .enumerate()
        .map(|(index, held)| match *held {
            Held::Nothing => (address_of(index), 512, 0, "inactive"),
            Held::Live(size) => (address_of(index), 512, size, "active_allocated"),
            Held::Pending(size) => (address_of(index), 512, size, "active_pending_free"),
        })
        .collect();
    segment(0, 0, &blocks)
}

fn plain_data() -> impl Strategy<Value = Data> {
    let leaf = prop_oneof![
        Just(Data::None),
        any::<bool>().prop_map(Data::Bool),
        any::<i128>().prop_map(Data::Int),
        any::<i64>().prop_map(Data::from),
        (-300_i64..70_000).prop_map(Data::from),
        any::<f64>().prop_map(Data::Float),
        ".{0,12}".prop_map(Data::Text),
        "[a-c]{250,300}".prop_map(Data::Text),
        vec(any::<u8>(), 0..300).prop_map(Data::Bytes),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Data::List),
            vec(inner.clone(), 0..6).prop_map(Data::Tuple),
            vec((inner.clone(), inner), 0..5).prop_map(Data::Dict),
        ]
    })
}

fn example(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces").join(file)
}

fn unpacked_snapshot() -> Vec<u8> {
    let packed = std::fs::read(example("two_streams.snapshot.pickle.gz")).expect("is there");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed[..]), &mut bytes)
        .expect("is whole");
    bytes
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        survives(&bytes);
        survives(&gzip(&bytes));
        survives(&[HEADER.as_bytes(), &bytes].concat());
        survives(&[b"\x80\x04", &bytes[..]].concat());
        survives(&[b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", &bytes[..]].concat());
    }

    #[test]
    fn random_rows_never_panic(
        pieces in vec(
            prop::sample::select(vec![
                ",", "\n", "\r\n", "\"", "1", "0", "0x", "a", "(nil)", "allocate", "free", " ",
                "allocate failure", "10:00:00.000000", "23:59:59:999999", "18446744073709551615",
                "1,10:00:00.000001,allocate,0xa,8,0\n", "1,00:00:00.000001,free,0xa,8,0\n",
            ]),
            0..40,
        )
    ) {
        survives((HEADER.to_owned() + &pieces.concat()).as_bytes());
    }

    #[test]
    fn random_opcodes_never_panic(
        pieces in vec(
            prop::sample::select(b"().0N}]aestuh\x00q\x00j\x00\x00\x00\x00K\x01M\x01\x01J\x01\x00\x00\x00\x85\x86\x87\x88\x89\x8a\x01\x8c\x01A\x94\x94\x8c\x0ddevice_traces".to_vec()),
            0..200,
        )
    ) {
        survives(&[b"\x80\x04", &pieces[..], b"."].concat());
    }

    #[test]
    fn log_matches_the_naive_model(rows in vec(row(), 1..60), gzipped: bool) {
        let text: String = rows.iter().enumerate().map(|(index, row)| row.line(index)).collect();
        let text = HEADER.to_owned() + &text;
        let trace = read_one(&if gzipped { gzip(text.as_bytes()) } else { text.into_bytes() });
        NaiveLog::of(&rows).assert_is(&trace);
        let summary = trace.summary();
        prop_assert_eq!(summary.events, rows.len() as u64);
        for (event, row) in trace.events().iter().rev().zip(rows.iter().rev()).take(1) {
            // The last event is of the last row, unless that row frees an address without a block.
            if NaiveLog::of(&rows).unknown_frees == 0 {
                prop_assert_eq!(trace.threads().unwrap()[event.thread as usize], row.thread);
            }
        }
    }

    #[test]
    fn cut_log_gives_whole_rows(rows in vec(row(), 1..30), cut: Index) {
        let mut text = HEADER.to_owned();
        text.extend(rows.iter().enumerate().map(|(index, row)| row.line(index)));
        let at = HEADER.len() + cut.index(text.len() - HEADER.len());
        let whole = text[..at].matches('\n').count() - 1;
        match read_bytes("cut", &text.as_bytes()[..at], &ReadOptions::default()) {
            Ok(traces) => {
                assert_keeps_its_word(&traces[0]);
                // If the cut is in a row's last field or after it, the reader may use that row too.
                let used = traces[0].summary().events as usize;
                prop_assert!(used == whole || used == whole + 1);
                let at_newline = text[..at].ends_with('\n');
                let mut rows = rows[..used].to_vec();
                if let (Some(last), false) = (rows.last_mut(), at_newline || used == whole) {
                    // The cut text may end within the row's last field, the stream.
                    let stream = text[..at].rsplit(',').next().unwrap();
                    last.stream = Box::leak(stream.to_owned().into_boxed_str());
                }
                NaiveLog::of(&rows).assert_is(&traces[0]);
                let warned = traces[0].warnings().iter().any(|warning| {
                    warning.to_string().contains("the last line")
                });
                prop_assert_eq!(warned, !at_newline);
            }
            Err(error) => prop_assert!(whole == 0, "{}", error),
        }
    }

    #[test]
    fn earlier_blocks_of_random_snapshots_found(
        before in vec((0..ADDRESSES, 1_i64..500), 0..20),
        recorded in vec((0..ADDRESSES, 1_i64..500), 1..30),
        protocol in 2_u8..=5,
    ) {
        let mut held = [Held::Nothing; ADDRESSES];
        for (address, size) in before {
            next_step(&mut held[address], address, size);
        }
        let at_start = held;
        let entries: Vec<_> = recorded
            .iter()
            .map(|&(address, size)| next_step(&mut held[address], address, size))
            .collect();
        let trace = read_one(&encode(&snapshot(vec![segment_of(&held)], vec![entries]), protocol));

        let mut found = [Held::Nothing; ADDRESSES];
        let place = |allocation: u32| {
            (trace.addresses()[allocation as usize] as usize - 0x1000) / 512
        };
        for event in &trace.events()[..trace.reconstructed_events()] {
            match event.op {
                Op::Allocate { allocation, bytes } => {
                    found[place(allocation)] = Held::Live(bytes as i64);
                }
                Op::Free { allocation } => {
                    let held = &mut found[place(allocation)];
                    let Held::Live(size) = *held else { panic!("freed what was not live") };
                    *held = Held::Pending(size);
                }
                _ => prop_assert!(false, "only blocks are reconstructed"),
            }
        }
        prop_assert_eq!(found, at_start);
        prop_assert_eq!(trace.warnings(), []);
        prop_assert_eq!((trace.unknown_frees(), trace.inferred_frees()), (0, 0));
        prop_assert_eq!(trace.events().len() - trace.reconstructed_events(), recorded.len());
        let summary = trace.summary();
        let peak = naive_peak(&ops(&trace), trace.reconstructed_events());
        prop_assert_eq!(summary.peak_live_bytes, peak);
        let live = held.iter().filter(|held| matches!(held, Held::Live(_))).count();
        let pending = held.iter().filter(|held| matches!(held, Held::Pending(_))).count();
        prop_assert_eq!((summary.left_live, summary.left_pending), (live as u64, pending as u64));
    }

    #[test]
    fn random_entries_and_segments_never_panic(
        entries in vec(
            (
                prop::sample::select(vec!["alloc", "free_requested", "free_completed", "oom", "x"]),
                0..5_i64,
                0..3_i64,
            ),
            1..40,
        ),
        blocks in vec(
            (0..8_i64, 0..3_i64, 0..3_i64, prop::sample::select(vec!["active_allocated", "active_x", "i"])),
            0..6,
        ),
    ) {
        let entries = entries.into_iter().map(|(action, addr, size)| entry(action, addr, size, addr));
        survives(&encode(&snapshot(vec![segment(0, 1, &blocks)], vec![entries.collect()]), 4));
    }

    #[test]
    fn plain_data_is_read(data in plain_data(), protocol in 2_u8..=5) {
        // The pickle is readable, but is not a snapshot.
        let error = read_bytes("plain", &encode(&data, protocol), &ReadOptions::default());
        let error = error.expect_err("is no snapshot").to_string();
        let expected = match data {
            Data::Dict(_) => "has no key \"device_traces\"",
            _ => "instead of a dict",
        };
        prop_assert!(error.contains(expected), "{}", error);
    }

    #[test]
    fn written_log_reads_back(rows in vec((row(), 0..1_200_000_000_000_u64), 1..60)) {
        let mut builder = TraceBuilder::new("built", Format::RmmCsv);
        // The first row is at 20:00. All rows take less than 20 hours, so some logs pass midnight.
        let mut time_ns = 20 * 3_600_000_000_000;
        for (index, (row, pause_ns)) in rows.iter().enumerate() {
            let stream = row.size * 16;
            time_ns += if index == 0 { 0 } else { pause_ns / 1000 * 1000 };
            let at = At { time_ns, stream, thread: row.thread, stack: 0 };
            match row.action {
                "allocate" => builder.allocate(at, row.pointer, row.size).map(drop),
                "free" => builder.free(at, row.pointer, row.size).map(drop),
                _ => builder.fail(at, row.size),
            }
            .unwrap();
        }
        let trace = builder.finish();
        prop_assume!(!trace.events().is_empty());
        let mut text = Vec::new();
        write_rmm_csv(&trace, &mut text).unwrap();
        let again = read_one(&text);
        let first_ns = trace.events()[0].time_ns;
        let shifted: Vec<_> = trace
            .events()
            .iter()
            .zip(1..)
            .map(|(&event, number)| {
                // The log has a row for each event, also for a free that the builder inferred. So
                // each event that is read back has its own number.
                gpuheap_trace::Event { time_ns: event.time_ns - first_ns, number, ..event }
            })
            .collect();
        prop_assert_eq!(again.events(), &shifted[..]);
        prop_assert_eq!(again.addresses(), trace.addresses());
        prop_assert_eq!(again.streams(), trace.streams());
        prop_assert_eq!(again.threads(), trace.threads());
        prop_assert_eq!(again.unknown_frees() + again.inferred_frees(), 0);
        prop_assert_eq!(again.warnings(), []);
    }
}

proptest! {
    // Each case reads hundreds of kilobytes.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_real_snapshots_never_panic(
        changes in vec((any::<Index>(), any::<u8>()), 1..6),
        moved in any::<(Index, Index, Index)>(),
        cut in prop::option::of(any::<Index>()),
    ) {
        let mut bytes = unpacked_snapshot();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        survives(&bytes);
        let (from, to) = (moved.0.index(bytes.len()), moved.1.index(bytes.len()));
        let length = moved.2.index(200).min(bytes.len() - from.max(to));
        bytes.copy_within(from..from + length, to);
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        survives(&bytes);
    }

    #[test]
    fn damaged_gzip_never_panics(changes in vec((any::<Index>(), any::<u8>()), 1..4)) {
        let mut bytes = std::fs::read(example("two_streams.csv.gz")).expect("is there");
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        survives(&bytes);
    }
}

#[test]
fn written_example_traces_read_back() {
    for run in ["cupy_groupby", "two_streams", "serve_threads", "gpt_train_short"] {
        let trace =
            read(example(&format!("{run}.csv.gz")), &ReadOptions::default()).unwrap().remove(0);
        let mut text = Vec::new();
        write_rmm_csv(&trace, &mut text).unwrap();
        let again = read_one(&text);
        assert_eq!(again.events(), trace.events(), "{run}");
        assert_eq!(again.summary(), trace.summary(), "{run}");
        assert_eq!(again.addresses(), trace.addresses(), "{run}");
    }
}

#[test]
fn snapshot_as_log_keeps_its_peak() {
    let file = example("two_streams.snapshot.pickle.gz");
    let trace = read(file, &ReadOptions::default()).unwrap().remove(0);
    let mut text = Vec::new();
    write_rmm_csv(&trace, &mut text).unwrap();
    let again = read_one(&text);
    assert_eq!(again.summary().peak_live_bytes, trace.summary().peak_live_bytes);
    assert_eq!(again.summary().events, trace.summary().events + 3);
}
