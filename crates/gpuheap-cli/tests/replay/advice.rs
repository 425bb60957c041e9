//! Tests the advice of a report: the lines to type, and the order of the remedies.

use crate::support::{SHORT, log, recordings, replay, replay_in};

/// Returns a text with one space between words.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn setting_for_python_has_its_line() {
    let run = recordings().join("torch-settings/streams_default.pickle.gz");
    let arguments = ["--device-memory", "1.81GiB", run.to_str().unwrap()];
    let shown = replay(&arguments).stdout;
    let line = "export PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8\n";
    assert!(shown.contains(line), "{shown}");
    assert!(shown.contains("     and in Python: torch.cuda.set_per_process"), "{shown}");
    assert!(shown.contains("; in the shell, before python starts"), "{}", words(&shown));
    assert!(!shown.contains('#'), "{shown}");
    let json = replay(&[&["--json"], &arguments[..]].concat()).json();
    let first = &json[0]["verdict"]["remedies"][0];
    assert_eq!(first["line"], line.trim_end().trim_start_matches("export "));
    assert_eq!(first["python"], "torch.cuda.set_per_process_memory_fraction(0.95)");
}

#[test]
fn recorded_and_replayed_outcomes_are_labelled() {
    let folder = recordings().join("rmm-logs");
    let recorded = "As recorded: 96.26 MiB was requested at event 574 of 617";
    for (arguments, replayed, recorded) in [
        (&[][..], "As replayed: at least 1.50 GiB is needed", recorded),
        (&["--card", "T4 16GB"], "As replayed: it gets through; at least 1.50 GiB", recorded),
        (
            &["--device-memory", "1.3GiB"],
            "As replayed: no pool gets through.",
            "As recorded: it failed at event 574;",
        ),
    ] {
        let shown =
            words(&replay_in(&folder, &[arguments, &["cudf_oom.dev0.csv.gz"]].concat()).stdout);
        for told in [replayed, recorded] {
            assert_eq!(shown.matches(told).count(), 1, "{told}: {shown}");
        }
        assert_eq!(shown.matches("As replayed: ").count(), 1, "{shown}");
        assert_eq!(shown.matches("As recorded: ").count(), 1, "{shown}");
    }
    // If the recorded run was successful, the report has no labels `As recorded` and `As replayed`.
    let shown = replay(&["two_streams.snapshot.pickle.gz"]).stdout;
    assert!(!shown.contains("As re"), "{shown}");
}

#[test]
fn pool_with_few_calls_comes_first() {
    let run = "cupy_groupby.csv.gz";
    let json = replay(&["--json", run]).json();
    let verdict = &json[0]["verdict"];
    let remedies = verdict["remedies"].as_array().unwrap();
    let at = |pool: &str| remedies.iter().position(|remedy| remedy["pool"] == pool);
    let default = at("cuda").unwrap();
    assert_eq!((default, at(verdict["recommended_pool"].as_str().unwrap())), (1, Some(0)));
    let calls = remedies[default]["driver_calls"].as_f64().unwrap();
    let each = calls / json[0]["events"].as_f64().unwrap();
    let shown = words(&replay(&[run]).stdout);
    assert!(shown.contains("RMM's default, takes 558 MiB"), "{shown}");
    assert!(shown.contains(&format!("of cudaMalloc and cudaFree ({each:.2} an event)")), "{shown}");
}

#[test]
fn advised_pool_has_its_row() {
    let runs = [&SHORT[..], &["varied_oom.snapshot.pickle.gz"]].concat();
    for trace in replay(&[&["--json"], &runs[..]].concat()).json().as_array().unwrap() {
        let results = trace["results"].as_array().unwrap();
        for remedy in trace["verdict"]["remedies"].as_array().unwrap() {
            let Some(pool) = remedy["pool"].as_str() else { continue };
            let row = results.iter().find(|result| result["pool"] == pool);
            let row = row.unwrap_or_else(|| panic!("{pool} has no row in {}", trace["trace"]));
            assert_eq!(row["peak_reserved_bytes"], remedy["reserved_bytes"], "{pool}");
        }
    }
}

#[test]
fn smallest_named_pool_decides() {
    for pools in [["cuda", "rmm:async"], ["rmm:async", "cuda"]] {
        let pools = ["--pool", pools[0], "--pool", pools[1], "cupy_groupby.csv.gz"];
        let shown = words(&replay(&pools).stdout);
        assert!(shown.contains("558 MiB of usable memory is enough with cuda."), "{shown}");
    }
}

#[test]
fn omitted_gpuheap_pools_are_mentioned() {
    let log = recordings().join("rmm-logs/cudf_oom.dev0.csv.gz");
    let shown = words(&replay(&[log.to_str().unwrap()]).stdout);
    assert!(shown.contains("More: -v for gpuheap's own heap and all"), "{shown}");
}

#[test]
fn advised_pool_has_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [("allocate", 1, 100), ("free", 1, 100)];
    std::fs::write(folder.path().join("tiny.csv"), log(&rows)).unwrap();
    for arguments in [&["tiny.csv"][..], &["--tune", "tiny.csv"]] {
        let shown = replay_in(folder.path(), arguments).stdout;
        assert!(shown.contains("initial_pool_size=1 <<"), "{shown}");
        assert!(!shown.contains("=0 <<"), "{shown}");
    }
}
