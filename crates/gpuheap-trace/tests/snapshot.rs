//! Tests the reader of PyTorch memory snapshots: events, and the segments at the end.

mod support;

use gpuheap_trace::{Op, Place, ReadOptions, Trace, WarningKind, read_bytes};
use support::pickle::{Data, dict, encode, entry, segment, snapshot};
use support::{assert_keeps_its_word, gzip, read_one};

const PROTOCOLS: [u8; 4] = [2, 3, 4, 5];

fn ops(trace: &Trace) -> Vec<Op> {
    trace.events().iter().map(|event| event.op).collect()
}

fn allocate(allocation: u32, bytes: u64) -> Op {
    Op::Allocate { allocation, bytes }
}

fn free(allocation: u32) -> Op {
    Op::Free { allocation }
}

fn completed(allocation: u32) -> Op {
    Op::FreeCompleted { allocation }
}

fn of_trace(entries: Vec<Data>) -> Trace {
    read_one(&encode(&snapshot(vec![], vec![entries]), 4))
}

#[test]
fn pickle_protocols_2_to_5_read() {
    let data = snapshot(vec![], vec![vec![entry("alloc", 0x1000, 8, 0)]]);
    for protocol in PROTOCOLS {
        let bytes = encode(&data, protocol);
        assert_eq!(ops(&read_one(&bytes)), [allocate(0, 8)], "protocol {protocol}");
        assert_eq!(ops(&read_one(&gzip(&bytes))), [allocate(0, 8)], "protocol {protocol}");
    }
}

#[test]
fn freed_block_is_pending_until_completion() {
    let trace = of_trace(vec![
        entry("alloc", 0x1000, 8, 7),
        entry("free_requested", 0x1000, 8, 7),
        entry("alloc", 0x2000, 16, 7),
        entry("free_completed", 0x1000, 8, 7),
    ]);
    assert_eq!(ops(&trace), [allocate(0, 8), free(0), allocate(1, 16), completed(0)]);
    let summary = trace.summary();
    assert_eq!((summary.events, summary.peak_live_bytes, summary.left_pending), (3, 16, 0));
}

#[test]
fn segments_and_failures_are_events() {
    let oom = dict([
        ("action", "oom".into()),
        ("device_free", 5.into()),
        ("size", 900.into()),
        ("stream", 0.into()),
    ]);
    let trace = of_trace(vec![
        entry("segment_alloc", 0x1000, 64, 0),
        entry("segment_map", 0x2000, 64, 0),
        entry("snapshot", 0, 0, 0),
        entry("user_defined", 0, 0, 0),
        oom,
        entry("segment_free", 0x1000, 64, 0),
        entry("segment_unmap", 0x2000, 64, 0),
    ]);
    assert_eq!(
        ops(&trace),
        [
            Op::SegmentTaken { address: 0x1000, bytes: 64 },
            Op::SegmentTaken { address: 0x2000, bytes: 64 },
            Op::Fail { bytes: 900 },
            Op::SegmentGivenBack { address: 0x1000, bytes: 64 },
            Op::SegmentGivenBack { address: 0x2000, bytes: 64 },
        ]
    );
    assert_eq!((trace.summary().events, trace.summary().failures), (1, 1));
}

#[test]
fn refused_size_matches_rounded_request() {
    let oom = || dict([("action", "oom".into()), ("size", 1024.into()), ("stream", 0.into())]);
    let trace = of_trace(vec![oom(), entry("alloc", 0x1000, 900, 0), oom()]);
    assert_eq!(
        ops(&trace),
        [
            Op::Retry { bytes: 1024 },
            Op::Allocate { allocation: 0, bytes: 900 },
            Op::Fail { bytes: 1024 },
        ]
    );
}

