//! `gpuheap pause` and `gpuheap resume`.

use clap::Args;
use gpuheap::driver::LibCuda;
use gpuheap_doctor::pause::Pause;
use gpuheap_doctor::{Here, Machine};

use crate::failure::Failure;
use crate::verdict::Verdict;
use crate::{free, machine, output, state};

/// Arguments of `gpuheap pause` and `gpuheap resume`.
#[derive(Args, Debug)]
pub(crate) struct PauseArguments {
    /// The process
    #[arg(value_name = "PID")]
    pid: u32,

    /// Do it; without it only what would be done is printed
    #[arg(long)]
    yes: bool,
}

/// Moves a process's device memory to the host.
///
/// # Errors
///
/// Returns a failure if there is no GPU, if the process cannot be paused, or if the driver fails.
pub(crate) fn pause(arguments: &PauseArguments) -> Result<Verdict, Failure> {
    let machine = Machine::read(Here);
    machine::nvml(&machine)?;
    let pid = arguments.pid;
    let pause = Pause::plan(&machine, pid).map_err(Failure::could_not_look)?;
    let name = format!("pid {pid} ({})", pause.command);
    if !arguments.yes {
        let text = pause.render(&machine, machine::width());
        return output::print(&text).map(|()| Verdict::Fine);
    }
    let driver = driver()?;
    // The record is written before the pause: without it nothing knows what the process needs. If
    // the pause fails, the record does no harm, because a resume checks the process's state.
    let path = state::path(&file(pid))?;
    let text = serde_json::to_string_pretty(&pause).map_err(Failure::could_not_look)?;
    state::write(&path, &(text + "\n"))?;
    pause.run(&machine, &driver).map_err(Failure::could_not_look)?;
    let back = free::came_back(machine.devices(), pause.bytes());
    output::print(&format!("paused {name}\n{back}  $ gpuheap resume {pid} --yes\n"))
        .map(|()| Verdict::Fine)
}

/// Moves the memory of a paused process back to its devices.
///
/// # Errors
///
/// Returns a failure if this user's gpuheap did not pause the process, if a device lacks memory, or
/// if the driver fails.
pub(crate) fn resume(arguments: &PauseArguments) -> Result<Verdict, Failure> {
    let machine = Machine::read(Here);
    machine::nvml(&machine)?;
    let pid = arguments.pid;
    let path = state::path(&file(pid))?;
    let unknown = || {
        Failure::could_not_look(format!(
            "{}: no record of a pause of pid {pid} by this user, so what it needs is not known",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(&path).map_err(|_| unknown())?;
    let pause: Pause = serde_json::from_str(&text).map_err(|_| unknown())?;
    let name = format!("pid {pid} ({})", pause.command);
    if !arguments.yes {
        pause.fits(&machine).map_err(Failure::could_not_look)?;
        let memory = pause.memory_in_words();
        let text = format!("{name} would take {memory} back\n  $ gpuheap resume {pid} --yes\n");
        return output::print(&text).map(|()| Verdict::Fine);
    }
    pause.resume(&machine, &driver()?).map_err(Failure::could_not_look)?;
    let _ = std::fs::remove_file(&path);
    output::print(&format!("resumed {name}\n")).map(|()| Verdict::Fine)
}

/// Returns the name of the record of a pause.
fn file(pid: u32) -> String {
    format!("paused-{pid}.json")
}

fn driver() -> Result<LibCuda, Failure> {
    LibCuda::open().map_err(Failure::could_not_look)
}
