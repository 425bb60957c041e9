//! Renders live memory by stack for flame graphs, as folded stacks or as speedscope's JSON.

use std::fmt::Write as _;

use gpuheap_trace::{Frame, Op, Trace};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::ledger::{Block, Ledger, SiteKind};
use crate::moment::{At, events_until};

/// Bytes by stack. If the recording has no stacks, a block's size stands for its stack.
struct Weights<'t> {
    trace: &'t Trace,
    ledger: &'t Ledger,
    /// Bytes of each pair of stack and site, sorted by stack.
    bytes: Vec<((u32, u32), u64)>,
}

impl<'t> Weights<'t> {
    fn of<'b>(
        trace: &'t Trace,
        ledger: &'t Ledger,
        blocks: impl Iterator<Item = &'b Block>,
    ) -> Self {
        let mut sums: FxHashMap<(u32, u32), u64> = FxHashMap::default();
        for block in blocks {
            let stack = match ledger.kind {
                SiteKind::Line => trace.events()[block.from as usize].stack,
                SiteKind::Size => 0,
            };
            let sum = sums.entry((stack, block.site)).or_default();
            *sum = sum.saturating_add(block.bytes);
        }
        let mut bytes: Vec<_> = sums.into_iter().filter(|&(_, bytes)| bytes > 0).collect();
        bytes.sort_unstable();
        Self { trace, ledger, bytes }
    }

    /// Returns the frames of each stack, outermost first, and its bytes.
    fn stacks(&self) -> impl Iterator<Item = (Vec<Frame>, u64)> {
        self.bytes.iter().map(|&((stack, site), bytes)| {
            let mut frames: Vec<Frame> = self.trace.stack(stack).cloned().collect();
            frames.reverse();
            if frames.is_empty() {
                let name = self.ledger.sites[site as usize].as_str();
                frames.push(Frame { function: name.into(), file: "".into(), line: 0 });
            }
            (frames, bytes)
        })
    }
}

/// Renders the live memory of one moment as folded stacks. Each stack is a line `outer;inner
/// bytes`. Traces of several devices follow each other, with the device as the outermost frame.
///
/// # Errors
/// Returns an error if a trace has no event with the moment's number.
pub fn folded(traces: &[Trace], at: At) -> Result<String, String> {
    let mut text = String::new();
    for trace in traces {
        let ledger = Ledger::new(trace);
        let events = events_until(trace, &trace.summary(), at)?;
        for (frames, bytes) in Weights::of(trace, &ledger, ledger.live(events)).stacks() {
            if traces.len() > 1 {
                text += &device_name(trace);
                text.push(';');
            }
            // Semicolons separate frames.
            let names = frames.iter().map(|frame| frame.to_string().replace(';', ","));
            let names: Vec<String> = names.collect();
            // A write to a string never fails.
            let _ = writeln!(text, "{} {bytes}", names.join(";"));
        }
    }
    Ok(text)
}

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'a str,
    shared: Shared,
    profiles: Vec<Profile>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<SharedFrame>,
}

#[derive(Serialize)]
struct SharedFrame {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Renders speedscope's JSON. Each trace has three profiles: bytes live at the moment `at`, bytes
/// live at the end, and all bytes that were allocated.
///
/// # Errors
/// Returns an error if a trace has no event with the moment's number.
pub fn speedscope(traces: &[Trace], at: At) -> Result<String, String> {
    let mut numbers: FxHashMap<Frame, usize> = FxHashMap::default();
    let mut frames = Vec::new();
    let mut profiles = Vec::new();
    for trace in traces {
        let ledger = Ledger::new(trace);
        let summary = trace.summary();
        let moment = match at {
            At::Peak => "live at the peak".to_owned(),
            At::End => "live at the end".to_owned(),
            At::Event(event) => format!("live after event {event}"),
        };
        let mut add = |name: &str, weights: &Weights<'_>| {
            let (mut samples, mut bytes) = (Vec::new(), Vec::new());
            for (stack, weight) in weights.stacks() {
                let sample = stack.into_iter().map(|frame| {
                    *numbers.entry(frame).or_insert_with_key(|frame| {
                        frames.push(SharedFrame {
                            name: frame.function.to_string(),
                            file: frame.file.to_string(),
                            line: (frame.line > 0).then_some(frame.line),
                        });
                        frames.len() - 1
                    })
                });
                samples.push(sample.collect());
                bytes.push(weight);
            }
            profiles.push(Profile {
                r#type: "sampled",
                name: format!("{}: {name}", device_name(trace)),
                unit: "bytes",
                start_value: 0,
                end_value: bytes.iter().copied().fold(0, u64::saturating_add),
                samples,
                weights: bytes,
            });
        };
        let events = events_until(trace, &summary, at)?;
        add(&moment, &Weights::of(trace, &ledger, ledger.live(events)));
        if at != At::End {
            let end = events_until(trace, &summary, At::End)?;
            add("live at the end", &Weights::of(trace, &ledger, ledger.live(end)));
        }
        add("allocated in all", &Weights::of(trace, &ledger, ledger.blocks.iter()));
    }
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("gpuheap ", env!("CARGO_PKG_VERSION")),
        name: traces.first().map_or("", Trace::name),
        shared: Shared { frames },
        profiles,
    };
    serde_json::to_string(&file).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// Returns the name of a trace's memory: `device 0`, `host memory`, or `GPU memory` if the format
/// does not record the device.
pub(crate) fn device_name(trace: &Trace) -> String {
    match trace.device() {
        Some(device) => format!("device {device}"),
        None if is_host(trace) => "host memory".to_owned(),
        None => "GPU memory".to_owned(),
    }
}

/// Returns `true` if the trace is of pinned or registered host memory.
pub(crate) fn is_host(trace: &Trace) -> bool {
    trace.device().is_none()
        && trace.events().iter().any(|event| match event.op {
            Op::Allocate { allocation, .. } => trace.kind(allocation).is_host(),
            _ => false,
        })
}
