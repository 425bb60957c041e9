//! Source that reads this machine and records all facts that it reads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpuheap_publish::Detail;

use super::Here;
use crate::facts::{Nvml, Skipped, Source, Why, device, is_kept_variable, windows_drive};

/// This machine, with a record of all facts that were read. A [`Recording`](crate::Recording)
/// parses the record. Clones share one record.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    sections: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Recorder {
    /// Returns the record so far, for [`Recording::parse`](crate::Recording::parse). The record
    /// contains complete command lines, but only the environment variables that rules read.
    pub fn text(&self) -> String {
        let sections = self.sections.lock().unwrap_or_else(PoisonError::into_inner);
        sections.values().map(String::as_str).collect()
    }

    fn insert(&self, name: &str, section: String) {
        let mut sections = self.sections.lock().unwrap_or_else(PoisonError::into_inner);
        sections.insert(name.to_owned(), section);
    }

    /// Records a text, or the reason why it is missing.
    fn record<T>(&self, name: &str, looked: &Result<T, Skipped>, text: impl Fn(&T) -> String) {
        let section = match looked {
            Ok(value) => {
                // A line that looks like a heading would begin a section.
                let body = text(value).replace('\0', "\\0").replace("\n== ", "\n ==");
                let end = if body.is_empty() || body.ends_with('\n') { "" } else { "\n" };
                format!("== {name}\n{body}{end}")
            }
            Err(skipped) => match skipped.why {
                Why::Missing => return,
                Why::Denied => format!("== {name} !denied\n"),
                Why::TimedOut => format!("== {name} !timeout\n"),
                Why::Failed => format!("== {name} !failed\n"),
            },
        };
        self.insert(name, section);
    }
}

impl Source for Recorder {
    fn read(&self, path: &str) -> Result<Vec<u8>, Skipped> {
        let read = Here.read(path);
        self.record(path, &read, |bytes| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            if !path.ends_with("/environ") {
                return text;
            }
            let lines = text.split('\0').filter(|line| {
                line.split_once('=').is_some_and(|(name, _)| is_kept_variable(name))
            });
            lines.collect::<Vec<_>>().join("\0")
        });
        read
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Skipped> {
        let listed = Here.list(path);
        match &listed {
            Err(_) => self.record(path, &listed, |_| String::new()),
            Ok(names) if path == "/dev" => {
                let devices =
                    names.iter().filter(|name| *name == "dxg" || name.starts_with("nvidia"));
                devices.for_each(|name| {
                    self.insert(&format!("/dev/{name}"), format!("== /dev/{name}\n"))
                });
            }
            Ok(_) => {}
        }
        listed
    }

    fn link(&self, path: &str) -> Result<String, Skipped> {
        let link = Here.link(path);
        if let Ok(target) = &link
            && (target.starts_with("/dev/") || device(target).is_some() || path.contains("/ns/"))
        {
            self.insert(path, format!("== {path} -> {target}\n"));
        } else if let Ok(target) = &link
            && let Some(drive) = windows_drive(target)
        {
            // Names of a user's files are private.
            self.insert(path, format!("== {path} -> {drive}/(file)\n"));
        }
        link
    }

    fn variable(&self, name: &str) -> Option<String> {
        Here.variable(name)
    }

    fn nvml(&self) -> Result<Nvml, Skipped> {
        let nvml = Here.nvml();
        self.record("nvml", &nvml, |nvml| serde_json::to_string_pretty(nvml).unwrap_or_default());
        nvml
    }

    fn kernel_log(&self) -> Result<String, Skipped> {
        let log = Here.kernel_log();
        self.record("kernel log", &log, |log| {
            let lines = log.lines().filter(|line| line.contains("NVRM") || line.contains("dxg"));
            lines.map(|line| format!("{line}\n")).collect()
        });
        log
    }

    fn windows(&self) -> Result<String, Skipped> {
        let windows = Here.windows();
        self.record("windows", &windows, String::clone);
        windows
    }

    fn programs(&self, _detail: Detail) -> Result<String, Skipped> {
        let programs = Here.programs(Detail::All);
        self.record("programs", &programs, String::clone);
        programs
    }

    fn cuda(&self, command: &[String]) -> Result<String, Skipped> {
        let asked = Here.cuda(command);
        self.record("cuda", &asked, String::clone);
        asked
    }

    fn run(&self, command: &[&str], limit: Duration) -> Result<String, Skipped> {
        let ran = Here.run(command, limit);
        self.record(&format!("run {}", command.join(" ")), &ran, String::clone);
        ran
    }

    fn is_same_file(&self, one: (u32, u32), other: (u32, u32)) -> Result<bool, Skipped> {
        let is_same = Here.is_same_file(one, other);
        if is_same == Ok(true) {
            let name = format!("same {}:{} {}:{}", one.0, one.1, other.0, other.1);
            self.insert(&name, format!("== {name}\n"));
        }
        is_same
    }

    fn pause(&self, time: Duration) {
        Here.pause(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Recording, diagnose};

    #[test]
    fn recorded_machine_has_same_findings() {
        let recorder = Recorder::default();
        let mut machine = Machine::read(recorder.clone());
        machine.examine();
        let mut recorded = Machine::read(Recording::parse(&recorder.text()).unwrap());
        recorded.examine();
        assert_eq!(recorded.host, machine.host);
        assert_eq!(recorded.nvml.is_ok(), machine.nvml.is_ok());
        assert_eq!(diagnose(&recorded).findings, diagnose(&machine).findings);
        assert!(recorded.visible.contains_key(&std::process::id()));
    }
}
