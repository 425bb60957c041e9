//! Comparison of figures from two times.

use gpuheap_doctor::{Baseline, Machine, diagnose};

use crate::support::named;

fn baseline(name: &str, now: u64) -> Baseline {
    let mut machine = Machine::read(named(name));
    machine.examine();
    Baseline::of(&machine, &diagnose(&machine), now)
}

#[test]
fn same_machine_has_not_changed() {
    let before = Baseline::parse(&baseline("several_users", 1000).to_json()).unwrap();
    let after = baseline("several_users", 1000 + 7200);
    assert_eq!(before.changes(&after), "no change since the baseline, saved 2 h ago\n");
    assert_eq!(before.new_rules(&after).count(), 0);
}

#[test]
fn growth_and_new_findings_are_told() {
    let (before, after) = (baseline("h200_idle", 1000), baseline("fork", 1060));
    assert_eq!(before.new_rules(&after).collect::<Vec<_>>(), ["P01"]);
    let forth = before.changes(&after);
    insta::assert_snapshot!(format!("{forth}== back\n{}", after.changes(&before)));
}

#[test]
fn device_that_is_gone_is_told() {
    let (before, after) = (baseline("h200_idle", 0), baseline("wsl2", 0));
    let text = before.changes(&after);
    assert!(text.contains("does not answer any more") && text.contains("was not there"), "{text}");
}

#[test]
fn other_texts_are_no_baseline() {
    for text in ["", "{}", "[1]", "{\"schema\": 9}"] {
        assert!(Baseline::parse(text).is_err(), "{text}");
    }
    let other = baseline("h200_idle", 0).to_json().replace("\"schema\": 1", "\"schema\": 2");
    assert!(Baseline::parse(&other).unwrap_err().contains("schema 2"));
}
