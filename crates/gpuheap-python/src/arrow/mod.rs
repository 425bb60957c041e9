//! Exchanges tables with other libraries, through Arrow's C interface.
//!
//! * `upload`: columns of host memory as device arrays.
//! * `export`: device arrays as columns that other libraries read, on the host or on the device.

mod export;
mod upload;

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{Array as _, ArrayReader as _, ArrayRef, StructArray, make_array};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, TimeUnit};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

pub(crate) use export::_arrow_export;
pub(crate) use upload::{_arrow_upload, ArrowColumn};

use crate::failure::detached;
use crate::kind::Kind;

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// Name, Arrow type and metadata of a column, or of a table.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_ArrowField")]
pub(crate) struct ArrowField(FieldRef);

#[pymethods]
impl ArrowField {
    /// Describes a column of gpuheap's arrays of type `dtype`.
    #[new]
    fn new(name: &str, dtype: &Bound<'_, PyAny>) -> PyResult<ArrowField> {
        Ok(ArrowField(Arc::new(Field::new(name, type_of(Kind::read(dtype)?), true))))
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Name of the Arrow type.
    #[getter]
    fn r#type(&self) -> String {
        type_name(self.0.data_type())
    }

    /// Fields of the columns if this is the field of a table; otherwise `None`.
    #[getter]
    fn columns(&self) -> Option<Vec<ArrowField>> {
        match self.0.data_type() {
            DataType::Struct(fields) => Some(fields.iter().cloned().map(ArrowField).collect()),
            _ => None,
        }
    }

    /// Returns the column's field with another name.
    fn renamed(&self, name: &str) -> ArrowField {
        ArrowField(Arc::new(self.0.as_ref().clone().with_name(name)))
    }

    /// Returns the field with its text type changed to the text type with 64-bit offsets.
    fn large(&self) -> ArrowField {
        let data_type = match self.0.data_type() {
            DataType::Utf8 => DataType::LargeUtf8,
            DataType::Binary => DataType::LargeBinary,
            other => other.clone(),
        };
        ArrowField(Arc::new(self.0.as_ref().clone().with_data_type(data_type)))
    }

    fn __eq__(&self, other: &ArrowField) -> bool {
        self.0.name() == other.0.name() && self.0.data_type() == other.0.data_type()
    }
}

/// Chunks of a table or a column of another library, read one after another.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_ArrowReader")]
pub(crate) struct ArrowReader {
    field: FieldRef,
    source: Mutex<Option<Unread>>,
}

enum Unread {
    Stream(ArrayStreamReader),
    Array(ArrayRef),
}

#[pymethods]
impl ArrowReader {
    /// Opens an object that has `__arrow_c_stream__` or `__arrow_c_array__`.
    #[new]
    fn new(source: &Bound<'_, PyAny>) -> PyResult<ArrowReader> {
        let py = source.py();
        if source.hasattr(intern!(py, "__arrow_c_stream__"))? {
            let capsule = source.call_method0(intern!(py, "__arrow_c_stream__"))?;
            let pointer = pointer::<FFI_ArrowArrayStream>(&capsule, STREAM)?;
            // SAFETY: the capsule's name says that it contains a stream. The stream is moved out,
            // so the capsule's destructor finds a released stream.
            let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr()) };
            let reader = detached(py, || ArrayStreamReader::try_new(stream))?.map_err(failed)?;
            let (field, source) = (reader.field().clone(), Unread::Stream(reader));
            return Ok(ArrowReader { field, source: Mutex::new(Some(source)) });
        }
        let pair = source.call_method0(intern!(py, "__arrow_c_array__"))?;
        let (schema, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let schema = pointer::<FFI_ArrowSchema>(&schema, SCHEMA)?;
        let array = pointer::<FFI_ArrowArray>(&array, ARRAY)?;
        // SAFETY: the capsules' names say that they contain a schema and an array. The array is
        // moved out. The schema is only read, while `pair` keeps it alive.
        let (schema, array) =
            unsafe { (schema.as_ref(), FFI_ArrowArray::from_raw(array.as_ptr())) };
        let field = Arc::new(Field::try_from(schema).map_err(failed)?);
        // SAFETY: the producer guarantees that the array agrees with its schema.
        let array = unsafe { from_ffi(array, schema) }.map(make_array).map_err(failed)?;
        Ok(ArrowReader { field, source: Mutex::new(Some(Unread::Array(array))) })
    }

    /// The table's field, or the column's.
    #[getter]
    fn field(&self) -> ArrowField {
        ArrowField(self.field.clone())
    }

    /// Returns a chunk without rows.
    fn empty(&self) -> ArrowChunk {
        let array = arrow_array::new_empty_array(self.field.data_type());
        ArrowChunk { field: self.field.clone(), array }
    }

    /// Returns the next chunk, or `None` after the last chunk.
    fn next(&self, py: Python<'_>) -> PyResult<Option<ArrowChunk>> {
        // The producer may need the interpreter's lock, on this thread or on another thread.
        let next = detached(py, || {
            let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
            let next = match source.take()? {
                Unread::Array(array) => return Some(Ok(array)),
                Unread::Stream(mut reader) => {
                    let next = reader.next()?;
                    *source = Some(Unread::Stream(reader));
                    next
                }
            };
            Some(next)
        })?;
        let Some(array) = next.transpose().map_err(failed)? else { return Ok(None) };
        Ok(Some(ArrowChunk { field: self.field.clone(), array }))
    }
}

