//! Exports device arrays as columns that other libraries read, on the host or on the device.

use std::ffi::{CStr, c_void};
use std::panic::AssertUnwindSafe;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchIterator, StructArray};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use super::{ARRAY, ArrowField, SCHEMA, STREAM, failed, kind_of, type_name};
use crate::array::Array;

const DEVICE_ARRAY: &CStr = c"arrow_device_array";

/// A column of Python's class `Column`.
#[derive(FromPyObject)]
pub(crate) struct ExportedColumn<'py> {
    #[pyo3(attribute("_field"))]
    field: PyRef<'py, ArrowField>,
    #[pyo3(attribute("_rows"))]
    rows: usize,
    null_count: usize,
    #[pyo3(attribute("_stored"))]
    values: Option<PyRef<'py, Array>>,
    validity: Option<PyRef<'py, Array>>,
    offsets: Option<PyRef<'py, Array>>,
    dictionary: Option<Bound<'py, PyAny>>,
}

/// Hands a table's columns to another library, or a single column if `table` is `None`. `form` is
/// `"stream"` or `"array"` for a copy on the host, or `"device"` for the device memory itself.
/// Waits for the work on the columns.
#[pyfunction]
pub(crate) fn _arrow_export<'py>(
    py: Python<'py>,
    table: Option<&ArrowField>,
    columns: Vec<ExportedColumn<'py>>,
    rows: usize,
    form: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let mut place = Place::Host;
    if form == "device" {
        let device =
            columns.iter().find_map(|column| Some(column.values.as_ref()?.dlpack_device()));
        let Some(device) = device else {
            return Err(PyValueError::new_err("the table has no memory on a device to hand over"));
        };
        place = Place::Device(device);
    }
    let mut parts = Vec::new();
    for column in &columns {
        parts.push(column.data(py, place)?);
    }
    let (field, data) = match table {
        None => {
            let (Some(column), Some(data)) = (columns.first(), parts.pop()) else {
                return Err(PyValueError::new_err("no column to hand over"));
            };
            (column.field.0.as_ref().clone(), data)
        }
        Some(table) => {
            let data_type = DataType::Struct(columns.iter().map(|c| c.field.0.clone()).collect());
            let data = ArrayData::builder(data_type.clone()).len(rows).child_data(parts);
            // SAFETY: every column was checked, or was made by an upload. `Column` has checked that
            // each column has `rows` rows. Validation would read device memory.
            let data = unsafe { data.build_unchecked() };
            (table.0.as_ref().clone().with_data_type(data_type), data)
        }
    };
    if form == "stream" {
        let table = StructArray::from(data);
        let batch =
            RecordBatch::from(table).with_schema(Arc::new(schema_of(&field))).map_err(failed)?;
        let schema = batch.schema();
        let reader = RecordBatchIterator::new([Ok(batch)], schema);
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        return Ok(PyCapsule::new_with_value(py, stream, STREAM)?.into_any());
    }
    let schema = FFI_ArrowSchema::try_from(&field).map_err(failed)?;
    let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
    let array = FFI_ArrowArray::new(&data);
    let array = match place {
        Place::Host => PyCapsule::new_with_value(py, array, ARRAY)?,
        Place::Device((device_type, ordinal)) => {
            let array = DeviceArray {
                array,
                device_id: ordinal.into(),
                device_type,
                sync_event: null_mut(),
                reserved: [0; 3],
            };
            PyCapsule::new_with_value(py, array, DEVICE_ARRAY)?
        }
    };
    Ok(PyTuple::new(py, [schema.into_any(), array.into_any()])?.into_any())
}

/// Location of the exported buffers. On the host they are copies, on the device the memory itself.
#[derive(Clone, Copy)]
enum Place {
    Host,
    /// DLPack's type and number of the device. Arrow uses the same numbers.
    Device((i32, i32)),
}

