//! Defines errors of files. An error states the problem, its place and the remedy.

use std::fmt;
use std::io;

/// Advice for a file that is not a recording.
pub(crate) const RECORDING: &str = "record any program with gpuheap run -- PROGRAM, PyTorch with \
    torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(\"run.pickle\"), \
    RMM with rmm.reinitialize(logging=True, log_file_name=\"run.csv\")";

/// Error of a file that could not be read or written.
///
/// [`Display`](fmt::Display) gives one line: the file, the place in the file, the problem, and the
/// remedy. Text from the file is quoted, escaped and cut short.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    file: String,
    place: Place,
    what: String,
    advice: String,
    source: Option<io::Error>,
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The file as a whole.
    File,
    /// Number of a line in the unpacked text. The first line is 1.
    Line(u64),
    /// Offset into the unpacked bytes. The first byte has offset 0.
    Byte(u64),
    /// An item of a snapshot, in Python's notation: `device_traces[0][17].addr`.
    Item(String),
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            file: String::new(),
            place: Place::File,
            what: what.into(),
            advice: advice.into(),
            source: None,
        }))
    }

    pub(crate) fn io(what: &str, source: io::Error, advice: &str) -> Self {
        let mut error = Self::new(format!("{what}: {source}"), advice);
        error.0.source = Some(source);
        error
    }

    pub(crate) fn at(mut self, place: Place) -> Self {
        self.0.place = place;
        self
    }

    pub(crate) fn in_file(mut self, name: &str) -> Self {
        self.0.file = one_line(name);
        self
    }

    /// Returns the file's name, as the caller gave it; empty if the error has no file.
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// Returns the place in the file.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// Returns the problem, with the offending text or number.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Returns what to do.
    pub fn advice(&self) -> &str {
        &self.0.advice
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { file, place, what, advice, .. } = &*self.0;
        match (file.is_empty(), place) {
            (true, Place::File) => {}
            (true, place) => write!(f, "{place}: ")?,
            (false, Place::File) => write!(f, "{file}: ")?,
            (false, place) => write!(f, "{file}, {place}: ")?,
        }
        write!(f, "{what}; {advice}")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("the file"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(offset) => write!(f, "byte {offset}"),
            Self::Item(path) => f.write_str(path),
        }
    }
}

/// Escapes a text from a file for a message, cuts it short, and adds quotes.
pub(crate) fn quote(text: &[u8]) -> String {
    format!("\"{}\"", escape(text))
}

/// Escapes bytes of a file for an error, and cuts them short. Adds no quotes.
pub(crate) fn escape(text: &[u8]) -> String {
    const SHOWN: usize = 40;
    let shown = text.get(..SHOWN).unwrap_or(text);
    let more = if shown.len() < text.len() { "…" } else { "" };
    one_line(&String::from_utf8_lossy(shown)) + more
}

fn one_line(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let control = c.is_control();
            c.escape_debug().filter(move |_| control).chain((!control).then_some(c))
        })
        .collect()
}
