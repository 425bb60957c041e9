//! Reads facts that only the rules of `gpuheap doctor` need, from the kernel's log, the linker's
//! cache, and lists that other programs print.

use std::collections::BTreeMap;
use std::time::Duration;

use super::proc::meminfo;
use super::process::{Process, has_cuda_thread};
use crate::facts::{Gpu, Skipped, Source, Why};

/// Message of the kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Seconds after boot.
    pub seconds: f64,
    /// The text.
    pub text: String,
}

/// Time limit of another program's command.
const PATIENCE: Duration = Duration::from_secs(3);

/// Parses lines `[seconds] text`. Text before the bracket is ignored.
pub(super) fn messages(log: &str) -> Vec<Message> {
    let message = |line: &str| {
        let (_, rest) = line.split_once('[')?;
        let (seconds, text) = rest.split_once(']')?;
        Some(Message { seconds: seconds.trim().parse().ok()?, text: text.trim().to_owned() })
    };
    log.lines().filter_map(message).collect()
}

/// Returns the paths of `libcuda.so.1` in the order in which the linker finds them.
pub(super) fn libcuda(source: &dyn Source) -> Result<Vec<String>, Skipped> {
    let cache = source.run(&["ldconfig", "-p"], PATIENCE);
    let cache = cache.or_else(|_| source.run(&["/sbin/ldconfig", "-p"], PATIENCE))?;
    let path = |line: &str| {
        let (name, path) = line.split_once("=>")?;
        name.trim().starts_with("libcuda.so.1").then(|| path.trim().to_owned())
    };
    Ok(cache.lines().filter_map(path).collect())
}

/// Returns the ids of Docker's running containers; `None` if no process is in a container.
pub(super) fn containers(
    source: &dyn Source,
    processes: &[Process],
) -> Option<Result<Vec<String>, Skipped>> {
    let is_needed =
        |process: &Process| process.container.is_some() && process.cgroup.contains("docker");
    processes.iter().any(is_needed).then(|| {
        let ids = source.run(&["docker", "ps", "-q", "--no-trunc"], PATIENCE)?;
        Ok(ids.lines().map(|line| line.trim().to_owned()).collect())
    })
}

/// Returns the ids of Slurm's jobs; `None` if no process belongs to a job.
pub(super) fn jobs(
    source: &dyn Source,
    processes: &[Process],
) -> Option<Result<Vec<String>, Skipped>> {
    let is_needed = |process: &Process| process.cgroup.contains("/job_");
    processes.iter().any(is_needed).then(|| {
        let jobs = source.run(&["squeue", "-h", "-o", "%A"], PATIENCE)?;
        Ok(jobs.lines().map(|line| line.trim().to_owned()).collect())
    })
}

/// Returns the processes that `cuda-checkpoint` reports as checkpointed. Checks only processes that
/// have a thread of CUDA and no open device, because a checkpoint closes the devices.
pub(super) fn checkpointed(
    source: &dyn Source,
    visible: &[u32],
    holders: &[u32],
) -> Result<Vec<(u32, String)>, Skipped> {
    let mut found = Vec::new();
    for &pid in visible.iter().filter(|pid| !holders.contains(pid)) {
        if has_cuda_thread(source, pid) != Some(true) {
            continue;
        }
        let number = pid.to_string();
        let state = source.run(&["cuda-checkpoint", "--get-state", "--pid", &number], PATIENCE)?;
        if state.trim() == "checkpointed" {
            let name = source.read_text(&format!("/proc/{pid}/comm"));
            found.push((pid, name.trim().to_owned()));
        }
    }
    Ok(found)
}

/// Returns, for each NUMA node that is a device's memory, the bytes of page cache on it.
pub(super) fn device_nodes(source: &dyn Source, devices: &[Gpu]) -> BTreeMap<u32, u64> {
    let cache = |node: u32| {
        let folder = format!("/sys/devices/system/node/node{node}");
        if !source.read_text(&format!("{folder}/cpulist")).trim().is_empty() {
            return None;
        }
        let text = source.read_text(&format!("{folder}/meminfo"));
        let text = text.replace(&format!("Node {node} "), "");
        Some((node, meminfo(&text, "FilePages")?))
    };
    devices.iter().filter_map(|gpu| gpu.numa_node).filter_map(cache).collect()
}

/// Maximum number of processes to compare, and of descriptors to compare for each process. Jobs
/// with 126 workers were reported, and a process has some 20 descriptors for each GPU. Comparing
/// all pairs of 256 processes that share no file takes some 2 million calls, about a second.
const MOST_COMPARED: usize = 256;

/// Pairs of processes that share an open file of a device, and the reason why some processes were
/// not compared.
pub(super) type Shared = (Vec<(u32, u32)>, Option<Skipped>);

/// Compares the open files of the processes that hold a device.
pub(super) fn shared(source: &dyn Source, processes: &[Process]) -> Result<Shared, Skipped> {
    let mut pairs = Vec::new();
    let mut holders: Vec<&Process> =
        processes.iter().filter(|process| !process.holds.is_empty()).collect();
    let left_out = (holders.len() > MOST_COMPARED).then(|| {
        let text =
            format!("open files of {MOST_COMPARED} of {} processes were compared", holders.len());
        Skipped::new(Why::Failed, text)
    });
    holders.truncate(MOST_COMPARED);
    for (index, one) in holders.iter().enumerate() {
        for other in &holders[index + 1..] {
            // Compares descriptors of equal numbers, because a child inherits its parent's numbers.
            let both =
                one.holds.iter().take(MOST_COMPARED).filter(|held| other.holds.contains(held));
            for (number, _) in both {
                match source.is_same_file((one.pid, *number), (other.pid, *number)) {
                    Ok(true) => {
                        pairs.push((one.pid, other.pid));
                        break;
                    }
                    Err(skipped) if skipped.why == Why::Missing => return Err(skipped),
                    // The descriptors have different files, or a process has ended or belongs to
                    // another user.
                    Ok(false) | Err(_) => {}
                }
            }
        }
    }
    Ok((pairs, left_out))
}
