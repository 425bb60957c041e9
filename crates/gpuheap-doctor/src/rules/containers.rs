//! Processes that `/proc` or a container hides, and processes whose container or job has ended.

use gpuheap_text::mib;

use crate::evidence::{accounts, with_memory};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const P15: Rule = Rule::new("P15", Severity::Info, "hidden processes", hidden_processes);

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

pub(super) const P16: Rule =
    Rule::new("P16", Severity::Warning, "container that sees no processes", unlisted_outside);

/// Returns a finding for each device that is in use although this container sees no process on it.
fn unlisted_outside(machine: &Machine) -> Vec<Finding> {
    if !machine.host.is_container || machine.host.is_wsl {
        return Vec::new();
    }
    accounts(machine)
        .filter(|(_, account)| account.processes.is_empty())
        .filter(|(_, account)| {
            account.unaccounted_bytes > (account.total_bytes as i64 / 100).max(1 << 30)
        })
        .map(|(gpu, account)| {
            let used = mib(account.used_bytes);
            P16.finding(
                format!("{gpu}: {used} in use, and no process is listed in this container"),
                "Processes outside of it are not listed; look on the host.",
                "docker run --pid=host --gpus all IMAGE gpuheap doctor",
            )
        })
        .collect()
}

pub(super) const P17: Rule =
    Rule::new("P17", Severity::Warning, "process of a removed container", removed_containers);

/// Returns a finding for each process whose container does not run.
fn removed_containers(machine: &Machine) -> Vec<Finding> {
    let Some(running) = &machine.running_containers else { return Vec::new() };
    with_memory(machine)
        .filter(|process| process.cgroup.contains("docker"))
        .filter_map(|process| Some((process, process.container.as_deref()?)))
        .filter(|(_, container)| !running.iter().any(|id| id.starts_with(container)))
        .map(|(process, container)| {
            P17.finding(
                format!("{process} belongs to container {container}, which does not run"),
                "The container was removed and its process stayed.",
                format!("sudo kill {}", process.pid),
            )
            .with_pids([process.pid])
        })
        .collect()
}

pub(super) const P20: Rule =
    Rule::new("P20", Severity::Warning, "process of a job that has ended", ended_jobs);

/// Returns a finding for each process whose job the scheduler does not list.
fn ended_jobs(machine: &Machine) -> Vec<Finding> {
    let Some(jobs) = &machine.running_jobs else { return Vec::new() };
    with_memory(machine)
        .filter_map(|process| {
            let (_, rest) = process.cgroup.split_once("/job_")?;
            let job: String = rest.chars().take_while(char::is_ascii_digit).collect();
            if job.is_empty() || jobs.contains(&job) {
                return None;
            }
            let fact = format!("{process} belongs to job {job}, which has ended");
            let command = format!("scancel --signal=KILL {job}");
            let finding = P20.finding(fact, "A step of the job outlived it.", command);
            Some(finding.with_pids([process.pid]))
        })
        .collect()
}
