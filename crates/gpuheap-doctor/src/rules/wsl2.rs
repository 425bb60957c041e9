//! Rules about WSL2, where Windows manages the card.

use gpuheap_driver::wsl2::USABLE_PERCENT;
use gpuheap_text::{Amount, age, count, cut, mib};

use super::logs::logged;
use crate::evidence::accounts;
use crate::machine::{Gpu, Machine, Process, Windows};
use crate::rule::Check::{Accounts, Machines, Processes};
use crate::rule::{Finding, Rule, Severity};
use crate::status::Account;

pub(super) const W01: Rule =
    Rule::new("W01", Severity::Fail, "WSL2 without a GPU", Machines(missing_gpu));

/// Returns a finding if WSL2 offers no GPU.
fn missing_gpu(machine: &Machine) -> Vec<Finding> {
    if !machine.host.is_wsl || !machine.host.has_no_device {
        return Vec::new();
    }
    vec![W01.finding(
        "WSL2 offers no GPU: there is no /dev/dxg",
        "It is switched off in .wslconfig or wsl.conf, or WSL is too old.",
        "wsl.exe --update",
    )]
}

pub(super) const W02: Rule =
    Rule::new("W02", Severity::Fail, "Linux driver inside WSL2", Machines(linux_drivers));

/// Returns a finding if the library of a Linux driver hides the library of Windows' driver.
fn linux_drivers(machine: &Machine) -> Vec<Finding> {
    let first = machine.libcuda.first().filter(|path| !path.starts_with("/usr/lib/wsl/"));
    let Some(path) = first.filter(|_| machine.host.is_wsl) else { return Vec::new() };
    vec![W02.finding(
        format!("programs load {path} and not the library of WSL2"),
        "A Linux driver is installed inside WSL2 and hides Windows' own.",
        format!("dpkg -S {path}"),
    )]
}

pub(super) const W03: Rule =
    Rule::new("W03", Severity::Warning, "memory that Windows holds", Machines(memory_of_windows));

/// Returns the limit above which the memory of Windows programs is reported: 1.5 GiB, or 10 % of
/// the card if that is more. The desktop alone can cause a finding: it reached 1.8 GB.
fn limit(total: u64) -> u64 {
    (total / 10).max(3 << 29)
}

/// Returns a finding if Windows programs hold much memory, or if the card is in use, but not by a
/// process of this WSL2 distribution.
fn memory_of_windows(machine: &Machine) -> Vec<Finding> {
    if !machine.host.is_wsl {
        return Vec::new();
    }
    if let Some(windows) = &machine.windows {
        return counted_by_windows(machine, windows).into_iter().collect();
    }
    if machine.unreadable != Some(0)
        || machine.processes.iter().any(|process| !process.holds.is_empty())
    {
        return Vec::new();
    }
    accounts(machine)
        .filter(|(_, account)| account.used_bytes > limit(account.total_bytes))
        .map(|(gpu, account)| {
            let used = mib(account.used_bytes);
            W03.finding(
                format!("{gpu}: {used} in use, none of it by this distribution"),
                "Windows programs, another distribution or Docker Desktop hold it.",
                "tasklist.exe",
            )
            .with_bytes(account.used_bytes)
        })
        .collect()
}

/// Returns the finding that Windows' own counters give.
fn counted_by_windows(machine: &Machine, windows: &Windows) -> Option<Finding> {
    let total = machine.devices().iter().map(|gpu| gpu.total).max()?;
    let held = windows.others_memory();
    if held <= limit(total) {
        return None;
    }
    let others = windows.processes.iter().filter(|process| !process.is_wsl());
    let named = others
        .take(3)
        .map(|process| format!("{} {}", cut(&process.name, 20), mib(process.dedicated)));
    let fact = format!("Windows programs hold {} of the card's {}", mib(held), mib(total));
    let cause =
        format!("Nothing inside WSL2 can free it: {}.", named.collect::<Vec<_>>().join(", "));
    Some(W03.finding(fact, cause, "taskmgr.exe").with_bytes(held))
}

pub(super) const W04: Rule = Rule::new(
    "W04",
    Severity::Warning,
    "memory that Windows moved to the host",
    Machines(spilled_memory),
);

/// Normal "Shared GPU memory", in bytes: host memory that the driver uses for queues and staging.
const NORMAL_SHARED: u64 = 256 << 20;

/// Returns a finding if the card is full, and WSL2 uses memory of the host instead.
fn spilled_memory(machine: &Machine) -> Vec<Finding> {
    let Some(windows) = &machine.windows else { return Vec::new() };
    let total = machine.devices().iter().map(|gpu| gpu.total).max().unwrap_or(0);
    let (_, spilled) = windows.wsl_memory();
    let is_full = total > 0 && windows.dedicated >= total - total / 10;
    if !is_full || spilled <= NORMAL_SHARED.saturating_add(machine.host.pinned) {
        return Vec::new();
    }
    let fact = format!(
        "{} of WSL2's memory are \"Shared GPU memory\", with {} of {} dedicated in use",
        mib(spilled),
        mib(windows.dedicated),
        mib(total)
    );
    let cause = "The card is full, and Windows moved a part to the host: slow; it may refuse the \
                 next request.";
    vec![W04.finding(fact, cause, "gpuheap explain dedicated").with_bytes(spilled)]
}

