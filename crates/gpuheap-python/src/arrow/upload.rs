//! Uploads columns of host memory as device arrays.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array as _, ArrayRef, LargeBinaryArray, LargeStringArray, make_array};
use arrow_buffer::{ArrowNativeType, ToByteSlice};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use arrow_select::concat::concat;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{ArrowChunk, ArrowField, failed, kind_of, type_name};
use crate::array::{Array, Window};
use crate::failure::detached;
use crate::heap::Heap;
use crate::kind::Kind;
use crate::owner::Owner;

/// A column on the device.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_ArrowColumn", get_all)]
pub(crate) struct ArrowColumn {
    field: Py<ArrowField>,
    rows: usize,
    null_count: usize,
    /// Elements, codes, bytes of text, or bits of booleans.
    values: Option<Py<Array>>,
    /// Bits of the rows: 1 for a value, 0 for a null. `None` if there are no nulls.
    validity: Option<Py<Array>>,
    offsets: Option<Py<Array>>,
    /// Values of a dictionary-encoded column. The column's codes are indices of these values.
    dictionary: Option<Py<ArrowColumn>>,
    /// Bytes that were copied on the host before the upload.
    host_copied: usize,
}

/// Uploads all columns of a table, or a single column. `field` describes the chunks. With `narrow`,
/// float64 becomes float32.
#[pyfunction]
pub(crate) fn _arrow_upload(
    py: Python<'_>,
    heap: &Heap,
    field: &ArrowField,
    chunks: Vec<PyRef<'_, ArrowChunk>>,
    narrow: bool,
) -> PyResult<Vec<Py<ArrowColumn>>> {
    let fields = match field.0.data_type() {
        DataType::Struct(fields) => fields.to_vec(),
        _ => vec![field.0.clone()],
    };
    let mut columns = vec![Vec::new(); fields.len()];
    for chunk in &chunks {
        for (column, array) in columns.iter_mut().zip(chunk.columns()?) {
            column.push(array);
        }
    }
    let pairs = fields.iter().zip(&columns);
    pairs.map(|(field, arrays)| upload(py, &heap.owner, field, arrays, narrow)).collect()
}

fn upload(
    py: Python<'_>,
    owner: &Arc<Owner>,
    field: &FieldRef,
    arrays: &[ArrayRef],
    narrow: bool,
) -> PyResult<Py<ArrowColumn>> {
    let is_supported = match field.data_type() {
        DataType::Null | DataType::Utf8View | DataType::BinaryView => true,
        DataType::Dictionary(_, values) => !matches!(**values, DataType::Dictionary(..)),
        other => kind_of(other).is_some(),
    };
    if !is_supported {
        return Err(PyTypeError::new_err(format!(
            "the column {:?} has the type {}; columns on the device have numbers of 8 to 64 bits, \
             booleans, dates, times, text and dictionaries. Convert it first (decimals to float64), or \
             choose other columns",
            field.name(),
            type_name(field.data_type())
        )));
    }
    let text: usize = arrays.iter().map(text_bytes).sum();
    if text > i32::MAX as usize {
        let (name, of) = (field.name(), type_name(field.data_type()));
        return Err(PyValueError::new_err(format!(
            "the column {name:?} has {text} bytes in its chunks, and the type {of} has room for {}; \
             cast it to large_{of}, or use gpuheap.batches",
            i32::MAX
        )));
    }
    let joined = detached(py, || joined(field, arrays, narrow))?;
    let (array, mut host_copied) = joined.map_err(failed)?;
    let data = array.to_data();
    let mut send = |part: (Cow<'_, [u8]>, Kind)| -> PyResult<Py<Array>> {
        let (bytes, kind) = part;
        if let Cow::Owned(bytes) = &bytes {
            host_copied += bytes.len();
        }
        let target = owner.heap.on(&owner.default);
        let array = owner.make(py, || target.array(bytes.as_ref()))?;
        let shape = vec![bytes.len() / kind.size()];
        Array::new(py, owner, Window::from_bytes(array, shape, kind))
    };
    let values = values(&data).map(&mut send).transpose()?;
    let validity = validity(&data).map(&mut send).transpose()?;
    let offsets = offsets(&data).map(&mut send).transpose()?;
    let (dictionary, data_type) = match data.data_type() {
        DataType::Dictionary(codes, of) => {
            let field = Arc::new(Field::new("", of.as_ref().clone(), true));
            let values =
                upload(py, owner, &field, &[make_array(data.child_data()[0].clone())], narrow)?;
            let of = values.get().field.get().0.data_type().clone();
            (Some(values), DataType::Dictionary(codes.clone(), Box::new(of)))
        }
        other => (None, other.clone()),
    };
    let null_count = match data_type {
        DataType::Null => data.len(),
        _ => data.null_count(),
    };
    let field = field.as_ref().clone().with_data_type(data_type);
    let field = Py::new(py, ArrowField(Arc::new(field)))?;
    let rows = data.len();
    Py::new(
        py,
        ArrowColumn { field, rows, null_count, values, validity, offsets, dictionary, host_copied },
    )
}

