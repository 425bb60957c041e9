//! Assigns consecutive integers to the distinct keys of rows.

use rustc_hash::FxHashMap;

use crate::column::{Column, Values, code};
use crate::error::{Error, room};
use crate::keys::Keys;

/// Treatment of rows with a missing key. A key is missing if a column has NaN or a null for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The rows belong to no group.
    LeftOut,
    /// The rows form groups: missing values equal each other, and follow all other values.
    Group,
}

/// The distinct keys of rows, and for each row the index of its key.
#[derive(Debug)]
pub struct Dense {
    /// The index of each row's key in `keys`; `u32::MAX` for a row that belongs to no group.
    pub codes: Vec<u32>,
    /// The distinct keys in ascending order.
    pub keys: Keys,
}

/// Gives a number to each distinct key of the rows. A key has one value of each column.
///
/// # Errors
///
/// There is no column; the columns have different numbers of rows; there are `u32::MAX` distinct
/// keys or more; the host has no memory for the numbers.
pub fn factorize(columns: &[Column<'_>], missing: Missing) -> Result<Dense, Error> {
    let (codes, firsts) = number(columns, missing)?;
    let keys = Keys::of_rows(columns, firsts.into_iter())?;
    Ok(Dense { codes, keys })
}

/// Returns the number that each row's key got, and for each number the first row that got it.
pub(crate) fn number(
    columns: &[Column<'_>],
    missing: Missing,
) -> Result<(Vec<u32>, Vec<usize>), Error> {
    let rows = check(columns)?;
    let (first, others) = match columns.split_first() {
        Some(split) => split,
        None => return Ok((Vec::new(), Vec::new())),
    };
    let mut all = number_column(first, missing)?;
    for column in others {
        let (codes, firsts) = number_column(column, missing)?;
        // Codes have the order of their values, so pairs of codes have the order of keys.
        let pairs = |row: usize| match (all.0[row], codes[row]) {
            (LEFT_OUT, _) | (_, LEFT_OUT) => None,
            (one, other) => Some(u64::from(one) * firsts.len() as u64 + u64::from(other)),
        };
        all = number_integers(rows, pairs)?;
    }
    Ok(all)
}

/// Returns the number of rows. Fails if there is no column, or if the columns' numbers of rows
/// differ.
pub(crate) fn check(columns: &[Column<'_>]) -> Result<usize, Error> {
    let Some(first) = columns.first() else {
        return Err(Error::Invalid("there is no key; name one column or several".to_owned()));
    };
    match columns.iter().find(|column| column.rows() != first.rows()) {
        Some(other) => Err(Error::Invalid(format!(
            "one column of the key has {} rows and another {}; give columns of one table",
            first.rows(),
            other.rows()
        ))),
        None => Ok(first.rows()),
    }
}

pub(crate) const LEFT_OUT: u32 = u32::MAX;

fn number_column(column: &Column<'_>, missing: Missing) -> Result<(Vec<u32>, Vec<usize>), Error> {
    let rows = column.rows();
    let (mut codes, mut firsts) = match &column.values {
        Values::Numbers(of, bytes) => number_integers(rows, |row| {
            let number = &bytes[row * of.size()..][..of.size()];
            if column.is_valid(row) { of.ordered(number) } else { None }
        })?,
        Values::Text(text) => {
            number_by_map(rows, |row| column.is_valid(row).then(|| text.get(row)))?
        }
        Values::Codes(of, bytes, dictionary) => {
            // Two codes may stand for one value of the dictionary. So rows get numbers by value,
            // not by code.
            let (numbers, _) = number_column(dictionary, Missing::LeftOut)?;
            number_integers(rows, |row| {
                let code = code(*of, bytes, row).filter(|_| column.is_valid(row))?;
                numbers.get(code).filter(|code| **code != LEFT_OUT).map(|code| u64::from(*code))
            })?
        }
    };
    if missing == Missing::Group
        && let Some(first) = codes.iter().position(|code| *code == LEFT_OUT)
    {
        let last = firsts.len() as u32;
        codes.iter_mut().filter(|code| **code == LEFT_OUT).for_each(|code| *code = last);
        firsts.push(first);
    }
    Ok((codes, firsts))
}

/// Gives a number to each distinct integer, in ascending order.
fn number_integers(
    rows: usize,
    get: impl Fn(usize) -> Option<u64>,
) -> Result<(Vec<u32>, Vec<usize>), Error> {
    let (mut least, mut greatest) = (u64::MAX, 0);
    for value in (0..rows).filter_map(&get) {
        (least, greatest) = (least.min(value), greatest.max(value));
    }
    let range = greatest.checked_sub(least).and_then(|range| usize::try_from(range).ok());
    match range {
        // If the range is not much larger than the number of rows, a table is quicker than a map.
        Some(range) if range < rows.saturating_mul(2) => {
            let mut table = room(range + 1)?;
            table.resize(range + 1, usize::MAX);
            for (row, value) in (0..rows).filter_map(|row| Some((row, get(row)?))) {
                let first = &mut table[(value - least) as usize];
                *first = row.min(*first);
            }
            let mut firsts = Vec::new();
            for place in table.iter_mut().filter(|first| **first != usize::MAX) {
                firsts.push(std::mem::replace(place, firsts.len()));
            }
            let codes = fill(rows, firsts.len(), |row| {
                get(row).map(|value| table[(value - least) as usize] as u32)
            })?;
            Ok((codes, firsts))
        }
        _ => number_by_map(rows, get),
    }
}

/// Gives a number to each distinct value, in ascending order. Uses a map of the values.
fn number_by_map<K: Copy + Ord + std::hash::Hash>(
    rows: usize,
    get: impl Fn(usize) -> Option<K>,
) -> Result<(Vec<u32>, Vec<usize>), Error> {
    let mut found: FxHashMap<K, u32> = FxHashMap::default();
    let mut distinct: Vec<(K, usize, u32)> = Vec::new();
    let mut codes = fill(rows, 0, |row| {
        let value = get(row)?;
        let next = distinct.len() as u32;
        let code = *found.entry(value).or_insert(next);
        if code == next {
            distinct.push((value, row, code));
        }
        Some(code)
    })?;
    if distinct.len() >= LEFT_OUT as usize {
        return Err(too_many());
    }
    drop(found);
    distinct.sort_unstable_by_key(|(value, ..)| *value);
    let mut ranks = vec![0; distinct.len()];
    for (rank, (.., code)) in distinct.iter().enumerate() {
        ranks[*code as usize] = rank as u32;
    }
    codes
        .iter_mut()
        .filter(|code| **code != LEFT_OUT)
        .for_each(|code| *code = ranks[*code as usize]);
    Ok((codes, distinct.into_iter().map(|(_, first, _)| first).collect()))
}

fn fill(
    rows: usize,
    numbers: usize,
    get: impl FnMut(usize) -> Option<u32>,
) -> Result<Vec<u32>, Error> {
    if numbers >= LEFT_OUT as usize {
        return Err(too_many());
    }
    let mut codes = room(rows)?;
    let mut get = get;
    codes.extend((0..rows).map(|row| get(row).unwrap_or(LEFT_OUT)));
    Ok(codes)
}

fn too_many() -> Error {
    Error::Invalid(format!("a batch has {LEFT_OUT} distinct keys or more; use smaller batches"))
}
