//! Fuzzes the doctor. Runs all of the doctor's commands on each recording of a machine.

#![no_main]

use gpuheap_doctor::{Machine, Recording, TOPICS, Topic, diagnose, free, markdown, status};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(recording) = Recording::parse(&String::from_utf8_lossy(data)) else { return };
    let mut machine = Machine::read(recording);
    machine.examine();
    let report = diagnose(&machine);
    report.render(80, true);
    report.to_json();
    markdown(&machine, "0");
    for topic in TOPICS {
        Topic::explain(topic, &machine, 80);
    }
    free::plan(&machine).render(80);
    status::render(&status::accounts(&machine), "580", 80);
    let panicked = report.skipped.iter().find(|skipped| skipped.reason.contains("panicked"));
    assert!(panicked.is_none(), "{panicked:?}");
});
