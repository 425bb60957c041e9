//! Report in Markdown to paste into an issue. It contains no names of people, folders or hosts.

use gpuheap_text::{Amount, age, line, mib};

use crate::doctor::diagnose;
use crate::machine::{Machine, Redaction};
use crate::status::{self, Account, Place, Row};

/// Renders a report as Markdown. It has the findings, the accounts of memory, and the skipped
/// probes of an [examined](Machine::examine) machine. Leaves out users, home folders, arguments of
/// commands and the host's name. `version` is the version of gpuheap.
pub fn markdown(machine: &Machine, version: &str) -> String {
    let (machine, redaction) = machine.redacted();
    let report = diagnose(&machine);
    let mut text = String::new();
    text.push_str("### gpuheap doctor\n\n");
    facts(&mut text, &machine, version);
    for account in status::accounts(&machine) {
        device(&mut text, &account);
    }
    text.push_str("\n#### Findings\n\n");
    if report.findings.is_empty() {
        line(&mut text, format_args!("None of {} rules found anything.", report.rules));
    }
    for finding in &report.findings {
        let severity = finding.severity.name();
        let head = format!("* **{}** ({severity}): {}", finding.rule, finding.fact);
        line(&mut text, redacted(&redaction, &head));
        line(&mut text, redacted(&redaction, &format!("  {}", finding.cause)));
        line(&mut text, redaction.apply(&format!("  `{}`", finding.command)));
    }
    if !report.cuda.is_empty() {
        text.push_str("\n#### CUDA, probed in a process of its own\n\n");
    }
    for probe in &report.cuda {
        let words = format!("* {}: {}", probe.name(), probe.result());
        line(&mut text, redacted(&redaction, &words));
    }
    if !report.skipped.is_empty() {
        text.push_str("\n#### Not read\n\n");
    }
    for skipped in &report.skipped {
        let words = format!("* {}: {}", skipped.probe, skipped.reason);
        line(&mut text, redacted(&redaction, &words));
    }
    text
}

fn facts(text: &mut String, machine: &Machine, version: &str) {
    let host = &machine.host;
    let place = match (host.is_wsl, host.is_container) {
        (true, true) => "a container under WSL2",
        (true, false) => "WSL2",
        (false, true) => "a container",
        (false, false) => "Linux",
    };
    text.push_str("| | |\n|---|---|\n");
    line(text, format_args!("| gpuheap | {version} |"));
    if let Ok(nvml) = &machine.nvml {
        let (major, minor) = (nvml.cuda / 1000, nvml.cuda % 1000 / 10);
        line(text, format_args!("| driver | {}, CUDA {major}.{minor} |", escaped(&nvml.driver)));
    }
    line(text, format_args!("| system | {place}, kernel {} |", escaped(&host.kernel)));
    if host.is_wsl {
        line(text, format_args!("| signs of WSL2 | {} |", host.wsl_facts.join(", ")));
    }
    if let Some(windows) = &machine.windows {
        let (dedicated, shared) = (mib(windows.dedicated), mib(windows.shared));
        line(text, format_args!("| Dedicated, Shared GPU memory | {dedicated}, {shared} |"));
    }
    let (memory, available) = (Amount(host.memory), Amount(host.available));
    line(text, format_args!("| memory of the host | {memory}, {available} available |"));
}

fn device(text: &mut String, account: &Account) {
    let number = account.index.map(|index| format!("GPU {index}: ")).unwrap_or_default();
    text.push_str(&format!("\n#### {number}{}\n\n", escaped(&account.name)));
    if let Some(failure) = &account.failure {
        line(
            text,
            format_args!("not readable: {} (NVML {})", escaped(&failure.text), failure.code),
        );
        return;
    }
    text.push_str("| total | free | reserved | used | unaccounted |\n|---:|---:|---:|---:|---:|\n");
    let reserved = account.reserved_bytes.map_or_else(|| "unknown".to_owned(), mib);
    let sign = if account.unaccounted_bytes < 0 { "-" } else { "" };
    let amounts = [
        mib(account.total_bytes),
        mib(account.free_bytes),
        reserved,
        mib(account.used_bytes),
        format!("{sign}{}", mib(account.unaccounted_bytes.unsigned_abs())),
    ];
    line(text, format_args!("| {} |", amounts.join(" | ")));
    if account.processes.is_empty() {
        return;
    }
    text.push_str("\n| pid | memory | age | user | program |\n|---:|---:|---:|---|---|\n");
    for row in &account.processes {
        line(text, process(row));
    }
}

fn process(row: &Row) -> String {
    let size = row.bytes.map_or_else(|| "unknown".to_owned(), mib);
    let old = row.age_seconds.map_or_else(|| "-".to_owned(), age);
    let user = row.user.as_deref().unwrap_or("-");
    let program = match row.place {
        Place::Ended => "(ended)",
        Place::Hidden => "(not visible)",
        _ => row.command.as_deref().unwrap_or("-"),
    };
    format!("| {} | {size} | {old} | {user} | {} |", row.pid, escaped(program))
}

fn redacted(redaction: &Redaction, text: &str) -> String {
    redaction.apply(text).replace('<', "&lt;")
}

/// Escapes a text for a table or a heading of Markdown.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}
