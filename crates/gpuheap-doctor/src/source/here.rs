//! Reads the facts of this machine.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gpuheap_publish::Detail;

use super::nvml::{self, KeptNvml};
use super::{kcmp, windows};
use crate::facts::{Nvml, Skipped, Source, Why, end_line};

/// Largest number of bytes that are read from one file. `/proc/PID/maps` of a large program has
/// some 2 MiB.
const MOST: u64 = 16 << 20;

/// Largest number of bytes that are read from the kernel's log. The log's ring has 16 MiB at most.
const MOST_OF_LOG: usize = 16 << 20;

/// Time limit for all probes of CUDA. Without persistence mode, the first context takes about 5 s,
/// and each further context 0.5 s.
const LIMIT_OF_CUDA: Duration = Duration::from_secs(30);

/// This machine: its NVML, its `/proc`, and its kernel's log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Here;

impl Here {
    /// Keeps NVML initialised until the result is dropped, for reads that repeat. Does not wait for
    /// NVML.
    pub fn keep_nvml(self) -> KeptNvml {
        nvml::keep_loaded()
    }
}

impl Source for Here {
    fn read(&self, path: &str) -> Result<Vec<u8>, Skipped> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MOST).read_to_end(&mut bytes))
            .map_err(|error| Skipped::io(path, &error))?;
        Ok(bytes)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Skipped> {
        let entries = fs::read_dir(path).map_err(|error| Skipped::io(path, &error))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    fn link(&self, path: &str) -> Result<String, Skipped> {
        let target = fs::read_link(path).map_err(|error| Skipped::io(path, &error))?;
        Ok(target.to_string_lossy().into_owned())
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn nvml(&self) -> Result<Nvml, Skipped> {
        nvml::query()
    }

    fn kernel_log(&self) -> Result<String, Skipped> {
        match read_kmsg() {
            Err(skipped) if skipped.why == Why::Denied => {
                let command =
                    ["journalctl", "-k", "-b", "-q", "-o", "short-monotonic", "-n", "20000"];
                self.run(&command, Duration::from_secs(3)).map_err(|_| skipped)
            }
            read => read,
        }
    }

    fn windows(&self) -> Result<String, Skipped> {
        windows::query(run)
    }

    fn programs(&self, detail: Detail) -> Result<String, Skipped> {
        let found = gpuheap_publish::survey(&gpuheap_publish::sockets(), detail);
        // Serialization of numbers, texts and lists never fails.
        let line = |one| serde_json::to_string(one).unwrap_or_default() + "\n";
        Ok(found.iter().map(line).collect())
    }

    fn cuda(&self, command: &[String]) -> Result<String, Skipped> {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let (text, ended) = run_partly(&command, LIMIT_OF_CUDA)?;
        // Removes the program's path from the reason, because the path does not help the reader.
        let reason = |text: String| match command.first() {
            Some(program) => text.trim_start_matches(&format!("{program}: ")).to_owned(),
            None => text,
        };
        let failure = ended.err().map(|skipped| reason(skipped.text));
        // The last line may be cut off.
        Ok(format!("{text}\n{}", end_line(failure.as_deref())))
    }

    fn run(&self, command: &[&str], limit: Duration) -> Result<String, Skipped> {
        run(command, limit)
    }

    fn is_same_file(&self, one: (u32, u32), other: (u32, u32)) -> Result<bool, Skipped> {
        kcmp::is_same_file(one, other)
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Reads the ring of the kernel's messages. Each read returns one message, `prefix;text`.
fn read_kmsg() -> Result<String, Skipped> {
    const PATH: &str = "/dev/kmsg";
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(Path::new(PATH))
        .map_err(|error| Skipped::io(PATH, &error))?;
    let mut log = String::new();
    let mut record = [0; 8192];
    while log.len() < MOST_OF_LOG {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(count) => add_record(&mut log, &String::from_utf8_lossy(&record[..count])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The message was overwritten in the meantime. The next read continues after it.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Skipped::io(PATH, &error)),
        }
    }
    Ok(log)
}

/// Adds a record `priority,sequence,microseconds,flags;text` as `[seconds] text`.
fn add_record(log: &mut String, record: &str) {
    let Some((prefix, text)) = record.split_once(';') else { return };
    let microseconds = prefix.split(',').nth(2).and_then(|time| time.parse::<u64>().ok());
    let seconds = microseconds.unwrap_or(0) as f64 / 1e6;
    let text = text.lines().next().unwrap_or_default();
    log.push_str(&format!("[{seconds:.6}] {text}\n"));
}

/// Runs a command until it ends. Kills it at the time limit.
fn run(command: &[&str], limit: Duration) -> Result<String, Skipped> {
    let (text, ended) = run_partly(command, limit)?;
    ended.map(|()| text)
}

/// Runs a command as [`run`] does. Returns its output, complete or not, and the reason if it failed
/// or was killed.
///
/// A command that blocks in the kernel cannot be killed, and continues.
fn run_partly(command: &[&str], limit: Duration) -> Result<(String, Result<(), Skipped>), Skipped> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Skipped::new(Why::Missing, "no command"));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Skipped::io(program, &error))?;
    let output = child.stdout.take().map(read_pieces);
    let ended = match wait(&mut child, limit) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(Skipped::new(Why::Failed, format!("{program}: {status}"))),
        Ok(None) => {
            let _ = child.kill();
            let _ = wait(&mut child, LAST_MOMENT);
            let seconds = limit.as_secs_f64();
            let text = format!("{program}: no answer within {seconds} s");
            Err(Skipped::new(Why::TimedOut, text))
        }
        Err(error) => Err(Skipped::io(program, &error)),
    };
    Ok((output.map(collect_text).unwrap_or_default(), ended))
}

