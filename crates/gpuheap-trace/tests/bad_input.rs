//! Tests the texts of all errors. Each text is one line with a place and a remedy.

mod support;

use std::fmt::Write;

use gpuheap_trace::{ReadOptions, read, read_bytes};
use support::pickle::{Data, dict, encode, entry, segment, snapshot};
use support::{HEADER, gzip, log};

/// Reads the cases. Returns their errors, one line for each case.
fn errors(cases: &[(&str, &[u8])]) -> String {
    let mut lines = String::new();
    for (case, bytes) in cases {
        let error = read_bytes("file", bytes, &ReadOptions::default()).expect_err(case);
        let text = error.to_string();
        assert!(!text.chars().any(char::is_control), "{case}: not one line: {text:?}");
        assert!(!error.advice().is_empty(), "{case}: no advice");
        writeln!(lines, "{case}\n    {text}").expect("a string takes all");
    }
    lines
}

#[test]
fn bad_files_have_clear_errors() {
    let half_header = &gzip(HEADER.repeat(10).as_bytes())[..14];
    let header_row = gzip(log(&["allocate,0x7f5b8c000000,77,0"]).as_bytes());
    let errors = errors(&[
        ("empty", b""),
        ("gzip of nothing", &gzip(b"")),
        ("gzip magic alone", b"\x1f\x8b"),
        ("gzip cut in the header", half_header),
        ("gzip cut before one whole row", &header_row[..header_row.len() - 30]),
        ("gzip damaged at once", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff\xff"),
        ("binary noise", b"\x00\x93\xfe\x12\x00\x00\x07 noise"),
        ("gzipped binary noise", &gzip(b"\x00\x93\xfe\x12\x00\x00\x07 noise")),
        ("zip, as torch.save writes", b"PK\x03\x04rest"),
        ("other text", b"{\"events\": []}\n"),
        ("text that turns to noise", b"Thread\xff\xfe,\x00\n\x01"),
    ]);
    insta::assert_snapshot!(errors);
}

#[test]
fn bad_paths_have_clear_errors() {
    let folder = tempfile::tempdir().unwrap();
    let error = read(folder.path(), &ReadOptions::default()).unwrap_err();
    let shown = folder.path().display().to_string();
    insta::assert_snapshot!(error.to_string().replace(&shown, "[folder]"), @"[folder]: is a directory; name a trace file inside it");
    let error = read("no\nsuch", &ReadOptions::default()).unwrap_err();
    insta::assert_snapshot!(error, @r"no\nsuch: cannot be opened: No such file or directory (os error 2); check the path and its permissions");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn bad_logs_have_clear_errors() {
    let row = |row: &str| log(&["allocate,0xa,8,0", row, "free,0xa,8,0"]).into_bytes();
    let long = format!("{HEADER}\"{}", "x\n".repeat(2 << 20)).into_bytes();
    let time = format!("{HEADER}1,25:00:00.000000,allocate,0xa,8,0\n1,,,,,\n").into_bytes();
    let thread = format!("{HEADER}main,10:00:00.000000,allocate,0xa,8,0\n1,,,,,\n").into_bytes();
    let errors = errors(&[
        ("header alone", HEADER.as_bytes()),
        ("gzipped header alone", &gzip(HEADER.as_bytes())),
        ("header and part of a row", format!("{HEADER}1,10:00:00.0000").as_bytes()),
        ("missing column", b"Thread,Time,Action,Pointer,Stream\n1,2,3,4,5\n"),
        ("column in other letters", b"thread,time,action,pointer,size,stream\n"),
        ("column twice", b"Thread,Time,Action,Pointer,Size,Size,Stream\n"),
        ("size not a number", &row("allocate,0xb,12x,0")),
        ("size negative", &row("allocate,0xb,-5,0")),
        ("size empty", &row("allocate,0xb,,0")),
        ("size beyond 64 bits", &row("allocate,0xb,18446744073709551616,0")),
        ("pointer not a number", &row("allocate,0xzz,8,0")),
        ("stream not a number", &row("allocate,0xb,8,default")),
        ("unknown action", &row("reallocate,0xb,8,0")),
        ("action with control characters", &row("al\u{1b}[2Jloc\u{0},0xb,8,0")),
        ("time of no day", &time),
        ("thread not a number", &thread),
        ("too few fields", &row("allocate,0xb,8")),
        ("too many fields", &row("allocate,0xb,8,0,9")),
        ("quote never closed", &long),
    ]);
    insta::assert_snapshot!(errors);
}

/// Returns a pickle of protocol 4 with these pieces, then STOP.
fn raw(pieces: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x04", &pieces.concat()[..], b"."].concat()
}

/// The dict of an entry.
const ENTRY: &[u8] =
    b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01\x8c\x06streamK\0u";

#[test]
fn bad_pickles_have_clear_errors() {
    let errors = errors(&[
        ("class by GLOBAL", &raw(&[b"cos\nsystem\n"])),
        ("class by STACK_GLOBAL", &raw(&[b"\x8c\x08builtins\x8c\x04eval\x93"])),
        ("class by INST", &raw(&[b"(ios\nsystem\n"])),
        ("class by STACK_GLOBAL without names", &raw(&[b"NN\x93"])),
        ("call by REDUCE", &raw(&[b"N)R"])),
        ("call by OBJ", &raw(&[b"(No"])),
        ("call by NEWOBJ", &raw(&[b"N)\x81"])),
        ("call by NEWOBJ_EX", &raw(&[b"N)}\x92"])),
        ("state by BUILD", &raw(&[b"N}b"])),
        ("registered class by EXT1", &raw(&[b"\x82\x01"])),
        ("registered class by EXT2", &raw(&[b"\x83\x01\x00"])),
        ("registered class by EXT4", &raw(&[b"\x84\x01\x00\x00\x00"])),
        ("outside object by PERSID", &raw(&[b"Pname\n"])),
        ("outside object by BINPERSID", &raw(&[b"NQ"])),
        ("outside buffer", &raw(&[b"\x97"])),
        ("set", &raw(&[b"\x8f"])),
        ("text opcode", &raw(&[b"I5\n"])),
        ("unknown opcode", &raw(&[b"\xee"])),
        ("unknown protocol", b"\x80\x09N."),
        ("protocol alone", b"\x80"),
        ("cut in a string", b"\x80\x04\x8c\x08seg"),
        ("cut after a value", b"\x80\x04}"),
        ("frame beyond the end", b"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00N."),
        ("nothing on the stack", &raw(&[])),
        ("no mark", &raw(&[b"]e"])),
        ("mark below", &raw(&[b"N(a"])),
        ("tuple over a mark", &raw(&[b"NN(\x86t"])),
        ("append to a dict", &raw(&[b"}Na"])),
        ("items for a list", &raw(&[b"](NNu"])),
        ("key without a value", &raw(&[b"}(Nu"])),
        ("memo never stored", &raw(&[b"h\x05"])),
        ("key for an entry that was whole", &raw(&[ENTRY, b"\x8c\x01xNs"])),
        ("keys for an entry that was whole", &raw(&[ENTRY, b"(\x8c\x01xNu"])),
        ("gzip cut", &gzip(&raw(&[b"}"]))[..15]),
    ]);
    insta::assert_snapshot!(errors);
}

fn with(key: &str, value: Option<Data>) -> Vec<u8> {
    let Data::Dict(mut pairs) = entry("alloc", 0x1000, 8, 0) else { unreachable!() };
    pairs.retain(|(name, _)| *name != Data::from(key));
    pairs.extend(value.map(|value| (key.into(), value)));
    let entries = vec![entry("alloc", 0x2000, 8, 0), Data::Dict(pairs)];
    encode(&snapshot(vec![], vec![vec![], entries]), 4)
}

fn with_blocks(blocks: Data) -> Vec<u8> {
    let Data::Dict(mut pairs) = segment(0, 0, &[]) else { unreachable!() };
    pairs.retain(|(name, _)| *name != Data::from("blocks"));
    pairs.push(("blocks".into(), blocks));
    let entries = vec![vec![entry("alloc", 0x2000, 8, 0)]];
    encode(&snapshot(vec![Data::Dict(pairs)], entries), 4)
}

#[test]
fn bad_snapshots_have_clear_errors() {
    let pickled = |data: Data| encode(&data, 4);
    let traces_tuple =
        |length| pickled(dict([("device_traces", Data::Tuple(vec![Data::None; length]))]));
    let frame = dict([("name", "f".into()), ("filename", 3.into()), ("line", 1.into())]);
    let block = dict([("size", 512.into()), ("state", "active_allocated".into())]);
    let no_state = dict([("size", 512.into())]);
    let no_segments = dict([("device_traces", vec![vec![entry("alloc", 1, 1, 0)].into()].into())]);
    let errors = errors(&[
        ("number", &pickled(5.into())),
        ("list, as memory_snapshot() gives", &pickled(vec![segment(0, 0, &[])].into())),
        ("no traces", &pickled(dict([("segments", vec![].into())]))),
        ("no segments", &pickled(no_segments)),
        ("traces not a list", &pickled(dict([("device_traces", Data::Bytes(vec![1]))]))),
        ("traces a tuple of one", &traces_tuple(1)),
        ("traces a tuple of two", &traces_tuple(2)),
        ("traces a tuple of three", &traces_tuple(3)),
        ("traces a tuple of four", &traces_tuple(4)),
        (
            "device not a list",
            &pickled(dict([("device_traces", vec![Data::Tuple(vec![])].into())])),
        ),
        ("no devices", &pickled(snapshot(vec![], vec![]))),
        ("no events", &pickled(snapshot(vec![], vec![vec![], vec![entry("snapshot", 0, 0, 0)]]))),
        ("entry not a dict", &pickled(snapshot(vec![], vec![vec![Data::Float(1.5)]]))),
        ("no action", &with("action", None)),
        ("action not a string", &with("action", Some(Data::Bool(true)))),
        ("no addr", &with("addr", None)),
        ("addr not a number", &with("addr", Some("0x1000".into()))),
        ("no size", &with("size", None)),
        ("size negative", &with("size", Some((-8).into()))),
        ("size beyond 64 bits", &with("size", Some(Data::Int(1 << 100)))),
        ("no stream", &with("stream", None)),
        ("time not a number", &with("time_us", Some(Data::None))),
        ("frames not a list", &with("frames", Some(dict([])))),
        ("frame with a wrong file", &with("frames", Some(vec![frame].into()))),
        ("blocks not a list", &with_blocks(7.into())),
        ("block without a size", &with_blocks(vec![block, dict([])].into())),
        ("block without a state", &with_blocks(vec![no_state].into())),
    ]);
    insta::assert_snapshot!(errors);
}
