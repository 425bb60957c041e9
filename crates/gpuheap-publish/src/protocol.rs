//! Defines questions about a process's memory and the answers, and encodes them as lines of JSON.

use std::fmt;
use std::time::Duration;

use gpuheap_text::Amount;
use serde::{Deserialize, Serialize};

use crate::text::{Bounded, Texts};

/// Version of the protocol. Each question and each answer contains it.
const VERSION: u32 = 1;

/// Maximum length, in bytes, of the line with which a client sends a question.
pub(crate) const MOST_QUESTION: usize = 4096;

/// Maximum length of an answer's line, in bytes. [`MOST_ENTRIES`] entries with texts of
/// [`MOST_TEXT`] characters need at most half of the bytes.
pub(crate) const MOST_ANSWER: usize = 1 << 20;

/// Maximum number of entries of a list in an answer to a client.
pub const MOST_ENTRIES: usize = 100;

/// Maximum number of characters of a text in an answer to a client.
pub(crate) const MOST_TEXT: usize = 200;

/// Maximum number of characters of a recording's path. Linux allows paths of 4,096 bytes.
const MOST_PATH: usize = 4096;

/// Value of [`HeapStatus::pool`] for memory that a recorder counts. A heap may count the same
/// memory too.
pub const RECORDED: &str = "recorded";

/// A question about a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "question", rename_all = "snake_case")]
pub enum Question {
    /// The heaps with their bytes and limits.
    Status,
    /// Outstanding allocations by line, most bytes first.
    Leaks,
    /// Outstanding allocations, largest first, with the names in the program that refer to them.
    Held,
    /// Scopes that have not ended, most bytes first.
    Scopes,
    /// Memory of libraries, most bytes first.
    Libraries,
    /// Returns cached memory of all heaps to the driver.
    Flush,
    /// Sets the hard limit of a device's heaps.
    Limit {
        /// Name of the device, as in [`HeapStatus::device`].
        device: String,
        /// The limit in bytes; `None` for no limit. JSON needs `null`, not a missing field.
        #[serde(deserialize_with = "Option::deserialize")]
        bytes: Option<u64>,
    },
    /// Records the allocations of all heaps into files. The program chooses the paths.
    StartRecording,
    /// Ends the recordings that [`Question::StartRecording`] started.
    StopRecording,
}

impl Question {
    /// Returns `true` if the question requests a change in the program, such as a flush.
    pub fn is_change(&self) -> bool {
        use Question::{Held, Leaks, Libraries, Scopes, Status};
        !matches!(self, Status | Leaks | Held | Scopes | Libraries)
    }

    /// Returns the maximum time that the program may take to answer. A flush waits for pending
    /// frees. A search for holders waits for Python's garbage collector.
    pub(crate) fn limit(&self) -> Duration {
        let is_slow = self.is_change() || *self == Question::Held;
        Duration::from_secs(if is_slow { 10 } else { 1 })
    }

    pub(crate) fn to_line(&self) -> String {
        to_line(self)
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Answer to [`Question::Status`].
    Status(Status),
    /// Answer to [`Question::Leaks`].
    Leaks(Leaks),
    /// Answer to [`Question::Held`], most bytes first.
    Held(Vec<Held>),
    /// Answer to [`Question::Scopes`], most bytes first.
    Scopes(Vec<OpenScope>),
    /// Answer to [`Question::Libraries`], most bytes first.
    Libraries(Vec<LibraryMemory>),
    /// Answer to [`Question::StartRecording`] and [`Question::StopRecording`].
    Recordings(Vec<Recorded>),
    /// Answer to [`Question::Flush`] and [`Question::Limit`]: bytes given back to the driver.
    GivenBack(u64),
    /// The question was not answered.
    Refused(Refusal),
}

impl Answer {
    /// Returns the answer as a line for the client. Cuts lists and texts that are too long.
    pub(crate) fn to_line(&self) -> String {
        to_line(&self.clone().bounded())
    }

    /// Cuts lists that are too long. [`Texts`] cuts texts when an answer is written or read.
    fn bounded(mut self) -> Answer {
        match &mut self {
            Answer::Status(status) => truncate(&mut status.heaps, &mut status.left_out),
            Answer::Leaks(leaks) => truncate(&mut leaks.sites, &mut leaks.left_out),
            Answer::Held(held) => held.truncate(MOST_ENTRIES),
            Answer::Scopes(scopes) => scopes.truncate(MOST_ENTRIES),
            Answer::Libraries(libraries) => libraries.truncate(MOST_ENTRIES),
            Answer::Recordings(recordings) => recordings.truncate(MOST_ENTRIES),
            Answer::GivenBack(_) | Answer::Refused(_) => {}
        }
        self
    }
}

/// The heaps of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Command line of the program, without its executable's folder.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub program: String,
    /// Questions that the program answers.
    pub access: Access,
    /// The heaps, and recorded memory of other allocators.
    pub heaps: Vec<HeapStatus>,
    /// Number of heaps that the list leaves out.
    pub left_out: u64,
}

