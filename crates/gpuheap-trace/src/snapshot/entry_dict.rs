//! Reads entries (events of a device) that the pickle's reader kept as dicts, not as [`Entry`].
//! Their keys came one by one (opcode SETITEM), or are unusual.

use super::entry::{Action, Entries, Entry, known_action};
use super::plain::{Field, Path, Plain};
use super::shapes::{ACTION, ADDR, DEVICE_FREE, FRAMES, KEYS, SIZE, STREAM, TIME};
use super::value::Value;
use crate::Error;

/// Reads an entry from its dict. For an unknown kind, adds [`Entry::NOTE`] and returns the kind.
pub(super) fn read_dict<'h>(
    plain: &Plain<'h>,
    entries: &mut Entries,
    value: Value,
    path: &Path<'_>,
) -> Result<(u32, Option<&'h [u8]>), Error> {
    let values = plain.values(value, path, &KEYS)?;
    if let Some(entry) = entries.read(plain.heap(), &values) {
        return Ok((entries.add(entry)?, None));
    }
    let field = |at: usize| Field::new(plain, path, KEYS[at], values[at]);
    let text = field(ACTION).text()?;
    let Some(action) = known_action(text) else {
        return Ok((entries.add(Entry::NOTE)?, Some(text)));
    };
    // Fields are read in the order of the keys, so that the first bad key gives the error.
    match action {
        Action::OutOfMemory => field(DEVICE_FREE).optional(Plain::number).map(drop)?,
        _ => field(ADDR).number().map(drop)?,
    }
    field(SIZE).number()?;
    field(STREAM).number()?;
    field(TIME).optional(Plain::number)?;
    field(FRAMES).list()?;
    Ok((entries.add(Entry::NOTE)?, None))
}
