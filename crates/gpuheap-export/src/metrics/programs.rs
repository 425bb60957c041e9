//! Metrics of programs that publish the state of their heaps.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpuheap_doctor::Machine;
use gpuheap_publish::{HeapStatus, MOST_ENTRIES, Published, RECORDED};
use gpuheap_text::{cut, cut_name};

use super::metric::Metric;
use super::samples::{Labels, Samples, and};

/// Maximum number of source lines for one program: a program publishes at most this many.
pub const MOST_LINES: usize = MOST_ENTRIES;

/// Maximum number of programs. 64 programs with a heap and 10 lines each make about 1,800 series.
const MOST_PROGRAMS: usize = 64;

/// Maximum number of heaps of a program. A program usually has a heap for each device.
const MOST_HEAPS: usize = 16;

/// Maximum length, in characters, of a label that names a source line or a function.
const MOST_TEXT: usize = 80;

pub(super) fn add(samples: &mut Samples, machine: &Machine, top_lines: usize) {
    let mut unknown = (1_u32..).map(|number| format!("unknown-{number}"));
    let named = machine.programs.iter().map(|program| {
        let pid = program.pid.map(|pid| pid.to_string());
        (pid.or_else(|| unknown.next()).unwrap_or_default(), program)
    });
    let mut programs: Vec<(String, &Published)> = named.collect();
    programs.sort_by_key(|(_, program)| Reverse(reserved(program)));
    leave_out(samples, "programs", programs.len().saturating_sub(MOST_PROGRAMS) as u64);
    for (pid, program) in programs.into_iter().take(MOST_PROGRAMS) {
        let status = program.status.as_ref();
        let labels = vec![
            ("pid", pid),
            ("program", status.map(|status| name(&status.program)).unwrap_or_default()),
        ];
        let uid = [("uid", program.uid.to_string())];
        samples.add(Metric::ProgramUp, and(&labels, uid), u64::from(status.is_some()));
        if let Some(status) = status {
            add_heaps(samples, &status.heaps, &labels);
            leave_out(samples, "heaps", status.left_out);
        }
        add_lines(samples, program, &labels, top_lines);
    }
}

/// Returns the bytes that a program's heaps took from the driver.
fn reserved(program: &Published) -> u64 {
    let heaps = program.status.iter().flat_map(|status| &status.heaps);
    heaps.map(|heap| heap.reserved).fold(0, u64::saturating_add)
}

/// Returns the name of a program without its arguments, because these may be secret or long. For
/// Python and Julia, the name of the script's file follows.
fn name(command: &str) -> String {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    let script = words.next().filter(|word| {
        ["python", "julia"].iter().any(|name| program.starts_with(name)) && !word.starts_with('-')
    });
    let script = script.map(|path| path.rsplit('/').next().unwrap_or(path));
    cut(&[Some(program), script].into_iter().flatten().collect::<Vec<_>>().join(" "), 40)
}

fn leave_out(samples: &mut Samples, kind: &str, count: u64) {
    if count > 0 {
        samples.add(Metric::LeftOut, vec![("kind", kind.to_owned())], count);
    }
}

fn add_heaps(samples: &mut Samples, heaps: &[HeapStatus], program: &Labels) {
    leave_out(samples, "heaps", heaps.len().saturating_sub(MOST_HEAPS) as u64);
    let mut numbers: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for heap in heaps.iter().take(MOST_HEAPS) {
        let number = numbers.entry((&heap.device, &heap.pool)).or_default();
        let labels = [
            ("device", cut(&heap.device, 40)),
            ("uuid", cut(&heap.uuid, 64)),
            ("pool", cut(&heap.pool, 20)),
            ("heap", number.to_string()),
        ];
        *number += 1;
        let labels = and(program, labels);
        samples.add(Metric::HeapLive, labels.clone(), heap.live);
        samples.add(Metric::HeapLivePeak, labels.clone(), heap.live_peak);
        // A recorder publishes only the live bytes.
        if heap.pool == RECORDED {
            continue;
        }
        samples.add(Metric::HeapCached, labels.clone(), heap.cached);
        samples.add(Metric::HeapReserved, labels.clone(), heap.reserved);
        samples.add(Metric::HeapAllocations, labels.clone(), heap.allocations);
        samples.add(Metric::HeapFrees, labels.clone(), heap.frees);
        for (kind, limit) in [("hard", heap.hard_limit), ("soft", heap.soft_limit)] {
            if let Some(bytes) = limit {
                let labels = and(&labels, [("kind", kind.to_owned())]);
                samples.add(Metric::HeapLimit, labels, bytes);
            }
        }
    }
}

fn add_lines(samples: &mut Samples, program: &Published, labels: &Labels, most: usize) {
    let sites = &program.leaks.sites;
    let over = sites.len().saturating_sub(most) as u64;
    leave_out(samples, "lines", program.leaks.left_out.saturating_add(over));
    for site in sites.iter().take(most) {
        let labels = and(
            labels,
            [
                ("device", cut(&site.device, 40)),
                ("line", cut_name(&site.line, MOST_TEXT)),
                ("function", cut_name(&site.function, MOST_TEXT)),
                ("kind", cut(&site.kind, 20)),
            ],
        );
        samples.add(Metric::LineBytes, labels.clone(), site.bytes);
        samples.add(Metric::LineAllocations, labels, site.allocations);
    }
}