/// Returns a snapshot with blocks from before the recording. Live: 0x1000 (in no entry), 0x2000
/// (freed in the trace). Pending: 0x3000 (completed in the trace), 0x4000 (pending to the end).
fn with_blocks_before() -> Data {
    let blocks = [
        (0x1000, 512, 500, "active_allocated"),
        (0x2000, 512, 0, "inactive"),
        (0x3000, 512, 0, "inactive"),
        (0x4000, 512, 400, "active_pending_free"),
        (0x5000, 512, 50, "active_allocated"),
    ];
    let entries = vec![
        entry("free_completed", 0x3000, 300, 9),
        entry("free_requested", 0x2000, 200, 9),
        entry("free_completed", 0x2000, 200, 9),
        entry("alloc", 0x5000, 50, 9),
    ];
    snapshot(vec![segment(0, 9, &blocks)], vec![entries])
}

#[test]
fn earlier_blocks_are_derived_from_trace() {
    let trace = read_one(&encode(&with_blocks_before(), 4));
    let before = [
        allocate(0, 300), // 0x3000
        free(0),
        allocate(1, 400), // 0x4000
        free(1),
        allocate(2, 500), // 0x1000
        allocate(3, 200), // 0x2000
    ];
    assert_eq!(trace.reconstructed_events(), before.len());
    assert_eq!(ops(&trace)[..before.len()], before);
    assert_eq!(ops(&trace)[before.len()..], [completed(0), free(3), completed(3), allocate(4, 50)]);
    let summary = trace.summary();
    assert_eq!(summary.events, 2, "what is reconstructed does not count");
    assert_eq!((summary.allocations, summary.frees, summary.unknown_frees), (1, 1, 0));
    assert_eq!((summary.live_before, summary.live_before_bytes), (2, 700));
    assert_eq!(summary.peak_live_bytes, 700, "what was pending was not live");
    assert_eq!((summary.left_live, summary.left_live_bytes), (2, 550));
    assert_eq!((summary.left_pending, summary.left_pending_bytes), (1, 400));
    assert_eq!(trace.warnings(), []);
}

#[test]
fn recorded_only_omits_earlier_blocks() {
    let options = ReadOptions::default().recorded_only(true);
    let traces = read_bytes("test", &encode(&with_blocks_before(), 4), &options).unwrap();
    assert_keeps_its_word(&traces[0]);
    assert_eq!(ops(&traces[0]), [allocate(0, 50)]);
    let summary = traces[0].summary();
    assert_eq!((summary.events, summary.unknown_frees), (2, 1));
    assert_eq!(traces[0].warnings(), []);
}

#[test]
fn old_snapshot_without_addresses_is_read() {
    let block = |size: i64, state: &str| dict([("size", size.into()), ("state", state.into())]);
    let segment = dict([
        ("device", 0.into()),
        ("address", 0x1000.into()),
        ("stream", 0.into()),
        ("blocks", vec![block(512, "inactive"), block(1024, "active_allocated")].into()),
    ]);
    let entry = dict([
        ("action", "alloc".into()),
        ("addr", 0x9000.into()),
        ("size", 8.into()),
        ("stream", 0.into()),
    ]);
    let trace = read_one(&encode(&snapshot(vec![segment], vec![vec![entry]]), 4));
    assert_eq!(ops(&trace), [allocate(0, 1024), allocate(1, 8)]);
    assert_eq!(trace.addresses()[0], 0x1200);
}

#[test]
fn keys_differ_from_pytorch_2_11() {
    let segment = dict([
        ("device", 0.into()),
        ("address", 0x1000.into()),
        ("stream", 0.into()),
        ("blocks", vec![].into()),
    ]);
    let mut entry = entry("alloc", 0x1000, 8, 0);
    if let Data::Dict(pairs) = &mut entry {
        pairs.push(("pool_id".into(), 3.into()));
        pairs.push(("frames".into(), vec![].into()));
    }
    let trace = read_one(&encode(&snapshot(vec![segment], vec![vec![], vec![entry]]), 4));
    let keys = trace.snapshot_keys().unwrap();
    assert!(!keys.is_known());
    assert_eq!(keys.unknown, ["device_traces[][].pool_id"]);
    for missing in ["allocator_settings", "segments[].is_expandable"] {
        assert!(keys.missing.iter().any(|key| key == missing), "{missing}: {keys:?}");
    }
    assert!(!keys.missing.iter().any(|key| key == "segments[].device"), "{keys:?}");
}

