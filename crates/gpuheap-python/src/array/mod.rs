//! Arrays: device memory with a shape and an element type, and the core's arithmetic on it.
//!
//! * `window`: a window of memory, and the lifetime of the memory.
//! * `source` reads host data, `index` selects parts, and `elements` iterates over arrays.
//! * `operators`: Python's operators and their type rules.
//! * `operations`: the core's operations, chosen by element type.
//! * `shared`: the memory of arrays, for scopes and batches.

mod elements;
mod index;
mod operations;
mod operators;
mod shared;
mod source;
mod window;

use std::sync::Arc;

use gpuheap::Error;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyTuple};

pub(crate) use shared::SharedMemory;
pub(crate) use source::read_numbers;
pub(crate) use window::{Held, Window, length};

use crate::count::Count;
use crate::exchange::{self, Exported, Lent};
use crate::failure::{FREED, call, refused};
use crate::kind::{self, Kind, Number};
use crate::owner::Owner;
use crate::scope::{Counts, Holder, adopt, charge};
use index::Part;
use operations::{Comparison, Fold, Op, Reduction, Side};
use source::Source;
use window::Export;

/// Largest number of empty lists that `to_list` makes of an array without elements.
const MOST_EMPTY_LISTS: usize = 1 << 20;

/// Device memory with a shape and an element type. Made by `Heap.array`, `Heap.zeros`, `Heap.full`,
/// `gpuheap.from_dlpack` and operations on arrays.
///
/// An operation is enqueued on the stream of the array's last use. Only calls that return numbers
/// wait for the GPU. Both sides of an operation have the same element type, or one side is a
/// number. `a[1:3]` and `a[0]` share the memory of `a`; other parts are copies. The memory is freed
/// at `free()`, or when the last array that shares it is collected.
///
/// >>> import gpuheap
/// >>> heap = gpuheap.Heap("emulated:1GiB")
/// >>> a = heap.array([[1.0, 2.0], [3.0, 4.0]])
/// >>> (a * 2 + a[0]).to_list()
/// [[3.0, 6.0], [7.0, 10.0]]
/// >>> (a > 1.5).sum()
/// 3
#[pyclass(frozen, module = "gpuheap", weakref)]
pub(crate) struct Array {
    window: Window,
    held: Arc<Held>,
}

impl Array {
    /// Makes an array of new memory. Charges the memory to the scopes of the calling context.
    pub(crate) fn new(py: Python<'_>, owner: &Arc<Owner>, window: Window) -> PyResult<Py<Array>> {
        let (charge, scope) = charge(py, &owner.scopes, window.bytes() as u64)?;
        let record = if owner.tracks() {
            let address = call(py, || window.address(&window.stream()))?;
            owner.tracked(py, address, window.bytes() as u64)
        } else {
            None
        };
        if let (Some(record), Some(charge)) = (record, &charge) {
            owner.lines.assign(record, charge.scope());
        }
        let held = Held::new(&window, owner, record, charge, false);
        let array = Py::new(py, Array { window, held })?;
        adopt(py, scope, || array.get().holder(py))?;
        Ok(array)
    }

