//! Frames: lines of styled text.

mod details;
mod dialog;
mod style;

use gpuheap_doctor::Severity;
use gpuheap_doctor::status::Account;
use gpuheap_text::{age, count, cut};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use self::details::details;
pub(crate) use self::style::Palette;
use self::style::{curve, growth, size};
use crate::figures::ProcessFigures;
use crate::history::Series;
use crate::view::{Order, View};

/// Minimum number of rows that show details below the list of processes.
const LEAST_DETAILS: usize = 6;

pub(crate) fn frame(view: &View, area: Rect, palette: Palette) -> Buffer {
    let mut buffer = Buffer::empty(area);
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    if width == 0 || height == 0 {
        return buffer;
    }
    let all = view.figures.processes();
    let mut lines = vec![header(view, all.len(), palette)];
    let rows = view.listed(all);
    let selected = view.selected(&rows);
    let process = rows.get(selected);
    if let (true, Some(process)) = (view.has_only_details, process) {
        lines.extend(details(view, process, width, palette));
    } else {
        lines.extend(devices(view, width, (height / 3).max(1), palette));
        let room = height.saturating_sub(2 + lines.len());
        let below = match process {
            Some(process) => details(view, process, width, palette),
            None => Vec::new(),
        };
        let least = below.len().min(LEAST_DETAILS.max(room / 2));
        let shown = rows.len().min(room.saturating_sub(least).max(room.min(3)));
        lines.extend(processes(view, &rows, selected, shown, width, palette));
        lines.extend(below);
    }
    // Truncates or pads `lines`, so that the footer is on the last row.
    lines.resize(height - 1, Line::default());
    lines.push(footer(view, palette));
    for (y, line) in lines.iter().enumerate() {
        buffer.set_line(area.x, area.y + y as u16, line, area.width);
    }
    dialog::draw(view, &mut buffer, palette);
    buffer
}

/// Renders all figures as text of `width` columns, with as many lines as they need.
pub(crate) fn text(view: &View, width: usize) -> String {
    let palette = Palette { is_coloured: false };
    let rows = view.processes();
    let mut lines = vec![header(view, rows.len(), palette)];
    lines.extend(devices(view, width, usize::MAX, palette));
    lines.extend(processes(view, &rows, usize::MAX, rows.len(), width, palette));
    for process in rows.iter().filter(|process| process.program.is_some()) {
        lines.extend(details(view, process, width, palette));
    }
    let texts = lines.iter().map(|line| cut(line.to_string().trim_end(), width) + "\n");
    texts.collect()
}

fn header(view: &View, processes: usize, palette: Palette) -> Line<'static> {
    let figures = &view.figures;
    let snapshot = &figures.snapshot;
    let mut words = vec![count(snapshot.accounts.len() as u64, "GPU")];
    if !snapshot.driver.is_empty() {
        words.push(format!("driver {}", snapshot.driver));
    }
    words.push(count(processes as u64, "process"));
    match figures.programs.len() {
        0 => {}
        programs => words.push(format!("{programs} publishing")),
    }
    let mut spans = vec![
        Span::styled("gpuheap top", palette.heading()),
        Span::raw(format!("  {}", words.join(", "))),
    ];
    if let Some(examination) = &figures.examination {
        let is_serious = |severity| severity != Severity::Info;
        let serious = examination.findings.iter();
        let serious = serious.filter(|finding| is_serious(finding.severity)).count();
        spans.push(match serious {
            0 => Span::raw(", nothing found"),
            _ => {
                Span::styled(format!(", {} (d)", count(serious as u64, "finding")), palette.alert())
            }
        });
    } else if view.is_busy {
        spans.push(Span::styled(", doctor examines", palette.faint()));
    }
    Line::from(spans)
}

fn footer(view: &View, palette: Palette) -> Line<'static> {
    if view.is_typing {
        return Line::from(vec![
            Span::styled("Filter: ", palette.heading()),
            Span::raw(format!("{}_", view.filter)),
            Span::styled("   Enter keep  Esc clear", palette.faint()),
        ]);
    }
    let keys = "s order  t tree  / filter  Enter details  d findings  f free  h help  q quit";
    let mut spans = vec![Span::styled(keys, palette.faint())];
    if !view.filter.is_empty() {
        spans.insert(0, Span::styled(format!("[{}] ", view.filter), palette.alert()));
    }
    Line::from(spans)
}

/// Columns of a device's bar.
const BAR: usize = 16;

fn devices(view: &View, width: usize, most: usize, palette: Palette) -> Vec<Line<'static>> {
    let snapshot = &view.figures.snapshot;
    if let (Some(failure), true) = (&snapshot.failure, snapshot.accounts.is_empty()) {
        return vec![Line::styled(format!("  no GPU: {failure}"), palette.faint())];
    }
    let accounts = &snapshot.accounts;
    let shown = if accounts.len() > most { most.saturating_sub(1) } else { accounts.len() };
    let device = |account: &Account| {
        let history = view.figures.device(account.index);
        device(account, history, width, palette)
    };
    let mut lines: Vec<Line<'static>> = accounts.iter().take(shown).map(device).collect();
    if accounts.len() > shown {
        let more = count((accounts.len() - shown) as u64, "more GPU");
        lines.push(Line::styled(format!("  {more}; make the terminal higher"), palette.faint()));
    }
    lines
}

