//! Tests the reader of RMM logs, with each oddity of the format.

mod support;

use gpuheap_trace::{Op, Place, WarningKind};
use support::{HEADER, gzip, log, read_one};

fn ops(text: &str) -> Vec<Op> {
    read_one(text.as_bytes()).events().iter().map(|event| event.op).collect()
}

fn allocate(allocation: u32, bytes: u64) -> Op {
    Op::Allocate { allocation, bytes }
}

fn free(allocation: u32) -> Op {
    Op::Free { allocation }
}

#[test]
fn reused_pointer_is_another_allocation() {
    let text = log(&["allocate,0xa,8,0", "free,0xa,8,0", "allocate,0xa,16,0", "free,0xa,16,0"]);
    assert_eq!(ops(&text), [allocate(0, 8), free(0), allocate(1, 16), free(1)]);
}

#[test]
fn columns_are_found_by_name() {
    let text = "Device,Stream,Size,Note,Pointer,Action,Time,Thread\n\
                0,0x5,8,\"a, \"\"b\"\"\nc\",0xa,allocate,10:00:00.000001,7\n\
                0,0x5,8,,0xa,free,10:00:00:000002,7\n";
    let trace = read_one(text.as_bytes());
    assert_eq!(trace.threads(), Some(&[7][..]));
    assert_eq!(trace.streams()[0].handle, 5);
    assert_eq!(trace.events()[1].time_ns, 1000);
    assert_eq!(trace.events()[1].op, free(0));
}

#[test]
fn csv_oddities_are_read() {
    let text = "\u{feff}Thread,Time,Action,Pointer,Size,Stream\r\n\r\n\
                \"1\",\"10:00:00.000001\",\"allocate\",\"0xa\",\"8\",\"0x0\"\r\n\
                1, 10:00:00.000002 , free , 0xa , 8 , 0 \r\n";
    assert_eq!(ops(text), [allocate(0, 8), free(0)]);
    assert_eq!(read_one(text.as_bytes()).warnings(), []);
}

#[test]
fn null_stream_has_three_spellings() {
    let text = log(&["allocate,0xa,8,0", "allocate,0xb,8,0x0", "allocate,0xc,8,(nil)"]);
    let trace = read_one(text.as_bytes());
    assert_eq!(trace.summary().streams, 1);
    assert_eq!(trace.streams()[0].handle, 0);
}

#[test]
fn streams_and_threads_keep_their_ids() {
    let text = format!(
        "{HEADER}11,10:00:00.000000,allocate,0xa,8,0x2\n\
         22,10:00:00.000000,allocate,0xb,8,0x21f2a2b0\n\
         11,10:00:00.000000,free,0xb,8,0x2\n"
    );
    let trace = read_one(text.as_bytes());
    let who: Vec<_> = trace.events().iter().map(|event| (event.thread, event.stream)).collect();
    assert_eq!(who, [(0, 0), (1, 1), (0, 0)]);
    assert_eq!(trace.threads(), Some(&[11, 22][..]));
    assert_eq!(trace.streams()[1].handle, 0x21f2_a2b0);
}

#[test]
fn failure_is_an_event() {
    let text = log(&["allocate,0xa,8,0", "allocate failure,(nil),999,0"]);
    assert_eq!(ops(&text), [allocate(0, 8), Op::Fail { bytes: 999 }]);
    let summary = read_one(text.as_bytes()).summary();
    assert_eq!((summary.events, summary.failures, summary.peak_live_bytes), (2, 1, 8));
}

#[test]
fn retried_request_is_no_failure() {
    let text = log(&[
        "allocate,0xa,8,0",
        "allocate failure,(nil),999,0",
        "free,0xa,8,0",
        "allocate failure,(nil),999,0",
        "allocate,0xb,999,0",
        "allocate failure,(nil),700,0",
        "allocate,0xc,600,0",
    ]);
    assert_eq!(
        ops(&text),
        [
            allocate(0, 8),
            Op::Retry { bytes: 999 },
            free(0),
            Op::Retry { bytes: 999 },
            allocate(1, 999),
            Op::Fail { bytes: 700 },
            allocate(2, 600),
        ]
    );
    let summary = read_one(text.as_bytes()).summary();
    assert_eq!((summary.events, summary.failures, summary.retries), (7, 1, 2));
}

