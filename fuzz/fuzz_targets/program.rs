//! Fuzzes recorded programs. Replays each program with all models, and renders the reports.

#![no_main]

use gpuheap_replay::models::{NAMES, build};
use gpuheap_replay::replay::{DeviceChoice, Options, Pool, Silent};
use gpuheap_replay::report::{self, Detail};
use gpuheap_replay::{Program, json, run};
use gpuheap_trace::{ReadOptions, Trace, read_bytes};
use libfuzzer_sys::fuzz_target;

/// Memory of the device, in bytes. Some models of allocators reserve half of the memory by default.
/// A small trace fits into the rest.
const DEVICE: u64 = 1 << 30;
/// Limit of the unpacked file, in bytes.
const UNPACKED_LIMIT: u64 = 64 << 20;
/// Maximum number of events of a replayed trace. Longer traces take time and find no other faults.
const EVENTS: usize = 200;

fuzz_target!(|data: &[u8]| {
    let options = ReadOptions::default().unpacked_limit(UNPACKED_LIMIT);
    let traces = read_bytes("fuzz", data, &options).unwrap_or_default();
    for trace in traces.iter().filter(|trace| trace.events().len() <= EVENTS) {
        models(trace);
        let options = Options {
            pools: vec![Pool::parse("stitched").expect("a pool")],
            check: Some(Pool::parse("torch").expect("a pool")),
            device: DeviceChoice::Memory { profile: None, bytes: DEVICE, typed: "1GiB".to_owned() },
            ..Options::default()
        };
        let trace = std::slice::from_ref(trace);
        // The replay may refuse the trace's device or settings.
        if let Ok(reports) = run::replay(trace, &options, &Silent) {
            report::render(&reports, Detail::Full);
            json::render(&reports).expect("a report is JSON");
        }
    }
});

fn models(trace: &Trace) {
    let program = Program::from_trace(trace);
    for name in NAMES {
        let Ok(mut model) = build(name, DEVICE) else { continue };
        let figures = program.run(&mut *model).figures;
        assert!(figures.allocated <= figures.reserved, "{name}: {figures:?}");
        assert!(figures.reserved <= DEVICE, "{name}: {figures:?}");
        assert!(figures.reserved <= figures.peak_reserved, "{name}: {figures:?}");
    }
    let last = trace.events().last().map_or(0, |event| event.number);
    for event in [0, last / 2, last] {
        report::render_moment(trace, event.into()).expect("an event of the trace");
    }
}
