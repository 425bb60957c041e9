//! Tests the forms of a report (`--format`) that other tools read, by parsing them again.

use serde_json::Value;

use crate::report;

fn form(trace: &str, form: &str) -> String {
    let ran = report(&[trace, "--format", form, "--output", "-"]);
    assert_eq!((ran.code, &*ran.stderr), (0, ""), "{form}");
    ran.stdout
}

fn figure(trace: &str, name: &str) -> u64 {
    report(&[trace, "--json"]).json()[0][name].as_u64().unwrap()
}

#[test]
fn folded_stacks_sum_to_peak() {
    let trace = "varied_oom.snapshot.pickle.gz";
    let text = form(trace, "folded");
    let bytes = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(text.lines().map(bytes).sum::<u64>(), figure(trace, "peak_live_bytes"));
    let mut names: Vec<&str> = text.lines().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{text}");
}

#[test]
fn speedscope_profiles_sum_to_figures() {
    let trace = "two_streams.csv.gz";
    let file: Value = serde_json::from_str(&form(trace, "speedscope")).unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    let sums = [figure(trace, "peak_live_bytes"), figure(trace, "left_live_bytes")];
    for (profile, sum) in profiles.iter().zip(sums) {
        let weights = profile["weights"].as_array().unwrap();
        assert_eq!(weights.iter().map(|weight| weight.as_u64().unwrap()).sum::<u64>(), sum);
        assert_eq!(profile["endValue"], sum);
        assert_eq!(profile["samples"].as_array().unwrap().len(), weights.len());
    }
    assert_eq!(profiles.len(), 3);
}

#[test]
fn perfetto_tracks_reach_peak() {
    let trace = "varied_oom.snapshot.pickle.gz";
    let file: Value = serde_json::from_str(&form(trace, "perfetto")).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    // Checks each event by the rules of Chrome's Trace Event Format.
    for event in events {
        let is_valid = match event["ph"].as_str().unwrap() {
            "M" => event["args"]["name"].is_string(),
            "C" => event["ts"].is_number() && event["args"]["bytes"].is_u64(),
            "i" => {
                event["ts"].is_number() && ["g", "p", "t"].contains(&event["s"].as_str().unwrap())
            }
            _ => false,
        };
        assert!(is_valid && event["pid"].is_u64() && event["name"].is_string(), "{event}");
    }
    let track = |name: &str| {
        let of = events.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
        of.map(|event| event["args"]["bytes"].as_u64().unwrap()).max().unwrap()
    };
    assert_eq!(track("live"), figure(trace, "peak_live_bytes"));
    assert_eq!(track("reserved"), 5_207_228_416, "as PyTorch's own counter says");
    let failed: Vec<&Value> = events.iter().filter(|event| event["ph"] == "i").collect();
    let is_failure = |event: &&Value| event["name"] == "out of memory: 117.71 MiB";
    assert!(failed.iter().any(is_failure), "{failed:?}");
}

#[test]
fn written_recordings_report_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for (trace, form) in [
        ("two_streams.csv.gz", "rmm"),
        ("varied_oom.snapshot.pickle.gz", "pytorch"),
        ("cupy_groupby.csv.gz", "pytorch"),
    ] {
        let path = folder.path().join(form);
        let path = path.to_str().unwrap();
        let ran = report(&[trace, "--format", form, "-o", path]);
        assert_eq!((ran.code, ran.stdout), (0, format!("wrote {path}\n")));
        let (again, before) = (report(&[path, "--json"]).json(), report(&[trace, "--json"]).json());
        let same = ["allocations", "frees", "failures", "peak_live_bytes", "left_by_site"];
        for name in same {
            assert_eq!(again[0][name], before[0][name], "{trace} as {form}: {name}");
        }
        assert_eq!(again[0]["moment"]["by_site"], before[0]["moment"]["by_site"]);
    }
}

#[test]
fn comparison_lists_changed_sites() {
    let same = report(&["two_streams.csv.gz", "--compare", "two_streams.csv.gz"]);
    assert_eq!(same.code, 0);
    assert_eq!(same.stdout.matches("No site.").count(), 2, "{}", same.stdout);
    let ran = report(&["gpt_train_short.csv.gz", "--compare", "two_streams.csv.gz"]);
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    insta::assert_snapshot!(ran.stdout);
}

#[test]
fn unwritable_place_exits_with_3() {
    let ran = report(&["two_streams.csv.gz", "-o", "/missing/folder/report.txt"]);
    assert_eq!((ran.code, &*ran.stdout), (3, ""));
    let place = "error: /missing/folder/report.txt: cannot be written: ";
    assert!(ran.stderr.starts_with(place), "{}", ran.stderr);
}
