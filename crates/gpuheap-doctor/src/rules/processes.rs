//! Rules about processes that hold memory after their program's end, or that hold unused memory.

use gpuheap_text::{age, mib};

use crate::evidence::{self, Ended, accounts};
use crate::machine::{Gpu, Kind, Machine, Process};
use crate::rule::Check::{Machines, Processes};
use crate::rule::{Finding, Rule, Severity};
use crate::status::{Row, is_hidden};

pub(super) const P01: Rule = Rule::new(
    "P01",
    Severity::Fail,
    "memory of a process that has ended",
    Machines(ended_processes),
);

/// Returns a finding for each process that is listed with memory and has ended.
fn ended_processes(machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for (gpu, account) in accounts(machine) {
        for row in &account.processes {
            let finding = match evidence::ended(machine, row) {
                Some(Ended::Proven) => proven_end(machine, gpu, row),
                Some(Ended::Likely) => likely_end(machine, gpu, row),
                None => continue,
            };
            found.push(finding.with_bytes(row.bytes.unwrap_or(0)));
        }
    }
    found
}

fn proven_end(machine: &Machine, gpu: &Gpu, row: &Row) -> Finding {
    let (heirs, is_sure) = evidence::heirs(machine, row.pid);
    let (cause, command) = match (heirs.as_slice(), machine.unreadable) {
        ([], Some(0)) => (
            "No process has the device open; the driver may still be cleaning up.".to_owned(),
            "gpuheap status".to_owned(),
        ),
        ([], _) => (
            "A child inherited its device file, among processes that you may not read.".to_owned(),
            "sudo gpuheap doctor".to_owned(),
        ),
        (heirs, _) if is_sure => (
            format!(
                "A child inherited its device file and keeps it open: {}.",
                evidence::name_processes(heirs)
            ),
            format!("kill {}", evidence::pids(heirs, " ")),
        ),
        (heirs, _) => (
            format!("One of these inherited its device file: {}.", evidence::name_processes(heirs)),
            format!("ps -fp {}", evidence::pids(heirs, ",")),
        ),
    };
    P01.finding(format!("{}, which has ended", listed(gpu, row)), cause, command)
        .with_pids(heirs.iter().map(|heir| heir.pid))
}

/// Returns the warning for a process that has ended or is outside of this container.
fn likely_end(machine: &Machine, gpu: &Gpu, row: &Row) -> Finding {
    let (heirs, _) = evidence::heirs(machine, row.pid);
    let cause = format!(
        "Or it is outside of this container. Look whether these are its children: {}.",
        evidence::name_processes(&heirs)
    );
    let command = format!("ps -o pid,ppid,pgid,sid,lstart,args -p {}", evidence::pids(&heirs, ","));
    P01.finding(format!("{}, which may have ended", listed(gpu, row)), cause, command)
        .with_pids(heirs.iter().map(|heir| heir.pid))
        .with_severity(Severity::Warning)
}

fn listed(gpu: &Gpu, row: &Row) -> String {
    let size = row.bytes.map_or_else(|| "memory".to_owned(), mib);
    format!("{gpu}: {size} is listed under pid {}", row.pid)
}

pub(super) const P02: Rule = Rule::new(
    "P02",
    Severity::Fail,
    "workers whose program has ended",
    Machines(workers_without_program),
);

/// Returns a finding for each worker process that outlives its program.
fn workers_without_program(machine: &Machine) -> Vec<Finding> {
    const WORKERS: [&str; 5] =
        ["pt_data_worker", "multiprocessing", "resource_tracker", "spawn_main", "loky"];
    let explained: Vec<u32> =
        ended_processes(machine).into_iter().flat_map(|finding| finding.pids).collect();
    let is_worker = |process: &&Process| {
        process.parent == 1
            && process.session != process.pid
            && !process.holds.is_empty()
            && !machine.visible.contains_key(&process.session)
            && WORKERS.iter().any(|name| process.runs(name))
            && !explained.contains(&process.pid)
    };
    let finding = |process: &Process| {
        let (command, old) = (process.command(30), age(process.age_seconds));
        let fact =
            format!("pid {} ({command}, {old}) is a worker whose program has ended", process.pid);
        let cause =
            format!("Its session {} has no leader, and it has a device open.", process.session);
        P02.finding(fact, cause, format!("kill {}", process.pid)).with_pids([process.pid])
    };
    machine.processes.iter().filter(is_worker).map(finding).collect()
}