/// A heap. Its sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapStatus {
    /// Name of the device in the program: `cuda:0`, `emulated:16GiB`.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub device: String,
    /// UUID of the device, `GPU-...`.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub uuid: String,
    /// Name of the pool; [`RECORDED`] for memory that a recorder counts.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub pool: String,
    /// Live bytes, as requested.
    pub live: u64,
    /// High-water mark of the live bytes.
    pub live_peak: u64,
    /// Free bytes that the heap keeps.
    pub cached: u64,
    /// Bytes taken from the driver. They include live bytes, cached bytes and rounding.
    pub reserved: u64,
    /// Number of allocations so far.
    pub allocations: u64,
    /// Number of frees so far.
    pub frees: u64,
    /// Soft limit.
    pub soft_limit: Option<u64>,
    /// Hard limit.
    pub hard_limit: Option<u64>,
    /// Access that the heap allows to clients: reading only, or changes too. The answering thread
    /// sets this field.
    #[serde(default)]
    pub access: Access,
}

/// Outstanding allocations by line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaks {
    /// `true` if at least one heap records lines.
    pub is_tracked: bool,
    /// The lines, most bytes first.
    pub sites: Vec<Site>,
    /// Number of lines that the list leaves out.
    pub left_out: u64,
}

/// Outstanding allocations of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// File and line: `train.py:41`.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub line: String,
    /// Function that contains the line; empty if unknown.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub function: String,
    /// Name of the device in the program.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub device: String,
    /// Kind of the memory: `device`, `unified`, `pinned` or `registered`.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub kind: String,
    /// Number of the allocations.
    pub allocations: u64,
    /// Bytes of the allocations, as requested.
    pub bytes: u64,
}

/// An outstanding allocation with its holders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// File and line of the allocation.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub line: String,
    /// Name of the device in the program.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub device: String,
    /// Bytes of the allocation, as requested.
    pub bytes: u64,
    /// Seconds since the allocation.
    pub age_seconds: f64,
    /// Names in the program that refer to the memory, for example `global cache of train`.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub holders: Vec<String>,
}

/// A scope that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenScope {
    /// Name of the scope in Python. In Rust, the line where it begins, such as `src/train.rs:41`.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub name: String,
    /// Name of the device in the program.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub device: String,
    /// Live bytes that are freed or reported when the scope ends.
    pub live: u64,
    /// Limit of the live bytes.
    pub limit: Option<u64>,
}

impl fmt::Display for OpenScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Some(limit) => write!(f, "{}, limit {}", self.name, Amount(limit)),
            None => f.write_str(&self.name),
        }
    }
}

/// Memory of a library on a device, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryMemory {
    /// Name of the library: `PyTorch`.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub name: String,
    /// Name of the device in the program; empty if `failure` is set.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub device: String,
    /// Live bytes.
    pub live: u64,
    /// Free bytes that the library's own allocator keeps.
    pub cached: u64,
    /// `true` if the library's own allocator counts the bytes; `false` if they are part of the live
    /// bytes of a gpuheap heap.
    pub is_own: bool,
    /// Reason why no heap serves the library.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub failure: Option<String>,
}

impl fmt::Display for LibraryMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LibraryMemory { name, device, is_own, failure, .. } = self;
        let cached = Amount(self.cached);
        match (failure, is_own) {
            (Some(reason), _) => write!(f, "{name} takes no memory from the heap: {reason}"),
            (None, false) => write!(f, "{name} on {device}, in the heap"),
            (None, true) => write!(f, "{name} on {device}, in its own pool, with {cached} cached"),
        }
    }
}

/// A recording of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Path of the file.
    #[serde(with = "Texts::<MOST_PATH>")]
    pub path: String,
    /// Reason why the recording ended early, for example a full disk.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub stopped: Option<String>,
}

/// Questions that a program answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Questions that change nothing.
    #[default]
    Read,
    /// All questions, including those that change the program, such as a flush.
    Control,
}

/// Reason why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Kind of reason.
    pub kind: RefusalKind,
    /// The reason in words.
    #[serde(with = "Texts::<MOST_TEXT>")]
    pub text: String,
}

/// Kind of a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The program did not answer in time, because a lock is held or its work takes too long.
    Busy,
    /// The program does not allow the question.
    NotAllowed,
    /// The line is not a question in this version of the protocol.
    Malformed,
    /// The program tried, and failed.
    Failed,
}

