//! Entries that were kept as dicts, because their keys came one by one or are unusual.

use super::entry::{Action, Entries, Entry, known_action};
use super::plain::{Path, Plain};
use super::shapes::{ACTION, ADDR, DEVICE_FREE, FRAMES, KEYS, SIZE, STREAM, TIME};
use super::value::Value;
use crate::Error;

/// Reads an entry from its dict. If the entry's kind is not known, adds a mark and returns the
/// kind.
pub(super) fn read_dict<'h>(
    plain: &Plain<'h>,
    entries: &mut Entries,
    value: Value,
    path: &Path<'_>,
) -> Result<(u32, Option<&'h [u8]>), Error> {
    let fields = plain.fields(value, path, KEYS)?;
    if let Some(entry) = entries.read(plain.heap(), fields.values()) {
        return Ok((entries.add(entry)?, None));
    }
    let text = fields.text(plain, ACTION)?;
    let Some(action) = known_action(text) else {
        return Ok((entries.add(Entry::NOTE)?, Some(text)));
    };
    // Errors come in the order of the keys.
    match action {
        Action::OutOfMemory => fields.optional_number(plain, DEVICE_FREE).map(drop)?,
        _ => fields.number(plain, ADDR).map(drop)?,
    }
    fields.number(plain, SIZE)?;
    fields.number(plain, STREAM)?;
    fields.optional_number(plain, TIME)?;
    plain.list(fields.required(FRAMES)?, &fields.path(FRAMES))?;
    Ok((entries.add(Entry::NOTE)?, None))
}
