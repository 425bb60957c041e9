//! Rules about processes that are hidden, or whose container or job has ended.

use gpuheap_text::mib;

use crate::machine::{Gpu, Machine, Process};
use crate::rule::Check::{Accounts, Machines, Processes};
use crate::rule::{Finding, Rule, Severity};
use crate::status::Account;

pub(super) const P15: Rule =
    Rule::new("P15", Severity::Info, "hidden processes", Machines(hidden_processes));

/// Returns a finding if `/proc` hides processes of other users.
fn hidden_processes(machine: &Machine) -> Vec<Finding> {
    let host = &machine.host;
    if host.hidepid == 0 || host.uid == Some(0) {
        return Vec::new();
    }
    vec![P15.finding(
        format!("/proc hides processes of other users (hidepid={})", host.hidepid),
        "Ended processes look like hidden ones.",
        "sudo gpuheap doctor",
    )]
}

pub(super) const P16: Rule = Rule::new(
    "P16",
    Severity::Warning,
    "container that sees no processes",
    Accounts(unlisted_outside),
);

/// Returns a finding for each device that is in use although this container sees no process on it.
fn unlisted_outside(machine: &Machine, gpu: &Gpu, account: &Account) -> Option<Finding> {
    let is_container = machine.host.is_container && !machine.host.is_wsl;
    let limit = (account.total_bytes as i64 / 100).max(1 << 30);
    let is_used = account.processes.is_empty() && account.unaccounted_bytes > limit;
    (is_container && is_used).then(|| {
        let used = mib(account.used_bytes);
        P16.finding(
            format!("{gpu}: {used} in use, and no process is listed in this container"),
            "Processes outside of it are not listed; look on the host.",
            "docker run --pid=host --gpus all IMAGE gpuheap doctor",
        )
    })
}

pub(super) const P17: Rule = Rule::new(
    "P17",
    Severity::Warning,
    "process of a removed container",
    Processes(removed_containers),
);

/// Returns a finding for each process whose container does not run.
fn removed_containers(machine: &Machine, process: &Process) -> Option<Finding> {
    let running = machine.running_containers.as_ref()?;
    let container = process.container.as_deref()?;
    let is_docker = process.cgroup.contains("docker");
    (is_docker && !running.iter().any(|id| id.starts_with(container))).then(|| {
        P17.finding(
            format!("{process} belongs to container {container}, which does not run"),
            "The container was removed and its process stayed.",
            format!("sudo kill {}", process.pid),
        )
        .with_pids([process.pid])
    })
}

pub(super) const P20: Rule =
    Rule::new("P20", Severity::Warning, "process of a job that has ended", Processes(ended_jobs));

/// Returns a finding for each process whose job the scheduler does not list.
fn ended_jobs(machine: &Machine, process: &Process) -> Option<Finding> {
    let jobs = machine.running_jobs.as_ref()?;
    let (_, rest) = process.cgroup.split_once("/job_")?;
    let job: String = rest.chars().take_while(char::is_ascii_digit).collect();
    if job.is_empty() || jobs.contains(&job) {
        return None;
    }
    let fact = format!("{process} belongs to job {job}, which has ended");
    let command = format!("scancel --signal=KILL {job}");
    let finding = P20.finding(fact, "A step of the job outlived it.", command);
    Some(finding.with_pids([process.pid]))
}