fn with_key(mut entry: Data, key: &str, value: Data) -> Data {
    let Data::Dict(pairs) = &mut entry else { panic!("an entry is a dict") };
    pairs.push((key.into(), value));
    entry
}

#[test]
fn allocations_have_pools_of_their_entries() {
    let pool = |first: i64, second: i64| Data::Tuple(vec![first.into(), second.into()]);
    let of_pool = |address, pool| with_key(entry("alloc", address, 8, 0), "pool_id", pool);
    let trace = of_trace(vec![
        of_pool(0x1000, pool(0, 0)),
        of_pool(0x2000, pool(3, 1)),
        of_pool(0x3000, vec![3.into(), 1.into()].into()),
        with_key(entry("alloc", 0x4000, 8, 0), "segment_pool_id", pool(0, 7)),
        entry("alloc", 0x5000, 8, 0),
        of_pool(0x6000, pool(-1, 2)),
        of_pool(0x7000, "none".into()),
    ]);
    let pools: Vec<_> = (0..7).map(|allocation| trace.pool(allocation)).collect();
    let expected = [Some((0, 0)), Some((3, 1)), Some((3, 1)), Some((0, 7)), None, None, None];
    assert_eq!(pools, expected);
}

#[test]
fn shared_entry_counts_twice() {
    // Opcodes of the pickle: `q\xc8` stores the entry as number 200 of the memo, and `h\xc8`
    // fetches it, so that the list has the entry twice.
    let one = encode(&entry("alloc", 0x1000, 8, 0), 4);
    let bytes = raw(&[
        b"}(\x8c\x08segments]\x8c\x0ddevice_traces]](",
        &one[11..one.len() - 1],
        b"q\xc8h\xc8eau",
    ]);
    let trace = read_one(&bytes);
    assert_eq!(ops(&trace), [allocate(0, 8), free(0), completed(0), allocate(1, 8)]);
}

#[test]
fn entry_as_segment_has_no_keys() {
    let one = encode(&entry("alloc", 0x1000, 8, 0), 4);
    let bytes = raw(&[
        b"}(\x8c\x0ddevice_traces]](",
        &one[11..one.len() - 1],
        b"q\xc8ea\x8c\x08segments](h\xc8eu",
    ]);
    let error = refused(&bytes).to_string();
    assert!(error.contains("segments[0]: has no key \"device\""), "{error}");
}

#[test]
fn appended_frame_leaves_equal_lists_alone() {
    // The first entry's list of frames grows. The second list equals the first one before it grew.
    let frame = |line: u8| {
        [&b"}(\x8c\x04name\x8c\x01f\x8c\x08filename\x8c\x01p\x8c\x04lineK"[..], &[line], b"u"]
            .concat()
    };
    let entry = |address: u8, frames: &[u8]| {
        [
            &b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK"[..],
            &[address],
            b"\x8c\x04sizeK\x08\x8c\x06streamK\x00\x8c\x06frames",
            frames,
            b"u",
        ]
        .concat()
    };
    let first = [&frame(1)[..], b"q\x010](h\x01eq\x02"].concat();
    let bytes = raw(&[
        &first,
        b"(h\x01",
        &frame(2),
        b"e0}(\x8c\x08segments]\x8c\x0ddevice_traces]](",
        &entry(1, b"h\x02"),
        &entry(2, b"](h\x01e"),
        b"eau",
    ]);
    let trace = read_one(&bytes);
    let lines = |index: usize| -> Vec<u32> {
        trace.stack(trace.events()[index].stack).map(|frame| frame.line).collect()
    };
    assert_eq!((lines(0), lines(1)), (vec![1, 1, 2], vec![1]));
}

#[test]
fn device_with_events_is_a_trace() {
    let segments = vec![
        segment(2, 0, &[(0x1000, 512, 512, "active_allocated")]),
        segment(0, 0, &[(0x1000, 512, 511, "active_allocated")]),
        segment(1, 0, &[(0x1000, 512, 1, "active_allocated")]),
    ];
    let entries = |size| vec![entry("alloc", 0x2000, size, 0)];
    let data = snapshot(segments, vec![entries(10), vec![], entries(30)]);
    let traces = read_bytes("test", &encode(&data, 4), &ReadOptions::default()).unwrap();
    let [first, second] = &traces[..] else { panic!("two devices have events") };
    assert_eq!((first.device(), ops(first)), (Some(0), vec![allocate(0, 511), allocate(1, 10)]));
    assert_eq!((second.device(), ops(second)), (Some(2), vec![allocate(0, 512), allocate(1, 30)]));
}

