//! Tests that invalid input leads to one line on stderr, nothing on stdout, and exit code 2.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::{Ran, command, log, ran, replay_in};

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn good() -> String {
    log(&[("allocate", 0x1000, 100), ("free", 0x1000, 100)])
}

/// Returns a pickle of protocol 2 that consists of `opcodes`.
fn pickle(opcodes: &[u8]) -> Vec<u8> {
    [b"\x80\x02", opcodes, b"."].concat()
}

/// Returns files that are not traces, each with its name.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let rows = good();
    let noise: Vec<u8> =
        (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    vec![
        ("empty", Vec::new()),
        ("empty.gz", gzipped(b"")),
        ("noise", [&b"\x01\xfe"[..], &noise].concat()),
        ("noise.gz", gzipped(&[&b"\x01\xfe"[..], &noise].concat())),
        ("text", b"hello\nworld\n".to_vec()),
        ("no_size.csv", rows.replace(",Size,", ",Bytes,").into_bytes()),
        ("bad_size.csv", rows.replace(",100,", ",1x0,").into_bytes()),
        ("negative_size.csv", rows.replace(",100,", ",-100,").into_bytes()),
        ("bad_time.csv", rows.replace("10:00:00", "25:61:00").into_bytes()),
        ("only_a_header.csv", rows.lines().next().unwrap().as_bytes().to_vec()),
        ("cut.csv.gz", gzipped(rows.as_bytes())[..14].to_vec()),
        ("class.pickle", pickle(b"cos\nsystem\n(S'true'\ntR")),
        ("call.pickle", pickle(b"}q\x00(K\x01K\x02R")),
        ("number.pickle", pickle(b"K\x01")),
        ("cut.pickle", b"\x80\x02}q".to_vec()),
        ("bomb.pickle.gz", gzipped(&pickle(&b"]".repeat(64 << 20)))),
    ]
}

fn error_line(ran: &Ran) -> String {
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.starts_with("error: ") && ran.stderr.ends_with('\n'), "{}", ran.stderr);
    ran.stderr.clone()
}

#[test]
fn bad_files_are_wrong_use() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    let mut told = String::new();
    let files = files();
    for (name, bytes) in &files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    for name in ["folder", "missing"].into_iter().chain(files.iter().map(|(name, _)| *name)) {
        let ran = replay_in(folder.path(), &["--json", name]);
        let line = error_line(&ran);
        assert!(line.contains(name), "{line}");
        told += &line;
    }
    insta::assert_snapshot!(told);
}

#[test]
fn bad_arguments_are_wrong_use() {
    let cases: &[&[&str]] = &[
        &[],
        &["replai"],
        &["replay"],
        &["replay", "--jsom", "t"],
        &["replay", "--zzz", "t"],
        &["replay", "--json=yes", "t"],
        &["replay", "--json", "--json", "t"],
        &["replay", "t", "--pool"],
        &["replay", "--pool", "best", "t"],
        &["replay", "--pool", "--json", "t"],
        &["replay", "--pool", "split,stitched", "t"],
        &["replay", "--pool", "torch:expandable_segments:True,rmm:pool", "t"],
        &["replay", "--pool", "torch:expandable_segment:True", "t"],
        &["replay", "--pool", "torch:foo:1", "t"],
        &["replay", "--pool", "expandable_segments:True", "t"],
        &["replay", "--pool", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "t"],
        &["replay", "--pool", "torch:per_process_memory_fraction:0", "t"],
        &["replay", "--pool", "torch:per_process_memory_fraction:7", "t"],
        &["replay", "--pool", "rmm:pool:initial_pool:1GiB", "t"],
        &["replay", "--check", "best", "t"],
        &["replay", "--at", "first", "t"],
        &["replay", "--at", "7", "--json", "t"],
        &["replay", "--profile", "h100", "t"],
        &["replay", "--device-memory", "16", "t"],
        &["replay", "--device-memory", "12XB", "t"],
        &["replay", "--device-memory", "-1", "t"],
        &["replay", "--device-memory", "0", "t"],
        &["replay", "--device-memory", "", "t"],
        &["replay", "--device-memory", "50%", "t"],
        &["replay", "--device-memory", "1.5", "t"],
        &["replay", "--device-memory", "99999999TiB", "t"],
        &["replay", "--limit", "12XB", "t"],
        &["replay", "--limit", "-1", "t"],
        &["replay", "--limit", "0", "t"],
        &["replay", "--limit", "7", "t"],
        &["replay", "--limit", "0%", "t"],
        &["replay", "--limit", "101%", "t"],
        &["replay", "--limit", "--json", "t"],
        &["replay", "--delay", "2", "t"],
        &["replay", "--delay", "0ms", "t"],
        &["replay", "--delay", "-1ms", "t"],
        &["replay", "--delay", "2h", "t"],
        &["replay", "--device", "gpu", "t"],
        &["replay", "--device", "emulated:2GiB", "t"],
        &["replay", "--device", "emulated:t4", "t"],
        &["replay", "--device", "cuda:-1", "t"],
        &["replay", "--device", "cuda:0", "--profile", "t4", "t"],
        &["replay", "--device", "cuda:0", "--device-memory", "1GiB", "t"],
        &["replay", "--device", "cuda:0", "--find-minimum", "t"],
        &["replay", "--device", "cuda:0", "--delay", "1ms", "t"],
    ];
    let mut told = String::new();
    for arguments in cases {
        let ran = ran(&mut command(Path::new("."), arguments));
        told += &format!("$ gpuheap {}\n{}", arguments.join(" "), error_line(&ran));
    }
    insta::assert_snapshot!(told);
}

#[test]
fn bad_files_prevent_all_output() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.csv"), good()).unwrap();
    std::fs::write(folder.path().join("empty"), "").unwrap();
    for json in [&["--json"][..], &[]] {
        let files = ["good.csv", "empty", "missing", "good.csv"];
        let ran = replay_in(folder.path(), &[json, &files].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
        let lines: Vec<_> = ran.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("error: empty: "), "{lines:?}");
        assert!(lines[1].starts_with("error: missing: "), "{lines:?}");
    }
}

#[test]
fn damaged_logs_are_used_with_note() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<_> =
        (0..20_000).map(|n| ("allocate", 0x1000 + n * 512, 100 + n % 7919)).collect();
    let whole = gzipped(log(&rows).as_bytes());
    std::fs::write(folder.path().join("cut.csv.gz"), &whole[..whole.len() * 2 / 3]).unwrap();
    std::fs::write(
        folder.path().join("twice.csv"),
        log(&[("allocate", 1, 9), ("free", 1, 9), ("free", 1, 9)]),
    )
    .unwrap();
    let ran = replay_in(folder.path(), &["--json", "--pool", "split", "cut.csv.gz", "twice.csv"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let json = ran.json();
    let events = json[0]["events"].as_u64().unwrap();
    assert!((1000..20_000).contains(&events), "{events}");
    assert_eq!(json[1]["unknown_frees"], 1);
    let lines: Vec<_> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("note: cut.csv.gz: "), "{lines:?}");
    assert!(lines[1].starts_with("note: twice.csv: "), "{lines:?}");
}