/// Rows of a table or a column in host memory.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_ArrowChunk")]
pub(crate) struct ArrowChunk {
    field: FieldRef,
    array: ArrayRef,
}

#[pymethods]
impl ArrowChunk {
    fn __len__(&self) -> usize {
        self.array.len()
    }

    /// The table's field, or the column's.
    #[getter]
    fn field(&self) -> ArrowField {
        ArrowField(self.field.clone())
    }

    /// Size of the rows in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        let data = self.array.to_data();
        data.get_slice_memory_size().unwrap_or_else(|_| data.get_buffer_memory_size())
    }

    /// The rows from `start` to `stop`, without a copy.
    fn rows(&self, start: usize, stop: usize) -> PyResult<ArrowChunk> {
        if start > stop || stop > self.array.len() {
            return Err(PyIndexError::new_err(format!(
                "rows {start} to {stop} are outside a chunk of {} rows",
                self.array.len()
            )));
        }
        let array = self.array.slice(start, stop - start);
        Ok(ArrowChunk { field: self.field.clone(), array })
    }

    /// The named columns, without a copy.
    fn select(&self, names: Vec<String>) -> PyResult<ArrowChunk> {
        let table = self.table()?;
        let mut columns = Vec::new();
        for name in &names {
            let at = table.column_names().iter().position(|column| column == name);
            let at = at.ok_or_else(|| {
                PyKeyError::new_err(format!(
                    "{name:?} is none of the columns {:?}",
                    table.column_names()
                ))
            })?;
            columns.push((table.fields()[at].clone(), table.column(at).clone()));
        }
        let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let array = StructArray::try_new_with_length(
            fields.into(),
            arrays,
            table.nulls().cloned(),
            table.len(),
        )
        .map_err(failed)?;
        let field = self.field.as_ref().clone().with_data_type(array.data_type().clone());
        Ok(ArrowChunk { field: Arc::new(field), array: Arc::new(array) })
    }
}

impl ArrowChunk {
    fn table(&self) -> PyResult<&StructArray> {
        let table = self.array.as_any().downcast_ref::<StructArray>();
        table.ok_or_else(|| PyTypeError::new_err("a column has no columns to choose from"))
    }

    /// Returns the columns of a table, or the column itself.
    fn columns(&self) -> PyResult<Vec<ArrayRef>> {
        let Ok(table) = self.table() else { return Ok(vec![self.array.clone()]) };
        if table.null_count() > 0 {
            return Err(PyValueError::new_err(format!(
                "{} rows of the structure are null as a whole, and a table has rows of values; drop \
                 them, or make columns of its fields first",
                table.null_count()
            )));
        }
        Ok(table.columns().to_vec())
    }
}

/// Returns the Arrow type of an array's elements.
fn type_of(kind: Kind) -> DataType {
    match kind {
        Kind::Bool => DataType::Boolean,
        Kind::I8 => DataType::Int8,
        Kind::I16 => DataType::Int16,
        Kind::I32 => DataType::Int32,
        Kind::I64 => DataType::Int64,
        Kind::U8 => DataType::UInt8,
        Kind::U16 => DataType::UInt16,
        Kind::U32 => DataType::UInt32,
        Kind::U64 => DataType::UInt64,
        Kind::F32 => DataType::Float32,
        Kind::F64 => DataType::Float64,
    }
}

/// Returns the element type in which a column's values are stored: codes for a dictionary, bytes
/// for text and bits. Returns `None` if no array can contain the values.
fn kind_of(data_type: &DataType) -> Option<Kind> {
    Some(match data_type {
        DataType::Int8 => Kind::I8,
        DataType::Int16 => Kind::I16,
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => Kind::I32,
        DataType::Int64 | DataType::Date64 | DataType::Time64(_) => Kind::I64,
        DataType::Timestamp(..) | DataType::Duration(_) => Kind::I64,
        DataType::UInt8 | DataType::Boolean => Kind::U8,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => Kind::U8,
        DataType::UInt16 => Kind::U16,
        DataType::UInt32 => Kind::U32,
        DataType::UInt64 => Kind::U64,
        DataType::Float32 => Kind::F32,
        DataType::Float64 => Kind::F64,
        DataType::Dictionary(codes, _) => kind_of(codes)?,
        _ => return None,
    })
}

/// Returns the type's name, as pandas and pyarrow write it.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "bool".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        DataType::LargeUtf8 => "large_string".to_owned(),
        DataType::LargeBinary => "large_binary".to_owned(),
        DataType::Timestamp(unit, None) => format!("timestamp[{}]", unit_name(*unit)),
        DataType::Timestamp(unit, Some(zone)) => format!("timestamp[{}, {zone}]", unit_name(*unit)),
        DataType::Duration(unit) => format!("duration[{}]", unit_name(*unit)),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("time[{}]", unit_name(*unit)),
        DataType::Dictionary(codes, values) => {
            format!("dictionary<{}, {}>", type_name(codes), type_name(values))
        }
        DataType::Struct(fields) => format!("table of {} columns", fields.len()),
        other => other.to_string().to_lowercase(),
    }
}

fn unit_name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

/// Returns the pointer of a capsule. Raises `ValueError` if the capsule has another name.
fn pointer<T>(capsule: &Bound<'_, PyAny>, name: &CStr) -> PyResult<NonNull<T>> {
    Ok(capsule.cast::<PyCapsule>()?.pointer_checked(Some(name))?.cast())
}

fn failed(error: ArrowError) -> PyErr {
    PyValueError::new_err(match error {
        ArrowError::CDataInterface(text) => text,
        other => other.to_string(),
    })
}
