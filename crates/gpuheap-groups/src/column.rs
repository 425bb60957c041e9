//! Columns of host memory, in Arrow's layout.

use crate::error::Error;

/// Type of a column's numbers. Numbers are little-endian. Dates and times are integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the names of Rust's types")]
pub enum NumberType {
    /// A byte: 0 is false, and any other value is true.
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

impl NumberType {
    const NAMES: [(NumberType, &'static str); 11] = [
        (NumberType::Bool, "bool"),
        (NumberType::I8, "int8"),
        (NumberType::I16, "int16"),
        (NumberType::I32, "int32"),
        (NumberType::I64, "int64"),
        (NumberType::U8, "uint8"),
        (NumberType::U16, "uint16"),
        (NumberType::U32, "uint32"),
        (NumberType::U64, "uint64"),
        (NumberType::F32, "float32"),
        (NumberType::F64, "float64"),
    ];

    /// Returns the type that NumPy calls `name`, for example `"int32"`.
    pub fn from_name(name: &str) -> Option<NumberType> {
        let found = NumberType::NAMES.into_iter().find(|(_, known)| *known == name);
        found.map(|(of, _)| of)
    }

    /// Returns NumPy's name of the type.
    pub fn name(self) -> &'static str {
        NumberType::NAMES[self as usize].1
    }

    /// Returns the size of a number in bytes.
    pub fn size(self) -> usize {
        match self {
            NumberType::Bool | NumberType::I8 | NumberType::U8 => 1,
            NumberType::I16 | NumberType::U16 => 2,
            NumberType::I32 | NumberType::U32 | NumberType::F32 => 4,
            NumberType::I64 | NumberType::U64 | NumberType::F64 => 8,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, NumberType::F32 | NumberType::F64)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, NumberType::I8 | NumberType::I16 | NumberType::I32 | NumberType::I64)
    }

    /// Maps a number to an integer; `None` for NaN. The integers have the order of the numbers, and
    /// 0 and -0 are equal.
    pub(crate) fn ordered(self, bytes: &[u8]) -> Option<u64> {
        let mut wide = [0; 8];
        wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
        let bits = u64::from_le_bytes(wide);
        let top = 1_u64 << (8 * self.size() - 1);
        let bits = match self {
            NumberType::Bool => return Some(u64::from(bits != 0)),
            NumberType::F32 => {
                let value = f32::from_bits(bits as u32) + 0.0;
                if value.is_nan() {
                    return None;
                }
                u64::from(value.to_bits())
            }
            NumberType::F64 => {
                let value = f64::from_bits(bits) + 0.0;
                if value.is_nan() {
                    return None;
                }
                value.to_bits()
            }
            of if of.is_signed() => return Some(bits ^ top),
            _ => return Some(bits),
        };
        // The bits of negative floats are in the opposite order.
        Some(if bits & top == 0 { bits | top } else { !bits & (top | (top - 1)) })
    }

    /// Inverse of [`ordered`](NumberType::ordered): converts the integer back to the number, and
    /// appends the number's bytes to `into`.
    pub(crate) fn restore(self, ordered: u64, into: &mut Vec<u8>) {
        let top = 1_u64 << (8 * self.size() - 1);
        let bits = match self {
            of if of.is_float() && ordered & top != 0 => ordered ^ top,
            of if of.is_float() => !ordered,
            of if of.is_signed() => ordered ^ top,
            _ => ordered,
        };
        into.extend_from_slice(&bits.to_le_bytes()[..self.size()]);
    }
}

