//! Rules about figures of memory that add up to more or less than expected.

use gpuheap_publish::{Access, HeapStatus, RECORDED};
use gpuheap_text::{count, cut, mib};

use crate::evidence::{self, accounts, with_memory};
use crate::machine::{Gpu, Kind, Machine, Process};
use crate::rule::Check::{Accounts, Devices, Machines, Processes};
use crate::rule::{Finding, Rule, Severity};
use crate::status::{Account, Place, Row};

pub(super) const G01: Rule = Rule::new(
    "G01",
    Severity::Warning,
    "memory of no listed process",
    Accounts(unaccounted_memory),
);

/// Returns a finding if the device's memory in use is much more than the memory of its processes.
fn unaccounted_memory(machine: &Machine, gpu: &Gpu, account: &Account) -> Option<Finding> {
    if evidence::cannot_list(machine)
        || gpu.mig == Some(true)
        || account.processes_without_figure > 0
        || account.unaccounted_bytes <= evidence::unaccounted_limit(account)
    {
        return None;
    }
    let bytes = account.unaccounted_bytes as u64;
    let holders: Vec<&Process> = evidence::unlisted_holders(machine)
        .filter(|process| !evidence::is_monitor(process))
        .collect();
    let (used, unlisted) = (mib(account.used_bytes), mib(bytes));
    let fact = format!("{gpu}: {used} in use, {unlisted} of it by no listed process");
    let (cause, command) = match (holders.as_slice(), machine.unreadable) {
        ([], Some(0)) => (
            "No process has the device open: kernel clients or a driver that leaks.".to_owned(),
            format!("nvidia-smi -q -d MEMORY -i {}", gpu.index),
        ),
        ([], _) => (
            "Some processes are not yours to read, so their holder is not visible.".to_owned(),
            "sudo gpuheap doctor".to_owned(),
        ),
        (holders, _) => (
            format!(
                "Processes have the device open and are not listed: {}.",
                evidence::name_processes(holders)
            ),
            format!("ps -fp {}", evidence::pids(holders, ",")),
        ),
    };
    Some(G01.finding(fact, cause, command).with_bytes(bytes))
}

pub(super) const G02: Rule = Rule::new(
    "G02",
    Severity::Info,
    "a little memory in use on an idle device",
    Accounts(memory_of_idle_devices),
);

/// Returns a finding if the device is idle, but has a little memory in use.
fn memory_of_idle_devices(_: &Machine, gpu: &Gpu, account: &Account) -> Option<Finding> {
    let little = 1..=evidence::unaccounted_limit(account);
    (account.processes.is_empty() && little.contains(&account.unaccounted_bytes)).then(|| {
        G02.finding(
            format!("{gpu}: {} in use with no process", mib(account.used_bytes)),
            "The driver's own clients; no process can give it back.",
            format!("nvidia-smi -q -d MEMORY -i {}", gpu.index),
        )
    })
}

pub(super) const G03: Rule = Rule::new(
    "G03",
    Severity::Info,
    "monitors that differ by a constant",
    Devices(reserved_memory),
);

/// Returns a finding if the driver reserves memory of the device.
fn reserved_memory(_: &Machine, gpu: &Gpu) -> Option<Finding> {
    let bytes = gpu.reserved.filter(|&bytes| bytes > 0)?;
    Some(G03.finding(
        format!("{gpu}: {} reserved by the driver", mib(bytes)),
        "Monitors that use NVML's older call count this as used.",
        format!("nvidia-smi -q -d MEMORY -i {}", gpu.index),
    ))
}

pub(super) const G11: Rule =
    Rule::new("G11", Severity::Warning, "page cache in a device's memory", Devices(page_cache));

/// Returns a finding if the device's memory is a NUMA node that holds cached files.
fn page_cache(machine: &Machine, gpu: &Gpu) -> Option<Finding> {
    let node = gpu.numa_node?;
    let bytes = *machine.device_nodes.get(&node).filter(|bytes| **bytes > 256 << 20)?;
    let fact = format!("{gpu}: {} of page cache on its NUMA node {node}", mib(bytes));
    let cause = "The kernel keeps files in the device's memory.";
    let command = "echo 1 | sudo tee /proc/sys/vm/drop_caches";
    Some(G11.finding(fact, cause, command).with_bytes(bytes))
}

pub(super) const P08: Rule =
    Rule::new("P08", Severity::Info, "memory that PyTorch may keep", Processes(pytorch_caches));