#[test]
fn empty_blocks_share_a_pointer() {
    let text = log(&[
        "allocate,(nil),0,0",
        "allocate,(nil),0,0",
        "free,(nil),0,0",
        "free,(nil),0,0",
        "free,(nil),0,0",
    ]);
    let trace = read_one(text.as_bytes());
    assert_eq!(ops(&text), [allocate(0, 0), allocate(1, 0), free(1), free(0)]);
    assert_eq!(trace.unknown_frees(), 1);
    assert_eq!(trace.inferred_frees(), 0);
}

#[test]
fn empty_block_may_share_a_pointer() {
    let text = log(&["allocate,0xa,8,0", "allocate,0xa,0,0", "free,0xa,8,0", "free,0xa,0,0"]);
    assert_eq!(ops(&text), [allocate(0, 8), allocate(1, 0), free(0), free(1)]);
    let text = log(&["allocate,0xa,0,0", "allocate,0xa,8,0", "free,0xa,0,0", "free,0xa,8,0"]);
    assert_eq!(ops(&text), [allocate(0, 0), allocate(1, 8), free(0), free(1)]);
}

#[test]
fn free_without_size_ends_its_block() {
    assert_eq!(ops(&log(&["allocate,0xa,8,0", "free,0xa,0,0"])), [allocate(0, 8), free(0)]);
}

#[test]
fn unknown_frees_are_a_warning() {
    let text = log(&["free,0xa,8,0", "allocate,0xb,8,0", "free,0xb,8,0", "free,0xb,8,0"]);
    let trace = read_one(text.as_bytes());
    let summary = trace.summary();
    assert_eq!((summary.events, summary.frees, summary.unknown_frees), (4, 1, 2));
    assert_eq!(summary.left_live, 0);
    let [warning] = trace.warnings() else { panic!("one warning: {:?}", trace.warnings()) };
    assert_eq!(warning.kind, WarningKind::UnknownFree);
    assert_eq!((warning.count, &warning.first), (2, &Place::Line(2)));
}

#[test]
fn reused_pointer_infers_the_lost_free() {
    let text = log(&["allocate,0xa,8,0x5", "allocate,0xa,16,0", "free,0xa,16,0"]);
    let trace = read_one(text.as_bytes());
    assert_eq!(ops(&text), [allocate(0, 8), free(0), allocate(1, 16), free(1)]);
    assert_eq!(trace.events()[1].stream, 0, "on the stream of the old block");
    let summary = trace.summary();
    assert_eq!((summary.events, summary.frees, summary.inferred_frees), (3, 1, 1));
    assert_eq!(summary.peak_live_bytes, 16);
    let [warning] = trace.warnings() else { panic!("one warning: {:?}", trace.warnings()) };
    assert_eq!(warning.kind, WarningKind::LostFree);
    assert_eq!(warning.first, Place::Line(3));
}

#[test]
fn sums_beyond_64_bits_saturate() {
    let most = u64::MAX;
    let text = log(&[
        &format!("allocate,0xa,{most},0"),
        &format!("allocate,0xb,{most},0"),
        &format!("free,0xa,{most},0"),
    ]);
    let summary = read_one(text.as_bytes()).summary();
    assert_eq!((summary.peak_live_bytes, summary.left_live_bytes), (most, most));
    assert_eq!(summary.peak_event, Some(1));
}

