//! Oddities of a file that could still be read.

use std::fmt;

use crate::Place;

/// Something odd in a file that could be read all the same.
///
/// [`Display`](fmt::Display) gives one line without the file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Kind of oddity.
    pub kind: WarningKind,
    /// How often.
    pub count: u64,
    /// Where it was first.
    pub first: Place,
}

/// Kind of oddity.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarningKind {
    /// The compressed data ends early or is damaged; everything before that was used. Holds the
    /// decoder's words.
    BrokenOff(String),
    /// The last line ends without a newline. It was left out, because it is not whole.
    LastLineCut,
    /// The last line ends without a newline. It was used, because it can be whole; if the file
    /// broke off, the stream's handle may be cut.
    LastLineUnterminated,
    /// Frees of pointers that were never seen or already free ([`Trace::unknown_frees`]).
    ///
    /// [`Trace::unknown_frees`]: crate::Trace::unknown_frees
    UnknownFree,
    /// Pointers that were allocated while still live: their free is missing. The old block was
    /// taken as freed at that moment, on its own stream ([`Trace::inferred_frees`]).
    ///
    /// [`Trace::inferred_frees`]: crate::Trace::inferred_frees
    LostFree,
    /// Entries of kinds that this version does not know; they were left out. Holds the first kind.
    UnknownAction(String),
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
        }
    }
}

/// Counts one kind of oddity while a file is read.
#[derive(Debug, Default)]
pub(crate) struct Odd {
    count: u64,
    first: Option<Place>,
}

impl Odd {
    pub(crate) fn seen(&mut self, place: impl FnOnce() -> Place) {
        self.first.get_or_insert_with(place);
        self.count += 1;
    }

    /// The warning, if there was any.
    pub(crate) fn warning(self, kind: WarningKind) -> Option<Warning> {
        self.first.map(|first| Warning { kind, count: self.count, first })
    }
}