pub(super) const W05: Rule =
    Rule::new("W05", Severity::Warning, "little left to pin", Machines(pinned_memory));

/// Bytes of pinned memory at which Docker on WSL2 began to refuse more. Rule W05 reports from here.
const NOTED: u64 = 512 << 20;

/// Bytes of pinned memory at which WSL2, on a host with 62 GiB, began to refuse more. Rule W05
/// warns from here on.
const WARNED: u64 = 768 << 20;

/// Returns a finding if pinned memory is close to the amounts at which calls failed.
fn pinned_memory(machine: &Machine) -> Vec<Finding> {
    let pinned = machine.host.pinned;
    if !machine.host.is_wsl || pinned < NOTED {
        return Vec::new();
    }
    let fact = format!("{} are pinned; WSL2 has refused more from 512 to 1024 MiB", mib(pinned));
    let cause = "Pinning fails with \"out of memory\"; use pin_memory=False, or fewer workers.";
    let severity = if pinned < WARNED { Severity::Info } else { W05.severity };
    let finding = W05.finding(fact, cause, "grep foll_pin /proc/vmstat").with_bytes(pinned);
    vec![finding.with_severity(severity)]
}

pub(super) const W06: Rule = Rule::new(
    "W06",
    Severity::Fail,
    "memory that Windows did not keep on the card",
    Machines(refused_residency),
);

/// Returns a finding if Windows refused to keep a program's memory on the card.
fn refused_residency(machine: &Machine) -> Vec<Finding> {
    let refused = logged(machine, "dxgkio_make_resident: Ioctl failed: -12");
    let finding = |(number, ago)| {
        let (times, old) = (count(number, "time"), age(ago));
        W06.finding(
            format!("Windows refused to keep memory on the card, {times}, last {old} ago"),
            format!(
                "Too little was left on the card; plan with {USABLE_PERCENT} % of the free memory."
            ),
            "unset PYTORCH_CUDA_ALLOC_CONF",
        )
    };
    refused.map(finding).into_iter().collect()
}

pub(super) const W07: Rule =
    Rule::new("W07", Severity::Fail, "broken channel to Windows", Machines(broken_channel));

/// Returns a finding if WSL2's channel to the GPU is broken.
fn broken_channel(machine: &Machine) -> Vec<Finding> {
    let mut failures = machine.nvml.iter().filter_map(|nvml| nvml.failure.as_ref());
    let is_blocked = failures.any(|failure| failure.code == 17);
    let is_logged = logged(machine, "create_process failed -75").is_some();
    if !machine.host.is_wsl || !(is_blocked || is_logged) {
        return Vec::new();
    }
    vec![W07.finding(
        "the channel from WSL2 to the Windows driver is broken",
        "It breaks after several hundred contexts; only a restart of WSL2 repairs it.",
        "wsl.exe --shutdown",
    )]
}

pub(super) const W08: Rule =
    Rule::new("W08", Severity::Warning, "too little memory for WSL2", Machines(short_host_memory));

/// Returns a finding if WSL2's own memory ran out.
fn short_host_memory(machine: &Machine) -> Vec<Finding> {
    let host = &machine.host;
    if !host.is_wsl || (host.oom_kills == 0 && host.available >= host.memory / 20) {
        return Vec::new();
    }
    let (memory, left) = (Amount(host.memory), Amount(host.available));
    let killed = count(host.oom_kills, "process");
    vec![W08.finding(
        format!("WSL2 has {memory} of memory, {left} left; the kernel ended {killed} for it"),
        "Its default is half of the host's; set memory= in .wslconfig.",
        "gpuheap explain wslconfig",
    )]
}

pub(super) const W09: Rule =
    Rule::new("W09", Severity::Info, "page cache that Windows misses", Machines(page_cache));

/// Returns a finding if WSL2 keeps much page cache.
fn page_cache(machine: &Machine) -> Vec<Finding> {
    let host = &machine.host;
    if !host.is_wsl || host.cached <= host.memory / 4 {
        return Vec::new();
    }
    vec![W09.finding(
        format!("{} of WSL2's {} are page cache", Amount(host.cached), Amount(host.memory)),
        "Windows counts it as in use by vmmem.",
        "echo 1 | sudo tee /proc/sys/vm/drop_caches",
    )]
}

pub(super) const W10: Rule = Rule::new(
    "W10",
    Severity::Warning,
    "memory of WSL2 without a holder in it",
    Machines(memory_without_holder),
);

/// Memory that an idle WSL2 may use for its window system.
const WINDOW_SYSTEM: u64 = 500 << 20;

