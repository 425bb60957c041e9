//! Accounts as text.

use gpuheap_publish::{Leaks, Published, RECORDED, Site};
use gpuheap_text::{Amount, age, count, cut, cut_name, hanging, line, mib};

use super::{Account, Place, Program, Row};
use crate::machine::Windows;

/// Minimum width of the column of commands.
const LEAST_COMMAND: usize = 12;

/// Renders accounts for a terminal of `width` columns, a section for each device. `driver` is the
/// driver's version, if known.
pub fn render(accounts: &[Account], driver: &str, width: usize) -> String {
    let sections: Vec<String> =
        accounts.iter().map(|account| section(account, driver, width)).collect();
    sections.join("\n")
}

/// Renders Windows' figures about the card for `width` columns. Only WSL2 has these figures.
pub fn render_windows(windows: &Windows, width: usize) -> String {
    let mut text = "Windows, of the whole card\n".to_owned();
    let (dedicated, shared) = windows.wsl_memory();
    let wsl = |bytes| format!("of that WSL2 {}", mib(bytes));
    amount(&mut text, "Dedicated GPU memory", &mib(windows.dedicated), &wsl(dedicated));
    amount(&mut text, "Shared GPU memory", &mib(windows.shared), &wsl(shared));
    let words = "If a program spills, Shared GPU memory grows and Dedicated GPU memory stays; see \
                 gpuheap explain dedicated.";
    hanging(&mut text, "  ", "  ", words, width);
    text
}

/// Maximum number of lines that the text shows for a program. JSON has up to 100.
const SHOWN_LINES: usize = 5;

/// Renders the processes that publish their memory, for `width` columns.
pub fn render_programs(programs: &[Published], width: usize) -> String {
    if programs.is_empty() {
        return String::new();
    }
    let mut text = "Programs that publish\n".to_owned();
    for program in programs {
        let pid = program.pid.map_or("of another PID namespace".to_owned(), |pid| pid.to_string());
        let name =
            program.status.as_ref().map(|status| status.program.as_str()).unwrap_or_default();
        line(&mut text, cut(&format!("  pid {pid}  {name}"), width));
        if let Some(failure) = &program.failure {
            hanging(&mut text, "    ", "    ", failure, width);
        }
        for heap in program.status.iter().flat_map(|status| &status.heaps) {
            let mut figures = vec![format!("{} live", Amount(heap.live))];
            if heap.pool != RECORDED {
                figures.push(format!("{} cached", Amount(heap.cached)));
            }
            figures.push(format!("peak {}", Amount(heap.live_peak)));
            figures.extend(heap.hard_limit.map(|limit| format!("limit {}", Amount(limit))));
            let name = format!("    {}  {}  ", heap.device, heap.pool);
            hanging(&mut text, &name, "      ", &figures.join(", "), width);
        }
        for library in program.libraries.iter().filter(|library| library.failure.is_some()) {
            hanging(&mut text, "    ", "      ", &library.to_string(), width);
        }
        lines(&mut text, &program.leaks, width);
    }
    text
}

/// Maximum number of entries in each list of [`Program::render`].
const SHOWN_DETAILS: usize = 20;

impl Program {
    /// Renders the program for `width` columns.
    pub fn render(&self, width: usize) -> String {
        let mut text = render_programs(std::slice::from_ref(&self.published), width);
        let room = width.saturating_sub(18);
        let Published { scopes, libraries, .. } = &self.published;
        let in_use = libraries.iter().filter(|library| library.failure.is_none());
        let shown = in_use.map(|library| (library.live, cut(&library.to_string(), room)));
        entries(&mut text, "Libraries", shown.collect(), "more row");
        let shown = scopes.iter().map(|scope| (scope.live, cut_name(&scope.to_string(), room)));
        entries(&mut text, "Open scopes", shown.collect(), "more scope");
        let held = self.held.iter().map(|held| {
            let by = held.holders.first().map_or("no Python object", String::as_str);
            let age = age(held.age_seconds as u64);
            (held.bytes, cut(&format!("{by}, from {}, {age}", file_and_line(&held.line)), room))
        });
        entries(&mut text, "Held by", held.collect(), "more allocation");
        text
    }
}

/// Shortens the path of a line of code to the file name: `train.py:41`.
fn file_and_line(line: &str) -> &str {
    line.rsplit('/').next().unwrap_or(line)
}

/// Adds a list, with the entry of the most bytes first. Adds nothing if the list is empty.
fn entries(text: &mut String, title: &str, mut list: Vec<(u64, String)>, noun: &str) {
    if list.is_empty() {
        return;
    }
    line(text, format_args!("    {title}"));
    list.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let more = list.len().saturating_sub(SHOWN_DETAILS) as u64;
    for (bytes, entry) in list.iter().take(SHOWN_DETAILS) {
        line(text, format_args!("    {:>12}  {entry}", Amount(*bytes).to_string()));
    }
    if more > 0 {
        line(text, format_args!("    {:>12}  {}", "", count(more, noun)));
    }
}

