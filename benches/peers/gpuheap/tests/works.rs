//! Tests scaled-down versions of every workload, on every pool of an emulated device.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::process::Command;

type Figures = BTreeMap<String, String>;

fn peer(arguments: &[&str]) -> (i32, String, String) {
    let ran = Command::new(env!("CARGO_BIN_EXE_gpuheap-peers")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ran.status.code().unwrap(), text(ran.stdout), text(ran.stderr))
}

/// Runs a workload on a pool. Returns the figures of each line that the program prints.
fn results(pool: &str, work: &str) -> Vec<Figures> {
    let arguments = ["--device", "emulated:16GiB", "--scale", "100", pool, work];
    let (code, stdout, stderr) = peer(&arguments);
    assert_eq!((code, stderr.as_str()), (0, ""), "{pool} {work}");
    let figures = |line: &str| {
        let pairs = line.strip_prefix("RESULT ").unwrap().split(' ');
        pairs.map(|pair| pair.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
    };
    stdout.lines().map(figures).collect()
}

fn pools() -> Vec<String> {
    peer(&["pools"]).1.split_whitespace().map(str::to_owned).collect()
}

fn number(figures: &Figures, name: &str) -> f64 {
    figures.get(name).and_then(|figure| figure.parse().ok()).unwrap_or_else(|| {
        panic!("no {name} in {figures:?}");
    })
}

#[test]
fn pools_run_works_and_return_memory() {
    for pool in pools() {
        for (work, lines, expected) in [
            ("hot", 3, &["bytes", "ns"][..]),
            ("threads", 5, &["threads", "mpairs"]),
            ("crossfree", 1, &["ns", "allocate_ns"]),
            ("first", 1, &["open_ms", "ms"]),
        ] {
            let results = results(&pool, work);
            assert_eq!(results.len(), lines, "{pool} {work}");
            for figures in results {
                assert_eq!((&figures["peer"], figures["work"].as_str()), (&pool, work));
                assert!(expected.iter().all(|name| number(&figures, name) > 0.0), "{figures:?}");
            }
        }
        let reclaimed = &results(&pool, "reclaim")[0];
        assert_eq!(number(reclaimed, "kept"), 0.0, "{reclaimed:?}");
    }
}

#[test]
fn pools_do_equal_work() {
    let folder = std::env::temp_dir().join(format!("gpuheap-peers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let trace = folder.join("trace");
    // Block 1 stays live, on a separate stream. The last row frees a block that is not live.
    let rows =
        "op,id,bytes,stream\na,0,1000,0\na,1,5000000,1\nf,0,1000,1\na,2,0,0\nf,2,0,0\nf,2,0,0\n";
    std::fs::write(&trace, rows).unwrap();
    let replay = format!("replay:{}", trace.display());
    for pool in pools() {
        let random = &results(&pool, "random")[0];
        // The C++ program `peers_cuda`, run with `cudaMalloc`, prints this peak for equal requests.
        assert_eq!(number(random, "live_peak"), 720_824_716.0, "{pool}");
        let replayed = &results(&pool, &replay)[0];
        assert_eq!(replayed["trace"], "trace");
        assert_eq!(number(replayed, "live_peak"), 5_001_000.0, "{pool}");
        assert!(number(replayed, "reserved_peak") >= 5_001_000.0, "{replayed:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn impossible_work_is_refused() {
    for (arguments, code, said) in [
        (&[][..], 2, "usage: gpuheap-peers"),
        (&["--scale", "0", "split", "hot"], 2, "usage: gpuheap-peers"),
        (&["--device", "emulated", "cheap", "hot"], 3, "'cheap' is not a pool; the pools are"),
        (&["--device", "emulated", "split", "cold"], 3, "'cold' is no work"),
        (&["--device", "emulated", "split", "replay:none"], 3, "none: No such file"),
    ] {
        let (found, stdout, stderr) = peer(arguments);
        assert_eq!((found, stdout.as_str()), (code, ""), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}
