//! How much a heap may take from the driver.

use crate::error::{Error, ErrorKind};
use crate::size::Bytes;

/// The limits of one heap, in bytes taken from the driver; `None` for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Above this, cached memory is given back at the next call of the heap that finds it out of
    /// use.
    pub soft: Option<u64>,
    /// This is never exceeded: an allocation that would is refused with an error.
    pub hard: Option<u64>,
}

impl Limits {
    /// That the soft one, if there are both, can be reached at all.
    pub(crate) fn check(self) -> Result<(), Error> {
        match (self.soft, self.hard) {
            (Some(soft), Some(hard)) if soft > hard => Err(ErrorKind::Refused(format!(
                "the soft limit of {} is above the hard limit of {}, so it would never be reached; \
                 lower the soft one, or raise the hard one",
                Bytes(soft),
                Bytes(hard)
            ))
            .into()),
            _ => Ok(()),
        }
    }
}
