//! Iterates over arrays. An array of one axis is downloaded once. An array of several axes yields
//! its rows.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::Array;
use super::operations::Comparison;
use super::operators::{has_elements, no_side};
use super::window::length;
use crate::failure::detached;
use crate::kind::{self, Kind, Native, Number, with_kind};

/// Number of elements after which an iteration handles signals and lets other threads run. Bounds
/// the delay of Ctrl-C to about a millisecond. The pauses take less than 1 % of the time.
const TURN: usize = 1 << 14;

/// An iterator over an array, returned by `iter(array)`.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_Elements")]
pub(crate) struct Elements {
    of: Of,
    count: usize,
    next: AtomicUsize,
}

enum Of {
    /// The bytes of the elements, downloaded when the iteration began.
    Numbers(Vec<u8>, Kind),
    Rows(Array),
}

#[pymethods]
impl Elements {
    fn __iter__(slf: Py<Elements>) -> Py<Elements> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        if at >= self.count {
            self.next.store(self.count, Ordering::Relaxed);
            return Ok(None);
        }
        yield_lock(py, at)?;
        match &self.of {
            Of::Numbers(bytes, kind) => {
                let size = kind.size();
                kind::item(py, *kind, &bytes[at * size..(at + 1) * size]).map(Some)
            }
            Of::Rows(array) => {
                let window = array.window(py)?;
                let inner = window.shape.get(1..).unwrap_or_default().to_vec();
                // Rows without elements have no place in memory. Any offset is valid.
                let first = at * length(&inner);
                array.sharing(py, window.part(first, inner))?.into_py_any(py).map(Some)
            }
        }
    }

    fn __length_hint__(&self) -> usize {
        self.count.saturating_sub(self.next.load(Ordering::Relaxed))
    }
}

impl Array {
    /// Makes the iterator over an array.
    pub(super) fn elements(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let window = self.window(py)?;
        let of = match window.shape.len() {
            0 => {
                return Err(PyTypeError::new_err(
                    "an array without axes has no elements to iterate",
                ));
            }
            1 => Of::Numbers(self.bytes(py)?, window.kind),
            _ => Of::Rows(Array { window: window.clone(), held: self.held.clone() }),
        };
        let count = window.shape.first().copied().unwrap_or_default();
        Elements { of, count, next: AtomicUsize::new(0) }.into_py_any(py)
    }

    /// Returns whether any element equals `value`: a number, or an array that is compared
    /// elementwise.
    pub(super) fn contains(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = value.py();
        if value.is_instance_of::<Array>() {
            let mask = self.compared(Comparison::Equal, value)?.into_bound(py);
            return mask.cast::<Array>()?.get().truth(py, false);
        }
        match Number::read(value)? {
            Some(number) => self.contains_number(py, number),
            None if has_elements(value)? => Err(no_side(value)),
            None => Ok(false),
        }
    }

    /// Returns whether an element equals `number`. Downloads the elements once.
    fn contains_number(&self, py: Python<'_>, number: Number) -> PyResult<bool> {
        fn run<T: Native + PartialEq>(bytes: &[u8], number: Number) -> bool {
            let wanted = T::from_number(number);
            bytes.chunks_exact(size_of::<T>()).any(|element| Some(T::get(element)) == wanted)
        }
        let kind = self.window(py)?.kind;
        let Some(number) = Comparison::equal_number(kind, number) else { return Ok(false) };
        let bytes = self.bytes(py)?;
        detached(py, || with_kind!(kind, T => run::<T>(&bytes, number)))
    }

    /// Makes nested lists from the bytes of elements.
    pub(super) fn nested_lists(
        py: Python<'_>,
        shape: &[usize],
        kind: Kind,
        bytes: &[u8],
    ) -> PyResult<Py<PyAny>> {
        let Some((&first, inner)) = shape.split_first() else {
            return kind::item(py, kind, bytes);
        };
        if first == 0 {
            // An axis of length 0 makes an empty list. The product of the other lengths, computed
            // below, may overflow here.
            return PyList::empty(py).into_py_any(py);
        }
        let row = length(inner) * kind.size();
        // Appends one row at a time, because making a list of the whole length panics if the host
        // has no memory.
        let list = PyList::empty(py);
        for at in 0..first {
            yield_lock(py, at)?;
            list.append(Array::nested_lists(py, inner, kind, &bytes[at * row..(at + 1) * row])?)?;
        }
        list.into_py_any(py)
    }
}

/// Handles signals and lets other threads run, once every [`TURN`] elements.
fn yield_lock(py: Python<'_>, at: usize) -> PyResult<()> {
    if at % TURN == TURN - 1 {
        py.check_signals()?;
        py.detach(|| ());
    }
    Ok(())
}
