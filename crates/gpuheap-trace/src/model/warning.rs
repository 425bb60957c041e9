//! Defines warnings about oddities of a file. The file could be read in spite of them.

use std::fmt;

use gpuheap_capture::OPEN_RANGES;

use crate::Place;

/// Warning about an oddity of a file. The file was read in spite of the oddity.
///
/// [`Display`](fmt::Display) gives one line without the file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Kind of oddity.
    pub kind: WarningKind,
    /// Number of occurrences.
    pub count: u64,
    /// Place of the first occurrence.
    pub first: Place,
}

/// Kind of oddity.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarningKind {
    /// The compressed data ends early or is damaged. All data before that place was used. The text
    /// is the decoder's message.
    BrokenOff(String),
    /// The last line has no newline and is incomplete. The reader left it out.
    LastLineCut,
    /// The last line has no newline, but may be complete, so the reader used it. If the file broke
    /// off, the line's last field, the stream's handle, may be cut.
    LastLineUnterminated,
    /// Frees of pointers that were never allocated, or are already freed
    /// ([`Trace::unknown_frees`]).
    ///
    /// [`Trace::unknown_frees`]: crate::Trace::unknown_frees
    UnknownFree,
    /// Allocations at an address where a block was still live, so the file lacks that block's free.
    /// The reader freed the old block at that moment, on the block's stream
    /// ([`Trace::inferred_frees`]).
    ///
    /// [`Trace::inferred_frees`]: crate::Trace::inferred_frees
    LostFree,
    /// Entries of unknown kinds were left out. The text is the first such kind.
    UnknownAction(String),
    /// Ranges of the program were left out, because too many were open together, or because the
    /// file has too many in total. Reports still have all memory events.
    LostRange,
    /// Allocations that were freed immediately, and that have no events. The recorder only counted
    /// them ([`Trace::folded`]).
    ///
    /// [`Trace::folded`]: crate::Trace::folded
    Folded,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, first } = self;
        match kind {
            WarningKind::BrokenOff(reason) => {
                write!(
                    f,
                    "the data breaks off after {first} ({reason}); every whole row before was used"
                )
            }
            WarningKind::LastLineCut => {
                write!(f, "the last line ({first}) is cut off and was left out")
            }
            WarningKind::LastLineUnterminated => {
                write!(
                    f,
                    "the last line ({first}) ends without a newline; it was used as it stands"
                )
            }
            WarningKind::UnknownFree => write!(
                f,
                "{count} frees of pointers that are not live (first: {first}) were counted and left out; \
                 their blocks were allocated before the recording, or freed twice"
            ),
            WarningKind::LostFree => write!(
                f,
                "{count} pointers were allocated again without a free (first: {first}); the old block \
                 was taken as freed at that moment"
            ),
            WarningKind::UnknownAction(action) => write!(
                f,
                "{count} entries of unknown kinds (first: \"{action}\" at {first}) were left out"
            ),
            WarningKind::LostRange => write!(
                f,
                "{count} ranges of the program (first: {first}) were left out: more than {OPEN_RANGES} \
                 were open at once, or the file has too many; end each range that the program opens"
            ),
            WarningKind::Folded => write!(
                f,
                "{count} allocations that were freed at once (first: {first}) were counted, because \
                 the capture neared its --max-size; they are in all sums, and not in timelines and \
                 replays"
            ),
        }
    }
}

/// Count of one kind of oddity while a file is read.
#[derive(Debug, Default)]
pub(crate) struct Odd {
    count: u64,
    first: Option<Place>,
}

impl Odd {
    pub(crate) fn count(&mut self, place: impl FnOnce() -> Place) {
        self.add(1, place);
    }

    pub(crate) fn add(&mut self, count: u64, place: impl FnOnce() -> Place) {
        self.first.get_or_insert_with(place);
        self.count = self.count.saturating_add(count);
    }

    /// Returns the warning, if the oddity occurred.
    pub(crate) fn warning(self, kind: WarningKind) -> Option<Warning> {
        self.first.map(|first| Warning { kind, count: self.count, first })
    }
}