/// A column of rows.
#[derive(Clone, Debug)]
pub struct Column<'a> {
    pub(crate) values: Values<'a>,
    /// Bitmap of rows, lowest bit of each byte first. A row's bit is 0 if its value is missing.
    valid: Option<&'a [u8]>,
    rows: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Values<'a> {
    Numbers(NumberType, &'a [u8]),
    Text(Text<'a>),
    Codes(NumberType, &'a [u8], Box<Column<'a>>),
}

impl<'a> Column<'a> {
    /// Makes a column of numbers.
    ///
    /// # Errors
    ///
    /// The length of `bytes` is not a multiple of the element size, or `valid` has fewer bits than
    /// rows.
    pub fn numbers(
        of: NumberType,
        bytes: &'a [u8],
        valid: Option<&'a [u8]>,
    ) -> Result<Column<'a>, Error> {
        let rows = count(of, bytes)?;
        Column { values: Values::Numbers(of, bytes), valid, rows }.checked()
    }

    /// Makes a column of text. `offsets` contains `i32`, or `i64` if `is_large`. It gives the
    /// position in `bytes` at which each row's text begins, and then the end of the last text.
    ///
    /// # Errors
    ///
    /// The offsets decrease or point beyond `bytes`, or `valid` has fewer bits than rows.
    pub fn text(
        offsets: &'a [u8],
        is_large: bool,
        bytes: &'a [u8],
        valid: Option<&'a [u8]>,
    ) -> Result<Column<'a>, Error> {
        let text = Text { offsets, is_large, bytes };
        let rows = (offsets.len() / text.width()).saturating_sub(1);
        let mut last = 0;
        for row in 0..=rows {
            let at = text.offset(row);
            if offsets.is_empty() {
                break;
            }
            if at < last || at > bytes.len() {
                return Err(Error::Invalid(format!(
                    "the text of row {row} begins at byte {at}, after byte {last}, of {}; the offsets of \
                     a column of text increase",
                    bytes.len()
                )));
            }
            last = at;
        }
        Column { values: Values::Text(text), valid, rows }.checked()
    }

    /// Makes a column of codes. A code is the index of a row in `dictionary`. A code beyond the
    /// dictionary is a missing value.
    ///
    /// # Errors
    ///
    /// The codes are not integers, or [`numbers`](Column::numbers) rejects `bytes` or `valid`.
    pub fn codes(
        of: NumberType,
        bytes: &'a [u8],
        dictionary: Column<'a>,
        valid: Option<&'a [u8]>,
    ) -> Result<Column<'a>, Error> {
        let rows = count(of, bytes)?;
        if of.is_float() || of == NumberType::Bool {
            return Err(Error::Invalid(format!("codes are integers, and these are {of:?}")));
        }
        let values = Values::Codes(of, bytes, Box::new(dictionary));
        Column { values, valid, rows }.checked()
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn is_valid(&self, row: usize) -> bool {
        self.valid.is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1)
    }

    fn checked(self) -> Result<Column<'a>, Error> {
        match self.valid {
            Some(bits) if bits.len() < self.rows.div_ceil(8) => Err(Error::Invalid(format!(
                "the bitmap of valid rows has {} bytes, and {} rows need {}",
                bits.len(),
                self.rows,
                self.rows.div_ceil(8)
            ))),
            _ => Ok(self),
        }
    }
}

fn count(of: NumberType, bytes: &[u8]) -> Result<usize, Error> {
    if bytes.len().is_multiple_of(of.size()) {
        return Ok(bytes.len() / of.size());
    }
    Err(Error::Invalid(format!("{} bytes are no whole number of {of:?}", bytes.len())))
}

/// Text of rows, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    offsets: &'a [u8],
    is_large: bool,
    bytes: &'a [u8],
}

impl<'a> Text<'a> {
    pub(crate) fn get(&self, row: usize) -> &'a [u8] {
        &self.bytes[self.offset(row)..self.offset(row + 1)]
    }

    fn width(&self) -> usize {
        if self.is_large { 8 } else { 4 }
    }

    /// Returns a row's offset. A negative or missing offset becomes the largest number.
    fn offset(&self, row: usize) -> usize {
        let bytes = self.offsets.chunks_exact(self.width()).nth(row).unwrap_or_default();
        let offset = match self.is_large {
            true => bytes.try_into().map(i64::from_le_bytes).unwrap_or(-1),
            false => bytes.try_into().map_or(-1, |bytes| i64::from(i32::from_le_bytes(bytes))),
        };
        usize::try_from(offset).unwrap_or(usize::MAX)
    }
}

/// Returns the code that a column of codes has in row `row`; `None` if that code is negative.
pub(crate) fn code(of: NumberType, bytes: &[u8], row: usize) -> Option<usize> {
    let ordered = of.ordered(&bytes[row * of.size()..][..of.size()])?;
    let top = 1_u64 << (8 * of.size() - 1);
    let code = if of.is_signed() { ordered.checked_sub(top)? } else { ordered };
    usize::try_from(code).ok()
}

/// Records whether row `rows` has a value. Makes the list at the first row without a value.
pub(crate) fn push_present(present: &mut Option<Vec<bool>>, rows: usize, is_present: bool) {
    match present {
        Some(present) => present.push(is_present),
        None if is_present => {}
        None => {
            let mut made = vec![true; rows];
            made.push(false);
            *present = Some(made);
        }
    }
}

/// Returns the type of a column's numbers; `None` for text.
pub(crate) fn number_type(column: &Column<'_>) -> Option<NumberType> {
    match &column.values {
        Values::Numbers(of, _) => Some(*of),
        Values::Text(_) => None,
        Values::Codes(.., dictionary) => number_type(dictionary),
    }
}
