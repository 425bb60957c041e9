//! Operations of an array and another side: the rules of types that Python's operators have.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::Array;
use super::operations::{self, ByKey, Op, Reduction, Side};
use crate::kind::{Kind, Number};

impl Array {
    /// Reads the other side of an operation; `None` for an object that is none.
    pub(super) fn side(&self, other: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<Side>> {
        let py = other.py();
        if let Ok(array) = other.cast::<Array>() {
            let window = array.get().window(py)?;
            if window.kind != kind {
                return Err(PyTypeError::new_err(format!(
                    "one side has elements of {} and the other of {}; convert one of them: \
                     a.astype(\"{}\")",
                    kind.name(),
                    window.kind.name(),
                    kind.name()
                )));
            }
            return Ok(Some(Side::Array(window.clone())));
        }
        let number = Number::read(other)?;
        number.map(|number| number.check(kind).map(Side::Number)).transpose()
    }

    /// Returns `self op other`, or with `is_right` `other op self`.
    pub(super) fn binary(
        &self,
        op: Op,
        other: &Bound<'_, PyAny>,
        is_right: bool,
    ) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let window = self.window(py)?;
        let Some(side) = self.side(other, window.kind)? else {
            return Ok(py.NotImplemented());
        };
        check_numbers(window.kind)?;
        let array = self.make(py, |window| match (side, is_right) {
            (Side::Number(number), true) => operations::from_number(op, number, window),
            (side, _) => operations::arithmetic(op, window, &side),
        })?;
        array.into_py_any(py)
    }

    /// Writes `self op other` to this array.
    pub(super) fn in_place(&self, op: Op, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = other.py();
        let window = self.writable(py)?;
        let Some(side) = self.side(other, window.kind)? else {
            return Err(PyTypeError::new_err(format!(
                "{} is neither a number nor a gpuheap array; make an array of it: heap.array(x)",
                other.get_type()
            )));
        };
        check_numbers(window.kind)?;
        self.held.owner.work(py, || operations::in_place(op, window, &side))
    }

    /// Returns this array as float64, for a quotient of integers.
    pub(super) fn as_float(&self, py: Python<'_>) -> PyResult<Py<Array>> {
        self.make(py, |window| operations::cast(window, Kind::F64))
    }

    pub(super) fn divided(&self, other: &Bound<'_, PyAny>, is_right: bool) -> PyResult<Py<PyAny>> {
        let py = other.py();
        if self.window.kind.class() == 'f' {
            return self.binary(Op::Divide, other, is_right);
        }
        let left = self.as_float(py)?;
        match other.cast::<Array>() {
            Ok(right) if right.get().window.kind.class() != 'f' => {
                let right = right.get().as_float(py)?.into_bound(py).into_any();
                left.get().binary(Op::Divide, &right, is_right)
            }
            _ => left.get().binary(Op::Divide, other, is_right),
        }
    }

    pub(super) fn floored(&self, other: &Bound<'_, PyAny>, is_right: bool) -> PyResult<Py<PyAny>> {
        if self.window.kind.class() != 'u' {
            return Err(PyTypeError::new_err(format!(
                "// rounds down, which gpuheap does for unsigned integers alone, and this array has {}; \
                 a.trunc_div(b) rounds toward 0",
                self.window.kind.name()
            )));
        }
        self.binary(Op::Divide, other, is_right)
    }

    pub(super) fn reduced(
        &self,
        py: Python<'_>,
        op: Reduction,
        axis: Option<isize>,
    ) -> PyResult<Py<PyAny>> {
        let window = self.window(py)?;
        if window.kind == Kind::Bool && matches!(op, Reduction::Min | Reduction::Max) {
            return Err(PyTypeError::new_err("a mask has no least element; use all() or any()"));
        }
        let Some(axis) = axis else {
            return operations::reduce(py, &self.held.owner, op, window);
        };
        let axis = self.axis(axis);
        self.make(py, |window| operations::reduce_axis(op, window, axis))?.into_py_any(py)
    }

    pub(super) fn by_key(
        py: Python<'_>,
        values: Option<(&Array, bool)>,
        keys: &Array,
        groups: usize,
    ) -> PyResult<Py<Array>> {
        let window = keys.window(py)?;
        if !matches!(window.kind.class(), 'i' | 'u') || window.shape.len() != 1 {
            return Err(PyTypeError::new_err(format!(
                "keys are integers along one axis, and these are {} of shape {:?}; convert them: \
                 keys.astype(\"int32\").reshape(-1)",
                window.kind.name(),
                window.shape
            )));
        }
        let what = match values {
            Some((values, false)) => ByKey::Sum(values.window(py)?),
            Some((values, true)) => ByKey::Mean(values.window(py)?),
            None => ByKey::Count,
        };
        let owner = &values.map_or(keys, |(values, _)| values).held.owner;
        let made = owner.make(py, || operations::by_key(what, window, groups))?;
        Array::new(py, owner, made)
    }

    pub(super) fn truth(&self, py: Python<'_>, all: bool) -> PyResult<bool> {
        let window = self.window(py)?;
        if window.kind != Kind::Bool {
            return Err(PyTypeError::new_err(format!(
                "all() and any() are of masks, and this array has {}; compare it first: (a != 0).any()",
                window.kind.name()
            )));
        }
        operations::of_mask(py, &self.held.owner, window, all)
    }
}

fn check_numbers(kind: Kind) -> PyResult<()> {
    if kind != Kind::Bool {
        return Ok(());
    }
    Err(PyTypeError::new_err("masks have no arithmetic; convert them first: a.astype(\"uint8\")"))
}