    /// Makes an array from host data, or a copy of another array.
    pub(crate) fn from_data(
        owner: &Arc<Owner>,
        given: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Array>> {
        let py = given.py();
        let target = owner.heap.on(&owner.stream(py, stream)?);
        let kind = dtype.filter(|dtype| !dtype.is_none()).map(Kind::read).transpose()?;
        let window = if let Ok(array) = given.cast::<Array>() {
            let from = array.get().window(py)?;
            owner.make(py, || operations::copied(from, Some(&target)))?
        } else {
            let Source { bytes, shape, kind } = Source::read(given, kind)?;
            operations::upload(py, owner, &target, bytes.as_slice(), shape, kind)?
        };
        let window = match kind {
            Some(kind) if kind != window.kind => {
                owner.make(py, || operations::cast(&window, kind))?
            }
            _ => window,
        };
        Array::new(py, owner, window)
    }

    /// Makes an array with every element set to a number.
    pub(crate) fn filled(
        py: Python<'_>,
        owner: &Arc<Owner>,
        shape: &Bound<'_, PyAny>,
        value: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Array>> {
        let shape = source::read_shape(shape)?;
        let number = match value {
            Some(value) => read_number(value)?,
            None => Number::Int(0),
        };
        let kind = match (dtype.filter(|dtype| !dtype.is_none()), number) {
            (Some(dtype), _) => Kind::read(dtype)?,
            (None, Number::Bool(_)) => Kind::Bool,
            (None, Number::Int(int)) if int > i64::MAX.into() => Kind::U64,
            (None, Number::Int(_)) if value.is_some() => Kind::I64,
            (None, Number::Wide(_)) => Kind::U64,
            (None, _) => Kind::F64,
        };
        let number = number.check(kind)?;
        let target = owner.heap.on(&owner.stream(py, stream)?);
        let window = owner.make(py, || operations::filled(&target, &shape, kind, number))?;
        Array::new(py, owner, window)
    }

    /// Returns the window, or an error if the memory was freed.
    fn window(&self, py: Python<'_>) -> PyResult<&Window> {
        if self.held.is_freed() {
            return Err(refused(py, "Freed", FREED));
        }
        Ok(&self.window)
    }

    fn writable(&self, py: Python<'_>) -> PyResult<&Window> {
        if self.held.is_read_only {
            return Err(PyValueError::new_err(
                "the array is read-only, as the library says whose memory it is; make a copy first: \
                 a.copy()",
            ));
        }
        self.window(py)
    }

    /// Runs an operation and returns its result as an array.
    fn make(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Window) -> Result<Window, Error> + Send,
    ) -> PyResult<Py<Array>> {
        let window = self.window(py)?;
        let made = self.held.owner.make(py, || work(window))?;
        Array::new(py, &self.held.owner, made)
    }

    /// Makes an array that shares this array's memory.
    fn sharing(&self, py: Python<'_>, window: Window) -> PyResult<Py<Array>> {
        Py::new(py, Array { window, held: self.held.clone() })
    }

    /// Makes an array of existing memory.
    pub(crate) fn from_parts(
        py: Python<'_>,
        window: Window,
        held: Arc<Held>,
    ) -> PyResult<Py<Array>> {
        Py::new(py, Array { window, held })
    }

    /// Returns the heap that results of operations are allocated from.
    pub(crate) fn owner(&self) -> &Arc<Owner> {
        &self.held.owner
    }

    /// Returns the innermost of the scopes to which the memory is charged.
    pub(crate) fn scope(&self) -> Option<Arc<Counts>> {
        self.held.scope()
    }

    /// Makes the holder through which a scope refers to the memory.
    pub(crate) fn holder(&self, py: Python<'_>) -> PyResult<Holder> {
        let memory = Py::new(py, self._memory())?.into_any();
        Ok(Holder::strong(memory, Arc::as_ptr(&self.held) as usize, |memory| {
            memory.cast::<SharedMemory>().is_ok_and(|memory| memory.get().freed())
        }))
    }

    pub(crate) fn bytes(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        operations::bytes(py, &self.held.owner, self.window(py)?)
    }
}

#[pymethods]
impl Array {
    /// `None` makes NumPy call the operators of this class for an operation between a NumPy array
    /// and an `Array`. The operators refuse such operations.
    #[classattr]
    fn __array_ufunc__(py: Python<'_>) -> Py<PyAny> {
        py.None()
    }

    /// Length of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.window.shape)
    }