/// Returns a finding if Windows counts memory for WSL2, but no process in WSL2 uses the GPU.
fn memory_without_holder(machine: &Machine) -> Vec<Finding> {
    let Some(windows) = &machine.windows else { return Vec::new() };
    let (held, _) = windows.wsl_memory();
    let has_holder = machine.processes.iter().any(|process| !process.holds.is_empty());
    let is_alone = windows.distributions.len() == 1 && machine.unreadable == Some(0);
    if held <= WINDOW_SYSTEM || has_holder || !is_alone || machine.host.is_container {
        return Vec::new();
    }
    let fact = format!("Windows counts {} of the card for WSL2, where nothing uses it", mib(held));
    let cause = "If it stays for a minute, an ended program's memory was not taken back.";
    vec![W10.finding(fact, cause, "wsl.exe --shutdown").with_bytes(held)]
}

pub(super) const W11: Rule =
    Rule::new("W11", Severity::Fail, "reset of the card by Windows", Machines(reset_by_windows));

/// Returns a finding if Windows reset the display driver within the last hour.
fn reset_by_windows(machine: &Machine) -> Vec<Finding> {
    let ago = machine.windows.as_ref().and_then(|windows| windows.reset_ago);
    let finding = |ago| {
        W11.finding(
            format!("Windows reset the card {} ago", age(ago)),
            "A kernel ran longer than TdrDelay, 2 s by default; every context was lost.",
            "powershell.exe Get-WinEvent System -MaxEvents 200",
        )
    };
    ago.map(finding).into_iter().collect()
}

pub(super) const W12: Rule =
    Rule::new("W12", Severity::Info, "no figures by process", Accounts(processes_without_figure));

/// Returns a finding if the driver does not report the memory of each process.
fn processes_without_figure(machine: &Machine, gpu: &Gpu, account: &Account) -> Option<Finding> {
    (machine.host.is_wsl && account.processes_without_figure > 0).then(|| {
        let number = count(account.processes_without_figure as u64, "process");
        W12.finding(
            format!("{gpu}: {number} without a figure"),
            "Windows manages the card's memory and does not give figures by process.",
            "tasklist.exe",
        )
    })
}

pub(super) const W13: Rule =
    Rule::new("W13", Severity::Info, "large address ranges under WSL2", Processes(large_ranges));

/// Returns a finding if the process runs under WSL2 and reserves large address ranges.
fn large_ranges(machine: &Machine, process: &Process) -> Option<Finding> {
    let (user, remedy) = range_setting(process).filter(|_| machine.host.is_wsl)?;
    let fact = format!("{process} reserves large address ranges");
    let cause = format!("It uses {user}; WSL2 has refused ranges of 4 GiB and more.");
    Some(W13.finding(fact, cause, format!("export {remedy}")).with_pids([process.pid]))
}

/// Returns the software that reserves large address ranges, and the setting that prevents it.
fn range_setting(process: &Process) -> Option<(&'static str, &'static str)> {
    const LLAMA: [&str; 4] = ["llama-server", "llama-cli", "ollama", "node-llama-cpp"];
    let variable = |name: &str| process.environment.get(name).map(String::as_str);
    let torch = variable("PYTORCH_CUDA_ALLOC_CONF").or(variable("PYTORCH_ALLOC_CONF"));
    if torch.is_some_and(|value| value.contains("expandable_segments:True")) {
        return Some((
            "PyTorch's expandable segments",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
        ));
    }
    let is_llama = LLAMA.iter().any(|name| process.runs(name));
    (is_llama && variable("GGML_CUDA_NO_VMM").is_none())
        .then_some(("llama.cpp", "GGML_CUDA_NO_VMM=1"))
}

pub(super) const W14: Rule =
    Rule::new("W14", Severity::Info, "harmless messages of WSL2", Machines(harmless_messages));

/// Returns a finding if the kernel's log has alarming but harmless messages of WSL2.
fn harmless_messages(machine: &Machine) -> Vec<Finding> {
    const QUERY: &str = "dxgkio_query_adapter_info: Ioctl failed";
    let messages = logged(machine, QUERY)
        .or_else(|| logged(machine, "dxgkio_is_feature_enabled: Ioctl failed"));
    let finding = |(number, _)| {
        W14.finding(
            format!("{number} messages \"{QUERY}\" in the kernel's log"),
            "WSL2 logs them at its start; they mean nothing.",
            "sudo dmesg | grep dxg",
        )
    };
    messages.map(finding).into_iter().collect()
}

pub(super) const W15: Rule =
    Rule::new("W15", Severity::Info, "data read from a Windows drive", Processes(windows_drives));

/// Returns a finding if the process uses a GPU and has files of a Windows drive open.
fn windows_drives(machine: &Machine, process: &Process) -> Option<Finding> {
    let drive = process.drives.first().filter(|_| machine.host.is_wsl)?;
    let fact = format!("{process} reads files of {drive}");
    let cause = "A Windows drive is slow from inside WSL2; copy the data once.";
    let finding = W15.finding(fact, cause, format!("cp -r {drive}/DATA ~/"));
    Some(finding.with_pids([process.pid]))
}
