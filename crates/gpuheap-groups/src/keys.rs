//! Encodes keys as bytes that sort like the keys.

use crate::column::{Column, NumberType, Values, code, number_type, push_present};
use crate::error::{Error, room};

/// First byte of a value that is present.
const PRESENT: u8 = 1;
/// First byte of a missing value. It is larger than `PRESENT`, so missing values are last.
const MISSING: u8 = 2;
/// Byte that is written after each 0 within a text. A 0 before any other byte ends the text.
const ESCAPED: u8 = 0xff;

/// Distinct keys in ascending order. Each key has one value of each column. The keys are kept as
/// bytes that sort numbers by value, text by its bytes, and missing values last.
#[derive(Clone, Default, Debug)]
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Type of a column of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyType {
    /// Numbers.
    Number(NumberType),
    /// Text.
    Text,
}

impl KeyType {
    /// Returns the type of a column's values. A column of codes has the type of its dictionary.
    pub fn of(column: &Column<'_>) -> KeyType {
        number_type(column).map_or(KeyType::Text, KeyType::Number)
    }
}

/// A column of distinct keys.
#[derive(Default, Debug)]
pub struct KeyColumn {
    /// Numbers, or the bytes of all texts.
    pub values: Vec<u8>,
    /// For text, the beginning of each row in `values`, and the end of the last row.
    pub offsets: Option<Vec<i64>>,
    /// `true` for each row that has a value; `None` if all rows have a value.
    pub present: Option<Vec<bool>>,
}

impl Keys {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the keys as columns of the given types, in the order of the original columns.
    ///
    /// # Errors
    ///
    /// The types differ from the types of the keys' columns, or the host has no memory.
    pub fn columns(&self, types: &[KeyType]) -> Result<Vec<KeyColumn>, Error> {
        let mut made = Vec::new();
        for of in types {
            let offsets = match of {
                KeyType::Number(_) => None,
                KeyType::Text => {
                    let mut offsets = room(self.len() + 1)?;
                    offsets.push(0);
                    Some(offsets)
                }
            };
            made.push(KeyColumn { values: Vec::new(), offsets, present: None });
        }
        for row in 0..self.len() {
            let mut key = self.get(row);
            for (column, of) in made.iter_mut().zip(types) {
                let rest = decode(key, *of, row, column);
                key = rest.ok_or_else(|| {
                    Error::Invalid("the keys were made of columns of other types".to_owned())
                })?;
            }
        }
        Ok(made)
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        let first = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[first..self.ends[index]]
    }

    pub(crate) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// Returns the number of bytes of host memory that the keys take.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<usize>()
    }

    /// Makes the keys of `rows`. Requires the rows to be in the order of their keys.
    pub(crate) fn of_rows(
        columns: &[Column<'_>],
        rows: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Keys, Error> {
        let mut keys = Keys { bytes: Vec::new(), ends: room(rows.len())? };
        for row in rows {
            for column in columns {
                encode(column, row, &mut keys.bytes);
            }
            keys.ends.push(keys.bytes.len());
        }
        Ok(keys)
    }
}

fn encode(column: &Column<'_>, row: usize, into: &mut Vec<u8>) {
    if !column.is_valid(row) {
        return into.push(MISSING);
    }
    match &column.values {
        Values::Numbers(of, bytes) => match of.ordered(&bytes[row * of.size()..][..of.size()]) {
            Some(ordered) => {
                into.push(PRESENT);
                into.extend_from_slice(&ordered.to_be_bytes()[8 - of.size()..]);
            }
            None => into.push(MISSING),
        },
        Values::Text(text) => {
            into.push(PRESENT);
            for byte in text.get(row) {
                into.push(*byte);
                if *byte == 0 {
                    into.push(ESCAPED);
                }
            }
            into.extend_from_slice(&[0, 0]);
        }
        Values::Codes(of, bytes, dictionary) => match code(*of, bytes, row) {
            Some(code) if code < dictionary.rows() => encode(dictionary, code, into),
            _ => into.push(MISSING),
        },
    }
}

/// Appends the first value of a key to a column, and returns the rest of the key. Returns `None` if
/// the key does not begin with a value of that type.
fn decode<'k>(key: &'k [u8], of: KeyType, row: usize, column: &mut KeyColumn) -> Option<&'k [u8]> {
    let (marker, mut rest) = key.split_first()?;
    let is_missing = *marker == MISSING;
    match (of, &mut column.offsets) {
        (KeyType::Number(of), _) => {
            let mut wide = [0; 8];
            if !is_missing {
                let (number, after) = rest.split_at_checked(of.size())?;
                wide[8 - of.size()..].copy_from_slice(number);
                rest = after;
                of.restore(u64::from_be_bytes(wide), &mut column.values);
            } else {
                column.values.extend_from_slice(&wide[..of.size()]);
            }
        }
        (KeyType::Text, Some(offsets)) => {
            if !is_missing {
                rest = decode_text(rest, &mut column.values)?;
            }
            offsets.push(column.values.len() as i64);
        }
        (KeyType::Text, None) => return None,
    }
    push_present(&mut column.present, row, !is_missing);
    Some(rest)
}

/// Appends the text that a key begins with, and returns the rest of the key.
fn decode_text<'k>(mut key: &'k [u8], into: &mut Vec<u8>) -> Option<&'k [u8]> {
    loop {
        let (byte, rest) = key.split_first()?;
        key = rest;
        if *byte == 0 {
            let (next, rest) = key.split_first()?;
            key = rest;
            if *next != ESCAPED {
                return Some(key);
            }
        }
        into.push(*byte);
    }
}