    /// NumPy's name of the element type, such as `"float32"`.
    #[getter]
    pub(crate) fn dtype(&self) -> &'static str {
        self.window.kind.name()
    }

    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.window.shape.len()
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.window.len()
    }

    /// Size of all elements in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.window.bytes()
    }

    /// Size of one element in bytes.
    #[getter]
    fn itemsize(&self) -> usize {
        self.window.kind.size()
    }

    /// Handle of the stream that last used the array.
    #[getter]
    fn stream(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.window(py)?.stream().raw().0)
    }

    /// Name of the device.
    #[getter]
    fn device(&self) -> &str {
        self.held.owner.device.name()
    }

    /// Address on the device; 0 for an array without elements. Use the memory only on `stream`, or
    /// on a stream that was passed to `used_on`.
    #[getter]
    fn ptr(&self, py: Python<'_>) -> PyResult<u64> {
        let window = self.window(py)?;
        call(py, || window.address(&window.stream()))
    }

    /// `True` if the memory was freed by `free()`.
    #[getter]
    fn freed(&self) -> bool {
        self.held.is_freed()
    }

    /// `True` if the memory belongs to another library that forbids writes.
    #[getter]
    fn readonly(&self) -> bool {
        self.held.is_read_only
    }

    /// A copy with the axes reversed.
    #[getter(T)]
    fn transposed(&self, py: Python<'_>) -> PyResult<Py<Array>> {
        self.make(py, |window| operations::transposed(window, None))
    }

    /// Frees the memory for this array and all arrays that share it, after the work enqueued on it.
    /// If `stream` is given, the free is ordered after the work of `stream` too. A second call does
    /// nothing. Does not wait for the GPU.
    #[pyo3(signature = (stream=None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        if let Some(stream) = stream.filter(|_| !self.held.is_freed()) {
            self.used_on(stream)?;
        }
        call(py, || self.held.free())
    }

    /// Names another stream that uses the memory. That stream waits for the work enqueued on the
    /// array so far. The free is then ordered after that stream's work.
    fn used_on(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = stream.py();
        let window = self.window(py)?;
        let stream = self.held.owner.stream(py, Some(stream))?;
        call(py, || window.address(&stream))?;
        self.held.use_on(&stream);
        Ok(())
    }

    /// The elements as nested lists; a number for an array without axes. Waits for the GPU.
    fn to_list(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Window { shape, kind, .. } = &self.window;
        let lists = shape.iter().take_while(|length| **length != 0);
        let lists = lists.fold(1_usize, |lists, length| lists.saturating_mul(*length));
        if shape.contains(&0) && lists > MOST_EMPTY_LISTS {
            return Err(PyValueError::new_err(format!(
                "an array of shape {shape:?} has no elements, and would be {lists} empty lists"
            )));
        }
        Array::nested_lists(py, shape, *kind, &self.bytes(py)?)
    }

    /// The bytes of the elements, in row-major order. Waits for the GPU.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.bytes(py)?;
        // Uses `new_with`, because `new` panics if the host has no memory.
        PyBytes::new_with(py, bytes.len(), |to| {
            to.copy_from_slice(&bytes);
            Ok(())
        })
    }

    /// A NumPy array with the elements. Waits for the GPU. Needs NumPy.
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        let read = self.bytes(py)?;
        let bytes = PyByteArray::new_with(py, read.len(), |to| {
            to.copy_from_slice(&read);
            Ok(())
        })?;
        numpy.getattr("ndarray")?.call1((self.shape(py)?, self.dtype(), bytes))
    }

    /// Pickles the elements as a NumPy array. Unpickling makes an array on the default heap.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let made = py.import("gpuheap._adapt")?.getattr("unpickled")?;
        Ok((made, PyTuple::new(py, [self.to_numpy(py)?])?.into_any()))
    }

    /// A NumPy array with the elements, for `numpy.asarray(array)`. Waits for the GPU.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(PyValueError::new_err(
                "the array is in the memory of a device, and NumPy cannot read it without a copy",
            ));
        }
        let array = self.to_numpy(py)?;
        match dtype.filter(|dtype| !dtype.is_none()) {
            Some(dtype) => array.call_method1(intern!(py, "astype"), (dtype,)),
            None => Ok(array),
        }
    }

    /// The only element, as a number. Waits for the GPU.
    fn item(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let window = self.window(py)?;
        if window.len() != 1 {
            return Err(PyValueError::new_err(format!(
                "an array of shape {:?} is not one number; use to_list(), all(), any() or sum()",
                window.shape
            )));
        }
        kind::item(py, window.kind, &self.bytes(py)?)
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.item(py)?.extract(py)
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.item(py)?.call_method0(py, intern!(py, "__int__"))
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        self.item(py)?.is_truthy(py)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.window.shape.first().copied();
        first.ok_or_else(|| PyTypeError::new_err("an array without axes has no length"))
    }

    /// Iterates over the elements of an array of one axis as numbers, after one download. An array
    /// of several axes yields its rows. The rows share the memory.
    fn __iter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.elements(py)
    }

    /// Returns whether any element equals `value`: a number, or an array that is compared
    /// elementwise. Waits for the GPU.
    fn __contains__(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.contains(value)
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Py<Array>> {
        let py = index.py();
        match Part::parse(self.window(py)?, index)? {
            Part::Window(window) => self.sharing(py, window),
            Part::Strided(part) => self.make(py, |window| operations::copy_part(window, &part)),
        }
    }

    /// Overwrites a part with a number, an array of the same type, or host data. A value of a
    /// smaller shape is repeated.
    fn __setitem__(&self, index: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = index.py();
        let (window, owner) = (self.writable(py)?, &self.held.owner);
        let part = Part::parse(window, index)?;
        let side = match self.side(value, window.kind)? {
            Some(side) => side,
            None => {
                let target = owner.heap.on(&window.stream());
                let Source { bytes, shape, kind } = Source::read(value, Some(window.kind))?;
                let source = operations::upload(py, owner, &target, bytes.as_slice(), shape, kind)?;
                if source.kind != window.kind {
                    return Err(PyTypeError::new_err(format!(
                        "the array has elements of {} and the source of {}; convert the source first",
                        window.kind.name(),
                        source.kind.name()
                    )));
                }
                Side::Array(source)
            }
        };
        owner.work(py, || operations::assign(window, &part, side))
    }

    /// A copy in new memory.
    fn copy(&self, py: Python<'_>) -> PyResult<Py<Array>> {
        self.make(py, |window| operations::copied(window, None))
    }

    /// A copy with the elements converted. Floats become integers by truncation and saturate; NaN
    /// becomes 0. An integer keeps only its low bits in a smaller type. Every number except 0
    /// becomes `True`.
    fn astype(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<Py<Array>> {
        let kind = Kind::read(dtype)?;
        self.make(py, |window| operations::cast(window, kind))
    }

    /// The elements in another shape, sharing the memory. One axis may be -1.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, py: Python<'_>, shape: &Bound<'_, PyTuple>) -> PyResult<Py<Array>> {
        let window = self.window(py)?;
        let first = (shape.len() == 1).then(|| shape.get_item(0)).transpose()?;
        let asked = match first {
            Some(first) if !first.hasattr(intern!(py, "__index__"))? => {
                source::reshape_lengths(&first)?
            }
            _ => source::reshape_lengths(shape)?,
        };
        self.sharing(py, window.shaped(index::reshaped(window.len(), &asked)?))
    }

    /// A copy with the axes in another order. Without `axes`, the order is reversed. -1 is the last
    /// axis.
    #[pyo3(signature = (*axes))]
    fn transpose(&self, py: Python<'_>, axes: Vec<isize>) -> PyResult<Py<Array>> {
        let axes: Vec<usize> = axes.iter().map(|axis| self.axis(*axis)).collect();
        let axes = (!axes.is_empty()).then_some(axes.as_slice());
        self.make(py, |window| operations::transposed(window, axes))
    }

    /// A copy whose elements are repeated to fill a larger shape.
    fn broadcast_to(&self, py: Python<'_>, shape: &Bound<'_, PyAny>) -> PyResult<Py<Array>> {
        let shape = source::read_shape(shape)?;
        self.make(py, |window| operations::broadcast(window, &shape))
    }

    /// Sets every element to a number. Does not wait for the GPU.
    fn fill(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let window = self.writable(py)?;
        let number = read_number(value)?.check(window.kind)?;
        self.held.owner.work(py, || operations::fill(window, number))
    }

    fn __add__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.binary(Op::Add, other, false)
    }

    fn __radd__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.binary(Op::Add, other, true)
    }

    fn __sub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.binary(Op::Subtract, other, false)
    }

    fn __rsub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.binary(Op::Subtract, other, true)
    }

    fn __mul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.binary(Op::Multiply, other, false)
    }

    fn __rmul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.binary(Op::Multiply, other, true)
    }

    fn __truediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.divided(other, false)
    }

    fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.divided(other, true)
    }

    fn __floordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.floored(other, false)
    }

    fn __rfloordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.floored(other, true)
    }

    /// The quotient of integers, truncated toward 0. If the divisor is 0, the quotient is 0.
    fn trunc_div(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if self.window.kind.class() == 'f' {
            return Err(PyTypeError::new_err("trunc_div is of integers; floats have /"));
        }
        let quotient = self.binary(Op::Divide, other, false)?;
        if quotient.is(other.py().NotImplemented()) {
            return Err(PyTypeError::new_err("trunc_div takes a whole number or an array"));
        }
        Ok(quotient)
    }

    fn __iadd__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        self.in_place(Op::Add, other)
    }

    fn __isub__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        self.in_place(Op::Subtract, other)
    }

    fn __imul__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        self.in_place(Op::Multiply, other)
    }

    fn __itruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.window.kind.class() != 'f' {
            return Err(PyTypeError::new_err(format!(
                "a quotient is a float, which an array of {} cannot hold; write a = a / b",
                self.window.kind.name()
            )));
        }
        self.in_place(Op::Divide, other)
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<Py<Array>> {
        if !matches!(self.window.kind.class(), 'i' | 'f') {
            return Err(PyTypeError::new_err(format!(
                "elements of {} have no sign; convert them first: a.astype(\"int64\")",
                self.window.kind.name()
            )));
        }
        self.make(py, operations::negated)
    }

    fn __invert__(&self, py: Python<'_>) -> PyResult<Py<Array>> {
        if self.window.kind != Kind::Bool {
            return Err(PyTypeError::new_err("~ inverts masks, which are arrays of bool"));
        }
        self.make(py, operations::inverted)
    }

    /// Hashes the identity, so that arrays can be elements of sets and keys of dictionaries.
    fn __hash__(slf: &Bound<'_, Array>) -> usize {
        slf.as_ptr() as usize >> 4
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let op = match op {
            CompareOp::Eq => Comparison::Equal,
            CompareOp::Ne => Comparison::NotEqual,
            CompareOp::Lt => Comparison::Less,
            CompareOp::Le => Comparison::LessEqual,
            CompareOp::Gt => Comparison::Greater,
            CompareOp::Ge => Comparison::GreaterEqual,
        };
        self.compared(op, other)
    }

    /// The sum of all elements as a number, or the sums along `axis` as an array. If the result is
    /// a number, waits for the GPU. Sums of integers and masks have 64 bits and wrap. The elements
    /// and the sum are converted to `dtype`. With `keepdims`, the result is an array in which each
    /// summed axis has length 1. `out` is refused.
    #[pyo3(signature = (axis=None, dtype=None, out=None, *, keepdims=false))]
    fn sum(
        &self,
        py: Python<'_>,
        axis: Option<isize>,
        dtype: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        keepdims: bool,
    ) -> PyResult<Py<PyAny>> {
        self.reduced(py, Reduction::Sum, axis, dtype, out, keepdims)
    }

    /// The mean, with arguments as for `sum`. Raises an error if there are no elements.
    #[pyo3(signature = (axis=None, dtype=None, out=None, *, keepdims=false))]
    fn mean(
        &self,
        py: Python<'_>,
        axis: Option<isize>,
        dtype: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        keepdims: bool,
    ) -> PyResult<Py<PyAny>> {
        self.reduced(py, Reduction::Mean, axis, dtype, out, keepdims)
    }

    /// The smallest element; NaN if any element is NaN. `axis` and `keepdims` work as in `sum`.
    /// Raises an error if there are no elements.
    #[pyo3(signature = (axis=None, out=None, *, keepdims=false))]
    fn min(
        &self,
        py: Python<'_>,
        axis: Option<isize>,
        out: Option<&Bound<'_, PyAny>>,
        keepdims: bool,
    ) -> PyResult<Py<PyAny>> {
        self.reduced(py, Reduction::Min, axis, None, out, keepdims)
    }

    /// The largest element, with arguments as for `min`.
    #[pyo3(signature = (axis=None, out=None, *, keepdims=false))]
    fn max(
        &self,
        py: Python<'_>,
        axis: Option<isize>,
        out: Option<&Bound<'_, PyAny>>,
        keepdims: bool,
    ) -> PyResult<Py<PyAny>> {
        self.reduced(py, Reduction::Max, axis, None, out, keepdims)
    }

    /// Returns `True` if all elements of a mask are true. Waits for the GPU.
    fn all(&self, py: Python<'_>) -> PyResult<bool> {
        self.truth(py, true)
    }

    /// Returns `True` if any element of a mask is true. Waits for the GPU.
    fn any(&self, py: Python<'_>) -> PyResult<bool> {
        self.truth(py, false)
    }

    /// The sum of the rows of each group. `keys` contains the group number of each row, in
    /// `0..groups`. Without `groups`, rows with equal keys form a group. The result is then a pair:
    /// the distinct keys in ascending order, and the sums. Waits for the GPU.
    ///
    /// >>> import gpuheap
    /// >>> heap = gpuheap.Heap("emulated:1GiB")
    /// >>> keys = heap.array([0.5, 0.25, 0.5])
    /// >>> distinct, sums = heap.array([1, 2, 3]).sum_by_key(keys)
    /// >>> distinct.to_list(), sums.to_list()
    /// ([0.25, 0.5], [2, 4])
    #[pyo3(signature = (keys, groups=None))]
    fn sum_by_key(
        &self,
        py: Python<'_>,
        keys: &Array,
        groups: Option<Count>,
    ) -> PyResult<Py<PyAny>> {
        Array::by_key(py, Some((self, false)), keys, groups.map(Count::length))
    }

    /// The mean of the rows of each group; NaN for a group without rows. Arguments and result are
    /// as for `sum_by_key`.
    #[pyo3(signature = (keys, groups=None))]
    fn mean_by_key(
        &self,
        py: Python<'_>,
        keys: &Array,
        groups: Option<Count>,
    ) -> PyResult<Py<PyAny>> {
        Array::by_key(py, Some((self, true)), keys, groups.map(Count::length))
    }

    /// The number of times that this array contains each key of `0..groups`. Without `groups`, the
    /// result is a pair: the distinct keys in ascending order, and their counts. Waits for the GPU.
    #[pyo3(signature = (groups=None))]
    fn count_by_key(&self, py: Python<'_>, groups: Option<Count>) -> PyResult<Py<PyAny>> {
        Array::by_key(py, None, self, groups.map(Count::length))
    }

    /// Aggregates this column's values for `gpuheap.group_by`. `keys` has each row's group as
    /// `uint32`. `valid` is an Arrow validity bitmap. Leaves out rows with a key outside of
    /// `0..groups`.
    #[pyo3(signature = (fold, keys, groups, valid=None, means=None))]
    fn _fold(
        &self,
        py: Python<'_>,
        fold: &str,
        keys: &Array,
        groups: usize,
        valid: Option<&Array>,
        means: Option<&Array>,
    ) -> PyResult<Py<Array>> {
        let fold = match (fold, means) {
            ("count", None) => Fold::Count,
            ("sum", None) => Fold::Sum,
            ("min", None) => Fold::Min,
            ("max", None) => Fold::Max,
            ("squares", Some(means)) => Fold::Squares(means.window(py)?),
            _ => return Err(PyValueError::new_err(format!("there is no aggregate {fold:?}"))),
        };
        let valid = valid.map(|bits| bits.window(py)).transpose()?;
        let (values, keys) = (self.window(py)?, keys.window(py)?);
        let work = || operations::fold(fold, values, keys, groups, valid);
        Array::new(py, &self.held.owner, self.held.owner.make(py, work)?)
    }

    /// Uploads the bytes of elements. The new array has the heap and the stream of this array.
    fn _upload(
        &self,
        py: Python<'_>,
        bytes: &[u8],
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<Py<Array>> {
        let (window, kind) = (self.window(py)?, Kind::read(dtype)?);
        let target = call(py, || Ok(window.raw()?.target()))?;
        let (owner, shape) = (&self.held.owner, vec![bytes.len() / kind.size()]);
        Array::new(py, owner, operations::upload(py, owner, &target, bytes, shape, kind)?)
    }

    /// The elements at `indices`, an array of `uint32`. An index out of range gives 0.
    fn _take(&self, py: Python<'_>, indices: &Array) -> PyResult<Py<Array>> {
        let (values, indices) = (self.window(py)?, indices.window(py)?);
        let made = self.held.owner.make(py, || operations::take(values, indices))?;
        Array::new(py, &self.held.owner, made)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let address = self.ptr(py)?;
        let Window { shape, kind, .. } = self.window(py)?;
        let lent = Arc::new(self.export(py)?);
        call(py, || self.held.show())?;
        let exported = Exported::array(address, shape, *kind, &self.held.owner, lent);
        exchange::dlpack(py, exported, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        exchange::dlpack_device(&self.held.owner.device)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        exchange::refuse_emulated(py, &self.held.owner.device)?;
        let window = self.window(py)?;
        call(py, || self.held.expose())?;
        // The library that reads the memory names no stream. So the default stream counts as a user
        // of the memory: it orders the free after the work of all blocking streams.
        self.held.use_on(&self.held.owner.default);
        let (address, typestr) = (self.ptr(py)?, window.kind.typestr());
        let (shape, stream) = (&window.shape, &window.stream());
        exchange::array_interface(py, address, shape, &typestr, self.readonly(), stream)
    }

    /// `True` if another library's array may refer to the memory, through this object or a part of
    /// it.
    #[getter]
    fn _exposed(&self) -> bool {
        self.held.is_exposed()
    }

    /// The memory that this array shares with its parts.
    #[getter]
    fn _memory(&self) -> SharedMemory {
        SharedMemory::from_held(&self.held)
    }

    fn __enter__(slf: Py<Array>) -> Py<Array> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.free(py, None)
    }

    fn __repr__(&self) -> String {
        let state = if self.freed() { ", freed" } else { "" };
        let (Window { shape, kind, .. }, device) = (&self.window, self.device());
        format!("<gpuheap.Array {} {shape:?} on {device}{state}>", kind.name())
    }
}

