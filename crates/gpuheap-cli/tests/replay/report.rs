//! What people read, whole.

use crate::support::{Ran, command, replay, traces, without_times};

#[test]
fn the_table_recommends_and_marks_models() {
    let ran = replay(&["gpt_train_short.csv.gz"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(without_times(&ran.stdout));
}

#[test]
fn the_recommendation_says_who_gets_through() {
    for (arguments, said) in [
        (
            "--pool split --pool driver",
            "Use split: the pool driver gets through too, and here it is a model. It reserves 664.000 MiB",
        ),
        (
            "--pool split --pool simple --device-memory 700MiB",
            "Use split: no other gets through on this device. It reserves 664.000 MiB",
        ),
        (
            "--pool split --pool none --device-memory 800MiB",
            "Use split: of the pools that get through it reserves the least, 664.000 MiB",
        ),
        (
            "--pool simple --pool driver --device-memory 700MiB",
            "On this device only the pool driver gets through, and here it is a model; --find-minimum finds",
        ),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let shown = replay(&[&arguments[..], &["gpt_train_short.csv.gz"]].concat()).stdout;
        assert!(shown.replace('\n', " ").contains(said), "{shown}");
    }
}

#[test]
fn request_that_failed_when_recorded_is_served_at_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [("allocate", 1, 1 << 30), ("allocate failure", 0, 8 << 30)];
    std::fs::write(folder.path().join("log.csv"), crate::support::log(&rows)).unwrap();
    let shown = crate::support::replay_in(folder.path(), &["log.csv"]).stdout.replace('\n', " ");
    let said =
        "1 request failed when this was recorded, the first of 8.000 GiB at event 2. Here each is";
    assert!(shown.contains(said), "{shown}");
    assert!(
        shown.contains("so at least 9.000 GiB beside a device's context are needed"),
        "{shown}"
    );
    let small = ["--device-memory", "8GiB", "--pool", "split", "log.csv"];
    let stopped = crate::support::replay_in(folder.path(), &small).stdout.replace('\n', " ");
    assert!(stopped.contains("out of memory at event 2"), "{stopped}");
    let shown = crate::support::replay_in(folder.path(), &["--json", "log.csv"]).stdout;
    assert!(shown.contains("\"failures\": 1"), "{shown}");
}

#[test]
fn a_profile_leaves_what_its_context_does_not_take() {
    for (profile, free) in [("h200", 149_557_477_376_u64), ("rtx4090", 24_847_056_896)] {
        let shown = replay(&["--json", "--profile", profile, "gpt_train_short.csv.gz"]).stdout;
        // What cuMemGetInfo calls free once the context is there; on the H200 it was measured.
        assert!(shown.contains(&format!("\"device_memory_bytes\": {free},")), "{shown}");
    }
}

#[test]
fn a_pool_that_is_another_here_is_told_and_not_recommended() {
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
        assert_eq!(shown.contains(&format!(" + {WHY}  Use split: ")), marked, "{shown}");
        assert!(!shown.contains("Use stitched"), "{shown}");
        // A pool does not reserve less than itself.
        let alone = pools.contains(&"stitched");
        assert_eq!(shown.contains("Use split: it gets through"), alone, "{shown}");
        let json = replay(&[pools, &["--json"], &device].concat()).json();
        for result in json[0]["results"].as_array().unwrap() {
            let why = (result["pool"] == "stitched").then_some(WHY);
            assert_eq!(result["fallback"].as_str(), why, "{result}");
        }
    }
}

#[test]
fn a_device_smaller_than_what_is_live_at_once_is_what_is_in_the_way() {
    let pools = ["--pool", "stitched", "--pool", "split"];
    let device = ["--device-memory", "14700MiB", "gpt_train.csv.gz"];
    let shown = replay(&[&pools[..], &device].concat()).stdout.replace('\n', " ");
    let (stitched, split) = shown.split_once(" split ran out of memory ").unwrap();
    assert!(stitched.contains("because the device is full."), "{stitched}");
    let hopeless =
        "No pool could: the program needs 14.386 GiB at once, and the device has 14.355 GiB. For";
    assert!(stitched.contains(hopeless) && !stitched.contains("maps such pieces"), "{stitched}");
    // That one stopped where there was room.
    assert!(split.contains("the stitched pool maps such pieces together; else free "), "{split}");
    assert!(!split.contains("No pool could"), "{split}");
}

#[test]
fn minima_have_a_column() {
    let ran =
        replay(&["--find-minimum", "--pool", "simple", "--pool", "binned", "two_streams.csv.gz"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(without_times(&ran.stdout));
}

#[test]
fn failures_say_where_why_and_what_would_do() {
    let pools = ["--pool", "none", "--pool", "simple", "--pool", "binned"];
    let memory = ["--device-memory", "1.7GiB", "--find-minimum"];
    let ran = replay(&[&pools[..], &memory, &["two_streams.snapshot.pickle.gz"]].concat());
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    insta::assert_snapshot!(without_times(&ran.stdout));
}

#[test]
fn a_request_larger_than_everything_is_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [("allocate", 1, u64::MAX), ("allocate", 2, u64::MAX)];
    std::fs::write(folder.path().join("log.csv"), crate::support::log(&rows)).unwrap();
    let ran = crate::support::replay_in(folder.path(), &["--find-minimum", "log.csv"]);
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
fn no_line_is_wider_than_a_terminal() {
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
fn the_help_is_what_it_should_be() {
    for (name, arguments) in [
        ("help", &["--help"][..]),
        ("help_replay", &["replay", "--help"]),
        ("help_short", &["replay", "-h"]),
    ] {
        let ran = Ran::from(command(&traces(), arguments).output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        insta::assert_snapshot!(name, ran.stdout);
    }
}
