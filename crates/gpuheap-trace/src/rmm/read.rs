//! Reader of RMM logs.

use csv::ByteRecord;

use super::clock::Clock;
use super::field;
use super::rows::Rows;
use crate::error::RECORDING;
use crate::error::quote;
use crate::model::Odd;
use crate::source::Source;
use crate::{At, Error, Format, Place, Trace, TraceBuilder, Warning, WarningKind};

/// Reads a log. Finds columns by name, in any order, and ignores columns that are not RMM's.
pub(crate) fn read(name: &str, source: Source<'_>) -> Result<Trace, Error> {
    let mut rows = Rows::new(source)?;
    if !rows.advance()? {
        return Err(rows.source().emptiness());
    }
    if rows.is_unterminated() && rows.source().damage().is_some() {
        return Err(rows.source().emptiness());
    }
    let columns =
        Columns::find(rows.current()).map_err(|error| error.at(Place::Line(rows.line())))?;
    let mut log = Log::new(name);
    while rows.advance()? {
        let (row, line) = (rows.current(), rows.line());
        let parsed = columns.row(row);
        if rows.is_unterminated() {
            let cut = log.is_cut(&parsed, rows.source());
            let kind =
                if cut { WarningKind::LastLineCut } else { WarningKind::LastLineUnterminated };
            log.last_line = Some(Warning { kind, count: 1, first: Place::Line(line) });
            if cut {
                break;
            }
        }
        let parsed = parsed.map_err(|error| error.at(Place::Line(line)))?;
        log.add(parsed, line).map_err(|error| error.at(Place::Line(line)))?;
        log.rows += 1;
        log.last_whole_line = line;
    }
    log.finish(rows.source())
}

/// Index of each of RMM's columns in a row.
struct Columns {
    thread: usize,
    time: usize,
    action: usize,
    pointer: usize,
    size: usize,
    stream: usize,
    count: usize,
}

struct Row {
    thread: u64,
    time_of_day_us: u64,
    action: Action,
    pointer: u64,
    size: u64,
    stream: u64,
}

enum Action {
    Allocate,
    Free,
    AllocateFailure,
}

impl Columns {
    fn find(header: &ByteRecord) -> Result<Self, Error> {
        const NAMES: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
        let is_known = |field: &[u8]| {
            NAMES.iter().any(|name| field.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
        };
        if !header.iter().any(is_known) {
            let header = quote(&header.iter().collect::<Vec<_>>().join(&b','));
            return Err(Error::new(
                format!("{header} begins neither a PyTorch snapshot nor an RMM log"),
                RECORDING,
            ));
        }
        Ok(Self {
            thread: Self::index(header, "Thread")?,
            time: Self::index(header, "Time")?,
            action: Self::index(header, "Action")?,
            pointer: Self::index(header, "Pointer")?,
            size: Self::index(header, "Size")?,
            stream: Self::index(header, "Stream")?,
            count: header.len(),
        })
    }

    fn index(header: &ByteRecord, name: &str) -> Result<usize, Error> {
        let mut found = header
            .iter()
            .enumerate()
            .filter(|(_, field)| field.trim_ascii() == name.as_bytes())
            .map(|(index, _)| index);
        let advice = "an RMM log begins with the line Thread,Time,Action,Pointer,Size,Stream";
        match (found.next(), found.next()) {
            (Some(index), None) => Ok(index),
            (Some(_), Some(_)) => {
                Err(Error::new(format!("the header has two columns {name}"), advice))
            }
            (None, _) => {
                let header = quote(&header.iter().collect::<Vec<_>>().join(&b','));
                Err(Error::new(format!("the header {header} has no column {name}"), advice))
            }
        }
    }

    fn row(&self, row: &ByteRecord) -> Result<Row, Error> {
        if row.len() != self.count {
            return Err(Error::new(
                format!("has {} fields where the header has {}", row.len(), self.count),
                "remove or complete the row",
            ));
        }
        Ok(Row {
            thread: parse(row, self.thread, "Thread", "a thread id in decimals", field::decimal)?,
            time_of_day_us: parse(
                row,
                self.time,
                "Time",
                "a time like 15:31:56.584848",
                field::time_of_day_us,
            )?,
            action: parse(
                row,
                self.action,
                "Action",
                "one of allocate, free, allocate failure",
                Action::parse,
            )?,
            pointer: parse(
                row,
                self.pointer,
                "Pointer",
                "an address like 0x7f5b03c00000, or (nil)",
                field::pointer,
            )?,
            size: parse(row, self.size, "Size", "bytes in decimals, below 2^64", field::decimal)?,
            stream: parse(
                row,
                self.stream,
                "Stream",
                "a handle like 0x21f2a2b0, or 0",
                field::stream,
            )?,
        })
    }
}

fn parse<T>(
    row: &ByteRecord,
    index: usize,
    column: &str,
    expected: &str,
    parser: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, Error> {
    let text = row.get(index).unwrap_or_default().trim_ascii();
    parser(text).ok_or_else(|| {
        Error::new(
            format!("column {column} has {}, which is not {expected}", quote(text)),
            "correct or remove the row",
        )
    })
}

impl Action {
    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"allocate" => Some(Self::Allocate),
            b"free" => Some(Self::Free),
            b"allocate failure" => Some(Self::AllocateFailure),
            _ => None,
        }
    }
}

