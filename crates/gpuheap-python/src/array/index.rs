//! Reads parts of arrays from Python's indices.

use gpuheap::ndarray::SliceInfoElem;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PySlice, PyTuple};

use super::window::{Window, length};
use crate::kind::{MOST_AXES, read_index};

pub(crate) enum Part {
    /// A contiguous part. It shares the memory.
    Window(Window),
    /// A part with gaps. It has to be copied.
    Strided(Vec<SliceInfoElem>),
}

/// Meaning of one item of an index.
enum Axis {
    /// A new axis of length 1.
    New,
    At(usize),
    Range {
        start: usize,
        step: isize,
        count: usize,
    },
}

impl Part {
    /// Parses an index. Returns the part of `window` that the index selects.
    pub(crate) fn parse(window: &Window, index: &Bound<'_, PyAny>) -> PyResult<Part> {
        let axes = axes(window, index)?;
        Ok(match without_gaps(window, &axes) {
            Some(part) => Part::Window(part),
            None => Part::Strided(axes.iter().map(Axis::element).collect()),
        })
    }
}

impl Axis {
    /// Returns the slice for `ndarray`. The slice starts at the lower end of the range, even if the
    /// step is negative.
    fn element(&self) -> SliceInfoElem {
        let reach = |step: isize, count: usize| count.saturating_sub(1) as isize * step.abs();
        match *self {
            Axis::New => SliceInfoElem::NewAxis,
            Axis::At(at) => SliceInfoElem::Index(at as isize),
            Axis::Range { count: 0, .. } => {
                SliceInfoElem::Slice { start: 0, end: Some(0), step: 1 }
            }
            Axis::Range { start, step, count } => {
                let (start, reach) = (start as isize, reach(step, count));
                let low = if step < 0 { start - reach } else { start };
                SliceInfoElem::Slice { start: low, end: Some(low + reach + 1), step }
            }
        }
    }
}

fn axes(window: &Window, index: &Bound<'_, PyAny>) -> PyResult<Vec<Axis>> {
    let items: Vec<Bound<'_, PyAny>> = match index.cast::<PyTuple>() {
        Ok(items) => items.iter().collect(),
        Err(_) => vec![index.clone()],
    };
    let is_rest = |item: &Bound<'_, PyAny>| item.is_instance_of::<PyEllipsis>();
    let named = items.iter().filter(|item| !is_rest(item) && !item.is_none()).count();
    let all = window.shape.len();
    if items.iter().filter(|item| is_rest(item)).count() > 1 {
        return Err(PyIndexError::new_err("the index has more than one `...`; write one of them"));
    }
    if all + items.iter().filter(|item| item.is_none()).count() > MOST_AXES {
        return Err(PyIndexError::new_err(format!(
            "the part would have more than {MOST_AXES} axes, the most of an array; leave out None"
        )));
    }
    if named > all {
        return Err(PyIndexError::new_err(format!(
            "the index names {named} axes, and the array has {all} (shape {:?})",
            window.shape
        )));
    }
    let whole = |length: usize| Axis::Range { start: 0, step: 1, count: length };
    let (mut axes, mut lengths) = (Vec::new(), window.shape.iter().copied());
    for item in &items {
        if item.is_none() {
            axes.push(Axis::New);
        } else if is_rest(item) {
            axes.extend(lengths.by_ref().take(all - named).map(whole));
        } else {
            axes.push(axis(item, lengths.next().unwrap_or_default(), &window.shape)?);
        }
    }
    axes.extend(lengths.map(whole));
    Ok(axes)
}

fn axis(item: &Bound<'_, PyAny>, length: usize, shape: &[usize]) -> PyResult<Axis> {
    let py = item.py();
    if let Ok(slice) = item.cast::<PySlice>() {
        let found = slice.indices(isize::try_from(length).unwrap_or(isize::MAX))?;
        let start = usize::try_from(found.start).unwrap_or_default();
        return Ok(Axis::Range { start, step: found.step, count: found.slicelength });
    }
    // NumPy's arrays without axes have `__index__` like a number, but are refused as an index. They
    // are recognised by `__len__`.
    let is_number = !item.is_instance_of::<PyBool>() && !item.hasattr(intern!(py, "__len__"))?;
    let number = if is_number { read_index(item)? } else { None };
    let Some(number) = number else {
        return Err(PyTypeError::new_err(format!(
            "an index of {} is none that arrays have; pass whole numbers, slices, `...` and None",
            item.get_type()
        )));
    };
    let outside = || {
        PyIndexError::new_err(format!(
            "index {number} is outside an axis of length {length} (shape {shape:?})"
        ))
    };
    let given: isize = number.extract().map_err(|_| outside())?;
    let at = if given < 0 { given.checked_add_unsigned(length) } else { Some(given) };
    let at = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < length);
    at.map(Axis::At).ok_or_else(outside)
}

/// Returns the part as a window if it is contiguous. A contiguous part has single indices first,
/// then at most one range, then whole axes.
fn without_gaps(window: &Window, axes: &[Axis]) -> Option<Window> {
    let mut lengths = window.shape.as_slice();
    let (mut first, mut shape, mut must_be_whole) = (0_usize, Vec::new(), false);
    for axis in axes {
        if matches!(axis, Axis::New) {
            shape.push(1);
            continue;
        }
        let (&of, inner) = lengths.split_first()?;
        lengths = inner;
        // An array without elements has no strides. The product of its other lengths may overflow.
        let stride = if window.len() == 0 { 0 } else { length(inner) };
        match *axis {
            Axis::New => {}
            Axis::At(at) if !must_be_whole => first += at * stride,
            Axis::Range { count, .. } if count == of && is_forward(axis) => {
                shape.push(count);
                must_be_whole |= count != 1;
            }
            Axis::Range { start, count, .. } if !must_be_whole && is_forward(axis) => {
                first += start.min(of) * stride;
                shape.push(count);
                must_be_whole = count != 1;
            }
            _ => return None,
        }
    }
    // A part without elements may begin at any offset. Uses 0, because the end of the memory is not
    // an address inside it.
    let first = if length(&shape) == 0 { 0 } else { first };
    Some(window.part(first, shape))
}

fn is_forward(axis: &Axis) -> bool {
    matches!(axis, Axis::Range { step: 1, .. } | Axis::Range { count: 0 | 1, .. })
}

/// Returns the shape that `asked` means for an array of `count` elements. If one length is -1, it
/// is computed from the others.
pub(crate) fn reshaped(count: usize, asked: &[isize]) -> PyResult<Vec<usize>> {
    let refused = || {
        PyValueError::new_err(format!(
            "an array of {count} elements has no shape {asked:?}; give axes that multiply to {count}, one \
             of them may be -1"
        ))
    };
    let known = asked.iter().filter(|length| **length != -1);
    let mut product = Some(1_usize);
    for length in known.clone() {
        let length = usize::try_from(*length).map_err(|_| refused())?;
        product = product.and_then(|product| product.checked_mul(length));
    }
    let product = product.ok_or_else(refused)?;
    let missing = asked.len() - known.count();
    let fits = match missing {
        0 => product == count,
        1 => product > 0 && count.is_multiple_of(product),
        _ => false,
    };
    if !fits {
        return Err(refused());
    }
    let free = count.checked_div(product).unwrap_or_default();
    Ok(asked.iter().map(|length| usize::try_from(*length).unwrap_or(free)).collect())
}