impl Refusal {
    pub(crate) fn new(kind: RefusalKind, text: impl Into<String>) -> Refusal {
        Refusal { kind, text: text.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses the line of a question.
///
/// # Errors
///
/// The line is not a question in this version of the protocol.
pub fn parse_question(line: &[u8]) -> Result<Question, Refusal> {
    parse(line).map_err(|reason| {
        let text = format!("not a question of version {VERSION}: {reason}");
        Refusal::new(RefusalKind::Malformed, text)
    })
}

/// Parses the line of an answer. Replaces control characters in its texts by blanks, so that they
/// are safe for a terminal.
///
/// # Errors
///
/// Returns the reason if the line is not an answer of this version.
pub fn parse_answer(line: &[u8]) -> Result<Answer, String> {
    let answer: Answer = parse(line)?;
    // Cuts long lists again, because the program that sent the answer may not have cut them.
    Ok(answer.bounded())
}

/// A question or an answer with its version.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    body: T,
}

fn to_line(body: &impl Serialize) -> String {
    // Serialization of numbers, texts and lists never fails.
    serde_json::to_string(&Versioned { version: VERSION, body }).unwrap_or_default() + "\n"
}

fn parse<T: for<'a> Deserialize<'a>>(line: &[u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    // The error may quote the line, so its text is cut.
    let reason = |error: serde_json::Error| error.to_string().bounded(MOST_TEXT);
    // Reads the version first, because another version may have other fields.
    let head: Head = serde_json::from_slice(line).map_err(reason)?;
    if head.version != VERSION {
        return Err(format!("its version is {}", head.version));
    }
    let read: Versioned<T> = serde_json::from_slice(line).map_err(reason)?;
    Ok(read.body)
}

/// Cuts a list to [`MOST_ENTRIES`], and adds the number of removed entries to `left_out`.
pub(crate) fn truncate<T>(list: &mut Vec<T>, left_out: &mut u64) {
    let over = list.len().saturating_sub(MOST_ENTRIES);
    list.truncate(MOST_ENTRIES);
    *left_out = left_out.saturating_add(over as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_their_line() {
        let limit = |bytes| Question::Limit { device: "cuda:0".to_owned(), bytes };
        for (question, line) in [
            (Question::Status, r#"{"version":1,"question":"status"}"#),
            (Question::Flush, r#"{"version":1,"question":"flush"}"#),
            (limit(None), r#"{"version":1,"question":"limit","device":"cuda:0","bytes":null}"#),
            (limit(Some(7)), r#"{"version":1,"question":"limit","device":"cuda:0","bytes":7}"#),
        ] {
            assert_eq!(question.to_line().trim_end(), line);
            assert_eq!(parse_question(line.as_bytes()).unwrap(), question);
        }
    }

    #[test]
    fn malformed_question_names_reason() {
        for (line, reason) in [
            ("", "EOF"),
            ("{}", "missing field `version`"),
            (r#"{"version":2,"question":"status"}"#, "its version is 2"),
            (r#"{"version":1,"question":"reset"}"#, "unknown variant `reset`"),
            (r#"{"version":1,"question":"limit"}"#, "missing field `device`"),
            (r#"{"version":1,"question":"limit","device":"cuda:0"}"#, "missing field `bytes`"),
            (r#"{"version":1}"#, "missing field `question`"),
        ] {
            let refusal = parse_question(line.as_bytes()).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Malformed);
            assert!(refusal.text.contains(reason), "{line}: {refusal}");
        }
        let deep = format!("{{\"version\":{}", "[".repeat(4000));
        assert!(parse_question(deep.as_bytes()).is_err());
    }

    #[test]
    fn texts_have_no_control_characters() {
        let text = || "a\u{1b}[31m\n".to_owned();
        let held = Held { line: text(), holders: vec![text()], ..Held::default() };
        let recorded = Recorded { path: text(), stopped: Some(text()) };
        let refusal = Refusal { kind: RefusalKind::Failed, text: text() };
        for answer in [
            Answer::Status(Status { program: text(), ..Status::default() }),
            Answer::Held(vec![held]),
            Answer::Recordings(vec![recorded]),
            Answer::Refused(refusal),
        ] {
            // A hostile program writes its texts unchanged.
            let line =
                serde_json::to_string(&answer).unwrap().replace("a [31m ", "a\\u001b[31m\\n");
            assert!(line.contains("u001b"), "{line}");
            let line = format!("{{\"version\":1,{}", &line[1..]);
            let read = parse_answer(line.as_bytes()).unwrap();
            assert_eq!(read, parse_answer(answer.to_line().as_bytes()).unwrap());
            assert!(!format!("{read:?}").contains("u{1b}"), "{read:?}");
        }
        let unknown = parse_answer(b"{\"version\":1,\"\\u001bc\":1}").unwrap_err();
        assert!(!unknown.contains('\u{1b}'), "{unknown:?}");
    }

    #[test]
    fn long_answer_is_cut() {
        let site = Site { line: "é".repeat(5000) + "/end.py:1", ..Site::default() };
        let leaks = Leaks { is_tracked: true, sites: vec![site; 1000], left_out: 0 };
        let line = Answer::Leaks(leaks).to_line();
        assert!(line.len() < MOST_ANSWER / 2, "{}", line.len());
        let Answer::Leaks(read) = parse_answer(line.as_bytes()).unwrap() else { panic!("{line}") };
        assert_eq!((read.sites.len(), read.left_out), (MOST_ENTRIES, 900));
        assert!(read.sites[0].line.ends_with("/end.py:1"));
    }
}