/// Returns a finding if the process uses PyTorch and holds much memory.
fn pytorch_caches(machine: &Machine, process: &Process) -> Option<Finding> {
    let has_pytorch = process.has_loaded("libtorch_cuda") || process.has_loaded("libc10_cuda");
    // Leaves out programs that publish heaps, because rule P25 reports the exact size of their
    // caches. A recorder publishes only live memory, and does not know PyTorch's cache.
    let is_heap = |heap: &HeapStatus| heap.pool != RECORDED;
    let published = evidence::heaps(machine, process.pid);
    if !has_pytorch || published.is_some_and(|status| status.heaps.iter().any(is_heap)) {
        return None;
    }
    let bytes = evidence::listed_bytes(machine, process.pid).filter(|bytes| *bytes > 2 << 30)?;
    Some(P08.finding(
        format!("{process} has {} and PyTorch loaded", mib(bytes)),
        "A part of it may be PyTorch's cache, which torch.cuda.empty_cache() gives back.",
        format!("ps -fp {}", process.pid),
    ))
}

pub(super) const P25: Rule =
    Rule::new("P25", Severity::Info, "memory that a program's heap keeps", Machines(kept_caches));

/// Smallest cache that is reported, in bytes. A heap keeps some memory for its next requests.
const NOTED_CACHE: u64 = 512 << 20;

/// Returns a finding for each program that publishes heaps, if they keep much freed memory.
fn kept_caches(machine: &Machine) -> Vec<Finding> {
    let findings = machine.programs.iter().filter_map(|program| {
        let (pid, status) = (program.pid?, program.status.as_ref()?);
        let sum = |bytes: fn(&HeapStatus) -> u64| {
            let heaps = status.heaps.iter().filter(|heap| heap.pool != RECORDED);
            heaps.map(bytes).fold(0, u64::saturating_add)
        };
        let (cached, live) = (sum(|heap| heap.cached), sum(|heap| heap.live));
        if cached < NOTED_CACHE {
            return None;
        }
        let name = cut(&status.program, 40);
        let fact = format!(
            "pid {pid} ({name}) keeps {} of freed memory; {} are live",
            mib(cached),
            mib(live)
        );
        let is_own = Some(program.uid) == machine.host.uid;
        let is_open = |heap: &HeapStatus| heap.cached > 0 && heap.access == Access::Control;
        let (cause, command) = match (status.heaps.iter().any(is_open), is_own) {
            (true, true) => (
                "Its heap keeps it for later requests, and gives it back on request.",
                "gpuheap free --yes".to_owned(),
            ),
            (true, false) => (
                "Its heap keeps it for later requests. Its user can make it give it back, with \
                 gpuheap free --yes.",
                format!("ps -fp {pid}"),
            ),
            (false, _) => (
                "Its heap keeps it for later requests. Started with GPUHEAP_PUBLISH=control, it \
                 gives it back on request.",
                format!("ps -fp {pid}"),
            ),
        };
        let is_most = cached > live;
        let severity = if is_most { Severity::Warning } else { P25.severity };
        let finding = P25.finding(fact, cause, command).with_severity(severity);
        Some(finding.with_pids([pid]).with_bytes(cached))
    });
    findings.collect()
}

pub(super) const P11: Rule =
    Rule::new("P11", Severity::Warning, "many contexts", Machines(contexts));

/// Returns the findings on processes that hold little more than a context, and on processes with
/// several contexts.
fn contexts(machine: &Machine) -> Vec<Finding> {
    let mut findings = small_processes(machine);
    for (gpu, account) in accounts(machine) {
        for row in &account.processes {
            let Some(process) = machine.process(row.pid) else { continue };
            let contexts = process.contexts_on(gpu.minor);
            if contexts < 2 || evidence::is_mps(process) {
                continue;
            }
            let size = mib(row.bytes.unwrap_or(0));
            let fact = format!("{process} has {contexts} contexts on {gpu}, with {size}");
            let cause = "Each context costs some 500 MiB; libraries share the primary one, \
                         cuCtxCreate makes another.";
            let finding =
                P11.finding(fact, cause, format!("gpuheap status --device {}", gpu.index));
            findings.push(finding.with_pids([row.pid]).with_severity(Severity::Info));
        }
    }
    findings
}

