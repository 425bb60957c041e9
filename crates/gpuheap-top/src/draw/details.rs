//! Draws a process's details: heaps, libraries, scopes, and the lines of code whose memory grows.

use gpuheap_publish::{Leaks, Published};
use gpuheap_text::{Amount, count, cut_name, hanging, printable};
use ratatui_core::style::Modifier;
use ratatui_core::text::{Line, Span};

use super::style::{Palette, curve, growth, size};
use crate::figures::ProcessFigures;
use crate::view::View;

/// Width of the curves of live and cached bytes, in columns.
const CURVE: usize = 14;

/// Draws the details of a process, with as many lines as they need.
pub(super) fn details(
    view: &View,
    process: &ProcessFigures,
    width: usize,
    palette: Palette,
) -> Vec<Line<'static>> {
    let mut lines = vec![title(view, process, width, palette)];
    let Some(program) = process.program.and_then(|index| view.figures.programs.get(index)) else {
        if process.pid.is_some() && !process.devices.is_empty() {
            let text = "  does not publish; for its heaps and lines, start it with";
            lines.push(Line::raw(text));
            lines.push(Line::raw("    GPUHEAP_PUBLISH=1 GPUHEAP_TRACK=counts"));
        }
        return lines;
    };
    if let Some(failure) = &program.failure {
        lines.push(Line::styled(format!("  {}", printable(failure)), palette.alert()));
    }
    if program.status.is_some() {
        lines.extend(curves(view, program, palette));
        lines.extend(heaps(program));
        let bytes = |live: u64, text: String| format!("{} {text}", Amount(live));
        let libraries = program.libraries.iter().map(|library| match library.failure {
            Some(_) => library.to_string(),
            None => bytes(library.live, library.to_string()),
        });
        lines.extend(list("libraries", libraries.collect(), width));
        let scopes = program.scopes.iter().map(|scope| bytes(scope.live, scope.to_string()));
        lines.extend(list("scopes", scopes.collect(), width));
        lines.extend(sites(view, program, width, palette));
    }
    lines
}

fn title(view: &View, process: &ProcessFigures, width: usize, palette: Palette) -> Line<'static> {
    let pid = process.pid.map_or("other namespace".to_owned(), |pid| format!("pid {pid}"));
    let examination = view.figures.examination.as_ref();
    let libraries = process.pid.and_then(|pid| examination?.libraries.get(&pid));
    let libraries = libraries.map(|names| format!("  {names}")).unwrap_or_default();
    let room = width.saturating_sub(pid.len() + libraries.chars().count() + 6);
    let command = cut_name(&process.command, room);
    let text = format!("── {pid}  {command}{libraries} ");
    let rule = "─".repeat(width.saturating_sub(text.chars().count()));
    Line::styled(text + &rule, palette.heading())
}

fn curves(view: &View, program: &Published, palette: Palette) -> Option<Line<'static>> {
    let curves = view.figures.curves(program)?;
    let (live, cached) = (curves.live.slots(CURVE), curves.cached.slots(CURVE));
    let most = live.iter().chain(&cached).copied().max().unwrap_or(0);
    let last = |slots: &[u64]| size(slots.last().copied().unwrap_or(0));
    Some(Line::from(vec![
        Span::raw(format!("  live {:>11} ", last(&live))),
        Span::styled(format!("{:<CURVE$}", curve(&live, most)), palette.curve()),
        Span::raw(format!("  cached {:>11} ", last(&cached))),
        Span::styled(curve(&cached, most), palette.curve()),
    ]))
}

fn heaps(program: &Published) -> Vec<Line<'static>> {
    let heaps = program.status.iter().flat_map(|status| &status.heaps);
    let is_one = heaps.clone().count() == 1;
    let line = heaps.map(|heap| {
        let mut figures = Vec::new();
        // Leaves out these figures of a single heap, because the curves show them.
        if !is_one {
            figures.push(format!("{} live", Amount(heap.live)));
            figures.push(format!("{} cached", Amount(heap.cached)));
        }
        figures.push(format!("peak {}", Amount(heap.live_peak)));
        figures.extend(heap.hard_limit.map(|limit| format!("limit {}", Amount(limit))));
        let (device, pool) = (printable(&heap.device), printable(&heap.pool));
        Line::raw(format!("  {device}  {pool}  {}", figures.join(", ")))
    });
    line.collect()
}

/// Maximum number of entries in a list of libraries or scopes.
const MOST_LISTED: usize = 5;

/// Draws a list in one paragraph: `libraries  2 GiB PyTorch on cuda:0, in the heap; 1 MiB CuPy`.
fn list(name: &str, mut entries: Vec<String>, width: usize) -> Vec<Line<'static>> {
    let more = entries.split_off(entries.len().min(MOST_LISTED)).len();
    entries.extend((more > 0).then(|| format!("{more} more")));
    let mut text = String::new();
    if !entries.is_empty() {
        let words = printable(&entries.join("; ")).into_owned();
        hanging(&mut text, &format!("  {name:<9}  "), "             ", &words, width);
    }
    text.lines().map(|line| Line::raw(line.to_owned())).collect()
}

fn sites(view: &View, program: &Published, width: usize, palette: Palette) -> Vec<Line<'static>> {
    let Leaks { is_tracked, sites, left_out } = &program.leaks;
    if !is_tracked {
        return vec![Line::raw(
            "  no lines: start it with GPUHEAP_TRACK=counts; in Python, install(track=\"lines\")",
        )];
    }
    if sites.is_empty() {
        return vec![Line::raw("  no outstanding allocations")];
    }
    let lines = view.figures.lines(program);
    let seconds = lines.iter().filter_map(|line| line.growth).map(|growth| growth.seconds).max();
    let heading = seconds.map_or("GROWN".to_owned(), |seconds| format!("GROWN/{seconds} s"));
    let heading = format!("  {heading:>12} {:>11} {:>7}  LINE", "LIVE", "BLOCKS");
    let mut all = vec![Line::styled(heading, palette.heading().remove_modifier(Modifier::BOLD))];
    for line in lines {
        let site = line.site;
        let function = match site.function.as_str() {
            "" => String::new(),
            function => format!(" in {function}"),
        };
        let mut place = site.line.clone() + &function;
        if site.kind != "device" {
            place = format!("{place} ({})", site.kind);
        }
        all.push(Line::from(vec![
            Span::raw("  "),
            growth(line.growth, palette),
            Span::raw(format!(" {:>11} {:>7}  ", size(site.bytes), site.allocations)),
            Span::raw(cut_name(&place, width.saturating_sub(36))),
        ]));
    }
    if *left_out > 0 {
        let text = format!("  {:>12} {:>11} {:>7}  {}", "", "", "", count(*left_out, "more line"));
        all.push(Line::styled(text, palette.faint()));
    }
    all
}