/// Returns the number of bytes of text with 32-bit offsets; 0 for other types.
fn text_bytes(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::Utf8 | DataType::Binary => text::<i32>(&array.to_data()).len(),
        _ => 0,
    }
}

/// Joins the chunks of a column. Converts text in Arrow's view layout to the layout with offsets.
/// Also returns the number of bytes copied. A single chunk without conversion is not copied.
fn joined(
    field: &Field,
    arrays: &[ArrayRef],
    narrow: bool,
) -> Result<(ArrayRef, usize), ArrowError> {
    let joined = match arrays {
        [] => arrow_array::new_empty_array(field.data_type()),
        [one] => one.clone(),
        many => concat(&many.iter().map(AsRef::as_ref).collect::<Vec<_>>())?,
    };
    let converted: Option<ArrayRef> = match joined.data_type() {
        DataType::Utf8View => {
            Some(Arc::new(LargeStringArray::from_iter(joined.as_string_view().iter())))
        }
        DataType::BinaryView => {
            Some(Arc::new(LargeBinaryArray::from_iter(joined.as_binary_view().iter())))
        }
        DataType::Float64 if narrow => {
            let narrowed =
                joined.as_primitive::<Float64Type>().unary::<_, Float32Type>(|v| v as f32);
            Some(Arc::new(narrowed))
        }
        _ => None,
    };
    let size = |array: &ArrayRef| array.to_data().get_slice_memory_size().unwrap_or_default();
    let first = if arrays.len() > 1 { size(&joined) } else { 0 };
    let second = converted.as_ref().map_or(0, size);
    Ok((converted.unwrap_or(joined), first + second))
}

fn values(data: &ArrayData) -> Option<(Cow<'_, [u8]>, Kind)> {
    let kind = kind_of(data.data_type())?;
    let (first, rows) = (data.offset(), data.len());
    let bytes = match data.data_type() {
        DataType::Boolean => bits(&data.buffers()[0], first, rows),
        DataType::Utf8 | DataType::Binary => text::<i32>(data),
        DataType::LargeUtf8 | DataType::LargeBinary => text::<i64>(data),
        _ => {
            let size = kind.size();
            Cow::Borrowed(&data.buffers()[0].as_slice()[first * size..(first + rows) * size])
        }
    };
    Some((bytes, kind))
}

fn validity(data: &ArrayData) -> Option<(Cow<'_, [u8]>, Kind)> {
    let nulls = data.nulls().filter(|nulls| nulls.null_count() > 0)?;
    Some((bits(nulls.buffer(), nulls.offset(), nulls.len()), Kind::U8))
}

fn offsets(data: &ArrayData) -> Option<(Cow<'_, [u8]>, Kind)> {
    match data.data_type() {
        DataType::Utf8 | DataType::Binary => Some((from_zero::<i32>(data), Kind::I32)),
        DataType::LargeUtf8 | DataType::LargeBinary => Some((from_zero::<i64>(data), Kind::I64)),
        _ => None,
    }
}

/// Returns `rows` bits that begin at bit `first`. Shifts them to the beginning of a byte.
fn bits(buffer: &arrow_buffer::Buffer, first: usize, rows: usize) -> Cow<'_, [u8]> {
    let bytes = rows.div_ceil(8);
    match first % 8 {
        0 => Cow::Borrowed(&buffer.as_slice()[first / 8..first / 8 + bytes]),
        _ => Cow::Owned(buffer.bit_slice(first, rows).as_slice()[..bytes].to_vec()),
    }
}

/// Returns the offsets of the rows of text. An array without rows may have no offsets.
fn raw_offsets<T: ArrowNativeType>(data: &ArrayData) -> &[T] {
    let all = data.buffers()[0].typed_data::<T>();
    all.get(data.offset()..=data.offset() + data.len()).unwrap_or_default()
}

/// Returns the bytes of the rows of text.
fn text<T: ArrowNativeType>(data: &ArrayData) -> Cow<'_, [u8]> {
    match raw_offsets::<T>(data) {
        [first, .., last] => {
            Cow::Borrowed(&data.buffers()[1].as_slice()[first.as_usize()..last.as_usize()])
        }
        _ => Cow::Borrowed(&[]),
    }
}

/// Returns the offsets, shifted so that the first is 0.
fn from_zero<T: ArrowNativeType + std::ops::Sub<Output = T>>(data: &ArrayData) -> Cow<'_, [u8]> {
    let offsets = raw_offsets::<T>(data);
    let Some(first) = offsets.first().copied() else {
        return Cow::Owned(T::default().to_byte_slice().to_vec());
    };
    if first == T::default() {
        return Cow::Borrowed(offsets.to_byte_slice());
    }
    let moved: Vec<T> = offsets.iter().map(|offset| *offset - first).collect();
    Cow::Owned(moved.to_byte_slice().to_vec())
}
