//! Tests that folding does not change reports. Near a capture's maximum size, the recorder folds
//! pairs: it only counts an allocation and its immediate free.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::path::Path;

use gpuheap_capture::{Address, MemoryKind, ProcessCapture, Record, SourceLine, Time};
use gpuheap_report::{At, Report, text};
use gpuheap_trace::{ReadOptions, Trace, read};
use proptest::collection::vec;
use proptest::prelude::*;

/// Smallest maximum size of a file.
const SMALL: u64 = 1 << 20;

/// Event of a program. `block` selects one of the live blocks.
#[derive(Debug, Clone)]
enum Step {
    Pair { thread: u32, kind: MemoryKind, bytes: u64 },
    Allocate { thread: u32, kind: MemoryKind, bytes: u64 },
    Free { block: usize, fails: bool },
    FreeLast,
    Range { thread: u32 },
    EndRange,
    Sample,
}

/// Writes a capture in which each thread has one stack.
struct Program {
    capture: ProcessCapture,
    time: u64,
    stacks: [u32; 3],
    live: Vec<(MemoryKind, u64, u64)>,
    ranges: Vec<u32>,
}

impl Program {
    /// Begins a capture. One function's name fills half of [`SMALL`], so that a capture of that
    /// size soon folds pairs (an allocation and its free) into counts.
    fn new(path: &Path, most: u64, has_pools: bool) -> Self {
        let mut capture = ProcessCapture::create(path, most, |_| {}).unwrap();
        if has_pools {
            capture.expect_pools();
        }
        let stacks = [1, 2, 3].map(|line| {
            capture.thread(Time(0), u64::from(line), "");
            let function = if line == 3 { "x".repeat(SMALL as usize / 2) } else { "f".into() };
            let line = SourceLine { function, file: "/a/train.py".into(), line };
            let key = [u64::from(line.line)];
            capture.stack(&key, &[], [line].into_iter(), &[])
        });
        Self { capture, time: 0, stacks, live: Vec::new(), ranges: Vec::new() }
    }

    fn time(&mut self) -> Time {
        self.time += 1;
        Time(self.time)
    }

    fn allocate(&mut self, thread: u32, kind: MemoryKind, bytes: u64) {
        let time = self.time();
        let address = self.time << 20;
        self.live.push((kind, address, bytes));
        let stack = self.stacks[thread as usize - 1];
        let (device, stream, address) = (0, 0, Address(address));
        let block = Record::Allocate { time, thread, kind, device, stream, address, bytes, stack };
        self.capture.write(&block);
    }

    fn free(&mut self, block: usize, fails: bool) {
        let (kind, address, bytes) = self.live.remove(block);
        let (space, stream, at) = (kind.space(), 0, Address(address));
        let free = Record::Free { time: self.time(), thread: 1, space, stream, address: at };
        self.capture.write(&free);
        if fails {
            let time = self.time();
            self.capture.write(&Record::FreeFailed { time, space, address: at });
            self.live.push((kind, address, bytes));
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Pair { thread, kind, bytes } => {
                self.allocate(thread, kind, bytes);
                self.free(self.live.len() - 1, false);
            }
            Step::Allocate { thread, kind, bytes } => self.allocate(thread, kind, bytes),
            Step::Free { block, fails } if !self.live.is_empty() => {
                self.free(block % self.live.len(), fails);
            }
            Step::FreeLast if !self.live.is_empty() => self.free(self.live.len() - 1, false),
            Step::Range { thread } => {
                let time = self.time();
                self.ranges.push(self.capture.range(time, thread, &thread.to_string()));
            }
            Step::EndRange => {
                if let Some(range) = self.ranges.pop() {
                    let time = self.time();
                    self.capture.write(&Record::RangeEnd { time, range });
                }
            }
            Step::Sample => {
                let time = self.time();
                self.capture.write(&Record::DriverMemory { time, device: 0, free: 1, total: 2 });
            }
            Step::Free { .. } | Step::FreeLast => {}
        }
    }
}