pub(super) const P03: Rule =
    Rule::new("P03", Severity::Fail, "process that cannot be ended", Processes(stuck_processes));

/// Returns a finding if the process sleeps uninterruptibly.
fn stuck_processes(_: &Machine, process: &Process) -> Option<Finding> {
    let place = process.waits_in.as_deref().unwrap_or("the kernel");
    process.is_stuck.then(|| {
        P03.finding(
            format!("{process} cannot be ended: a thread waits in {place}"),
            "A file server or a driver does not answer; the memory stays until it does.",
            format!("sudo cat /proc/{}/stack", process.pid),
        )
        .with_pids([process.pid])
    })
}

pub(super) const P04: Rule = Rule::new(
    "P04",
    Severity::Warning,
    "ended main thread, living others",
    Processes(zombies_with_threads),
);

/// Returns a finding if the process's main thread has ended and other threads still run.
fn zombies_with_threads(_: &Machine, process: &Process) -> Option<Finding> {
    (process.state == 'Z' && process.threads > 1).then(|| {
        P04.finding(
            format!("{process} is a zombie with {} threads", process.threads),
            "Its main thread has ended and the others keep the memory.",
            format!("kill -9 {}", process.pid),
        )
        .with_pids([process.pid])
    })
}

pub(super) const P05: Rule =
    Rule::new("P05", Severity::Info, "zombie without memory", Machines(zombies));

/// Returns a finding for each ended process that its parent has not waited for.
fn zombies(machine: &Machine) -> Vec<Finding> {
    let is_zombie = |process: &&Process| process.state == 'Z' && process.threads <= 1;
    let finding = |process: &Process| {
        let Process { pid, comm, parent, .. } = process;
        P05.finding(
            format!("pid {pid} ({comm}) is a zombie"),
            format!("It holds no memory; its parent {parent} has not read its exit code."),
            format!("ps -fp {parent}"),
        )
    };
    machine.processes.iter().filter(is_zombie).map(finding).collect()
}

pub(super) const P06: Rule =
    Rule::new("P06", Severity::Warning, "stopped process", Processes(stopped_processes));

fn stopped_processes(machine: &Machine, process: &Process) -> Option<Finding> {
    if !matches!(process.state, 'T' | 't') {
        return None;
    }
    let size = evidence::listed_bytes(machine, process.pid)
        .map_or_else(|| "a device open".to_owned(), mib);
    let (cause, command) = match process.tracer {
        0 => ("Ctrl-Z or SIGSTOP stopped it.".to_owned(), format!("kill -CONT {}", process.pid)),
        tracer => (format!("The debugger of pid {tracer} stopped it."), format!("ps -fp {tracer}")),
    };
    let finding = P06.finding(format!("{process} is stopped, with {size}"), cause, command);
    Some(finding.with_pids([process.pid]))
}

pub(super) const P07: Rule =
    Rule::new("P07", Severity::Info, "idle notebook", Processes(idle_notebooks));

/// Returns a finding if the process is a notebook's kernel that holds memory and does nothing.
fn idle_notebooks(machine: &Machine, process: &Process) -> Option<Finding> {
    if !process.runs("ipykernel") || process.busy_lately != Some(0) {
        return None;
    }
    let size = mib(evidence::listed_bytes(machine, process.pid)?);
    let (pid, old) = (process.pid, age(process.age_seconds));
    let fact = format!("pid {pid} is an idle notebook with {size}, started {old} ago");
    let cause = "Its variables, and Out and _, keep the objects that they name.";
    Some(P07.finding(fact, cause, format!("kill {pid}")))
}

pub(super) const P19: Rule =
    Rule::new("P19", Severity::Info, "attached profiler", Processes(profilers));

