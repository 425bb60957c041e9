//! Pauses a process. The driver moves the process's device memory to the host, and later back.

use std::time::Duration;

use gpuheap_driver::CUprocessState;
pub use gpuheap_driver::checkpoint::Checkpoints;
use gpuheap_text::{hanging, mib};
use serde::{Deserialize, Serialize};

use crate::evidence;
use crate::machine::Machine;

/// Time limit of the wait for the process's enqueued work. Memory moves to the host afterwards.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// First driver branch that can checkpoint other processes.
const FIRST_DRIVER: u32 = 570;

/// Record of a process that can be paused or is paused, with its device memory. The caller keeps
/// this record until the resume, because the driver does not report the memory of a paused process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    schema: u32,
    /// The process.
    pub pid: u32,
    /// Start of the process after boot, in ticks of 10 ms.
    pub start_ticks: u64,
    /// Command line of the process.
    pub command: String,
    /// Memory of the process on each device.
    pub memory: Vec<Share>,
}

/// Memory of a process on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The device's UUID, as NVML writes it.
    pub uuid: String,
    /// NVML's index of the device.
    pub gpu: u32,
    /// The memory, in bytes.
    pub bytes: u64,
}

impl Pause {
    /// Plans the pause of a process. Changes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has no device memory or is stopped, if the driver or the
    /// system has no checkpoints, if MPS runs, or if the host lacks memory. The host needs 1.1
    /// times the process's device memory.
    pub fn plan(machine: &Machine, pid: u32) -> Result<Pause, String> {
        if machine.host.is_wsl {
            return Err("the driver of WSL2 has no checkpoints of processes".to_owned());
        }
        let driver = machine.nvml.as_ref().map_or("", |nvml| nvml.driver.as_str());
        let branch = driver.split('.').next().and_then(|branch| branch.parse::<u32>().ok());
        if branch.is_none_or(|branch| branch < FIRST_DRIVER) {
            return Err(format!(
                "driver {driver} has no checkpoints of processes; install {FIRST_DRIVER} or newer"
            ));
        }
        let process = machine.process(pid);
        let process = process.ok_or_else(|| format!("pid {pid} has no memory of a device"))?;
        if let Some(server) = machine.processes.iter().find(|one| evidence::is_mps(one)) {
            return Err(format!("MPS runs (pid {}); its clients cannot be paused", server.pid));
        }
        if matches!(process.state, 'T' | 't') {
            return Err(format!("pid {pid} is stopped; continue it first: kill -CONT {pid}"));
        }
        let mut memory = Vec::new();
        for gpu in machine.devices() {
            for listed in gpu.processes.iter().filter(|listed| listed.pid == pid) {
                let unknown = || format!("the driver does not say how much memory pid {pid} has");
                let bytes = listed.bytes.ok_or_else(unknown)?;
                memory.push(Share { uuid: gpu.uuid.clone(), gpu: gpu.index, bytes });
            }
        }
        let start_ticks = process.start_ticks;
        let pause = Pause { schema: 1, pid, start_ticks, command: process.command(60), memory };
        let bytes = pause.bytes();
        if bytes == 0 {
            return Err(format!("pid {pid} has no memory of a device"));
        }
        let needed = bytes.saturating_add(bytes / 10);
        if machine.host.available < needed {
            return Err(format!(
                "the host has {} available, and pid {pid} needs {}: its {} and 10 %",
                mib(machine.host.available),
                mib(needed),
                mib(bytes)
            ));
        }
        Ok(pause)
    }

