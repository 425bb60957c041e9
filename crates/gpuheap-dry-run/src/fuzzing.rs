//! Computes a verdict from report files that the fuzzer invents, without running a program.

use std::path::PathBuf;

use gpuheap_replay::cards;

use crate::card::Device;
use crate::folder::Folder;
use crate::judge::{Results, judge};
use crate::program::Run;
use crate::stand_ins::StandIns;
use crate::verdict::{Ended, Verdict};
use crate::{Options, Remedies, outcome, reports};

/// Judges a run that ended as `ended`. `files` are the names and contents of its reports.
pub fn judge_reports(files: &[(&str, &[u8])], ended: Ended) -> Verdict {
    let card = &cards::all()[0];
    let options = Options {
        program: "python".into(),
        arguments: vec!["train.py".into()],
        cards: vec![card],
        devices: 1,
        remedies: Remedies::Never,
        ..Options::default()
    };
    let stand_ins = StandIns { driver: PathBuf::new(), nvml: None, cudart: None, libraries: None };
    let folder = Folder::with_reports(files).expect("a temporary folder");
    let run = Run {
        device: Device::new(card, None),
        device_count: 1,
        ended,
        processes: reports::read(&folder.reports()),
        seconds: 0.0,
        host_bytes: 0,
        errors: String::new(),
        allows_oversubscription: false,
        _folder: folder,
    };
    let cards = vec![outcome::from_run(&run)];
    let results = Results { cards, runs: vec![run], ..Results::default() };
    judge(&options, &stand_ins, &results, false).expect("nothing is written")
}