impl Array {
    /// Returns the element type.
    pub(crate) fn kind(&self) -> Kind {
        self.window.kind
    }

    pub(crate) fn size_in_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// Downloads the elements to `target`, of `size_in_bytes` bytes. Waits for the GPU.
    pub(crate) fn read_into(&self, py: Python<'_>, target: &mut [u8]) -> PyResult<()> {
        let window = self.window(py)?;
        self.held.owner.work(py, || window.raw()?.read_into(target))
    }

    /// Lends the memory to a reader that takes no stream. Waits for the work on the memory first.
    /// Returns the address and the export. The export keeps the memory until it is dropped.
    pub(crate) fn lend(&self, py: Python<'_>) -> PyResult<(u64, Arc<dyn Lent>)> {
        let export = self.export(py)?;
        let stream = self.window(py)?.stream();
        self.held.owner.work(py, || stream.synchronize())?;
        call(py, || self.held.show())?;
        // The library that reads the memory names no stream. So the default stream counts as a user
        // of the memory: it orders the free after the work of all blocking streams.
        self.held.use_on(&self.held.owner.default);
        Ok((self.ptr(py)?, Arc::new(export)))
    }

    /// Returns DLPack's type and number of the device.
    pub(crate) fn dlpack_device(&self) -> (i32, i32) {
        exchange::dlpack_device(&self.held.owner.device)
    }

    /// Returns the index of an axis; -1 is the last axis. The index of a missing axis is out of
    /// range.
    fn axis(&self, axis: isize) -> usize {
        let axis =
            if axis < 0 { axis.saturating_add_unsigned(self.window.shape.len()) } else { axis };
        usize::try_from(axis).unwrap_or(usize::MAX)
    }

    fn export(&self, py: Python<'_>) -> PyResult<Export> {
        match Export::new(&self.window, &self.held) {
            Some(export) => Ok(export),
            // Another thread freed the memory in the meantime.
            None => self.window(py).and(Err(refused(py, "Freed", FREED))),
        }
    }
}

fn read_number(given: &Bound<'_, PyAny>) -> PyResult<Number> {
    let number = Number::read(given)?;
    number.ok_or_else(|| PyTypeError::new_err(format!("{} is no number", given.get_type())))
}
