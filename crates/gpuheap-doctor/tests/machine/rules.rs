//! Runs each rule on its own fixtures, and all rules on healthy machines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpuheap_doctor::{Machine, RULES, Recording, Report, Severity, diagnose};

use crate::support::{machines, named, recording};

/// Reads a recorded machine and runs all rules.
pub(crate) fn report(recording: Recording) -> Report {
    let mut machine = Machine::read(recording);
    machine.examine();
    diagnose(&machine)
}

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules")
}

/// Returns the fixtures of a rule whose names begin with `kind`.
pub(crate) fn fixtures(id: &str, kind: &str) -> Vec<PathBuf> {
    let folder = rules().join(id.to_lowercase());
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.file_name().unwrap().to_str().unwrap().starts_with(kind));
    files.sort();
    files
}

#[test]
fn every_rule_has_id_and_fixtures() {
    let ids: BTreeSet<String> = RULES.iter().map(|rule| rule.id.to_lowercase()).collect();
    assert_eq!(ids.len(), RULES.len());
    let folders = std::fs::read_dir(rules()).unwrap().map(|entry| entry.unwrap().file_name());
    let folders: BTreeSet<String> = folders.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(ids, folders);
}

/// Asserts that the page of the rules has a section for each rule, in the order of the rules.
#[test]
fn page_lists_every_rule() {
    let page = include_str!("../../rules.md");
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    let word = |severity| match severity {
        Severity::Fail => "failure",
        Severity::Warning => "warning",
        Severity::Info => "information",
    };
    let expected =
        RULES.iter().map(|rule| format!("{}: {} ({})", rule.id, rule.title, word(rule.severity)));
    assert!(headings.eq(expected), "a heading of rules.md differs from its rule");
    for rule in RULES {
        assert!(rule.explanation().len() > 60, "{}: {}", rule.id, rule.explanation());
    }
}

#[test]
fn rules_fire_on_their_fixtures_only() {
    for rule in RULES {
        for (kind, fires) in [("fires", true), ("quiet", false)] {
            let files = fixtures(rule.id, kind);
            assert!(!files.is_empty(), "{} has no fixture {kind}", rule.id);
            for file in files {
                let text = std::fs::read_to_string(&file).unwrap();
                assert!(text.contains("\n# origin: "), "{} has no origin", file.display());
                let report = report(recording(&file));
                let found = report.findings.iter().any(|finding| finding.rule == rule.id);
                assert_eq!(found, fires, "{}: {report:#?}", file.display());
            }
        }
    }
}

#[test]
fn recorded_pytorch_keeps_its_finding() {
    let source = recording(&machines().join("../rules/p08/quiet_published.machine"));
    let recorded = source.text("programs").unwrap().replace("stitched", "recorded");
    let report = report(source.with("programs", &recorded));
    assert!(report.findings.iter().any(|finding| finding.rule == "P08"), "{report:#?}");
}

#[test]
fn cache_of_other_user_is_no_command() {
    let source = recording(&machines().join("../rules/p25/fires.machine"));
    let report = report(source.with("/proc/self/status", "Uid:\t1\t1\t1\t1\n"));
    let finding = report.findings.iter().find(|finding| finding.rule == "P25").unwrap();
    assert_eq!(finding.command, "ps -fp 4000");
}

#[test]
fn healthy_machine_has_no_warning() {
    let bare = Recording::parse("== /dev/null\n== /proc/sys/kernel/osrelease\n6.8.0\n").unwrap();
    for machine in [
        named("h200_idle"),
        named("h200_training"),
        named("h200_idle_recorded"),
        named("h200_training_recorded"),
        named("two_h200_reordered"),
        named("wsl2"),
        named("wsl2_windows"),
        named("no_gpu"),
        bare,
    ] {
        let report = report(machine);
        assert!(report.is_healthy(), "{report:#?}");
        assert_eq!(report.render(80, false).lines().count(), 1);
    }
}

#[test]
fn findings_fit_into_their_form() {
    for rule in RULES {
        for file in fixtures(rule.id, "fires") {
            for finding in report(recording(&file)).findings {
                assert!(!finding.command.contains('\n'), "{finding:?}");
                assert!(finding.cause.ends_with('.'), "{finding:?}");
                assert!(!finding.fact.ends_with('.'), "{finding:?}");
                for text in [&finding.fact, &finding.cause] {
                    assert!(text.chars().count() <= 160, "{finding:?}");
                }
            }
        }
    }
}

#[test]
fn all_findings_at_80_columns() {
    let mut text = String::new();
    for rule in RULES {
        for file in fixtures(rule.id, "fires") {
            let mut report = report(recording(&file));
            report.findings.retain(|finding| finding.rule == rule.id);
            report.skipped.clear();
            text.push_str(&report.render(80, true));
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn findings_are_sorted_by_severity() {
    let severities = |report: Report| -> Vec<Severity> {
        report.findings.iter().map(|finding| finding.severity).collect()
    };
    let found = severities(report(named("several_users")));
    assert!(found.is_sorted() && found.len() > 2, "{found:?}");
}