#[test]
fn skipped_entries_are_inferred() {
    // PyTorch's `skip_actions` can leave out `free_requested` or `free_completed`.
    let trace = of_trace(vec![
        entry("alloc", 0x1000, 8, 0),
        entry("free_completed", 0x1000, 8, 0),
        entry("alloc", 0x1000, 16, 0),
        entry("free_requested", 0x1000, 16, 0),
        entry("alloc", 0x1000, 32, 0),
    ]);
    let expected = [
        allocate(0, 8),
        free(0),
        completed(0),
        allocate(1, 16),
        free(1),
        completed(1),
        allocate(2, 32),
    ];
    assert_eq!(ops(&trace), expected);
    assert_eq!(trace.inferred_frees(), 1);
    assert_eq!(trace.summary().events, 4);
}

#[test]
fn second_free_unknown_lost_free_inferred() {
    let trace = of_trace(vec![
        entry("alloc", 0x1000, 8, 0),
        entry("free_requested", 0x1000, 8, 0),
        entry("free_completed", 0x1000, 8, 0),
        entry("free_requested", 0x1000, 8, 0),
        entry("alloc", 0x2000, 8, 0),
        entry("alloc", 0x2000, 8, 0),
    ]);
    let kinds: Vec<_> = trace.warnings().iter().map(|warning| &warning.kind).collect();
    assert_eq!(kinds, [&WarningKind::UnknownFree, &WarningKind::LostFree]);
    assert_eq!(trace.warnings()[0].first, Place::Item("device_traces[0][3]".into()));
    assert_eq!((trace.unknown_frees(), trace.inferred_frees()), (1, 1));
}

#[test]
fn unknown_entry_kinds_are_a_warning() {
    let trace = of_trace(vec![
        entry("alloc", 0x1000, 8, 0),
        entry("teleport", 0x1000, 8, 0),
        entry("vanish", 0x1000, 8, 0),
    ]);
    assert_eq!(ops(&trace), [allocate(0, 8)]);
    let [warning] = trace.warnings() else { panic!("one warning") };
    assert_eq!((warning.count, &warning.kind), (2, &WarningKind::UnknownAction("teleport".into())));
    assert_eq!(warning.first, Place::Item("device_traces[0][1]".into()));
}

#[test]
fn last_key_wins_and_times_increase() {
    let entry = |time: i64| {
        dict([
            ("action", "free_requested".into()),
            ("action", "alloc".into()),
            ("addr", time.into()),
            ("size", 8.into()),
            ("stream", 0.into()),
            ("time_us", time.into()),
        ])
    };
    let trace = of_trace(vec![entry(50), entry(70), entry(60), entry(40), entry(71)]);
    let times: Vec<_> = trace.events().iter().map(|event| event.time_ns).collect();
    assert_eq!(times, [0, 20_000, 20_000, 20_000, 21_000]);
}

#[test]
fn numbers_up_to_64_bits_read() {
    let wide = |addr: i128| {
        let Data::Dict(mut pairs) = entry("alloc", 0, 8, 0) else { unreachable!() };
        pairs[1].1 = Data::Int(addr);
        Data::Dict(pairs)
    };
    let edges = [0, 0xff, 0x100, 0xffff, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1];
    let trace = of_trace(edges.iter().map(|&addr| wide(addr)).collect());
    assert_eq!(trace.addresses(), edges.map(|addr| addr as u64));
    for addr in [-1, -0x8000_0000, -(1 << 63), 1 << 64, i128::MAX] {
        let data = snapshot(vec![], vec![vec![wide(addr)]]);
        let error = read_bytes("t", &encode(&data, 4), &ReadOptions::default()).unwrap_err();
        assert_eq!(error.place(), &Place::Item("device_traces[0][0].addr".into()));
    }
}

