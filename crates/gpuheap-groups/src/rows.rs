//! Sorts rows by their keys, and matches them with the rows of another table.

use crate::column::{Column, Values};
use crate::dense::{LEFT_OUT, Missing, check, number};
use crate::error::{Error, room};
use crate::keys::Keys;

/// Returns the rows in the order of their keys. Rows with equal keys stay in their order. Rows with
/// a missing key are last. `descending` has an entry for each column.
///
/// # Errors
///
/// [`factorize`](crate::factorize) would fail, there are `u32::MAX` rows or more, or `descending`
/// does not have one entry for each column.
pub fn sort(columns: &[Column<'_>], descending: &[bool]) -> Result<Vec<u32>, Error> {
    let rows = check(columns)?;
    if descending.len() != columns.len() {
        return Err(Error::Invalid(format!(
            "there are {} directions for {} columns; give one for each",
            descending.len(),
            columns.len()
        )));
    }
    let mut order = indices(rows)?;
    // A stable sort by each column, the last column first, sorts by all columns.
    for (column, descending) in columns.iter().zip(descending).rev() {
        let (numbers, _) = number(std::slice::from_ref(column), Missing::LeftOut)?;
        order.sort_by_key(|row| match numbers[*row as usize] {
            LEFT_OUT => LEFT_OUT,
            number if *descending => LEFT_OUT - 1 - number,
            number => number,
        });
    }
    Ok(order)
}

/// Returns the first row of each distinct key, in the order of the rows. Missing keys are equal to
/// each other.
///
/// # Errors
///
/// [`factorize`](crate::factorize) would fail, or there are `u32::MAX` rows or more.
pub fn unique(columns: &[Column<'_>]) -> Result<Vec<u32>, Error> {
    count_u32(check(columns)?)?;
    let (_, mut firsts) = number(columns, Missing::Group)?;
    firsts.sort_unstable();
    Ok(firsts.into_iter().map(|row| row as u32).collect())
}

fn indices(rows: usize) -> Result<Vec<u32>, Error> {
    let end = count_u32(rows)?;
    let mut all = room(rows)?;
    all.extend(0..end);
    Ok(all)
}

/// Returns `rows` if indices of 32 bits suffice for that many rows.
fn count_u32(rows: usize) -> Result<u32, Error> {
    u32::try_from(rows).ok().filter(|rows| *rows != LEFT_OUT).ok_or_else(|| {
        Error::Invalid(format!("a table of {rows} rows has more than indices of 32 bits count"))
    })
}

/// Returns the indices of the bytes that are not 0.
///
/// # Errors
///
/// [`Error::Invalid`] if the mask has too many bytes for indices of 32 bits.
pub fn true_rows(mask: &[u8]) -> Result<Vec<u32>, Error> {
    let end = count_u32(mask.len())?;
    Ok((0..end).zip(mask).filter(|(_, is)| **is != 0).map(|(row, _)| row).collect())
}

/// Pairs of matching rows.
#[derive(Debug)]
pub struct Matches {
    /// Row of the left table.
    pub left: Vec<u32>,
    /// Row of the right table; `u32::MAX` if no row matches.
    pub right: Vec<u32>,
}

/// Matches each row of the left table with the rows of the right table that have an equal key. The
/// pairs are in the order of the left rows, then of the right rows. Missing keys are equal to each
/// other, as in pandas. If `keeps_left`, left rows without a match are in the result too.
///
/// # Errors
///
/// [`factorize`](crate::factorize) would fail, a key column has different types in the two tables,
/// or a table or the result has `u32::MAX` rows or more.
pub fn join(left: &[Column<'_>], right: &[Column<'_>], keeps_left: bool) -> Result<Matches, Error> {
    let (left_rows, right_rows) = (check(left)?, check(right)?);
    // The right rows are sorted by key, so that rows with the same key are adjacent.
    let mut by_key = indices(right_rows)?;
    count_u32(left_rows)?;
    let left_keys = Keys::of_rows(left, 0..left_rows)?;
    let right_keys = Keys::of_rows(right, 0..right_rows)?;
    by_key.sort_by(|one, other| right_keys.get(*one as usize).cmp(right_keys.get(*other as usize)));
    let mut found: rustc_hash::FxHashMap<&[u8], std::ops::Range<usize>> = Default::default();
    let mut first = 0;
    for group in by_key
        .chunk_by(|one, other| right_keys.get(*one as usize) == right_keys.get(*other as usize))
    {
        found.insert(right_keys.get(group[0] as usize), first..first + group.len());
        first += group.len();
    }
    let mut matches = Matches { left: Vec::new(), right: Vec::new() };
    for row in 0..left_rows {
        let partners =
            found.get(left_keys.get(row)).map_or(&[][..], |range| &by_key[range.clone()]);
        let count = partners.len().max(usize::from(keeps_left));
        let pairs = matches.left.len().saturating_add(count);
        if pairs >= LEFT_OUT as usize {
            return Err(Error::Invalid(format!(
                "the join has {pairs} rows or more, and indices have 32 bits; join smaller parts"
            )));
        }
        for side in [&mut matches.left, &mut matches.right] {
            side.try_reserve(count).map_err(|_| Error::HostMemory(pairs * 8))?;
        }
        matches.left.resize(pairs, row as u32);
        matches.right.extend_from_slice(partners);
        matches.right.resize(pairs, LEFT_OUT);
    }
    Ok(matches)
}

/// Copies the texts of the rows in `indices`, in that order. Returns the offsets of the texts and
/// their bytes. An index beyond the column's rows gives an empty text.
///
/// # Errors
///
/// The column has no text; the host has no memory.
pub fn take_text(column: &Column<'_>, indices: &[u32]) -> Result<(Vec<i64>, Vec<u8>), Error> {
    let Values::Text(text) = &column.values else {
        return Err(Error::Invalid("the column has no text".to_owned()));
    };
    let (mut offsets, mut bytes) = (room(indices.len() + 1)?, Vec::new());
    offsets.push(0);
    for index in indices {
        let index = *index as usize;
        if index < column.rows() && column.is_valid(index) {
            let text = text.get(index);
            bytes.try_reserve(text.len()).map_err(|_| Error::HostMemory(text.len()))?;
            bytes.extend_from_slice(text);
        }
        offsets.push(bytes.len() as i64);
    }
    Ok((offsets, bytes))
}