/// Longest wait for the end of a killed command, and for the remaining output of an ended command.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Waits until a command ends. Returns `None` if the command still runs after `limit`.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || start.elapsed() >= limit {
            return Ok(ended);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads the output of a command on a thread, so that a full pipe does not stop the command.
fn read_pieces(stdout: ChildStdout) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut stdout = stdout.take(MOST);
        let mut piece = [0; 8192];
        while let Ok(count @ 1..) = stdout.read(&mut piece) {
            // If the receiver was dropped, the output is not needed.
            let _ = sender.send(piece[..count].to_vec());
        }
    });
    receiver
}

/// Returns the output so far. The wait has a limit, because the pipe of a running command stays
/// open.
fn collect_text(pieces: Receiver<Vec<u8>>) -> String {
    let end = Instant::now() + LAST_MOMENT;
    let left = || end.saturating_duration_since(Instant::now());
    let mut bytes = Vec::new();
    while let Ok(piece) = pieces.recv_timeout(left()) {
        bytes.extend(piece);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hanging_command_times_out() {
        let skipped = Here.run(&["sleep", "30"], Duration::from_millis(50)).unwrap_err();
        assert_eq!(skipped.why, Why::TimedOut, "{skipped}");
        assert!(skipped.text.contains("within 0.05 s"), "{skipped}");
        let skipped = Here.run(&["gpuheap-no-such-command"], Duration::from_secs(1)).unwrap_err();
        assert_eq!(skipped.why, Why::Missing, "{skipped}");
    }

    #[test]
    fn killed_command_keeps_its_output() {
        let limit = Duration::from_millis(300);
        let (text, ended) = run_partly(&["sh", "-c", "echo one; sleep 30"], limit).unwrap();
        assert_eq!((text.as_str(), ended.unwrap_err().why), ("one\n", Why::TimedOut));
        let command = ["sh", "-c", "echo one; kill -9 $$"].map(str::to_owned);
        let text = Here.cuda(&command).unwrap();
        assert!(text.starts_with("one\n") && text.contains("signal: 9"), "{text}");
        assert_eq!(Here.cuda(&[]).unwrap_err().why, Why::Missing);
    }

    #[test]
    fn kernel_records_become_lines() {
        let mut log = String::new();
        add_record(
            &mut log,
            "4,1234,5000001,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1\n SUBSYSTEM=pci\n",
        );
        add_record(&mut log, "garbage");
        assert_eq!(log, "[5.000001] NVRM: Xid (PCI:0000:01:00): 79, pid=1\n");
    }
}
