//! PyTorch's allocator, compared with recordings of it.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod gaps;
mod oracle;
mod programs;
mod properties;

use std::path::{Path, PathBuf};

use gpuheap_replay::models::torch::{Settings, Torch};
use gpuheap_replay::{DriverEvent, Model, Program, Request};
use gpuheap_trace::{ReadOptions, read};

const H200: u64 = 150_109_880_320;

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn program(name: &str) -> Program {
    let path = match name {
        "gpt_train_short" | "two_streams" => {
            data(&format!("../../examples/traces/{name}.snapshot.pickle.gz"))
        }
        _ => data(&format!("tests/data/torch-settings/{name}.pickle.gz")),
    };
    read_program(path)
}

fn read_program(path: PathBuf) -> Program {
    Program::from_trace(&read(path, &ReadOptions::default()).unwrap()[0])
}

/// Name, memory fraction, and PyTorch's own peak of reserved bytes, for each recording.
const RECORDED: [(&str, Option<f64>, u64); 14] = [
    ("varied_default", None, 10_403_971_072),
    ("varied_expandable", None, 7_226_785_792),
    ("varied_split64", None, 20_824_719_360),
    ("varied_round4", None, 11_611_930_624),
    ("varied_exp_round4", None, 8_044_675_072),
    ("varied_gc60", Some(0.05), 7_394_557_952),
    ("varied_oom", Some(0.035), 5_207_228_416),
    ("streams_default", None, 2_202_009_600),
    ("streams_expandable", None, 1_595_932_672),
    ("streams_split64", None, 3_300_917_248),
    ("streams_round4", None, 1_793_064_960),
    ("streams_exp_round4", None, 1_533_018_112),
    // This peak includes the segments that were taken before the recording began.
    ("two_streams", None, 6_383_730_688),
    // No segment was given back, so the peak is the sum of the recorded segments.
    ("gpt_train_short", None, 740_294_656),
];

fn peak_of(name: &str) -> u64 {
    RECORDED.iter().find(|(recorded, ..)| *recorded == name).unwrap().2
}

#[test]
fn recorded_setting_takes_recorded_segments() {
    for (name, fraction, peak) in RECORDED {
        let program = program(name);
        let mut settings = program.recorded_settings().unwrap();
        if let Some(fraction) = fraction {
            settings.set_memory_fraction(fraction).unwrap();
        }
        let mut model = Torch::new(settings, H200);
        let outcome = program.run_as_recorded(&mut model);
        let events = |events: &[DriverEvent]| -> Vec<_> {
            events.iter().map(|event| (event.is_taken, event.bytes, event.stream)).collect()
        };
        let (ours, theirs) = (model.driver_events(), program.recorded_driver_events());
        let first = events(ours).iter().zip(&events(theirs)).position(|(ours, its)| ours != its);
        assert_eq!(events(ours), events(theirs), "{name}, from segment {first:?} on");
        assert_eq!(outcome.figures.peak_reserved, peak, "{name}");
        assert_eq!(outcome.failure.is_some(), name == "varied_oom", "{name}");
    }
}

#[test]
fn two_streams_has_earlier_segments() {
    assert_eq!(program("two_streams").reserved_before(), 69_206_016);
}

#[test]
fn recorded_failure_recurs_with_its_figures() {
    let program = program("varied_oom");
    let run = |fraction: f64| {
        let mut settings = program.recorded_settings().unwrap();
        settings.set_memory_fraction(fraction).unwrap();
        program.run(&mut Torch::new(settings, H200))
    };
    let outcome = run(0.035);
    let failure = outcome.failure.expect("it failed");
    assert!(failure.is_recorded);
    // From PyTorch's message: "Tried to allocate 118.00 MiB", "4.37 GiB is allocated".
    assert_eq!(failure.refusal.needed, 118 << 20);
    assert_eq!(failure.refusal.figures.allocated, 4_694_101_504);
    assert_eq!(failure.refusal.figures.retries, 2);
    let outcome = run(0.1);
    assert_eq!((outcome.failure, outcome.met_failures), (None, 1));
}

#[test]
fn whole_fraction_limits_before_2_13() {
    let given_back = |version: &str| {
        let text = format!(
            "version:{version},garbage_collection_threshold:0.5,per_process_memory_fraction:1"
        );
        let mut model = Torch::new(text.parse().unwrap(), 100 << 20);
        for bytes in [20_u64 << 20, 40 << 20, 60 << 20] {
            let request = Request { bytes, stream: 0, pool: 0 };
            let ticket = model.allocate(request).unwrap();
            model.free(ticket, 0);
            model.complete(ticket);
        }
        model.driver_events().iter().filter(|event| !event.is_taken).map(|event| event.bytes).sum()
    };
    // Up to PyTorch 2.12, segments are collected when more than half of the device is reserved.
    // Later releases give all cached memory back when the device is full.
    let found = ["2.6", "2.11", "2.12", "2.13", "2.15"].map(given_back);
    assert_eq!(found.map(|bytes: u64| bytes >> 20), [20, 20, 20, 60, 60]);
}

const SETTINGS: [(&str, &str); 5] = [
    ("default", ""),
    ("expandable", "expandable_segments:True"),
    ("split64", "max_split_size_mb:64"),
    ("round4", "roundup_power2_divisions:4"),
    ("exp_round4", "expandable_segments:True,roundup_power2_divisions:4"),
];

#[test]
fn other_setting_has_its_recorded_peak() {
    for (from, _) in SETTINGS {
        let program = program(&format!("varied_{from}"));
        for (to, text) in SETTINGS {
            let outcome = program.run(&mut Torch::new(text.parse().unwrap(), H200));
            assert_eq!(
                outcome.figures.peak_reserved,
                peak_of(&format!("varied_{to}")),
                "{from}, {to}"
            );
        }
    }
}

#[test]
fn smallest_fraction_lies_between_recorded_ones() {
    for (from, _) in SETTINGS {
        let program = program(&format!("varied_{from}"));
        let gets_through = |text: &str, thousandths: u32| {
            let mut settings: Settings = text.parse().unwrap();
            settings.set_memory_fraction(f64::from(thousandths) / 1000.0).unwrap();
            program.run(&mut Torch::new(settings, H200)).failure.is_none()
        };
        assert!(!gets_through("", 48), "{from}");
        assert!(gets_through("", 50), "{from}");
        assert!(!gets_through("expandable_segments:True", 47), "{from}");
        assert!(gets_through("expandable_segments:True", 48), "{from}");
    }
}

/// If freed blocks wait for the work of a side stream, the program's speed decides when PyTorch can
/// reuse them. So `torch_peak` returns a range that contains the peak of PyTorch. Under the
/// recorded settings, it returns the recorded peak.
#[test]
fn range_holds_the_recorded_peak() {
    for (from, _) in SETTINGS {
        let program = program(&format!("streams_{from}"));
        for (to, text) in SETTINGS {
            let settings: Settings = text.parse().unwrap();
            let range = program.torch_peak(&settings, H200);
            let peak = peak_of(&format!("streams_{to}"));
            let shown = format!("{from} under {to}: {range:?}, PyTorch {peak}");
            assert!(range.low <= peak && peak <= range.high, "{shown}");
            assert!((range.high - range.low) as f64 <= 0.1 * range.low as f64, "{shown}");
            assert!(from != to || range.low == range.high, "{shown}");
        }
    }
    let range = program("varied_default").torch_peak(&SETTINGS[1].1.parse().unwrap(), H200);
    assert_eq!((range.low, range.high), (7_226_785_792, 7_226_785_792));
}