/// Adds the lines with the most bytes.
fn lines(text: &mut String, leaks: &Leaks, width: usize) {
    for site in leaks.sites.iter().take(SHOWN_LINES) {
        let size = Amount(site.bytes).to_string();
        let place = place(site, width.saturating_sub(18));
        line(text, format_args!("    {size:>12}  {place}"));
    }
    let more = leaks.sites.len().saturating_sub(SHOWN_LINES) as u64;
    let more = more.saturating_add(leaks.left_out);
    if more > 0 {
        line(text, format_args!("    {:>12}  {}", "", count(more, "more line")));
    }
}

/// Names a line and its function in `width` columns. If the path is long, keeps its start and the
/// file name.
fn place(site: &Site, width: usize) -> String {
    if site.function.is_empty() {
        return cut_name(&site.line, width);
    }
    let function = format!(" in {}", site.function);
    let room = width.saturating_sub(function.chars().count()).max(width / 2);
    cut_name(&(cut_name(&site.line, room) + &function), width)
}

fn section(account: &Account, driver: &str, width: usize) -> String {
    let mut text = String::new();
    let number = account.index.map(|index| format!("GPU {index}  ")).unwrap_or_default();
    let driver = if driver.is_empty() { String::new() } else { format!(", driver {driver}") };
    line(&mut text, cut(&format!("{number}{}{driver}", account.name), width));
    if let Some(failure) = &account.failure {
        line(
            &mut text,
            cut(&format!("  not readable: {} (NVML {})", failure.text, failure.code), width),
        );
        return text;
    }
    amount(&mut text, "total", &mib(account.total_bytes), "");
    amount(&mut text, "free", &mib(account.free_bytes), "");
    match account.reserved_bytes {
        Some(bytes) => amount(&mut text, "reserved by driver", &mib(bytes), ""),
        None => amount(&mut text, "reserved by driver", "unknown", "within used"),
    }
    amount(&mut text, "used", &mib(account.used_bytes), "");
    if !account.processes.is_empty() {
        table(&mut text, &account.processes, width);
    }
    if account.contexts_bytes_estimated > 0 {
        let about = format!("~{}", mib(account.contexts_bytes_estimated));
        amount(&mut text, "  of that, contexts", &about, "estimated");
    }
    let unaccounted = account.unaccounted_bytes;
    let size = mib(unaccounted.unsigned_abs());
    match (account.processes_without_figure, unaccounted) {
        (0, 0..) => amount(&mut text, "  unaccounted", &size, ""),
        (0, _) => {
            amount(&mut text, "  listed twice", &format!("-{size}"), "memory that processes share")
        }
        (_, _) => {
            amount(&mut text, "  unaccounted", &size, "the driver gives no figure by process")
        }
    }
    text
}

fn amount(text: &mut String, name: &str, size: &str, remark: &str) {
    let name = format!("  {name}");
    line(text, format_args!("{name:<22}{size:>12}  {remark}"));
}

fn table(text: &mut String, rows: &[Row], width: usize) {
    let users = rows.iter().map(|row| user(row).chars().count()).max().unwrap_or(0).clamp(4, 16);
    line(
        text,
        format_args!(
            "    {:>8}  {:>10}  {:>6}  {:<users$}  COMMAND",
            "PID", "MEMORY", "AGE", "USER"
        ),
    );
    let left = 4 + 8 + 2 + 10 + 2 + 6 + 2 + users + 2;
    let room = width.saturating_sub(left).max(LEAST_COMMAND);
    for row in rows {
        let size = row.bytes.map_or_else(|| "unknown".to_owned(), mib);
        let old = row.age_seconds.map_or_else(|| "-".to_owned(), age);
        let user = cut(&user(row), users);
        let command = cut(&row.description(), room);
        line(
            text,
            format_args!("    {:>8}  {size:>10}  {old:>6}  {user:<users$}  {command}", row.pid),
        );
    }
}

fn user(row: &Row) -> String {
    row.user.clone().unwrap_or_else(|| "-".to_owned())
}

impl Row {
    /// Returns the process's container and command line, or the reason why they are unknown.
    pub fn description(&self) -> String {
        let command = self.command.clone().unwrap_or_default();
        match (self.place, &self.container) {
            (Place::Ended, _) => "(ended; see gpuheap doctor)".to_owned(),
            (Place::Hidden, _) => "(not visible from here)".to_owned(),
            (_, Some(container)) => format!("[{container}] {command}"),
            _ => command,
        }
    }
}
