//! Texts of whole reports.

use crate::support::{command, ran, recordings, replay, replay_in, traces, without_times};

/// Returns the report up to the table.
fn verdict(text: &str) -> &str {
    text.split_once("\n\npool ").unwrap().0
}

#[test]
fn table_recommends_and_marks_models() {
    let ran = replay(&["gpt_train_short.csv.gz"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(without_times(&ran.stdout));
}

#[test]
fn failed_run_has_cause_and_remedies() {
    let ran = replay(&["varied_oom.snapshot.pickle.gz"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    // PyTorch's own message says 4.37 GiB allocated, and 459.36 MiB reserved but unallocated.
    assert!(ran.stdout.contains("459.36 MiB  free in "), "{}", ran.stdout);
    insta::assert_snapshot!(without_times(&ran.stdout));
}

/// The README shows the output of its own first command.
#[test]
fn readme_shows_current_verdict() {
    let root = traces().join("../..");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let shown = readme.split_once("```text\n").unwrap().1.split_once("\n```").unwrap().0;
    let ran = replay_in(&root, &["examples/traces/varied_oom.snapshot.pickle.gz"]);
    assert_eq!(verdict(&ran.stdout), shown);
}

#[test]
fn verdict_fits_on_a_screen() {
    let folder = recordings();
    let log = folder.join("rmm-logs/cudf_oom.dev0.csv.gz");
    let graphs = folder.join("torch-programs/graphs_ended.pickle.gz");
    for name in [
        "varied_oom.snapshot.pickle.gz",
        "two_streams.snapshot.pickle.gz",
        "gpt_train_short.csv.gz",
        log.to_str().unwrap(),
        graphs.to_str().unwrap(),
    ] {
        let shown = replay(&[name]).stdout;
        assert!(verdict(&shown).lines().count() <= 24, "{shown}");
    }
    let ran = replay(&["-v", "varied_oom.snapshot.pickle.gz"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    insta::assert_snapshot!("verbose", verdict(&ran.stdout));
}

#[test]
fn gaps_of_recording_are_named() {
    let folder = recordings().join("torch-odd");
    let mut told = String::new();
    for (name, kinds) in [
        ("late", &["beginning"][..]),
        ("older", &["settings", "version"]),
        ("newer", &["version"]),
        ("no_segments", &["segments"]),
        ("collected", &["fraction"]),
    ] {
        let file = format!("{name}.pickle");
        let ran = replay_in(&folder, &[&file]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        told += verdict(&ran.stdout);
        told += "\n\n";
        let json = replay_in(&folder, &["--json", &file]).json();
        let gaps = json[0]["recorded"]["gaps"].as_array().unwrap();
        let found: Vec<_> = gaps.iter().map(|gap| gap["kind"].as_str().unwrap()).collect();
        assert_eq!(found, kinds, "{name}");
        let text = gaps[0]["text"].as_str().unwrap();
        let flat = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(text), "{name}: {text}");
    }
    insta::assert_snapshot!(told);
}

/// If a figure is a range, the report states the reason. In the first program, CUDA graphs ended
/// before the snapshot, so the modelled pool differs from the recorded one. In the second program,
/// freed blocks wait for other streams, so the peak depends on the streams' speed.
#[test]
fn range_names_its_reason() {
    let folder = recordings().join("torch-programs");
    let run = |arguments: &[&str]| replay_in(&folder, arguments).stdout;
    let shown = run(&["--pool", "torch:max_split_size_mb:64", "graphs_ended.pickle.gz"]);
    assert!(shown.contains("A range: the model is "), "{shown}");
    assert!(shown.contains("Not in the recording:\n  - the model of PyTorch's"), "{shown}");
    let shown = replay(&["two_streams.snapshot.pickle.gz"]).stdout;
    assert!(shown.contains("A range: which blocks of other streams"), "{shown}");
    assert!(!shown.contains("A range: the model"), "{shown}");
}

#[test]
fn snapshot_is_checked_with_recorded_pool() {
    let memory = ["--device-memory", "5GiB", "two_streams.snapshot.pickle.gz"];
    for (arguments, code) in [
        (&[][..], 0),
        (&["--check", "binned"], 0),
        (&["--check", "simple", "--pool", "torch"], 0),
        (&["--pool", "torch:max_split_size_mb:20"], 0),
    ] {
        assert_eq!(replay(&[arguments, &memory].concat()).code, code, "{arguments:?}");
    }
    // Only the pool of `--check` decides the exit code. Without `--check`, all pools of `--pool`
    // decide it, or else the program's own pool. Other pools may run out of memory.
    let memory = ["--device-memory", "1.81GiB", "two_streams.snapshot.pickle.gz"];
    for (arguments, code) in [
        (&[][..], 0),
        (&["--check", "split"], 1),
        (&["--pool", "split", "--pool", "torch"], 1),
        (&["--pool", "split", "--check", "torch"], 0),
    ] {
        assert_eq!(replay(&[arguments, &memory].concat()).code, code, "{arguments:?}");
    }
}

#[test]
fn failed_run_passes_with_given_options() {
    let run = "varied_oom.snapshot.pickle.gz";
    let fraction = |settings: &str, profile: &str| {
        let pool = format!("torch:{settings}per_process_memory_fraction:0.035");
        replay(&["--pool", &pool, "--profile", profile, run])
    };
    assert_eq!(fraction("", "h200").code, 1);
    assert_eq!(fraction("expandable_segments:True,", "h200").code, 0);
    let given = replay(&["--profile", "t4", run]);
    assert_eq!(given.code, 0, "{}", given.stdout);
    assert!(given.stdout.contains("at least"), "{}", given.stdout);
}

#[test]
fn recorded_failure_is_served_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [("allocate", 1, 1 << 30), ("allocate failure", 0, 8 << 30)];
    std::fs::write(folder.path().join("log.csv"), crate::support::log(&rows)).unwrap();
    // The log does not name its device. A replay on the default device, an H200, succeeds, but the
    // recorded run may have had a smaller device. So the recorded failure counts.
    let ran = replay_in(folder.path(), &["log.csv"]);
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(without_times(&ran.stdout));
    let ran = replay_in(folder.path(), &["--pool", "split", "log.csv"]);
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    for (device, code) in [("RTX 4060 8GB", 1), ("T4 16GB", 0)] {
        let ran = replay_in(folder.path(), &["--card", device, "--check", "split", "log.csv"]);
        assert_eq!(ran.code, code, "{}", ran.stdout);
    }
    let small = ["--device-memory", "8GiB", "--pool", "split", "log.csv"];
    let ran = replay_in(folder.path(), &small);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("fails at event 2"), "{}", ran.stdout);
    let json = replay_in(folder.path(), &["--json", "log.csv"]).json();
    assert_eq!(json[0]["recorded"]["gaps"][0]["kind"], "device");
    assert_eq!(json[0]["failures"], 1);
    assert_eq!(json[0]["verdict"]["at_least"], true);
    assert!(json[0]["verdict"]["enough_bytes"].as_u64().unwrap() >= 9 << 30);
}

#[test]
fn cards_are_found_by_name() {
    let run = "varied_oom.snapshot.pickle.gz";
    let ran = replay(&["--card", "a100-40gb", run]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(verdict(&ran.stdout).lines().count() <= 24, "{}", ran.stdout);
    insta::assert_snapshot!("card", without_times(&ran.stdout));
    assert_eq!(replay(&["--card", "A100 40GB MIG 1g.5gb", run]).code, 1);
    let list = replay(&["--card", "list"]);
    assert_eq!((list.code, list.stderr.as_str()), (0, ""));
    assert!(list.stdout.lines().count() > 40, "{}", list.stdout);
    assert!(list.stdout.lines().all(|line| line.chars().count() <= 80), "{}", list.stdout);
    let ran = replay(&["--card", "A100", run]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("give one of A100 40GB, A100 80GB"), "{}", ran.stderr);
}

/// If memory runs out with every resource of RMM, the report names the memory that is enough, and
/// the cards that have so much memory.
#[test]
fn failed_log_names_memory_and_cards() {
    let folder = recordings().join("rmm-logs");
    for (arguments, wanted) in [
        (["--device-memory", "940MiB", "cudf_like.dev0.csv.gz"], "more memory, with cuda: 948 MiB"),
        (["--device-memory", "1.4GiB", "cudf_oom.dev0.csv.gz"], "rmm.mr.CudaMemoryResource())"),
    ] {
        let ran = replay_in(&folder, &arguments);
        assert_eq!(ran.code, 1, "{}", ran.stdout);
        assert!(ran.stdout.contains(wanted), "{}", ran.stdout);
        assert!(ran.stdout.contains("GTX 1650 4GB: yes"), "{}", ran.stdout);
        assert!(verdict(&ran.stdout).lines().count() <= 24, "{}", ran.stdout);
        // For a program that uses RMM, the report describes the failure of an RMM resource, and not
        // of one of gpuheap's own pools.
        let told = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains("cuda had reserved") || told.contains("rmm:async had"), "{told}");
        let json = replay_in(&folder, &[&["--json"], &arguments[..]].concat()).json();
        let fits = json[0]["verdict"]["fits"].as_array().unwrap();
        assert!(fits.iter().all(|fit| fit["fits"] == true), "{fits:?}");
    }
}

/// Needed and taken memory do not depend on the device. `--find-minimum` finds the needed memory.
#[test]
fn verdict_has_needed_and_taken_memory() {
    let run = "two_streams.snapshot.pickle.gz";
    let needs = |arguments: &[&str]| {
        let json = replay(&[&["--json", run], arguments].concat()).json();
        (json[0]["verdict"]["needs_bytes"].clone(), json[0]["verdict"]["takes_bytes"].clone())
    };
    let (least, most) = needs(&[]);
    assert!(least.as_u64().unwrap() < most.as_u64().unwrap());
    for arguments in [&["--card", "GTX 1650 4GB"][..], &["--device-memory", "1.85GiB"]] {
        assert_eq!(needs(arguments), (least.clone(), most.clone()), "{arguments:?}");
    }
    let json = replay(&["--json", "--find-minimum", "--pool", "torch", run]).json();
    assert_eq!(json[0]["results"][0]["minimum_device_bytes"], least);
    let text = replay(&[run]).stdout.replace('\n', " ");
    assert!(
        text.contains("at least 1.80 GiB of usable memory, and takes up to 5.95 GiB"),
        "{text}"
    );
}

#[test]
fn verdict_marks_cut_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = crate::support::log(&[("allocate", 1, 100), ("free", 1, 100), ("allocate", 1, 50)]);
    for (name, text, is_cut) in [("cut", &log[..log.len() - 9], true), ("whole", &log, false)] {
        std::fs::write(folder.path().join(name), text).unwrap();
        let shown = replay_in(folder.path(), &[name]).stdout.replace('\n', " ");
        assert_eq!(shown.contains("The log is cut off"), is_cut, "{shown}");
    }
}

#[test]
fn tune_searches_settings() {
    for (name, arguments) in [
        ("tune_torch", &["--tune", "varied_oom.snapshot.pickle.gz"][..]),
        ("tune_rmm", &["--tune", "rmm", "gpt_train_short.csv.gz"]),
    ] {
        let ran = replay(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
        insta::assert_snapshot!(name, ran.stdout);
    }
    let ran = replay(&["--tune", "cupy", "--device-memory", "300MiB", "gpt_train_short.csv.gz"]);
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(ran.stdout.contains("gets through under none of them"), "{}", ran.stdout);
    let ran = replay(&["--tune"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
}

#[test]
fn trace_is_read_from_standard_input() {
    let folder = traces();
    let run = |arguments: &[&str]| {
        let file = std::fs::File::open(folder.join("two_streams.csv.gz")).unwrap();
        ran(command(&folder, arguments).stdin(file))
    };
    let ran = run(&["replay", "--pool", "split", "--json", "-"]);
    assert_eq!((ran.code, &ran.json()[0]["trace"]), (0, &"standard input".into()));
    let ran = run(&["replay", "--pool", "split", "-", "-"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("give it once"), "{}", ran.stderr);
}

#[test]
fn at_shows_heap_of_event() {
    let shown = |event: &str, trace: &str| {
        let ran = replay(&["--at", event, trace]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
        ran.stdout
    };
    insta::assert_snapshot!("at_failure", shown("3405", "varied_oom.snapshot.pickle.gz"));
    insta::assert_snapshot!("at_streams", shown("1500", "two_streams.snapshot.pickle.gz"));
    insta::assert_snapshot!("at_log", shown("100", "serve_threads.csv.gz"));
    let ran = replay(&["--at", "2769", "two_streams.snapshot.pickle.gz"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("give one from 0 to 2768"), "{}", ran.stderr);
}

#[test]
fn profile_subtracts_its_context() {
    for (profile, free) in [("h200", 149_557_477_376_u64), ("rtx4090", 24_847_056_896)] {
        let shown = replay(&["--json", "--profile", profile, "gpt_train_short.csv.gz"]).stdout;
        // Free bytes by cuMemGetInfo after the context is made, measured on an H200.
        assert!(shown.contains(&format!("\"device_memory_bytes\": {free},")), "{shown}");
    }
}

#[test]
fn fallback_pool_is_marked() {
    const WHY: &str = "split, because stitched cannot be had: the device has no virtual memory \
                       management";
    let device = ["--profile", "wsl2-rtx4060", "two_streams.csv.gz"];
    for (pools, marked) in [
        (&["--pool", "stitched"][..], true),
        (&["--pool", "stitched", "--pool", "split"], true),
        (&["--pool", "simple", "--pool", "split"], false),
    ] {
        let shown = replay(&[pools, &device].concat()).stdout;
        assert_eq!(shown.contains("\nstitched+ "), marked, "{shown}");
        let shown = shown.replace('\n', " ");
        assert_eq!(shown.contains(&format!(" + {WHY}")), marked, "{shown}");
        let json = replay(&[pools, &["--json"], &device].concat()).json();
        for result in json[0]["results"].as_array().unwrap() {
            let why = (result["pool"] == "stitched").then_some(WHY);
            assert_eq!(result["fallback"].as_str(), why, "{result}");
        }
    }
}

#[test]
fn causes_of_failure_are_distinguished() {
    let pools = ["--pool", "stitched", "--pool", "split", "--pool", "binned"];
    let device = ["--device-memory", "14700MiB", "gpt_train.csv.gz"];
    let shown = replay(&[&pools[..], &device].concat()).stdout;
    let row = |pool: &str| shown.lines().find(|line| line.starts_with(pool)).unwrap();
    assert!(row("stitched").ends_with("the device is full"), "{shown}");
    assert!(row("split").ends_with("free in pieces"), "{shown}");
    assert!(row("binned").ends_with("of rounding"), "{shown}");
    // The size is shown as it was typed.
    assert!(shown.contains("with 14700MiB of usable memory"), "{shown}");
}

#[test]
fn minima_have_a_column() {
    let ran =
        replay(&["--find-minimum", "--pool", "simple", "--pool", "binned", "two_streams.csv.gz"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(without_times(&ran.stdout));
}

#[test]
fn failures_have_place_and_minimum() {
    let pools = ["--pool", "none", "--pool", "simple", "--pool", "binned"];
    let memory = ["--device-memory", "1.7GiB", "--find-minimum"];
    let ran = replay(&[&pools[..], &memory, &["two_streams.snapshot.pickle.gz"]].concat());
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    insta::assert_snapshot!(without_times(&ran.stdout));
}

#[test]
fn request_beyond_everything_is_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [("allocate", 1, u64::MAX), ("allocate", 2, u64::MAX)];
    std::fs::write(folder.path().join("log.csv"), crate::support::log(&rows)).unwrap();
    let ran = replay_in(folder.path(), &["--find-minimum", "log.csv"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    insta::assert_snapshot!(without_times(&ran.stdout));
}

#[test]
fn traces_follow_each_other() {
    let ran = replay(&["--pool", "simple", "two_streams.csv.gz", "two_streams.snapshot.pickle.gz"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(without_times(&ran.stdout));
}

#[test]
fn lines_fit_a_terminal() {
    let every = ["--find-minimum", "two_streams.csv.gz", "two_streams.snapshot.pickle.gz"];
    for arguments in
        [&["--limit", "1GiB"][..], &["--device-memory", "1.8GiB"], &["--profile", "t4"]]
    {
        let ran = replay(&[arguments, &every].concat());
        for line in ran.stdout.lines() {
            assert!(line.chars().count() <= 80, "{line}");
            assert_eq!(line, line.trim_end());
        }
    }
}

#[test]
fn help_matches_snapshots() {
    for (name, arguments) in [
        ("help", &["--help"][..]),
        ("help_replay", &["replay", "--help"]),
        ("help_short", &["replay", "-h"]),
    ] {
        let ran = ran(&mut command(&traces(), arguments));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        insta::assert_snapshot!(name, ran.stdout);
    }
}
