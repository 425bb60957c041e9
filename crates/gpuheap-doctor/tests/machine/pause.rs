//! Tests pauses: the checks before a pause, and the states of the process during the pause.

use std::cell::RefCell;
use std::time::Duration;

use gpuheap_doctor::Recording;
use gpuheap_doctor::machine::Machine;
use gpuheap_doctor::pause::{Checkpoints, Pause};
use gpuheap_driver::{CUprocessState, CUresult, DriverError};

use crate::support::named;

/// The training process of the recorded machine.
const PID: u32 = 2252;

/// A driver that knows one process, and fails one call.
struct Fake {
    state: RefCell<CUprocessState>,
    fails: &'static str,
    calls: RefCell<Vec<&'static str>>,
}

impl Fake {
    fn new(state: CUprocessState, fails: &'static str) -> Fake {
        Fake { state: RefCell::new(state), fails, calls: RefCell::default() }
    }

    /// Plays a call of the driver: changes the process's state from `from` to `to`, or fails.
    fn step(
        &self,
        call: &'static str,
        from: CUprocessState,
        to: CUprocessState,
    ) -> Result<(), DriverError> {
        self.calls.borrow_mut().push(call);
        if self.fails.split(", ").any(|fails| fails == call) {
            return Err(DriverError::new(call, CUresult::ERROR_OUT_OF_MEMORY));
        }
        if *self.state.borrow() != from {
            return Err(DriverError::new(call, CUresult::ERROR_ILLEGAL_STATE));
        }
        self.state.replace(to);
        Ok(())
    }
}

impl Checkpoints for Fake {
    fn state(&self, _pid: u32) -> Result<CUprocessState, DriverError> {
        match self.fails {
            "state" => Err(DriverError::new("state", CUresult::MISSING_SYMBOL)),
            _ => Ok(*self.state.borrow()),
        }
    }

    fn lock(&self, _pid: u32, limit: Duration) -> Result<(), DriverError> {
        assert_eq!(limit, Duration::from_secs(10));
        self.step("lock", CUprocessState::RUNNING, CUprocessState::LOCKED)
    }

    fn checkpoint(&self, _pid: u32) -> Result<(), DriverError> {
        self.step("checkpoint", CUprocessState::LOCKED, CUprocessState::CHECKPOINTED)
    }

    fn restore(&self, _pid: u32) -> Result<(), DriverError> {
        self.step("restore", CUprocessState::CHECKPOINTED, CUprocessState::LOCKED)
    }

    fn unlock(&self, _pid: u32) -> Result<(), DriverError> {
        self.step("unlock", CUprocessState::LOCKED, CUprocessState::RUNNING)
    }
}

fn training() -> Recording {
    named("h200_training_recorded")
}

fn read(recording: Recording) -> Machine {
    Machine::read(recording)
}

#[test]
fn pause_and_resume_follow_driver_states() {
    let machine = read(training());
    let pause = Pause::plan(&machine, PID).unwrap();
    assert_eq!(pause.memory_in_words(), "3752 MiB of GPU 0");
    let driver = Fake::new(CUprocessState::RUNNING, "");
    assert_eq!(pause.run(&machine, &driver), Ok(()));
    assert_eq!(*driver.state.borrow(), CUprocessState::CHECKPOINTED);
    assert!(pause.run(&machine, &driver).unwrap_err().contains("paused already"));
    assert_eq!(pause.resume(&machine, &driver), Ok(()));
    assert_eq!(*driver.state.borrow(), CUprocessState::RUNNING);
    assert!(pause.resume(&machine, &driver).unwrap_err().contains("it runs"));
    assert_eq!(*driver.calls.borrow(), ["lock", "checkpoint", "restore", "unlock"]);
}