/// Returns a finding for each device on which several processes hold little more than a context.
fn small_processes(machine: &Machine) -> Vec<Finding> {
    accounts(machine)
        .filter_map(|(gpu, account)| {
            let mut small: Vec<u64> = account
                .processes
                .iter()
                .filter(|row| row.kind != Kind::Graphics)
                .filter_map(|row| row.bytes.filter(|bytes| (200 << 20..=700 << 20).contains(bytes)))
                .collect();
            small.sort_unstable();
            let least = *small.first()?;
            small.retain(|&bytes| bytes <= least + least / 10);
            if small.len() < 3 {
                return None;
            }
            let (number, each, sum) = (small.len(), mib(least), mib(small.iter().sum()));
            let fact = format!("{gpu}: {number} processes hold {each} each, {sum} together");
            let cause = "Each is hardly more than a context; choose a device for each worker by \
                         CUDA_VISIBLE_DEVICES.";
            Some(P11.finding(fact, cause, format!("nvidia-smi pmon -c 1 -i {}", gpu.index)))
        })
        .collect()
}

pub(super) const P13: Rule = Rule::new("P13", Severity::Info, "display", Accounts(displays));

/// Returns a finding if a display uses the device.
fn displays(_: &Machine, gpu: &Gpu, account: &Account) -> Option<Finding> {
    let (rows, sum) = selected(account, |row| row.kind == Kind::Graphics)?;
    let number = count(rows.len() as u64, "process");
    Some(P13.finding(
        format!("{gpu}: {number} for drawing: {}", mib(sum)),
        "Compositor, browser and editors keep their textures there.",
        format!("nvidia-smi -i {}", gpu.index),
    ))
}

pub(super) const P14: Rule =
    Rule::new("P14", Severity::Warning, "memory of other users", Accounts(other_users));

/// Returns a finding if other users have memory on the device. The finding is a warning if these
/// users have more than half of the device.
fn other_users(machine: &Machine, gpu: &Gpu, account: &Account) -> Option<Finding> {
    let is_others = |row: &Row| row.place == Place::OtherUser && row.kind != Kind::Graphics;
    let (rows, sum) = selected(account, is_others).filter(|_| machine.host.uid != Some(0))?;
    let mut users: Vec<&str> = rows.iter().filter_map(|row| row.user.as_deref()).collect();
    users.sort_unstable();
    users.dedup();
    let (held, total) = (mib(sum), mib(account.total_bytes));
    let is_most = sum > account.total_bytes / 2;
    let finding = P14.finding(
        format!("{gpu}: {held} of {total} belong to {}", users.join(", ")),
        "Processes of other users; they are not yours to end.",
        format!("gpuheap status --device {}", gpu.index),
    );
    let severity = if is_most { P14.severity } else { Severity::Info };
    Some(finding.with_severity(severity).with_bytes(sum))
}

/// Returns the processes of a kind with the sum of their memory; `None` without such a process.
fn selected(account: &Account, is_of_kind: impl Fn(&Row) -> bool) -> Option<(Vec<&Row>, u64)> {
    let rows: Vec<&Row> = account.processes.iter().filter(|row| is_of_kind(row)).collect();
    let sum = rows.iter().filter_map(|row| row.bytes).fold(0, u64::saturating_add);
    (!rows.is_empty()).then_some((rows, sum))
}

pub(super) const P24: Rule =
    Rule::new("P24", Severity::Info, "much pinned memory", Machines(pinned_memory));

/// Smallest amount of pinned memory that is reported, in bytes.
const NOTED: u64 = 1 << 30;

/// Returns a finding if much memory of the host is pinned. Rule W05 covers WSL2.
fn pinned_memory(machine: &Machine) -> Vec<Finding> {
    let (pinned, memory) = (machine.host.pinned, machine.host.memory);
    if machine.host.is_wsl || pinned < NOTED {
        return Vec::new();
    }
    let mut owners: Vec<_> =
        with_memory(machine).filter(|process| process.shared_anonymous >= NOTED / 4).collect();
    owners.sort_by_key(|process| std::cmp::Reverse(process.shared_anonymous));
    let cause = match owners.first() {
        Some(owner) => format!(
            "{owner} maps {} of such memory; it comes back when the program frees it or ends.",
            mib(owner.shared_anonymous)
        ),
        None => "It comes back when the programs that pinned it free it or end.".to_owned(),
    };
    let fact = format!("{} of the host's {} are pinned", mib(pinned), mib(memory));
    let severity = if pinned > memory / 2 { Severity::Warning } else { P24.severity };
    let finding = P24.finding(fact, cause, "grep foll_pin /proc/vmstat").with_severity(severity);
    vec![finding.with_pids(owners.iter().map(|process| process.pid))]
}