#[test]
fn midnight_adds_a_day() {
    let text = format!(
        "{HEADER}1,23:59:59.999999,allocate,0xa,8,0\n\
         1,00:00:00.000001,free,0xa,8,0\n"
    );
    let trace = read_one(text.as_bytes());
    assert_eq!(trace.events()[1].time_ns, 2000);
    assert_eq!(trace.summary().duration_ns, 2000);
}

#[test]
fn unterminated_last_line_counts_if_whole() {
    let whole = log(&["allocate,0xa,8,0x55", "free,0xa,8,0x55"]);
    let unterminated = whole.trim_end();
    let trace = read_one(unterminated.as_bytes());
    assert_eq!(trace.events().len(), 2);
    assert_eq!(trace.warnings().len(), 1);
    assert_eq!(trace.warnings()[0].kind, WarningKind::LastLineUnterminated);
    // "0x5" and "0x" are cut forms of "0x55". Neither may become a separate stream.
    for cut in 1..3 {
        let trace = read_one(&unterminated.as_bytes()[..unterminated.len() - cut]);
        assert_eq!(trace.events().len(), 1, "{cut} bytes cut");
        assert_eq!(trace.summary().streams, 1);
        let [warning] = trace.warnings() else { panic!("one warning: {:?}", trace.warnings()) };
        assert_eq!(warning.kind, WarningKind::LastLineCut);
        assert_eq!(warning.first, Place::Line(3));
    }
}

#[test]
fn gzip_members_are_one_file() {
    let text = log(&["allocate,0xa,8,0", "free,0xa,8,0", "allocate,0xb,8,0"]);
    for at in 0..=text.len() {
        let (start, end) = text.as_bytes().split_at(at);
        let trace = read_one(&[gzip(start), gzip(end)].concat());
        assert_eq!(trace.events().len(), 3);
        assert_eq!(trace.warnings(), []);
    }
}

#[test]
fn cut_gzip_gives_whole_rows() {
    let rows: Vec<_> = (0..200_u64)
        .map(|n| format!("allocate,{:#x},{},{:#x}", n * 512 + 512, n * n * 7919 % 1_000_003, n % 5))
        .collect();
    let text = log(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    let all: Vec<Op> = ops(&text);
    let packed = gzip(text.as_bytes());
    let mut most = 0;
    for at in 1..packed.len() {
        match gpuheap_trace::read_bytes("cut", &packed[..at], &Default::default()) {
            Ok(traces) => {
                let ops: Vec<Op> = traces[0].events().iter().map(|event| event.op).collect();
                assert_eq!(ops, all[..ops.len()], "whole rows only, in order");
                assert!(ops.len() >= most, "more bytes never give fewer rows");
                most = ops.len();
                let [warning] = traces[0].warnings() else { panic!("cut at {at}: no warning") };
                assert!(matches!(warning.kind, WarningKind::BrokenOff(_)));
            }
            Err(error) => assert_eq!(most, 0, "cut at {at}: {error}"),
        }
    }
    assert_eq!(most, all.len(), "cutting the checksum loses no row");
}

#[test]
fn wrong_gzip_checksum_is_a_warning() {
    let mut packed = gzip(log(&["allocate,0xa,8,0", "free,0xa,8,0"]).as_bytes());
    let checksum = packed.len() - 8;
    packed[checksum] ^= 1;
    let trace = read_one(&packed);
    assert_eq!(trace.events().len(), 2);
    assert!(matches!(trace.warnings()[0].kind, WarningKind::BrokenOff(_)));
}

#[test]
fn errors_name_the_physical_line() {
    let text = "Thread,Time,Action,Pointer,Size,Stream,Note\n\
                \n\
                1,10:00:00.000000,allocate,0xa,8,0,\"two\nlines\"\n\
                \n\
                \n\
                1,10:00:00.000000,allocate,0xa,8x,0,\n\
                1,10:00:00.000000,free,0xa,8,0,\n";
    let error = gpuheap_trace::read_bytes("t", text.as_bytes(), &Default::default()).unwrap_err();
    assert_eq!(error.place(), &Place::Line(7));
}
