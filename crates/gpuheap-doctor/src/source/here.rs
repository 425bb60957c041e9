//! This machine.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Skipped, Source, Why, kcmp, nvml, windows};
use crate::machine::Nvml;

/// The most bytes read of one file. `/proc/PID/maps` of a large program has some 2 MiB.
const MOST: u64 = 16 << 20;

/// The most bytes read of the kernel's log, whose ring has 16 MiB at most.
const MOST_OF_LOG: usize = 16 << 20;

/// This machine: its NVML, its `/proc`, and its kernel's log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Here;

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
        nvml::ask()
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
        windows::ask(run)
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
    let Some(mut stdout) = child.stdout.take() else {
        return Err(Skipped::new(Why::Failed, format!("{program}: no output")));
    };
    // Another thread reads, so that a full pipe does not stop the command.
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stdout.by_ref().take(MOST).read_to_end(&mut bytes);
        bytes
    });
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(Some(status)) => {
                return Err(Skipped::new(Why::Failed, format!("{program}: {status}")));
            }
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                let seconds = limit.as_secs_f64();
                let text = format!("{program}: no answer within {seconds} s");
                return Err(Skipped::new(Why::TimedOut, text));
            }
            Err(error) => return Err(Skipped::io(program, &error)),
        }
    }
    let bytes =
        reader.join().map_err(|_| Skipped::new(Why::Failed, format!("{program}: no output")))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_skipped_with_its_reason() {
        let skipped = Here.run(&["sleep", "30"], Duration::from_millis(50)).unwrap_err();
        assert_eq!(skipped.why, Why::TimedOut, "{skipped}");
        assert!(skipped.text.contains("within 0.05 s"), "{skipped}");
        let skipped = Here.run(&["gpuheap-no-such-command"], Duration::from_secs(1)).unwrap_err();
        assert_eq!(skipped.why, Why::Missing, "{skipped}");
    }

    #[test]
    fn records_of_the_kernel_become_lines() {
        let mut log = String::new();
        add_record(
            &mut log,
            "4,1234,5000001,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1\n SUBSYSTEM=pci\n",
        );
        add_record(&mut log, "garbage");
        assert_eq!(log, "[5.000001] NVRM: Xid (PCI:0000:01:00): 79, pid=1\n");
    }
}
