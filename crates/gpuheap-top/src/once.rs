//! One frame, as text and as JSON.

use std::thread;
use std::time::{Duration, Instant};

use gpuheap_doctor::status::Account;
use gpuheap_doctor::{Finding, Machine};
use gpuheap_publish::{Detail, Published, Site};
use serde::Serialize;

use crate::draw;
use crate::figures::Figures;
use crate::history::Growth;
use crate::snapshot::{Examination, Snapshot};
use crate::view::View;

/// One frame of the machine.
pub struct Once {
    view: View,
}

/// Output of `gpuheap top --json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    driver: &'a str,
    devices: &'a [Account],
    programs: &'a [Published],
    processes: Vec<GrownProcess>,
    lines: Vec<JsonLine<'a>>,
    findings: &'a [Finding],
}

/// Growth of a process.
#[derive(Serialize)]
struct GrownProcess {
    pid: u32,
    grown_bytes: Option<i64>,
    grown_seconds: Option<u64>,
}

/// Line of a program, with its growth.
#[derive(Serialize)]
struct JsonLine<'a> {
    pid: Option<u32>,
    #[serde(flatten)]
    site: &'a Site,
    grown_bytes: Option<i64>,
    grown_seconds: Option<u64>,
}

impl Once {
    /// Reads the machine every `interval` for `time`. Then runs the doctor.
    pub fn read(machine: &Machine, time: Duration, interval: Duration) -> Once {
        let mut view = View::default();
        let mut machine = machine.clone();
        let start = Instant::now();
        loop {
            let begin = start.elapsed();
            machine.read_programs(Detail::All);
            let second = start.elapsed().as_secs();
            view.figures.take_snapshot(second, Snapshot::new(&machine));
            view.figures.take_programs(second, machine.programs.clone());
            if begin >= time {
                break;
            }
            let next = (begin + interval.max(Duration::from_millis(1))).min(time);
            thread::sleep(next.saturating_sub(start.elapsed()));
            machine.refresh();
        }
        view.figures.examination = Some(Examination::new(&mut machine.reread(Detail::Heaps)));
        Once { view }
    }

    /// Renders the frame for `width` columns, with as many lines as it needs.
    pub fn text(&self, width: usize) -> String {
        draw::text(&self.view, width)
    }

    /// Renders the frame as JSON that `docs/top.schema.json` describes.
    pub fn to_json(&self) -> String {
        let figures = &self.view.figures;
        let examination = figures.examination.as_ref();
        let document = Document {
            schema: 1,
            driver: &figures.snapshot.driver,
            devices: &figures.snapshot.accounts,
            programs: &figures.programs,
            processes: processes(figures),
            lines: lines(figures),
            findings: examination.map_or(&[], |found| &found.findings),
        };
        // Serialization of numbers, texts and lists never fails.
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }
}

fn processes(figures: &Figures) -> Vec<GrownProcess> {
    let all = figures.processes().into_iter();
    let grown = all.filter_map(|process| {
        let (grown_bytes, grown_seconds) = bytes_and_seconds(process.growth);
        Some(GrownProcess { pid: process.pid?, grown_bytes, grown_seconds })
    });
    grown.collect()
}

fn lines(figures: &Figures) -> Vec<JsonLine<'_>> {
    let of = |program| figures.lines(program).into_iter().map(move |line| (program, line));
    let all = figures.programs.iter().flat_map(of);
    let json = all.map(|(program, line)| {
        let (grown_bytes, grown_seconds) = bytes_and_seconds(line.growth);
        JsonLine { pid: program.pid, site: line.site, grown_bytes, grown_seconds }
    });
    json.collect()
}

fn bytes_and_seconds(growth: Option<Growth>) -> (Option<i64>, Option<u64>) {
    (growth.map(|growth| growth.bytes), growth.map(|growth| growth.seconds))
}