fn device(
    account: &Account,
    history: Option<&Series>,
    width: usize,
    palette: Palette,
) -> Line<'static> {
    let number = account.index.map_or_else(|| "-".to_owned(), |index| index.to_string());
    let name = account.name.strip_prefix("NVIDIA ").unwrap_or(&account.name);
    let name = format!("{number:>3} {:<14} ", cut(name, 14));
    if let Some(failure) = &account.failure {
        let text = format!("not readable: {} (NVML {})", failure.text, failure.code);
        return Line::from(vec![Span::raw(name), Span::styled(text, palette.alert())]);
    }
    let (used, total) = (account.used_bytes, account.total_bytes);
    let share = |of: u128| (u128::from(used) * of / u128::from(total.max(1))) as usize;
    let filled = share(BAR as u128).min(BAR);
    let figures = format!(" {:>11} of {:>10} {:>3} %  ", size(used), size(total), share(100));
    let left = width.saturating_sub(name.chars().count() + BAR + figures.chars().count());
    let curve = history.map(|series| curve(&series.slots(left.min(60)), total));
    Line::from(vec![
        Span::raw(name),
        Span::styled("█".repeat(filled), palette.curve()),
        Span::styled("░".repeat(BAR - filled), palette.faint()),
        Span::raw(figures),
        Span::styled(curve.unwrap_or_default(), palette.curve()),
    ])
}

/// Minimum width in columns at which a frame shows the ages and live bytes of processes.
const WIDE: usize = 100;

fn processes(
    view: &View,
    rows: &[ProcessFigures],
    selected: usize,
    shown: usize,
    width: usize,
    palette: Palette,
) -> Vec<Line<'static>> {
    let users = rows.iter().map(|row| row.user.chars().count()).max().unwrap_or(0).clamp(4, 8);
    let heading = |title: &str, order: Order| match view.order == order {
        true => format!("{title}▼"),
        false => title.to_owned(),
    };
    let (memory, grown) = (heading("MEMORY", Order::Memory), heading("GROWN", Order::Grown));
    let (cached, old) = (heading("CACHED", Order::Cached), heading("AGE", Order::Age));
    let pid = heading("PID", Order::Pid);
    let wide = |live: &str, age: &str| match width >= WIDE {
        true => format!(" {live:>11} {age:>6}"),
        false => String::new(),
    };
    let head = format!(
        "{pid:>8} {:<3} {memory:>11} {grown:>12}{} {cached:>11} {:<users$} COMMAND",
        "GPU",
        wide("LIVE", &old),
        "USER"
    );
    let mut lines = vec![Line::styled(head, palette.heading())];
    // Keeps the selected row in the middle of the shown rows.
    let first = selected.saturating_sub(shown / 2).min(rows.len().saturating_sub(shown));
    for (index, row) in rows.iter().enumerate().skip(first).take(shown) {
        let pid = row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
        let old = row.age_seconds.map_or_else(|| "-".to_owned(), age);
        let before = format!("{pid:>8} {:<3} {:>11} ", gpus(&row.devices), bytes(row.bytes));
        let after = format!(
            "{} {:>11} {:<users$} ",
            wide(&bytes(row.live), &old),
            bytes(row.cached),
            cut(&row.user, users)
        );
        let indent = match row.depth {
            0 => String::new(),
            depth => "  ".repeat(depth - 1) + "└ ",
        };
        let used = before.chars().count() + 12 + after.chars().count();
        let command = cut(&format!("{indent}{}", row.command), width.saturating_sub(used));
        let mut line = Line::from(vec![
            Span::raw(before),
            growth(row.growth, palette),
            Span::raw(after),
            Span::raw(command),
        ]);
        if index == selected {
            let end = width.saturating_sub(line.width());
            line.push_span(Span::raw(" ".repeat(end)));
            line = line.style(Style::new().add_modifier(Modifier::REVERSED));
        }
        lines.push(line);
    }
    if rows.is_empty() {
        let text = match view.filter.is_empty() {
            true => "  no process uses a GPU or publishes",
            false => "  no process matches the filter",
        };
        lines.push(Line::styled(text, palette.faint()));
    }
    lines
}

/// Writes NVML's indices: `0`, `0-7`, `0,2`.
fn gpus(devices: &[u32]) -> String {
    let is_row = devices.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    match devices {
        [] => "-".to_owned(),
        [first, .., last] if is_row => format!("{first}-{last}"),
        devices => {
            let numbers: Vec<String> = devices.iter().map(u32::to_string).collect();
            numbers.join(",")
        }
    }
}
