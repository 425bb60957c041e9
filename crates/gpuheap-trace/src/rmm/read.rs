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
        let parsed = columns.parse_row(row);
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

/// RMM's columns, in the order of [`Columns::indices`].
const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

/// Places of RMM's columns in a row.
struct Columns {
    /// Index of each of [`COLUMNS`].
    indices: [usize; COLUMNS.len()],
    /// Number of fields of the header.
    count: usize,
}

struct Row {
    thread: u64,
    time_of_day_us: u64,
    action: LogAction,
    pointer: u64,
    size: u64,
    stream: u64,
}

enum LogAction {
    Allocate,
    Free,
    AllocateFailure,
}

impl Columns {
    fn find(header: &ByteRecord) -> Result<Self, Error> {
        let is_known = |field: &[u8]| {
            COLUMNS.iter().any(|name| field.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
        };
        let text = || quote(&header.iter().collect::<Vec<_>>().join(&b','));
        if !header.iter().any(is_known) {
            return Err(Error::new(
                format!("{} begins neither a PyTorch snapshot nor an RMM log", text()),
                RECORDING,
            ));
        }
        let mut indices = [0; COLUMNS.len()];
        for (index, name) in indices.iter_mut().zip(COLUMNS) {
            let is_column = |field: &[u8]| field.trim_ascii() == name.as_bytes();
            let what = match header.iter().filter(|field| is_column(field)).count() {
                0 => format!("the header {} has no column {name}", text()),
                1 => {
                    *index = header.iter().position(is_column).unwrap_or(0);
                    continue;
                }
                _ => format!("the header has two columns {name}"),
            };
            let advice = "an RMM log begins with the line Thread,Time,Action,Pointer,Size,Stream";
            return Err(Error::new(what, advice));
        }
        Ok(Self { indices, count: header.len() })
    }

    fn parse_row(&self, row: &ByteRecord) -> Result<Row, Error> {
        if row.len() != self.count {
            return Err(Error::new(
                format!("has {} fields where the header has {}", row.len(), self.count),
                "remove or complete the row",
            ));
        }
        let stream = "a handle like 0x21f2a2b0, or 0";
        Ok(Row {
            thread: self.parse(row, 0, "a thread id in decimals", field::decimal)?,
            time_of_day_us: self.parse(
                row,
                1,
                "a time like 15:31:56.584848",
                field::time_of_day_us,
            )?,
            action: self.parse(
                row,
                2,
                "one of allocate, free, allocate failure",
                LogAction::parse,
            )?,
            pointer: self.parse(
                row,
                3,
                "an address like 0x7f5b03c00000, or (nil)",
                field::pointer,
            )?,
            size: self.parse(row, 4, "bytes in decimals, below 2^64", field::decimal)?,
            stream: self.parse(row, 5, stream, field::stream)?,
        })
    }

    /// Reads the field of one of [`COLUMNS`].
    fn parse<T>(
        &self,
        row: &ByteRecord,
        column: usize,
        expected: &str,
        parser: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, Error> {
        let text = row.get(self.indices[column]).unwrap_or_default().trim_ascii();
        parser(text).ok_or_else(|| {
            let (name, text) = (COLUMNS[column], quote(text));
            let what = format!("column {name} has {text}, which is not {expected}");
            Error::new(what, "correct or remove the row")
        })
    }
}

impl LogAction {
    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"allocate" => Some(Self::Allocate),
            b"free" => Some(Self::Free),
            b"allocate failure" => Some(Self::AllocateFailure),
            _ => None,
        }
    }
}

/// State of the reader of a log.
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

    /// Returns `true` if a last row without a newline seems to be cut off. That is so if the data
    /// broke off, if the row does not parse, or if its stream is new. A stream handle without its
    /// last digits looks like a new stream.
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
            LogAction::Allocate => {
                if !self.builder.allocate(at, row.pointer, row.size)? {
                    self.lost_frees.count(|| Place::Line(line));
                }
            }
            LogAction::Free => {
                if !self.builder.free(at, row.pointer, row.size)? {
                    self.unknown_frees.count(|| Place::Line(line));
                }
            }
            LogAction::AllocateFailure => self.builder.fail(at, row.size)?,
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
        // If the data broke off, the warning `broken` covers the cut line too.
        let last_line = self.last_line.filter(|_| broken.is_none());
        let unknown = self.unknown_frees.warning(WarningKind::UnknownFree);
        let lost = self.lost_frees.warning(WarningKind::LostFree);
        for warning in [broken, last_line, unknown, lost].into_iter().flatten() {
            self.builder.warn(warning);
        }
        Ok(self.builder.finish())
    }
}
