//! Requests to a process to give back memory that it does not use.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::evidence;
use crate::machine::{Machine, Process};

/// Time limit for the answer. The target runs the request between two steps of Python.
const PATIENCE: Duration = Duration::from_secs(10);

/// Program for the target's own interpreter, because the release of `sys.remote_exec` must match.
const SENDER: &str = "\
import sys
ask = getattr(sys, 'remote_exec', None)
if ask is None:
    sys.exit(3)
ask(int(sys.argv[1]), sys.argv[2])
";

/// Program that the target runs. It imports only modules that the target has imported already.
const REQUEST: &str = "\
import sys, gc
def release():
    torch, cupy = sys.modules.get('torch'), sys.modules.get('cupy')
    gc.collect()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
try:
    release()
    answer = 'done'
except Exception as error:
    answer = repr(error)
try:
    with open(ANSWER + '.part', 'w') as file:
        file.write(answer)
    import os
    os.rename(ANSWER + '.part', ANSWER)
except OSError:
    pass
";

/// Returns the command that asks a process to give memory back, with the reason why that would
/// help. `None` if the program is not known to take such a request.
pub(crate) fn command(process: &Process) -> Option<(&'static str, String)> {
    let pid = process.pid;
    if process.runs("ollama") {
        let text = "Ollama unloads a model on request";
        return Some((
            text,
            "ollama ps | awk 'NR>1{print $1}' | xargs -rn1 ollama stop".to_owned(),
        ));
    }
    if process.runs("ComfyUI") {
        let text = "ComfyUI unloads its models on request";
        let body = "{\"unload_models\":true,\"free_memory\":true}";
        let header = "Content-Type: application/json";
        return Some((text, format!("curl -H '{header}' -d '{body}' http://127.0.0.1:8188/free")));
    }
    if process.runs("vllm") {
        let text = "vLLM with --enable-sleep-mode frees its memory on request";
        return Some((text, "curl -X POST http://127.0.0.1:8000/sleep?level=1".to_owned()));
    }
    let has_cache = process.has_loaded("libtorch_cuda")
        || process.has_loaded("libc10_cuda")
        || process.has_loaded("cupy");
    (has_cache && process.python().is_some_and(|version| version >= (3, 14))).then(|| {
        ("Python gives back cached memory on request", format!("gpuheap free --ask {pid}"))
    })
}

/// Asks a Python process of this machine to empty the caches of PyTorch and CuPy. The process runs
/// the request between two steps of Python. Blocks until it has answered, for ten seconds at most.
///
/// # Errors
///
/// Returns an error if the process does not exist, or does not run Python 3.14 or later. Also if
/// this user may not debug it, or if it does not answer in time.
pub fn ask(machine: &Machine, pid: u32) -> Result<(), String> {
    let Some(process) = machine.process(pid) else {
        return Err(format!("pid {pid} has no device open; see gpuheap status"));
    };
    let version = process.python().ok_or_else(|| format!("pid {pid} is no Python"))?;
    if version < (3, 14) {
        return Err(format!(
            "pid {pid} runs Python {}.{}, and 3.14 is the first that takes requests",
            version.0, version.1
        ));
    }
    // This user runs the target's interpreter, which must read this user's file.
    if process.uid.is_none() || process.uid != machine.host.uid {
        return Err(format!("pid {pid} belongs to {}; ask as that user", process.user));
    }
    let mounts = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    if mounts("self") != mounts(&pid.to_string()) {
        return Err(format!(
            "pid {pid} sees other files, as in a container; ask from inside of it"
        ));
    }
    if Machine::start_of(pid) != Some(process.start_ticks) {
        return Err(format!("pid {pid} is another process by now; look again with gpuheap status"));
    }
    send(Path::new(&format!("/proc/{pid}/exe")), pid)
}