/// Returns a pickle of protocol 4 with these pieces, then STOP.
fn raw(pieces: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x04", &pieces.concat()[..], b"."].concat()
}

fn refused(bytes: &[u8]) -> gpuheap_trace::Error {
    read_bytes("test", bytes, &ReadOptions::default()).expect_err("is hostile")
}

#[test]
fn multiply_shared_lists_are_refused() {
    // A list contains one entry 100,000 times. Each of 100,000 devices has this same list as its
    // trace, so the snapshot has ten billion entries.
    let one = encode(&entry("alloc", 0x1000, 8, 0), 4);
    let many = |index: u8| [&b"("[..], &[b'h', index].repeat(100_000), b"e"].concat();
    let bytes = raw(&[
        &one[11..one.len() - 1],
        b"q\xc9",
        b"0]q\xca",
        &many(0xc9),
        b"0}\x8c\x08segments]s\x8c\x0ddevice_traces]",
        &many(0xca),
        b"s",
    ]);
    let error = refused(&bytes);
    assert!(error.what().contains("far more places"), "{error}");
}

#[test]
fn nested_and_recursive_values_are_refused() {
    let deep = raw(&[&b"]".repeat(100_000), &b"a".repeat(99_999)]);
    assert!(refused(&deep).what().contains("is a list of 1 instead of a dict"));
    let marks = raw(&[&b"(".repeat(1_000_000), b"N"]);
    assert!(refused(&marks).what().contains("None instead of a dict"));
    let itself = raw(&[b"}q\x00\x8c\x0ddevice_traces]q\x01h\x01as"]);
    assert!(refused(&itself).what().contains("a list of 1 instead of a dict"));
}

#[test]
fn length_beyond_end_takes_no_memory() {
    let huge = u64::MAX.to_le_bytes();
    for opcode in [0x8d, 0x8e, 0x95] {
        let error = refused(&raw(&[&[opcode], &huge]));
        assert!(
            error.what().contains("needs 18446744073709551615 bytes where 1 are left"),
            "{error}"
        );
    }
    assert!(refused(&raw(&[b"\x8b\xff\xff\xff\x7f"])).what().contains("LONG4"));
    // A memo index of four billion is valid, so the refusal is only because the value is no dict.
    assert!(refused(&raw(&[b"Nr\xff\xff\xff\xff"])).what().contains("None instead of a dict"));
}

#[test]
fn oversized_unpacked_file_is_refused() {
    let options = ReadOptions::default().unpacked_limit(1000);
    let bytes = gzip(&raw(&[&b"N0".repeat(100_000), b"N"]));
    assert!(bytes.len() < 1000);
    let error = read_bytes("bomb", &bytes, &options).unwrap_err();
    assert!(error.to_string().contains("more than 1000 bytes once unpacked"), "{error}");
    let log = support::log(&["allocate,0xa,8,0"; 40]);
    let error = read_bytes("bomb", &gzip(log.as_bytes()), &options).unwrap_err();
    assert!(error.to_string().contains("more than 1000 bytes once unpacked"), "{error}");
}

#[test]
fn small_file_of_lists_is_refused() {
    let unpacked = [b"\x80\x04", &vec![b']'; 64 << 20][..], b"."].concat();
    let packed = gzip(&unpacked);
    assert!(packed.len() < 100_000);
    let error = read_bytes("bomb", &packed, &ReadOptions::default()).unwrap_err();
    let &Place::Byte(at) = error.place() else { panic!("{error}") };
    assert!(at < 1 << 20, "{error}");
}

#[test]
fn entry_in_millions_of_places_refused() {
    let one = encode(&entry("alloc", 0x1000, 8, 0), 4);
    let with = |places: usize| {
        let many = [&b"("[..], &b"h\xc9".repeat(places), b"e"].concat();
        let before = [&one[11..one.len() - 1], b"q\xc90}\x8c\x08segments]s"].concat();
        raw(&[&before, b"\x8c\x0ddevice_traces]]", &many, b"as"])
    };
    assert_eq!(read_one(&with(1000)).summary().events, 1000);
    let error = refused(&with(2_000_000));
    assert!(error.what().contains("in far more places"), "{error}");
}
