//! Recorded machine: a text file with a section for each fact.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use gpuheap_publish::Detail;

use crate::facts::{Nvml, Skipped, Source, Why};

/// A recorded machine.
///
/// The text has sections, each with a heading:
///
/// ```text
/// # Lines before the first section are remarks.
/// == /proc/4188/cmdline            a file; \0 stands for a byte of zero
/// == /proc/4188/fd/5 -> /dev/nvidia0      a link
/// == /proc/4188/environ !denied    an unreadable file: !denied, !missing, !timeout, !failed
/// == nvml                          JSON of machine::Nvml
/// == environment                   NAME=value lines
/// == kernel log                    [seconds] text
/// == windows                       fields with | between them, as Source::windows has them
/// == programs                      a line of JSON for each process, as Source::programs has them
/// == cuda                          a line of JSON for each probe, as Source::cuda has them
/// == run ldconfig -p               the output of a command
/// == same 4188:5 4189:5            two descriptors of one open file
/// ```
///
/// A later section replaces an earlier section of the same name, so a recording can consist of a
/// base and its differences. A folder contains the recorded paths below it.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    sections: BTreeMap<String, Section>,
}

#[derive(Debug, Clone, PartialEq)]
enum Section {
    Text(String),
    Link(String),
    Unreadable(Why),
}

/// Error for a text that is not a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingError {
    line: usize,
    reason: String,
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the recording's line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for RecordingError {}

impl Recording {
    /// Parses a recording.
    ///
    /// # Errors
    ///
    /// Returns an error with the line of a heading that is not known.
    pub fn parse(text: &str) -> Result<Recording, RecordingError> {
        let mut sections = BTreeMap::new();
        let mut current: Option<(String, String)> = None;
        for (index, line) in text.lines().enumerate() {
            let Some(heading) = line.strip_prefix("== ") else {
                if let Some((_, body)) = &mut current {
                    body.push_str(line);
                    body.push('\n');
                }
                continue;
            };
            if let Some((name, body)) = current.take() {
                sections.insert(name, Section::Text(body));
            }
            let heading = heading.trim();
            if let Some((name, target)) = heading.split_once(" -> ") {
                sections.insert(name.to_owned(), Section::Link(target.to_owned()));
            } else if let Some((name, why)) = heading.rsplit_once(" !") {
                let why = match why {
                    "denied" => Why::Denied,
                    "missing" => Why::Missing,
                    "timeout" => Why::TimedOut,
                    "failed" => Why::Failed,
                    _ => {
                        let reason =
                            format!("!{why} is none of !denied, !missing, !timeout, !failed");
                        return Err(RecordingError { line: index + 1, reason });
                    }
                };
                sections.insert(name.to_owned(), Section::Unreadable(why));
            } else {
                current = Some((heading.to_owned(), String::new()));
            }
        }
        if let Some((name, body)) = current {
            sections.insert(name, Section::Text(body));
        }
        Ok(Recording { sections })
    }

    /// Returns the names of the sections.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sections.keys().map(String::as_str)
    }

    /// Makes the section `name` unreadable for the reason `why`, or removes it for
    /// [`Why::Missing`].
    #[must_use]
    pub fn without(mut self, name: &str, why: Why) -> Recording {
        self.sections.insert(name.to_owned(), Section::Unreadable(why));
        self
    }

    /// Replaces the text of the section `name`.
    #[must_use]
    pub fn with(mut self, name: &str, text: &str) -> Recording {
        self.sections.insert(name.to_owned(), Section::Text(text.to_owned()));
        self
    }

    /// Adds the sections of `base` that this recording lacks.
    #[must_use]
    pub fn on_base(self, mut base: Recording) -> Recording {
        base.sections.extend(self.sections);
        base
    }

    /// Returns the text of the section `name`; `None` if it is missing or has no text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.sections.get(name)? {
            Section::Text(text) => Some(text),
            _ => None,
        }
    }

    fn find(&self, name: &str) -> Result<&str, Skipped> {
        match self.sections.get(name) {
            Some(Section::Text(text)) => Ok(text),
            Some(Section::Unreadable(why)) => Err(skipped(*why, name)),
            Some(Section::Link(_)) => Err(skipped(Why::Failed, name)),
            None => Err(skipped(Why::Missing, name)),
        }
    }
}

