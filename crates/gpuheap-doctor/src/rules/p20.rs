//! P20: process of a job that has ended.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P20",
    severity: Severity::Warning,
    title: "process of a job that has ended",
    explanation: "A scheduler's job can end while a step of it lives on, with its memory. The process \
                  names its Slurm job in its control group; squeue does not know that job.",
    look,
};

/// Returns a finding for each process whose job the scheduler no longer knows.
fn look(machine: &Machine) -> Vec<Finding> {
    let Some(jobs) = &machine.running_jobs else { return Vec::new() };
    evidence::with_memory(machine)
        .filter_map(|process| {
            let (_, rest) = process.cgroup.split_once("/job_")?;
            let job: String = rest.chars().take_while(char::is_ascii_digit).collect();
            (!job.is_empty() && !jobs.contains(&job)).then_some((process, job))
        })
        .map(|(process, job)| {
            RULE.found(
                format!(
                    "pid {} ({}) belongs to job {job}, which has ended",
                    process.pid,
                    process.command(30)
                ),
                "A step of the job outlived it.",
                format!("scancel --signal=KILL {job}"),
            )
            .with_pids([process.pid])
        })
        .collect()
}
