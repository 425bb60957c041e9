//! `gpuheap pause` and `gpuheap resume`.

use std::io::Error;
use std::path::{Path, PathBuf};

use clap::Args;
use gpuheap::driver::LibCuda;
use gpuheap_doctor::pause::Pause;
use gpuheap_doctor::{Here, Machine};

use crate::exit::{Failure, Verdict};
use crate::{free, machine, output};

/// Arguments of `gpuheap pause` and `gpuheap resume`.
#[derive(Args, Debug)]
pub(crate) struct PauseArguments {
    /// The process
    #[arg(value_name = "PID")]
    pid: u32,

    /// Carry out the plan; without --yes, it is only printed
    #[arg(long)]
    yes: bool,
}

/// Moves a process's device memory to the host.
pub(crate) fn pause(arguments: &PauseArguments) -> Result<Verdict, Failure> {
    let machine = Machine::read_devices(Here);
    machine::devices(&machine, None)?;
    let pid = arguments.pid;
    let pause = Pause::plan(&machine, pid).map_err(Failure::environment_error)?;
    let name = format!("pid {pid} ({})", pause.command);
    if !arguments.yes {
        let text = pause.render(&machine, machine::width());
        return output::print(&text).map(|()| Verdict::Fine);
    }
    let driver = driver()?;
    // Writes the record of the pause first, because a resume needs its byte counts. If the pause
    // fails, the record does no harm: a resume checks the process's state.
    let path = state_file(pid)?;
    let text = serde_json::to_string_pretty(&pause).map_err(Failure::environment_error)?;
    write(&path, &(text + "\n"))?;
    pause.run(&machine, &driver).map_err(Failure::environment_error)?;
    let back = free::wait_for_memory(machine.devices(), pause.bytes());
    output::print(&format!("paused {name}\n{back}  $ gpuheap resume {pid} --yes\n"))
        .map(|()| Verdict::Fine)
}

/// Moves the memory of a paused process back to its devices.
pub(crate) fn resume(arguments: &PauseArguments) -> Result<Verdict, Failure> {
    let machine = Machine::read_devices(Here);
    machine::devices(&machine, None)?;
    let pid = arguments.pid;
    let path = state_file(pid)?;
    let unknown = || {
        Failure::environment_error(format!(
            "{}: no record of a pause of pid {pid} by this user, so what it needs is not known",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(&path).map_err(|_| unknown())?;
    let pause: Pause = serde_json::from_str(&text).map_err(|_| unknown())?;
    let name = format!("pid {pid} ({})", pause.command);
    if !arguments.yes {
        pause.fits(&machine).map_err(Failure::environment_error)?;
        let memory = pause.memory_in_words();
        let text = format!("{name} would take {memory} back\n  $ gpuheap resume {pid} --yes\n");
        return output::print(&text).map(|()| Verdict::Fine);
    }
    pause.resume(&machine, &driver()?).map_err(Failure::environment_error)?;
    let _ = std::fs::remove_file(&path);
    output::print(&format!("resumed {name}\n")).map(|()| Verdict::Fine)
}

fn driver() -> Result<LibCuda, Failure> {
    LibCuda::open().map_err(Failure::environment_error)
}

/// Returns the path of the file that records the pause of a process.
fn state_file(pid: u32) -> Result<PathBuf, Failure> {
    let folder = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    let state = folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .ok_or_else(|| {
            Failure::environment_error("neither XDG_STATE_HOME nor HOME names a folder to write to")
        })?;
    Ok(state.join(format!("gpuheap/paused-{pid}.json")))
}

/// Writes a file and the folders above it. A reader finds either the old or the new text, even if
/// this process is killed during the write.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: Error| {
        let name = path.display();
        Failure::environment_error(format!(
            "{name}: {error}; set XDG_STATE_HOME to a folder that can be written"
        ))
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    // The name contains the pid, so that two processes that write at the same time use different
    // files.
    let new = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(|error| {
        let _ = std::fs::remove_file(&new);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpuheap/paused-1.json");
        write(&path, "old and long").unwrap();
        let reader = std::fs::File::open(&path).unwrap();
        write(&path, "new").unwrap();
        // The write replaced the file, so the reader's open file still has the old text.
        assert_eq!(std::io::read_to_string(reader).unwrap(), "old and long");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(write(Path::new("/proc/gpuheap/x"), "").is_err());
    }
}