#[test]
fn failed_pause_leaves_process_running() {
    let machine = read(training());
    let pause = Pause::plan(&machine, PID).unwrap();
    for (fails, state, text) in [
        ("state", CUprocessState::RUNNING, "is not in the loaded libcuda"),
        ("lock", CUprocessState::RUNNING, "runs on"),
        ("checkpoint", CUprocessState::RUNNING, "runs on"),
        ("checkpoint, unlock", CUprocessState::LOCKED, "gpuheap resume 2252"),
    ] {
        let driver = Fake::new(CUprocessState::RUNNING, fails);
        let error = pause.run(&machine, &driver).unwrap_err();
        assert!(error.contains(text), "{fails}: {error}");
        assert_eq!(*driver.state.borrow(), state, "{fails}");
    }
    // If the unlock after a failed checkpoint fails too, the process stays locked, with its memory
    // on the device. So a resume only unlocks it.
    let driver = Fake::new(CUprocessState::LOCKED, "");
    assert_eq!(pause.resume(&machine, &driver), Ok(()));
    assert_eq!(*driver.calls.borrow(), ["unlock"]);
    let driver = Fake::new(CUprocessState::FAILED, "");
    assert!(pause.resume(&machine, &driver).unwrap_err().contains("end it"));
    assert!(pause.run(&machine, &driver).unwrap_err().contains("end it"));
    assert!(driver.calls.borrow().is_empty());
}

#[test]
fn resume_without_room_is_refused() {
    let machine = read(training());
    let pause = Pause::plan(&machine, PID).unwrap();
    let nvml = training().text("nvml").unwrap().replace("146166382592", "1073741824");
    let full = read(training().with("nvml", &nvml));
    assert_eq!(full.devices()[0].free, 1 << 30);
    let driver = Fake::new(CUprocessState::CHECKPOINTED, "");
    let error = pause.resume(&full, &driver).unwrap_err();
    assert!(error.contains("gpuheap wait --free 3752MiB --device 0"), "{error}");
    assert!(driver.calls.borrow().is_empty());
    let other = read(training().with("nvml", &nvml.replace("GPU-5f1c", "GPU-6f1c")));
    assert!(pause.resume(&other, &driver).unwrap_err().contains("is not there"));
    let driver = Fake::new(CUprocessState::CHECKPOINTED, "restore");
    assert!(pause.resume(&machine, &driver).unwrap_err().contains("stays paused"));
}

#[test]
fn plan_refuses_unpausable_processes() {
    let refused = |recording: Recording, pid: u32| Pause::plan(&read(recording), pid).unwrap_err();
    assert!(refused(training(), 1).contains("no memory of a device"));
    let nvml = training().text("nvml").unwrap().replace("580.159.04", "550.54");
    assert!(refused(training().with("nvml", &nvml), PID).contains("install 570 or newer"));
    let memory = "MemTotal: 9000000 kB\nMemAvailable: 4000000 kB\n";
    let error = refused(training().with("/proc/meminfo", memory), PID);
    assert!(error.contains("needs 4128 MiB: its 3752 MiB and 10 %"), "{error}");
    let wsl = training().with("/proc/sys/kernel/osrelease", "5.15-microsoft-standard-WSL2\n");
    assert!(refused(wsl, PID).contains("WSL2"));
    let stat = training().text("/proc/2252/stat").unwrap().replacen(" R ", " T ", 1);
    let stat = stat.replacen(" S ", " T ", 1);
    let error = refused(training().with("/proc/2252/stat", &stat), PID);
    assert!(error.contains("kill -CONT 2252"), "{error}");
}

#[test]
fn reused_pid_is_not_paused() {
    let machine = read(training());
    let mut pause = Pause::plan(&machine, PID).unwrap();
    pause.start_ticks += 1;
    let driver = Fake::new(CUprocessState::RUNNING, "");
    assert!(pause.run(&machine, &driver).unwrap_err().contains("another process"));
    pause.pid = 3_999_999;
    assert!(pause.run(&machine, &driver).unwrap_err().contains("has ended"));
    assert!(driver.calls.borrow().is_empty());
}
