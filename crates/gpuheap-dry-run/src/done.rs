//! Results of all runs.

use crate::program::Run;
use crate::verdict::{Batch, CardResult};

/// Results of all runs.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) cards: Vec<CardResult>,
    pub(crate) runs: Vec<Run>,
    pub(crate) batch: Option<Batch>,
    /// Run on a device with room, if no card had enough.
    pub(crate) with_room: Option<Run>,
}