/// Arrow's struct `ArrowDeviceArray`.
#[repr(C)]
struct DeviceArray {
    array: FFI_ArrowArray,
    device_id: i64,
    device_type: i32,
    /// Event after which the memory may be read. Null if all work has completed.
    sync_event: *mut c_void,
    reserved: [i64; 3],
}

// SAFETY: `sync_event` is null, and the other fields are `Send`.
unsafe impl Send for DeviceArray {}

impl ExportedColumn<'_> {
    fn data(&self, py: Python<'_>, place: Place) -> PyResult<ArrayData> {
        let data_type = self.field.0.data_type().clone();
        let wrong = |text: String| {
            PyTypeError::new_err(format!("the column {:?}: {text}", self.field.0.name()))
        };
        let fits = |array: &Array| kind_of(&data_type) == Some(array.kind());
        if let Some(values) = self.values.as_ref().filter(|values| !fits(values)) {
            let (name, found) = (type_name(&data_type), values.kind().name());
            return Err(wrong(format!("values of {name} cannot be an array of {found}")));
        }
        let arrays = self.offsets.iter().chain(&self.values);
        let buffers = arrays.map(|array| buffer(py, array, place)).collect::<PyResult<Vec<_>>>()?;
        let children = match &self.dictionary {
            Some(values) => vec![values.extract::<ExportedColumn<'_>>()?.data(py, place)?],
            None => Vec::new(),
        };
        let validity = self.validity.as_ref().map(|bits| buffer(py, bits, place)).transpose()?;
        if validity.as_ref().is_some_and(|bits| bits.len() < self.rows.div_ceil(8)) {
            return Err(wrong(format!("the bits of validity are too few for {} rows", self.rows)));
        }
        let nulls = validity.map(|bits| {
            let bits = BooleanBuffer::new(bits, 0, self.rows);
            match place {
                Place::Host => NullBuffer::new(bits),
                // SAFETY: the count comes from the upload, or from a sum on the device. Counting
                // here would read device memory. Readers use the count as a hint.
                Place::Device(_) => unsafe { NullBuffer::new_unchecked(bits, self.null_count) },
            }
        });
        let builder = ArrayData::builder(data_type)
            .len(self.rows)
            .nulls(nulls)
            .buffers(buffers)
            .child_data(children);
        match place {
            Place::Host => builder.build().map_err(failed),
            // SAFETY: nothing here reads the buffers: they are device memory. Validation would read
            // them. A reader on the device relies on valid contents, as for every exported array.
            Place::Device(_) => Ok(unsafe { builder.build_unchecked() }),
        }
    }
}

/// Returns a buffer with a copy of an array on the host, or with the device memory itself.
fn buffer(py: Python<'_>, array: &Array, place: Place) -> PyResult<Buffer> {
    let bytes = array.size_in_bytes();
    if bytes == 0 {
        return Ok(MutableBuffer::new(0).into());
    }
    match place {
        Place::Host => {
            let mut copy = MutableBuffer::from_len_zeroed(bytes);
            array.read_into(py, copy.as_slice_mut())?;
            Ok(copy.into())
        }
        Place::Device(device) => {
            if array.dlpack_device() != device {
                return Err(PyValueError::new_err("the columns of a table are on one device"));
            }
            let (address, export) = array.lend(py)?;
            let owner = Arc::new(AssertUnwindSafe(export));
            let pointer = NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling());
            // SAFETY: the export keeps the device memory until the reader releases the buffer. The
            // host does not read the memory: the exchanged struct says that the memory is on the
            // device.
            Ok(unsafe { Buffer::from_custom_allocation(pointer, bytes, owner) })
        }
    }
}

fn schema_of(table: &Field) -> arrow_schema::Schema {
    let fields = match table.data_type() {
        DataType::Struct(fields) => fields.clone(),
        _ => arrow_schema::Fields::empty(),
    };
    arrow_schema::Schema::new(fields).with_metadata(table.metadata().clone())
}
