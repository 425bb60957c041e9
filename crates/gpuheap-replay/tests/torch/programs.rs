//! Tests whole programs that PyTorch ran: graphs, `MemPool`, training and inference.

use std::fs;

use gpuheap_replay::models::torch::Torch;
use gpuheap_replay::{DriverEvent, Model};

use crate::{H200, data, read_program};

/// Names, settings and PyTorch's own peak of reserved bytes, from `figures.csv`.
pub(crate) fn recorded() -> Vec<(String, String, u64)> {
    let text = fs::read_to_string(data("tests/data/torch-programs/figures.csv")).unwrap();
    let row = |line: &str| {
        // A setting may contain commas. The last four fields do not.
        let (head, figures) = line.split_at(line.rmatch_indices(',').nth(3).unwrap().0);
        let (name, settings) = head.split_once(',').unwrap();
        let peak = figures.split(',').nth(2).unwrap().parse().unwrap();
        (name.to_owned(), settings.to_owned(), peak)
    };
    text.lines().map(row).collect()
}

/// Programs whose graphs or `MemPool`s ended before the snapshot. Only segments name their pool,
/// and the segments of ended pools are missing. So the pools of some requests are unknown.
pub(crate) const POOLS_UNKNOWN: [&str; 2] = ["graphs_ended", "mempool_ended"];

#[test]
fn whole_programs_take_recorded_segments() {
    let mut wrong = Vec::new();
    for (name, settings, peak) in recorded() {
        let path = data(&format!("tests/data/torch-programs/{name}.pickle.gz"));
        let program = read_program(path);
        assert_eq!(program.recorded_settings().unwrap(), settings.parse().unwrap(), "{name}");
        let mut model = Torch::new(settings.parse().unwrap(), H200);
        let outcome = program.run_as_recorded(&mut model);
        let events = |events: &[DriverEvent]| -> Vec<_> {
            events.iter().map(|event| (event.is_taken, event.bytes, event.stream)).collect()
        };
        let (ours, theirs) =
            (events(model.driver_events()), events(program.recorded_driver_events()));
        let first = ours.iter().zip(&theirs).position(|(ours, its)| ours != its);
        if POOLS_UNKNOWN.contains(&&*name) {
            let apart = outcome.figures.peak_reserved.abs_diff(peak) as f64 / peak as f64;
            assert!(ours != theirs && apart < 0.08, "{name}: {apart}");
        } else if ours != theirs || outcome.figures.peak_reserved != peak {
            wrong.push(format!(
                "{name}: {} for {peak}; {} segments for {}, other from {first:?} on",
                outcome.figures.peak_reserved,
                ours.len(),
                theirs.len(),
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
