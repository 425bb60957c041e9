//! Tests machines with files that are missing, empty, unreadable or garbled.

use std::sync::LazyLock;

use gpuheap_doctor::{
    Machine, RULES, Recording, TOPICS, Topic, Why, diagnose, explain_error, free, markdown, status,
};
use proptest::prelude::*;

use crate::rules::fixtures;
use crate::support::{named, recording};

/// All machines and fixtures.
static RECORDINGS: LazyLock<Vec<Recording>> = LazyLock::new(|| {
    let fixtures = RULES.iter().flat_map(|rule| fixtures(rule.id, "")).map(|file| recording(&file));
    let machines =
        ["h200_idle", "h200_training", "several_users", "wsl2", "wsl2_windows", "fork"].map(named);
    fixtures.chain(machines).collect()
});

proptest! {
    #[test]
    fn explain_error_never_panics(
        head in "(CUDA out of memory\\. Tried to allocate |out of GPU memory: |Out of memory allocating |Out of GPU memory |RESOURCE_EXHAUSTED: Out of memory |Unable to allocate |Killed process 7 |rmm std::bad_alloc|Worker exceeded |/mnt/c/ cudaErrorMemoryAllocation |\\{'requested': )",
        rest in "([0-9.,]{0,8} (GiB|bytes|é|total capacity of|of which|free|; |\\(|short, because |requested, |/|Process |shape \\(|cudaError|% memory budget|reserved of a limit of|kB)){0,12}",
    ) {
        explain_error(&(head + &rest), None).map(|found| found.render(80));
    }
}

/// Number of ways to garble a section.
const KINDS: u8 = 12;

/// Garbles a section in the way `how`.
fn mutate(recording: Recording, name: &str, how: u8, junk: &str) -> Recording {
    let text = recording.text(name).unwrap_or_default().to_owned();
    match how % KINDS {
        0 => recording.without(name, Why::Missing),
        1 => recording.without(name, Why::Denied),
        2 => recording.without(name, Why::TimedOut),
        3 => recording.with(name, ""),
        4 => recording.with(name, junk),
        5 => recording.with(name, &text.replace(|c: char| c.is_ascii_digit(), "9")),
        6 => recording.with(name, &text.chars().rev().collect::<String>()),
        7 => recording.with(name, &text.replace(|c: char| c.is_ascii_digit(), "x")),
        8 => recording.with(name, &text.replace(|c: char| c.is_ascii_digit(), "99999999")),
        9 => recording.with(name, &text.replace([' ', '\t', '\0'], "")),
        10 => recording.with(name, &text.replace(|c: char| c.is_alphabetic(), "é")),
        _ => {
            let half = text.chars().count() / 2;
            recording.with(name, &text.chars().take(half).collect::<String>())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn garbled_sections_never_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), ".{0,40}"), 1..6),
    ) {
        let mut recording = RECORDINGS[which.index(RECORDINGS.len())].clone();
        for (section, how, junk) in changes {
            let names: Vec<String> = recording.names().map(str::to_owned).collect();
            let name = &names[section.index(names.len())];
            recording = mutate(recording, name, how, &junk);
        }
        run_all(recording);
    }
}

/// Runs all commands on a machine. Fails if a probe panicked on its thread.
fn run_all(recording: Recording) {
    let mut machine = Machine::read(recording);
    machine.examine();
    let report = diagnose(&machine);
    report.render(80, true);
    report.to_json();
    markdown(&machine, "0");
    for topic in TOPICS {
        Topic::explain(topic, &machine, 80).map(|topic| topic.to_json());
    }
    free::plan(&machine).render(80);
    status::render(&status::accounts(&machine), "580", 80);
    let panicked = report.skipped.iter().any(|skipped| skipped.reason.contains("panicked"));
    assert!(!panicked, "{:?}", report.skipped);
}

#[test]
fn one_garbled_section_never_panics() {
    for name in ["several_users", "wsl2_windows", "fork"] {
        let recording = named(name);
        let sections: Vec<String> = recording.names().map(str::to_owned).collect();
        for section in sections {
            for how in 0..KINDS {
                run_all(mutate(recording.clone(), &section, how, "[ ( ] ) é\n== 7"));
            }
        }
    }
}