/// Returns a finding if a profiler or debugger is attached to the process.
fn profilers(_: &Machine, process: &Process) -> Option<Finding> {
    const TOOLS: [&str; 3] = ["libcupti", "libsanitizer-collection", "libcudadebugger"];
    // These frameworks load libcupti for their own profiler, even if the profiler is not used.
    const FRAMEWORKS: [&str; 4] =
        ["libtorch_cuda", "libc10_cuda", "xla_extension", "libtensorflow"];
    let has_framework = FRAMEWORKS.iter().any(|name| process.has_loaded(name));
    let is_reported = |tool: &&&str| !(has_framework && **tool == "libcupti");
    let mut tools = TOOLS.iter().filter(is_reported);
    let tool = tools.find(|tool| process.has_loaded(tool))?;
    Some(P19.finding(
        format!("{process} has {tool} loaded"),
        "A profiler's or checker's buffers count as its memory.",
        format!("ps -fp {}", process.pid),
    ))
}

pub(super) const P21: Rule =
    Rule::new("P21", Severity::Info, "forgotten job", Machines(forgotten_jobs));

/// Returns a finding for each old process without a terminal on an idle device.
fn forgotten_jobs(machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for (gpu, account) in accounts(machine).filter(|(gpu, _)| gpu.utilization == Some(0)) {
        for row in account.processes.iter().filter(|row| row.kind == Kind::Compute) {
            let Some(process) = machine.process(row.pid) else { continue };
            if process.age_seconds <= 86_400 || process.terminal != 0 || process.container.is_some()
            {
                continue;
            }
            let size = row.bytes.map_or_else(|| "memory".to_owned(), mib);
            let (pid, user, old) = (row.pid, &process.user, age(process.age_seconds));
            found.push(P21.finding(
                format!("{gpu}: pid {pid} of {user} has {size} and may be idle, {old} old"),
                format!("No terminal, and no kernel ran just now: {}.", process.command(30)),
                format!("ps -fp {pid}"),
            ));
        }
    }
    found
}

pub(super) const P22: Rule = Rule::new(
    "P22",
    Severity::Warning,
    "memory shared with an ended process",
    Processes(memory_of_ended_senders),
);

/// Bytes by which the memory of all listed processes may exceed the memory in use. A larger excess
/// shows that some memory is listed for two processes.
const NOISE: i64 = 64 << 20;

/// Returns a finding if the process shares memory with an ended process.
fn memory_of_ended_senders(machine: &Machine, process: &Process) -> Option<Finding> {
    if is_hidden(machine) || !process.has_loaded("libtorch_cuda") {
        return None;
    }
    let shared = process.maps.iter().filter_map(|path| path.strip_prefix("/dev/shm/torch_"));
    let sender = shared
        .filter_map(|name| name.split('_').next()?.parse().ok())
        .filter(|pid| *pid != process.pid && !machine.visible.contains_key(pid))
        .min()?;
    let is_listed_twice = accounts(machine).any(|(_, account)| account.unaccounted_bytes < -NOISE);
    let severity = if is_listed_twice { P22.severity } else { Severity::Info };
    let fact = format!("{process} maps tensors of pid {sender}, which has ended");
    let cause = "Device memory that it received stays until it closes the tensors.";
    let finding = P22.finding(fact, cause, format!("ps -fp {}", process.pid));
    Some(finding.with_pids([process.pid]).with_severity(severity))
}

pub(super) const P23: Rule =
    Rule::new("P23", Severity::Info, "checkpointed process", Machines(checkpointed_processes));

/// Returns a finding for each process whose memory a checkpoint moved to the host.
fn checkpointed_processes(machine: &Machine) -> Vec<Finding> {
    let found = machine.checkpointed.iter();
    found
        .map(|(pid, name)| {
            let fact = format!("pid {pid} ({name}) is checkpointed: it has no memory of a device");
            let cause = "Its memory is on the host; a restore needs it free on the device again.";
            P23.finding(fact, cause, format!("cuda-checkpoint --toggle --pid {pid}"))
                .with_pids([*pid])
        })
        .collect()
}