/// Returns the traces of the same steps from two captures. One has any size. The other has at most
/// [`SMALL`] bytes, and only counts pairs of an allocation and its free.
fn traces(steps: &[Step], has_pools: bool) -> [Vec<Trace>; 2] {
    let folder = tempfile::tempdir().unwrap();
    [u64::MAX, SMALL].map(|most| {
        let path = folder.path().join(format!("{most}.gph"));
        let mut program = Program::new(&path, most, has_pools);
        steps.iter().for_each(|step| program.step(step));
        program.capture.end(Time(program.time), "");
        read(&path, &ReadOptions::default().host_memory(true)).unwrap_or_default()
    })
}

/// Returns the figures of a report that must not change if pairs (allocation and free) are folded.
fn figures(trace: &Trace) -> String {
    let report = Report::new(trace, At::Peak).unwrap();
    let mut summary = report.summary.clone();
    (summary.peak_event, summary.duration_ns, summary.streams) = (None, 0, 0);
    let coverage = report.recording.unwrap().devices;
    format!(
        "{summary:#?} {:#?} {:#?} {:#?} {:#?} {:#?} {:#?} {:#?} {coverage:#?}",
        report.held,
        report.held_by_thread,
        report.held_by_kind,
        report.left,
        report.left_by_thread,
        report.ranges,
        report.temporary
    )
}

fn step() -> impl Strategy<Value = Step> {
    let kind =
        || prop::sample::select(&[MemoryKind::Device, MemoryKind::Pinned, MemoryKind::PyTorch][..]);
    let thread = || 1_u32..=2;
    let bytes = || prop::sample::select(&[1_u64, 3, 4, 100][..]);
    prop_oneof![
        8 => (thread(), kind(), bytes())
            .prop_map(|(thread, kind, bytes)| Step::Pair { thread, kind, bytes }),
        4 => (thread(), kind(), bytes())
            .prop_map(|(thread, kind, bytes)| Step::Allocate { thread, kind, bytes }),
        5 => Just(Step::FreeLast),
        2 => any::<usize>().prop_map(|block| Step::Free { block, fails: false }),
        1 => (0_u32..=2).prop_map(|thread| Step::Range { thread }),
        1 => Just(Step::EndRange),
        1 => Just(Step::Sample),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn folded_capture_has_same_figures(steps in vec(step(), 0..300)) {
        let [all, folded] = traces(&steps, true);
        prop_assert_eq!(all.len(), folded.len());
        for (all, folded) in all.iter().zip(&folded) {
            prop_assert!(all.folded().is_empty());
            prop_assert_eq!(figures(all), figures(folded));
        }
    }
}

#[test]
fn failed_free_restores_block() {
    let pair = Step::Pair { thread: 1, kind: MemoryKind::Device, bytes: 1000 };
    let block = Step::Allocate { thread: 1, kind: MemoryKind::Device, bytes: 10 };
    let failed = [block, Step::Free { block: 0, fails: true }];
    let [all, folded] = traces(&[vec![pair; 100], failed.to_vec()].concat(), false);
    let totals = |trace: &Trace| {
        let summary = trace.summary();
        (summary.allocations, summary.frees, summary.left_live_bytes, summary.peak_live_bytes)
    };
    assert_eq!(totals(&all[0]), (101, 100, 10, 1000));
    assert_eq!(totals(&folded[0]), totals(&all[0]));
    assert!(folded[0].folded().iter().any(|one| one.count == 0), "{:?}", folded[0].folded());
}

#[test]
fn pairs_become_counts() {
    const PAIRS: usize = 100_000;
    let pair = Step::Pair { thread: 2, kind: MemoryKind::Device, bytes: 1000 };
    let kept = Step::Allocate { thread: 1, kind: MemoryKind::Device, bytes: 5000 };
    let steps = [vec![kept], vec![pair; PAIRS]].concat();
    let [_, folded] = traces(&steps, false);
    let trace = &folded[0];
    assert!(trace.events().len() < 100, "{}", trace.events().len());
    let report = Report::new(trace, At::Peak).unwrap();
    let [pairs] = &report.temporary[..] else { panic!("{:?}", report.temporary) };
    let figures = (&*pairs.site, pairs.allocations, pairs.bytes, pairs.largest_bytes);
    assert_eq!(figures, ("train.py:2 in f", 100_000, 100_000_000, 1000));
    let text = text::render(&report);
    assert!(text.contains(": 100,001 allocations, 100,000 frees"), "{text}");
    let [warning] = trace.warnings() else { panic!("{:?}", trace.warnings()) };
    assert!(warning.count > 99_900, "{warning}");
}