/// Sends the request through an interpreter, and waits for the answer.
fn send(interpreter: &Path, pid: u32) -> Result<(), String> {
    let folder = Folder::new(pid)?;
    let (request, answer) = (folder.0.join("request.py"), folder.0.join("answer"));
    let text = program(&answer)?;
    fs::write(&request, text).map_err(|error| format!("{}: {error}", request.display()))?;
    let sent = Command::new(interpreter)
        .args(["-I", "-c", SENDER, &pid.to_string()])
        .arg(&request)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", interpreter.display()))?;
    match sent.status.code() {
        Some(0) => {}
        Some(3) => return Err(format!("the Python of pid {pid} has no sys.remote_exec")),
        _ => {
            let text = String::from_utf8_lossy(&sent.stderr);
            let last = text.lines().last().unwrap_or("it was refused");
            return Err(format!("pid {pid} cannot be asked: {last}"));
        }
    }
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Ok(text) = fs::read_to_string(&answer) {
            return match text.as_str() {
                "done" => Ok(()),
                error => Err(format!("pid {pid} could not give memory back: {error}")),
            };
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // The target may still open the request later, so the request is emptied. The folder stays, so
    // that no other user can take its name.
    let _ = fs::write(&request, "");
    std::mem::forget(folder);
    Err(format!(
        "pid {pid} has not answered within {} s; it may be in a long call",
        PATIENCE.as_secs()
    ))
}

/// Returns the request, with the path of its answer filled in.
fn program(answer: &Path) -> Result<String, String> {
    let path = answer.to_str().ok_or_else(|| format!("{} is not UTF-8", answer.display()))?;
    // A JSON string is a valid Python string.
    let literal = serde_json::to_string(path).map_err(|error| error.to_string())?;
    Ok(format!("ANSWER = {literal}\n{REQUEST}"))
}

/// Folder that only this user can open. A drop removes it.
struct Folder(PathBuf);

impl Folder {
    fn new(pid: u32) -> Result<Folder, String> {
        let own = std::process::id();
        // The path is absolute, because the target has another working folder.
        let parent = fs::canonicalize(std::env::temp_dir())
            .map_err(|error| format!("{}: {error}", std::env::temp_dir().display()))?;
        let path = parent.join(format!("gpuheap-ask-{own}-{pid}"));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind holds no secrets.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the requests that would help on a machine: process, reason, command, and the bytes that
/// the driver lists for the process.
pub(crate) fn requests(machine: &Machine) -> Vec<(u32, &'static str, String, u64)> {
    let is_own = |process: &&Process| process.uid.is_some() && process.uid == machine.host.uid;
    evidence::with_memory(machine)
        .filter(is_own)
        .filter_map(|process| {
            let (reason, command) = command(process)?;
            let bytes = evidence::bytes_of(machine, process.pid).unwrap_or(0);
            Some((process.pid, reason, command, bytes))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_without_remote_execution_says_so() {
        let Some(python) = ["/usr/bin/python3", "/usr/local/bin/python3"]
            .iter()
            .find(|path| Path::new(path).exists())
        else {
            return;
        };
        let is_new = Command::new(python)
            .args(["-c", "import sys; sys.exit(not hasattr(sys, 'remote_exec'))"])
            .status()
            .unwrap()
            .success();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let answer = send(Path::new(python), child.id()).unwrap_err();
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = if is_new { "cannot be asked" } else { "no sys.remote_exec" };
        assert!(answer.contains(expected), "{answer}");
    }

    #[test]
    fn request_runs_without_any_library_and_answers() {
        let Some(python) = ["/usr/bin/python3", "/usr/local/bin/python3"]
            .iter()
            .find(|path| Path::new(path).exists())
        else {
            return;
        };
        let folder = Folder::new(u32::MAX).unwrap();
        let answer = folder.0.join("answer");
        let program = program(&answer).unwrap();
        assert!(Command::new(python).args(["-c", &program]).status().unwrap().success());
        assert_eq!(fs::read_to_string(&answer).unwrap(), "done");
        let path = folder.0.clone();
        drop(folder);
        assert!(!path.exists());
    }
}
