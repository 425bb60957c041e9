//! Reads counts that a caller passes, such as numbers of bytes.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::kind::read_index;

/// A non-negative whole number.
#[derive(Clone, Copy)]
pub(crate) struct Count(pub(crate) u64);

impl Count {
    /// Returns the number as a `usize`. A larger number becomes `usize::MAX`.
    pub(crate) fn length(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl<'py> FromPyObject<'_, 'py> for Count {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Count> {
        if let Ok(count) = given.cast::<PyInt>() {
            return count.extract().map(Count).map_err(|_| refused(&given));
        }
        match read_index(&given)? {
            Some(count) => count.extract().map(Count).map_err(|_| refused(&count)),
            None => Err(PyTypeError::new_err(format!(
                "{} is no whole number; pass a number of bytes or groups as an int",
                given.get_type()
            ))),
        }
    }
}

/// Makes the error for a whole number that is negative or too large.
fn refused(given: &Bound<'_, PyAny>) -> PyErr {
    PyValueError::new_err(format!(
        "{given} is no number of bytes or groups; pass one from 0 to {}",
        u64::MAX
    ))
}
