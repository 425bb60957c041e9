//! Python's operators on arrays, and the rules for the types of both operands.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::Array;
use super::operations::{self, ByKey, Comparison, Distinct, Op, Reduction, Side};
use super::window::Window;
use crate::failure::{call, detached, no_host_memory};
use crate::host::has_buffer;
use crate::kind::{self, Kind, Number};

impl Array {
    /// Reads the other operand. Returns `None` for an object that cannot be an operand.
    pub(super) fn side(&self, other: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<Side>> {
        if let Some(window) = Array::other_array(other, kind)? {
            return Ok(Some(Side::Array(window)));
        }
        let number = Number::read(other)?;
        number.map(|number| number.check(kind).map(Side::Number)).transpose()
    }

    /// Reads another array, whose elements have to be of `kind`. Returns `None` for an object that
    /// is not an array.
    pub(super) fn other_array(other: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<Window>> {
        let Ok(array) = other.cast::<Array>() else { return Ok(None) };
        let window = array.get().window(other.py())?;
        if window.kind != kind {
            return Err(PyTypeError::new_err(format!(
                "one side has elements of {} and the other of {}; convert one of them: \
                 a.astype(\"{}\")",
                kind.name(),
                window.kind.name(),
                kind.name()
            )));
        }
        Ok(Some(window.clone()))
    }

    /// Compares the elements with the elements of another array, or with the value of a number.
    pub(super) fn compared(&self, op: Comparison, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let window = self.window(py)?;
        if let Some(right) = Array::other_array(other, window.kind)? {
            let side = Side::Array(right);
            return self.make(py, |window| operations::compare(op, window, &side))?.into_py_any(py);
        }
        if let Some(number) = Number::read(other)? {
            let compare = |window: &Window| operations::compare_number(op, window, number);
            return self.make(py, compare)?.into_py_any(py);
        }
        // Raise an error for an object with elements. If `==` were not implemented, Python would
        // compare identities and return `False`.
        match op {
            Comparison::Equal | Comparison::NotEqual if has_elements(other)? => {
                Err(PyTypeError::new_err(format!(
                    "an array is not compared with {}; make an array of it: a == {}",
                    other.get_type(),
                    remedy(other)
                )))
            }
            _ => Ok(py.NotImplemented()),
        }
    }

    /// Returns `self op other`. If `is_right` is set, returns `other op self`.
    pub(super) fn binary(
        &self,
        op: Op,
        other: &Bound<'_, PyAny>,
        is_right: bool,
    ) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let window = self.window(py)?;
        let Some(side) = self.side(other, window.kind)? else {
            // After `NotImplemented`, Python goes on with the operators of `other`. A list and a
            // NumPy array would report that they cannot concatenate, so return an error with the
            // remedy. If `self` is on the right, Python has tried the operator of `other` already.
            return match is_on_host(other) || (is_right && has_elements(other)?) {
                true => Err(no_side(other)),
                false => Ok(py.NotImplemented()),
            };
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
            return Err(no_side(other));
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
        dtype: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        keepdims: bool,
    ) -> PyResult<Py<PyAny>> {
        let window = self.window(py)?;
        if out.is_some() {
            return Err(PyTypeError::new_err(
                "out= is not taken; write b[...] = a.sum(axis), which fills b",
            ));
        }
        if window.kind == Kind::Bool && matches!(op, Reduction::Min | Reduction::Max) {
            return Err(PyTypeError::new_err("a mask has no least element; use all() or any()"));
        }
        let dtype = dtype.filter(|dtype| !dtype.is_none()).map(Kind::read).transpose()?;
        let along = axis.map(|axis| self.axis(axis));
        let axes = window.shape.len();
        let reduced = |window: &Window| {
            let cast;
            let window = match dtype {
                Some(kind) if kind != window.kind => {
                    cast = operations::cast(window, kind)?;
                    &cast
                }
                _ => window,
            };
            let (of, at) = match along {
                Some(axis) => (window.clone(), axis),
                None => (window.shaped(vec![window.len()]), 0),
            };
            let made = operations::reduce_axis(op, &of, at)?;
            let made = match dtype {
                Some(kind) if kind != made.kind => operations::cast(&made, kind)?,
                _ => made,
            };
            let mut shape = made.shape.clone();
            match along {
                Some(axis) if keepdims => shape.insert(axis, 1),
                None if keepdims => shape = vec![1; axes],
                _ => {}
            }
            Ok(made.shaped(shape))
        };
        if along.is_none() && !keepdims {
            let made = self.held.owner.work(py, || reduced(window))?;
            let bytes = operations::bytes(py, &self.held.owner, &made)?;
            return kind::item(py, made.kind, &bytes);
        }
        self.make(py, reduced)?.into_py_any(py)
    }

    pub(super) fn by_key(
        py: Python<'_>,
        values: Option<(&Array, bool)>,
        keys: &Array,
        groups: Option<usize>,
    ) -> PyResult<Py<PyAny>> {
        let window = keys.window(py)?;
        if window.kind == Kind::Bool || window.shape.len() != 1 {
            return Err(PyTypeError::new_err(format!(
                "keys are numbers along one axis, and these are {} of shape {:?}; convert them: {}",
                window.kind.name(),
                window.shape,
                match window.kind {
                    Kind::Bool => "keys.astype(\"uint8\")",
                    _ => "keys.reshape(-1)",
                }
            )));
        }
        let what = match values {
            Some((values, false)) => ByKey::Sum(values.window(py)?),
            Some((values, true)) => ByKey::Mean(values.window(py)?),
            None => ByKey::Count,
        };
        let owner = &values.map_or(keys, |(values, _)| values).held.owner;
        let Some(groups) = groups else {
            let kind = window.kind;
            let bytes = keys.bytes(py)?;
            let found = detached(py, || operations::distinct(&bytes, kind))?;
            let Some(Distinct { keys: distinct, count, numbers }) = found else {
                return Err(no_host_memory(py, bytes.len()));
            };
            let target = call(py, || Ok(window.raw()?.target()))?;
            let shape = window.shape.clone();
            let numbers = operations::upload(py, owner, &target, &numbers, shape, Kind::U64)?;
            let made = owner.make(py, || operations::by_key(what, &numbers, count))?;
            let distinct = operations::upload(py, owner, &target, &distinct, vec![count], kind)?;
            let distinct = Array::new(py, owner, distinct)?;
            return (distinct, Array::new(py, owner, made)?).into_py_any(py);
        };
        if window.kind.class() == 'f' && !owner.work(py, || operations::are_whole(window))? {
            return Err(PyValueError::new_err(
                "with groups=, a key is the number of its group, and some of these keys are no such \
                 numbers; leave groups out to group by the keys' values: \
                 distinct, sums = a.sum_by_key(keys)",
            ));
        }
        let made = owner.make(py, || operations::by_key(what, window, groups))?;
        Array::new(py, owner, made)?.into_py_any(py)
    }

    pub(super) fn truth(&self, py: Python<'_>, all: bool) -> PyResult<bool> {
        let window = self.window(py)?;
        if window.kind != Kind::Bool {
            return Err(PyTypeError::new_err(format!(
                "all() and any() are of masks, and this array has {}; compare it first: (a != 0).any()",
                window.kind.name()
            )));
        }
        operations::reduce_mask(py, &self.held.owner, window, all)
    }
}

/// Makes the error for an object that cannot be an operand.
pub(super) fn no_side(other: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "{} is neither a number nor a gpuheap array; make an array of it: {}",
        other.get_type(),
        remedy(other)
    ))
}

fn remedy(object: &Bound<'_, PyAny>) -> &'static str {
    match is_on_host(object) {
        true => "heap.array(x)",
        false => "gpuheap.from_dlpack(x)",
    }
}

/// Returns whether an object has elements in host memory.
fn is_on_host(object: &Bound<'_, PyAny>) -> bool {
    has_buffer(object) || object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

/// Returns whether an object has elements that an operation could use.
pub(super) fn has_elements(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    Ok(is_on_host(object)
        || object.hasattr(intern!(py, "__dlpack__"))?
        || object.hasattr(intern!(py, "__cuda_array_interface__"))?)
}

fn check_numbers(kind: Kind) -> PyResult<()> {
    if kind != Kind::Bool {
        return Ok(());
    }
    Err(PyTypeError::new_err("masks have no arithmetic; convert them first: a.astype(\"uint8\")"))
}
