//! Debug output of arrays.

use std::fmt;
use std::ops::Range;

use ndarray::Dimension;

use super::{ArrayBase, ArrayData, Element, UninitArray};

/// Maximum number of elements shown along the last axis.
const COLUMNS: usize = 8;
/// Maximum number of indices shown along the second-last axis.
const ROWS: usize = 6;
/// Maximum number of indices shown along each axis, except along the last two axes.
const LAYERS: usize = 2;
/// Maximum number of rows shown in total.
const ALL_ROWS: usize = 24;
/// Maximum number of bytes that are read from the array for one row of text.
const ROW_BYTES: usize = 4096;

/// Formats the kind, the shape and the first elements. Shows a few elements along each axis, and a
/// matrix as rows. Waits for the array's last use, and reads less than 100 KiB. A width or
/// precision in the format string applies to the elements.
///
/// ```text
/// DeviceArray<f32>([2, 1000], device)
/// [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, …],
///  [1000.0, 1001.0, 1002.0, 1003.0, 1004.0, 1005.0, 1006.0, 1007.0, …]]
/// ```
impl<S: ArrayData, T: Element + fmt::Debug, D: Dimension> fmt::Debug for ArrayBase<S, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&head(S::NAME, self))?;
        if self.is_freed() {
            return f.write_str(" freed");
        }
        if self.is_empty() {
            return f.write_str(" []");
        }
        let shown = shown_counts::<T>(self.shape());
        let mut starts = Vec::new();
        row_starts(self.shape(), &shown, 0, &mut starts);
        let columns = shown.last().copied().unwrap_or(usize::from(size_of::<T>() <= ROW_BYTES));
        let elements = match self.ranges(merged(&starts, columns)) {
            Ok(elements) => elements,
            // Another thread may have freed the array meanwhile.
            Err(error) if error.is_freed() => return f.write_str(" freed"),
            Err(error) => return write!(f, " unreadable: {error}"),
        };
        f.write_str(if self.ndim() > 1 { "\n" } else { " " })?;
        write_elements(f, &mut elements.iter(), self.shape(), &shown, 0)
    }
}

impl<T: Element, D: Dimension> fmt::Debug for UninitArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&head("UninitArray", &self.0))?;
        f.write_str(if self.0.is_freed() { " freed" } else { " not written" })
    }
}

/// Writes an array's name, shape and place.
fn head<S: ArrayData, T: Element, D: Dimension>(name: &str, array: &ArrayBase<S, T, D>) -> String {
    let element = short(std::any::type_name::<T>());
    format!("{name}<{element}>({:?}, {})", array.shape(), array.kind())
}

/// Removes the paths from a type's name.
fn short(name: &str) -> String {
    let mut text = String::new();
    let mut word = 0;
    for letter in name.chars() {
        text.push(letter);
        if text.ends_with("::") {
            text.truncate(word);
        } else if !letter.is_alphanumeric() && letter != '_' && letter != ':' {
            word = text.len();
        }
    }
    text
}

/// Returns how many indices of each axis are shown.
fn shown_counts<T>(shape: &[usize]) -> Vec<usize> {
    let columns = match size_of::<T>() {
        0 => COLUMNS,
        size => COLUMNS.min(ROW_BYTES / size),
    };
    let mut rows = 1;
    let mut shown: Vec<usize> = Vec::new();
    for (nth, length) in shape.iter().rev().enumerate() {
        let most = match nth {
            0 => columns,
            1 => ROWS,
            _ => LAYERS,
        };
        let count = (*length).min(if nth == 0 { most } else { most.min(ALL_ROWS / rows) });
        if nth > 0 {
            rows *= count.max(1);
        }
        shown.push(count);
    }
    shown.reverse();
    shown
}

/// Collects the index of the first element of each shown row.
fn row_starts(shape: &[usize], shown: &[usize], from: usize, starts: &mut Vec<usize>) {
    match (shape, shown) {
        ([_, rest @ ..], [count, shown @ ..]) if !rest.is_empty() => {
            let stride: usize = rest.iter().product();
            for index in 0..*count {
                row_starts(rest, shown, from + index * stride, starts);
            }
        }
        _ => starts.push(from),
    }
}

/// Returns the ranges of the rows that begin at `starts`, with adjacent rows merged.
fn merged(starts: &[usize], columns: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for start in starts {
        match ranges.last_mut() {
            Some(last) if last.end == *start => last.end += columns,
            _ => ranges.push(*start..start + columns),
        }
    }
    ranges
}

fn write_elements<'a, T: fmt::Debug + 'a>(
    f: &mut fmt::Formatter<'_>,
    elements: &mut impl Iterator<Item = &'a T>,
    shape: &[usize],
    shown: &[usize],
    depth: usize,
) -> fmt::Result {
    let ([length, shape @ ..], [count, shown @ ..]) = (shape, shown) else {
        return match elements.next() {
            // An element never spans several lines.
            Some(element) if f.alternate() => write!(f, "{element:?}"),
            Some(element) => element.fmt(f),
            None => f.write_str("…"),
        };
    };
    f.write_str("[")?;
    // Each row has its own line. An empty line separates layers.
    let between = match shape.len() {
        0 => ", ".to_owned(),
        below => format!(",{}{}", "\n".repeat(below), " ".repeat(depth + 1)),
    };
    for index in 0..*count {
        if index > 0 {
            f.write_str(&between)?;
        }
        write_elements(f, elements, shape, shown, depth + 1)?;
    }
    if count < length {
        if *count > 0 {
            f.write_str(&between)?;
        }
        f.write_str("…")?;
    }
    f.write_str("]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short() {
        assert_eq!(short("f32"), "f32");
        assert_eq!(short("half::binary16::f16"), "f16");
        assert_eq!(short("num_complex::Complex<half::binary16::f16>"), "Complex<f16>");
        assert_eq!(short("[my_crate::a_b::Point; 3]"), "[Point; 3]");
        assert_eq!(short("()"), "()");
    }

    #[test]
    fn little_is_shown_of_any_shape() {
        for shape in [&[usize::MAX; 1][..], &[1000; 3], &[50; 10], &[3, 0, 5], &[]] {
            let shown = shown_counts::<u8>(shape);
            assert!(shown.iter().product::<usize>() <= ALL_ROWS * COLUMNS, "{shape:?}: {shown:?}");
        }
        assert_eq!(shown_counts::<[u8; 1 << 20]>(&[4]), [0]);
        assert_eq!(shown_counts::<u8>(&[9, 9, 9]), [2, 6, 8]);
    }
}