fn skipped(why: Why, name: &str) -> Skipped {
    let text = match why {
        Why::Missing => "no such file or directory",
        Why::Denied => "permission denied",
        Why::TimedOut => "no answer in time",
        Why::Failed => "cannot be read",
    };
    Skipped::new(why, format!("{name}: {text}"))
}

impl Source for Recording {
    fn read(&self, path: &str) -> Result<Vec<u8>, Skipped> {
        Ok(self.find(path)?.replace("\\0", "\0").into_bytes())
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Skipped> {
        if let Some(Section::Unreadable(why)) = self.sections.get(path) {
            return Err(skipped(*why, path));
        }
        let prefix = format!("{}/", path.trim_end_matches('/'));
        let mut names: Vec<String> = self
            .sections
            .range(prefix.clone()..)
            .take_while(|(name, _)| name.starts_with(&prefix))
            .filter(|(_, section)| !matches!(section, Section::Unreadable(Why::Missing)))
            .filter_map(|(name, _)| name[prefix.len()..].split('/').next().map(str::to_owned))
            .collect();
        names.dedup();
        if names.is_empty() { Err(skipped(Why::Missing, path)) } else { Ok(names) }
    }

    fn link(&self, path: &str) -> Result<String, Skipped> {
        match self.sections.get(path) {
            Some(Section::Link(target)) => Ok(target.clone()),
            _ => Err(self.find(path).err().unwrap_or_else(|| skipped(Why::Failed, path))),
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        let variables = self.find("environment").ok()?;
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        variables.lines().find_map(value)
    }

    fn nvml(&self) -> Result<Nvml, Skipped> {
        let text = self.find("nvml")?;
        serde_json::from_str(text)
            .map_err(|error| Skipped::new(Why::Failed, format!("nvml: {error}")))
    }

    fn kernel_log(&self) -> Result<String, Skipped> {
        self.find("kernel log").map(str::to_owned)
    }

    fn windows(&self) -> Result<String, Skipped> {
        self.find("windows").map(str::to_owned)
    }

    fn programs(&self, _detail: Detail) -> Result<String, Skipped> {
        self.find("programs").map(str::to_owned)
    }

    fn cuda(&self, _command: &[String]) -> Result<String, Skipped> {
        self.find("cuda").map(str::to_owned)
    }

    fn run(&self, command: &[&str], _limit: Duration) -> Result<String, Skipped> {
        self.find(&format!("run {}", command.join(" "))).map(str::to_owned)
    }

    fn is_same_file(&self, one: (u32, u32), other: (u32, u32)) -> Result<bool, Skipped> {
        let name = |a: (u32, u32), b: (u32, u32)| format!("same {}:{} {}:{}", a.0, a.1, b.0, b.1);
        for name in [name(one, other), name(other, one)] {
            match self.find(&name) {
                Ok(_) => return Ok(true),
                Err(skipped) if skipped.why == Why::Missing => {}
                Err(skipped) => return Err(skipped),
            }
        }
        Ok(false)
    }

    fn pause(&self, _time: Duration) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# remark\n== /a/b\none\\0two\n== /a/c -> /dev/null\n== /a/d !denied\n\
                        == environment\nHOME=/home/ann\n== same 1:2 3:4\n== run true -p\nyes\n";

    #[test]
    fn sections_are_read_by_their_kind() {
        let recording = Recording::parse(TEXT).unwrap();
        assert_eq!(recording.read("/a/b").unwrap(), b"one\0two\n");
        assert_eq!(recording.link("/a/c").unwrap(), "/dev/null");
        assert_eq!(recording.read("/a/d").unwrap_err().why, Why::Denied);
        assert_eq!(recording.list("/a").unwrap(), ["b", "c", "d"]);
        assert_eq!(recording.variable("HOME").as_deref(), Some("/home/ann"));
        assert_eq!(recording.is_same_file((3, 4), (1, 2)), Ok(true));
        assert_eq!(recording.is_same_file((3, 5), (1, 2)), Ok(false));
        assert_eq!(recording.run(&["true", "-p"], Duration::ZERO).unwrap(), "yes\n");
        assert_eq!(recording.nvml().unwrap_err().why, Why::Missing);
    }

    #[test]
    fn unknown_heading_is_refused_with_line() {
        let error = Recording::parse("== /a\n== /b !gone\n").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
