//! Encodes record fields. Numbers use LEB128, and times and addresses are stored as differences.

use std::borrow::Cow;

/// Time and address of the previous record. The next record stores its differences from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deltas {
    time_ns: u64,
    address: u64,
}

/// Reason that a record cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The data ends within the record.
    Cut,
    /// The record has an unknown tag, or a value that no writer writes.
    Invalid,
}

/// Nanoseconds since the recording began. Stored as the difference from the previous record's time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

/// Address or handle. Stored as the difference from the previous record's address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Address(pub u64);

/// Number that takes eight bytes, low byte first. A writer may update it in place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count(pub u64);

pub(crate) trait Field<'a>: Sized {
    fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>);
    fn decode(deltas: &mut Deltas, input: &mut &'a [u8]) -> Result<Self, DecodeError>;
}

impl Field<'_> for u64 {
    fn encode(&self, _: &mut Deltas, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn decode(_: &mut Deltas, input: &mut &[u8]) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = u64::from(*input.split_off_first().ok_or(DecodeError::Cut)?);
            let part = byte & 0x7f;
            if part << shift >> shift != part {
                return Err(DecodeError::Invalid);
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Invalid)
    }
}

impl Field<'_> for u32 {
    fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>) {
        u64::from(*self).encode(deltas, out);
    }

    fn decode(deltas: &mut Deltas, input: &mut &[u8]) -> Result<u32, DecodeError> {
        u32::try_from(u64::decode(deltas, input)?).map_err(|_| DecodeError::Invalid)
    }
}

impl Field<'_> for Time {
    fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>) {
        let since = self.0.saturating_sub(deltas.time_ns);
        deltas.time_ns += since;
        since.encode(deltas, out);
    }

    fn decode(deltas: &mut Deltas, input: &mut &[u8]) -> Result<Time, DecodeError> {
        let since = u64::decode(deltas, input)?;
        deltas.time_ns = deltas.time_ns.checked_add(since).ok_or(DecodeError::Invalid)?;
        Ok(Time(deltas.time_ns))
    }
}

impl Field<'_> for Address {
    fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>) {
        zigzag(self.0.wrapping_sub(deltas.address)).encode(deltas, out);
        deltas.address = self.0;
    }

    fn decode(deltas: &mut Deltas, input: &mut &[u8]) -> Result<Address, DecodeError> {
        let difference = unzigzag(u64::decode(deltas, input)?);
        deltas.address = deltas.address.wrapping_add(difference);
        Ok(Address(deltas.address))
    }
}

impl Field<'_> for Count {
    fn encode(&self, _: &mut Deltas, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn decode(_: &mut Deltas, input: &mut &[u8]) -> Result<Count, DecodeError> {
        let (bytes, rest) = input.split_first_chunk().ok_or(DecodeError::Cut)?;
        *input = rest;
        Ok(Count(u64::from_le_bytes(*bytes)))
    }
}

impl<'a> Field<'a> for &'a str {
    fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>) {
        (self.len() as u64).encode(deltas, out);
        out.extend_from_slice(self.as_bytes());
    }

    fn decode(deltas: &mut Deltas, input: &mut &'a [u8]) -> Result<&'a str, DecodeError> {
        let length = u64::decode(deltas, input)?;
        let length = usize::try_from(length).map_err(|_| DecodeError::Cut)?;
        let bytes = input.split_off(..length).ok_or(DecodeError::Cut)?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::Invalid)
    }
}

/// Addresses of a native stack. Each is stored as the difference from the previous address.
impl Field<'_> for Cow<'_, [u64]> {
    fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>) {
        (self.len() as u64).encode(deltas, out);
        let mut before = 0_u64;
        for address in self.iter() {
            zigzag(address.wrapping_sub(before)).encode(deltas, out);
            before = *address;
        }
    }

    fn decode(deltas: &mut Deltas, input: &mut &[u8]) -> Result<Self, DecodeError> {
        let mut before = 0_u64;
        let decoded = decode_list(deltas, input, |deltas, input| {
            before = before.wrapping_add(unzigzag(u64::decode(deltas, input)?));
            Ok(before)
        });
        decoded.map(Cow::Owned)
    }
}

impl Field<'_> for Cow<'_, [u32]> {
    fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>) {
        (self.len() as u64).encode(deltas, out);
        self.iter().for_each(|number| number.encode(deltas, out));
    }

    fn decode(deltas: &mut Deltas, input: &mut &[u8]) -> Result<Self, DecodeError> {
        let decode = |deltas: &mut Deltas, input: &mut &[u8]| u32::decode(deltas, input);
        decode_list(deltas, input, decode).map(Cow::Owned)
    }
}

fn decode_list<T>(
    deltas: &mut Deltas,
    input: &mut &[u8],
    mut decode: impl FnMut(&mut Deltas, &mut &[u8]) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let length = u64::decode(deltas, input)?;
    // Each element takes at least one byte. This check keeps a wrong length from reserving memory.
    if length > input.len() as u64 {
        return Err(DecodeError::Cut);
    }
    (0..length).map(|_| decode(deltas, input)).collect()
}

/// Encodes a signed difference so that a small absolute value gives a small number.
fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64) >> 63) as u64
}

fn unzigzag(encoded: u64) -> u64 {
    (encoded >> 1) ^ (encoded & 1).wrapping_neg()
}
