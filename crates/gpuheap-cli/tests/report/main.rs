//! Runs `gpuheap report` as a user does, and checks the output and the exit codes.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../command/mod.rs"]
mod command;
mod forms;
mod hostile;
mod page;
#[path = "../schema/mod.rs"]
mod schema;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Ran, ran};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `gpuheap report` with these arguments, in the folder of the traces.
fn report(arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
    ran(command.current_dir(root().join("examples/traces")).arg("report").args(arguments))
}

#[test]
fn text_fits_in_80_columns() {
    for trace in ["varied_oom.snapshot.pickle.gz", "serve_threads.csv.gz"] {
        let ran = report(&[trace]);
        assert_eq!((ran.code, &*ran.stderr), (0, ""));
        for line in ran.stdout.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        insta::assert_snapshot!(trace, ran.stdout);
    }
}

#[test]
fn json_follows_schema() {
    let schema = schema::schema_of("report");
    for trace in ["varied_oom.snapshot.pickle.gz", "cupy_groupby.csv.gz"] {
        let json = report(&[trace, "--json"]).json();
        assert_eq!(schema::differences(&schema, &json, "$"), [] as [String; 0]);
        assert_eq!(json, report(&[trace, "--format", "json"]).json());
    }
    let compared = ["gpt_train_short.csv.gz", "--compare", "two_streams.csv.gz", "--json"];
    let json = report(&compared).json();
    assert_eq!(schema::differences(&schema, &json, "$"), [] as [String; 0]);
}

#[test]
fn moments_are_chosen_by_at() {
    let live = |at| {
        report(&["varied_oom.snapshot.pickle.gz", "--json", "--at", at]).json()[0]["moment"]
            ["live_bytes"]
            .as_u64()
    };
    assert_eq!(live("peak"), live("3,404"));
    assert_eq!(live("end"), live("3892"));
    assert_eq!(live("0"), Some(0));
}

#[test]
fn bad_use_exits_with_2() {
    for (arguments, text) in [
        (&[][..], "no file was given; name at least one: gpuheap report FILE"),
        (&["missing.csv"], "missing.csv: cannot be opened"),
        (&["README.md"], "README.md, line 1: "),
        (&["two_streams.csv.gz", "--at", "soon"], "'soon' is not a moment; give peak, end"),
        (&["two_streams.csv.gz", "--at", "99999999"], "there is no event 99999999; give one from"),
        (&["two_streams.csv.gz", "--device", "1"], "--device: there is no device 1; the file does"),
        (&["varied_oom.snapshot.pickle.gz", "--device", "7"], "no device 7; the file has 0"),
        (
            &["two_streams.csv.gz", "--compare", "varied_oom.snapshot.pickle.gz"],
            "--compare: varied_oom.snapshot.pickle.gz has no device",
        ),
        (
            &["two_streams.csv.gz", "--compare", "two_streams.csv.gz", "--format", "rmm"],
            "--compare writes text, html or json",
        ),
        (&["two_streams.csv.gz", "--format", "pdf"], "see gpuheap report --help"),
    ] {
        let ran = report(arguments);
        assert_eq!((ran.code, &*ran.stdout), (2, ""), "{arguments:?}");
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(text), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1);
    }
}