/// State of a log that is read.
struct Log {
    builder: TraceBuilder,
    clock: Clock,
    rows: u64,
    last_whole_line: u64,
    /// Warning about a last line without a newline.
    last_line: Option<Warning>,
    unknown_frees: Odd,
    lost_frees: Odd,
}

impl Log {
    fn new(name: &str) -> Self {
        Self {
            builder: TraceBuilder::new(name, Format::RmmCsv),
            clock: Clock::default(),
            rows: 0,
            last_whole_line: 1,
            last_line: None,
            unknown_frees: Odd::default(),
            lost_frees: Odd::default(),
        }
    }

    /// Returns `true` if a last row without a newline is incomplete. It is if the data broke off.
    /// Otherwise the newline alone may be missing. Then the row is complete if it parses and its
    /// stream is known: a handle that was cut also parses, as a new stream.
    fn is_cut(&self, row: &Result<Row, Error>, source: &Source<'_>) -> bool {
        match row {
            _ if source.damage().is_some() => true,
            Ok(row) => row.stream != 0 && !self.builder.has_stream(row.stream),
            Err(_) => true,
        }
    }

    fn add(&mut self, row: Row, line: u64) -> Result<(), Error> {
        let at = At {
            time_ns: self.clock.elapsed_ns(row.time_of_day_us),
            stream: row.stream,
            thread: row.thread,
            stack: 0,
        };
        match row.action {
            Action::Allocate => {
                if !self.builder.allocate(at, row.pointer, row.size)? {
                    self.lost_frees.seen(|| Place::Line(line));
                }
            }
            Action::Free => {
                if !self.builder.free(at, row.pointer, row.size)? {
                    self.unknown_frees.seen(|| Place::Line(line));
                }
            }
            Action::AllocateFailure => self.builder.fail(at, row.size)?,
        }
        Ok(())
    }

    fn finish(mut self, source: &Source<'_>) -> Result<Trace, Error> {
        if self.rows == 0 {
            return Err(match source.damage() {
                Some(_) => source.emptiness(),
                None => Error::new(
                    "has a header but not one whole row",
                    "record again, and let the program end or flush its log",
                ),
            });
        }
        let broken = source.damage().map(|reason| Warning {
            kind: WarningKind::BrokenOff(reason.to_owned()),
            count: 1,
            first: Place::Line(self.last_whole_line),
        });
        // If the data broke off, the warning about that includes the cut line.
        let last_line = self.last_line.filter(|_| broken.is_none());
        let unknown = self.unknown_frees.warning(WarningKind::UnknownFree);
        let lost = self.lost_frees.warning(WarningKind::LostFree);
        for warning in [broken, last_line, unknown, lost].into_iter().flatten() {
            self.builder.warn(warning);
        }
        Ok(self.builder.finish())
    }
}
