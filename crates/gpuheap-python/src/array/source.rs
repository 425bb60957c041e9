//! Reads the host data of new arrays: objects with the buffer protocol, nested lists, and numbers.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::window::length;
use crate::failure::{refused, reserve};
use crate::host::{HostBytes, open_view, read_view};
use crate::kind::{Kind, MOST_AXES, Native, Number, put, read_index};

/// Elements in host memory in row-major order, with their shape.
pub(crate) struct Source {
    pub(crate) bytes: HostBytes,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: Kind,
}

impl Source {
    /// Reads host data. Python numbers become elements of `kind`. If `kind` is `None`, the elements
    /// get the type that NumPy would choose. Elements of a buffer keep their type. If a buffer has
    /// float64 elements and `kind` is float32, the elements are converted.
    pub(crate) fn read(given: &Bound<'_, PyAny>, kind: Option<Kind>) -> PyResult<Source> {
        if let Some(source) = Source::read_numbers(given, kind)? {
            return Ok(source);
        }
        let mut source = Source::read_buffer(given)?;
        if (source.kind, kind) == (Kind::F64, Some(Kind::F32)) {
            source.bytes = HostBytes::Copy(narrowed(given.py(), source.bytes.as_slice())?);
            source.kind = Kind::F32;
        }
        Ok(source)
    }

    fn read_buffer(given: &Bound<'_, PyAny>) -> PyResult<Source> {
        let py = given.py();
        let Some(view) = open_view(given)? else {
            let array = match given.hasattr(intern!(py, "__array__"))? {
                true => "pass numpy.asarray(x)",
                false => {
                    "pass numbers, nested lists of them, or an object with the buffer protocol \
                     (NumPy's arrays, array.array, bytes); memory of a device goes through \
                     gpuheap.from_dlpack"
                }
            };
            return Err(PyTypeError::new_err(format!(
                "no array can be made of {}; {array}",
                given.get_type()
            )));
        };
        let format: String = view.getattr(intern!(py, "format"))?.extract()?;
        let size: usize = view.getattr(intern!(py, "itemsize"))?.extract()?;
        let shape: Vec<usize> = view.getattr(intern!(py, "shape"))?.extract()?;
        let Some(kind) = Kind::from_format(&format, size) else {
            let remedy = match format.starts_with(['>', '!']) {
                true => {
                    "they are big-endian; convert them first: x.astype(x.dtype.newbyteorder(\"<\"))"
                }
                false => {
                    "arrays have bool, integers of 8 to 64 bits, float32 and float64; convert them first"
                }
            };
            return Err(PyTypeError::new_err(format!(
                "the elements have the format {format:?} ({size} bytes): {remedy}"
            )));
        };
        if shape.len() > MOST_AXES {
            return Err(too_many_axes(shape.len()));
        }
        let mut read = read_view(&view)?;
        let bytes = read.as_slice();
        if bytes.len() != length(&shape).saturating_mul(size) {
            return Err(PyValueError::new_err(format!(
                "the buffer has {} bytes, and its shape {shape:?} takes {} elements of {size} bytes",
                bytes.len(),
                length(&shape)
            )));
        }
        if kind == Kind::Bool {
            let mut bools = Vec::new();
            reserve(py, &mut bools, bytes.len())?;
            bools.extend(bytes.iter().map(|byte| u8::from(*byte != 0)));
            read = HostBytes::Copy(bools);
        }
        Ok(Source { bytes: read, shape, kind })
    }

    /// Reads a number, or nested lists and tuples of numbers. Returns `None` for other objects.
    fn read_numbers(given: &Bound<'_, PyAny>, kind: Option<Kind>) -> PyResult<Option<Source>> {
        let mut found = NestedNumbers::default();
        if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
            found.read_list(given, 0)?;
        } else if let Some(number) = Number::read(given)? {
            found.numbers.push(number);
        } else {
            return Ok(None);
        }
        let kind = kind.unwrap_or_else(|| found.kind());
        let mut bytes = Vec::new();
        reserve(given.py(), &mut bytes, found.numbers.len().saturating_mul(kind.size()))?;
        for number in &found.numbers {
            put(number.check(kind)?, kind, &mut bytes);
        }
        Ok(Some(Source { bytes: HostBytes::Copy(bytes), shape: found.shape, kind }))
    }
}

/// Converts the bytes of float64 elements to bytes of float32 elements.
fn narrowed(py: Python<'_>, wide: &[u8]) -> PyResult<Vec<u8>> {
    let mut narrow = Vec::new();
    reserve(py, &mut narrow, wide.len() / 2)?;
    for element in wide.chunks_exact(8) {
        put(Number::Float(f64::get(element)), Kind::F32, &mut narrow);
    }
    Ok(narrow)
}

/// The numbers of nested lists, and their shape.
#[derive(Default)]
struct NestedNumbers {
    numbers: Vec<Number>,
    shape: Vec<usize>,
    /// Depth of the innermost lists, the lists of numbers; `None` before the first number.
    depth: Option<usize>,
}