    /// Returns the process's memory on all devices, in bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.iter().fold(0, |sum, share| sum.saturating_add(share.bytes))
    }

    /// Returns the memory in words: `2566 MiB of GPU 0, 518 MiB of GPU 1`.
    pub fn memory_in_words(&self) -> String {
        let shares = self.memory.iter();
        let words = shares.map(|share| format!("{} of GPU {}", mib(share.bytes), share.gpu));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Renders for `width` columns how much memory would move, and the command that moves it.
    pub fn render(&self, machine: &Machine, width: usize) -> String {
        let pid = self.pid;
        let words = format!(
            "pid {pid} ({}) has {}. It would move to the host, which has {} available, and its \
             calls of CUDA would wait until gpuheap resume {pid}.",
            self.command,
            self.memory_in_words(),
            mib(machine.host.available)
        );
        let mut text = String::new();
        hanging(&mut text, "", "", &words, width);
        text + &format!("  $ gpuheap pause {pid} --yes\n")
    }

    /// Moves the process's memory to the host. Blocks until the process's work ends, 10 seconds at
    /// most, and until the copy ends. If the move fails, the process continues.
    ///
    /// # Errors
    ///
    /// Returns an error if the pid has passed to another process since the plan was made, if the
    /// process does not run, or if a driver call failed.
    pub fn run(&self, machine: &Machine, calls: &dyn Checkpoints) -> Result<(), String> {
        let pid = self.pid;
        self.is_there(machine)?;
        match self.state(calls)? {
            CUprocessState::RUNNING => {}
            CUprocessState::CHECKPOINTED => {
                return Err(format!("pid {pid} is paused already: gpuheap resume {pid}"));
            }
            other => return Err(format!("pid {pid} cannot be paused: {}", state_in_words(other))),
        }
        calls.lock(pid, LOCK_LIMIT).map_err(|error| {
            format!("pid {pid} runs on, its work did not end within 10 s: {error}")
        })?;
        let Err(error) = calls.checkpoint(pid) else { return Ok(()) };
        match calls.unlock(pid) {
            Ok(()) => Err(format!("pid {pid} runs on, its memory cannot be moved: {error}")),
            Err(other) => Err(format!(
                "pid {pid} waits in its next call of CUDA, its memory cannot be moved: {error}; \
                 and {other}; try: gpuheap resume {pid}"
            )),
        }
    }

    /// Moves the process's memory back to its devices, and unblocks its calls. Blocks until the
    /// copy ends.
    ///
    /// # Errors
    ///
    /// Returns an error if the process is not the paused process, if a device has too little free
    /// memory, or if a driver call failed.
    pub fn resume(&self, machine: &Machine, calls: &dyn Checkpoints) -> Result<(), String> {
        let pid = self.pid;
        self.is_there(machine)?;
        match self.state(calls)? {
            CUprocessState::CHECKPOINTED => {
                self.fits(machine)?;
                calls.restore(pid).map_err(|error| format!("pid {pid} stays paused: {error}"))?;
            }
            CUprocessState::LOCKED => {}
            other => return Err(format!("pid {pid} cannot be resumed: {}", state_in_words(other))),
        }
        calls.unlock(pid).map_err(|error| {
            format!("pid {pid} has its memory back and still waits: {error}; try again")
        })
    }

    /// Checks that every device has enough free memory for the process. A restore that fails
    /// because memory runs out may leave the process stuck for ever.
    ///
    /// # Errors
    ///
    /// Returns an error that names a device that is missing or has too little free memory.
    pub fn fits(&self, machine: &Machine) -> Result<(), String> {
        for share in &self.memory {
            let device = machine.devices().iter().find(|gpu| gpu.uuid == share.uuid);
            let gone = || format!("GPU {} ({}) is not there", share.gpu, share.uuid);
            let device = device.ok_or_else(gone)?;
            if device.free < share.bytes {
                return Err(format!(
                    "pid {} needs {} of GPU {}, which has {} free; wait for it: \
                     gpuheap wait --free {} --device {}",
                    self.pid,
                    mib(share.bytes),
                    device.index,
                    mib(device.free),
                    mib(share.bytes).replace(' ', ""),
                    device.index
                ));
            }
        }
        Ok(())
    }

    /// Checks that the process is the planned process: the pid may now belong to another process.
    fn is_there(&self, machine: &Machine) -> Result<(), String> {
        match machine.start_ticks(self.pid) {
            Some(start) if start == self.start_ticks => Ok(()),
            Some(_) => Err(format!("pid {} is another process by now", self.pid)),
            None => Err(format!("pid {} has ended", self.pid)),
        }
    }

    fn state(&self, calls: &dyn Checkpoints) -> Result<CUprocessState, String> {
        calls.state(self.pid).map_err(|error| format!("pid {}: {error}", self.pid))
    }
}

fn state_in_words(state: CUprocessState) -> String {
    match state {
        CUprocessState::RUNNING => "it runs".to_owned(),
        CUprocessState::LOCKED => "its calls of CUDA wait already".to_owned(),
        CUprocessState::CHECKPOINTED => "it is paused".to_owned(),
        CUprocessState::FAILED => {
            "a pause or a resume of it failed, and it cannot go on; end it".to_owned()
        }
        other => format!("it is in state {}", other.0),
    }
}