impl NestedNumbers {
    fn read_list(&mut self, given: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
        if depth >= MOST_AXES {
            return Err(too_many_axes(depth + 1));
        }
        let mut items = Vec::new();
        for item in given.try_iter()? {
            reserve(given.py(), &mut items, 1)?;
            items.push(item?);
        }
        let is_ragged = match self.shape.get(depth) {
            Some(length) => *length != items.len(),
            None if self.depth.is_some() || depth != self.shape.len() => true,
            None => {
                self.shape.push(items.len());
                false
            }
        };
        if is_ragged {
            return Err(ragged());
        }
        for item in items {
            if item.is_instance_of::<PyList>() || item.is_instance_of::<PyTuple>() {
                self.read_list(&item, depth + 1)?;
            } else if let Some(number) = Number::read(&item)? {
                if *self.depth.get_or_insert(depth) != depth || self.shape.len() != depth + 1 {
                    return Err(ragged());
                }
                reserve(given.py(), &mut self.numbers, 1)?;
                self.numbers.push(number);
            } else {
                return Err(PyTypeError::new_err(format!(
                    "the list has an item of {}, and arrays are made of lists of numbers; stack arrays \
                     first, or pass one array",
                    item.get_type()
                )));
            }
        }
        Ok(())
    }

    /// Returns the element type for the numbers of the lists: `bool`, `int64`, `uint64` or
    /// `float64`, by NumPy's rules.
    fn kind(&self) -> Kind {
        let is = |which: fn(&Number) -> bool| self.numbers.iter().any(which);
        if self.numbers.is_empty() || is(|number| matches!(number, Number::Float(_))) {
            Kind::F64
        } else if is(|number| match number {
            Number::Int(int) => *int > i64::MAX.into(),
            number => matches!(number, Number::Wide(_)),
        }) {
            Kind::U64
        } else if is(|number| matches!(number, Number::Int(_))) {
            Kind::I64
        } else {
            Kind::Bool
        }
    }
}

fn ragged() -> PyErr {
    PyValueError::new_err(
        "the lists are of different lengths or depths; an array needs the same length along each axis",
    )
}

fn too_many_axes(axes: usize) -> PyErr {
    PyValueError::new_err(format!(
        "the data has {axes} axes or more, and an array has at most {MOST_AXES}; does a list contain \
         itself?"
    ))
}

fn too_long_a_shape(py: Python<'_>) -> PyErr {
    let text = format!(
        "the shape has more than {MOST_AXES} axes, the most of an array; join some of them: \
         reshape(rows, -1)"
    );
    refused(py, "WrongShape", &text)
}

/// Returns the items of `given`, a shape.
fn read_items<'py>(given: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = given.py();
    if !given.hasattr(intern!(py, "__iter__"))? && !given.hasattr(intern!(py, "__getitem__"))? {
        return Err(PyTypeError::new_err(format!(
            "{} is no shape; pass a whole number, or a list or tuple of them",
            given.get_type()
        )));
    }
    let items = given.try_iter()?;
    // Ignores the sequence's reported length, because reserving that much could exhaust memory.
    let items: Vec<_> = items.take(MOST_AXES + 1).collect::<PyResult<_>>()?;
    if items.len() > MOST_AXES { Err(too_long_a_shape(py)) } else { Ok(items) }
}

/// Reads the shape of a `reshape`: whole numbers, of which one may be -1.
pub(crate) fn reshape_lengths(given: &Bound<'_, PyAny>) -> PyResult<Vec<isize>> {
    let read = |length: &Bound<'_, PyAny>| match read_index(length)? {
        Some(number) => number.extract::<isize>().map_err(|_| {
            PyValueError::new_err(format!(
                "{number} is longer than any axis; pass a smaller number"
            ))
        }),
        None => Err(PyTypeError::new_err(format!(
            "{} is no length of an axis; pass whole numbers, of which one may be -1",
            length.repr()?
        ))),
    };
    read_items(given)?.iter().map(read).collect()
}

/// Reads at most as many numbers as an array can have axes. Ignores the sequence's reported length,
/// because reserving that much could exhaust memory.
pub(crate) fn read_numbers<T>(given: &Bound<'_, PyAny>) -> PyResult<Vec<T>>
where
    T: for<'a, 'py> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    let mut numbers = Vec::new();
    for number in given.try_iter()?.take(MOST_AXES + 1) {
        numbers.push(number?.extract().map_err(Into::into)?);
    }
    if numbers.len() > MOST_AXES {
        return Err(too_long_a_shape(given.py()));
    }
    Ok(numbers)
}

/// Reads a shape: a length, or a sequence of lengths.
pub(crate) fn read_shape(given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let py = given.py();
    let refused = |length: String| {
        let most = isize::MAX;
        let text =
            format!("{length} is no length of an axis; pass a whole number from 0 to {most}");
        refused(py, "WrongShape", &text)
    };
    let lengths: Vec<Bound<'_, PyAny>> = match read_index(given)? {
        Some(length) => vec![length],
        None => read_items(given)?,
    };
    lengths
        .iter()
        .map(|length| match read_index(length)? {
            Some(number) => number.extract::<usize>().map_err(|_| refused(number.to_string())),
            None => Err(refused(length.repr()?.to_string())),
        })
        .collect()
}
