//! Assigns numbers to keys, merges aggregates, and orders rows, for `gpuheap/_groups.py`.

use std::sync::{Mutex, PoisonError};

use arrow_buffer::{ArrowNativeType, ToByteSlice};
use gpuheap_groups::{
    Aggregate, Column, Error, Groups, KeyType, Keys, Merged, Merger, Missing, NumberType, Part,
    Plan, factorize, join, sort, take_text, true_rows, unique,
};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::array::Array;
use crate::failure::{detached, refused};

/// A column of a table, copied to the host.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_HostColumn")]
pub(crate) struct HostColumn {
    of: NumberType,
    values: Vec<u8>,
    valid: Option<Vec<u8>>,
    /// Offsets of text, and `true` if they have 64 bits.
    offsets: Option<(Vec<u8>, bool)>,
    dictionary: Option<Py<HostColumn>>,
}

#[pymethods]
impl HostColumn {
    #[new]
    #[pyo3(signature = (values, valid=None, offsets=None, dictionary=None))]
    fn new(
        py: Python<'_>,
        values: &Array,
        valid: Option<&Array>,
        offsets: Option<&Array>,
        dictionary: Option<Py<HostColumn>>,
    ) -> PyResult<HostColumn> {
        let of = number_type(values.dtype())?;
        let offsets = match offsets {
            Some(offsets) => Some((offsets.bytes(py)?, offsets.dtype() == "int64")),
            None => None,
        };
        let valid = valid.map(|bits| bits.bytes(py)).transpose()?;
        Ok(HostColumn { of, values: values.bytes(py)?, valid, offsets, dictionary })
    }
}

impl HostColumn {
    fn column(&self) -> Result<Column<'_>, Error> {
        let valid = self.valid.as_deref();
        match (&self.offsets, &self.dictionary) {
            (Some((offsets, is_large)), _) => Column::text(offsets, *is_large, &self.values, valid),
            (None, Some(dictionary)) => {
                Column::codes(self.of, &self.values, dictionary.get().column()?, valid)
            }
            (None, None) => Column::numbers(self.of, &self.values, valid),
        }
    }
}

fn columns(of: &[Py<HostColumn>]) -> Result<Vec<Column<'_>>, Error> {
    of.iter().map(|column| column.get().column()).collect()
}

fn number_type(name: &str) -> PyResult<NumberType> {
    NumberType::from_name(name)
        .ok_or_else(|| PyValueError::new_err(format!("{name:?} is no type of numbers")))
}

fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Invalid(_) => PyValueError::new_err(text),
        Error::HostMemory(_) => refused(py, "HostResources", &text),
        Error::Spill { error, .. } => {
            PyOSError::new_err((error.raw_os_error().unwrap_or_default(), text))
        }
    }
}

/// Runs work of `gpuheap_groups` without the interpreter's lock.
fn run<R: Send>(py: Python<'_>, work: impl FnOnce() -> Result<R, Error> + Send) -> PyResult<R> {
    detached(py, work)?.map_err(|error| exception(py, &error))
}

fn bytes<'py, T: ArrowNativeType>(py: Python<'py>, numbers: &[T]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, size_of_val(numbers), |to| {
        to.copy_from_slice(numbers.to_byte_slice());
        Ok(())
    })
}

/// Distinct keys in ascending order.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_GroupKeys")]
pub(crate) struct GroupKeys {
    keys: Keys,
    types: Vec<KeyType>,
}

/// A column of keys or results. The fields are the type's name (`None` for text), the values, the
/// offsets of text, and one byte for each row. The byte is 1 if the row has a value. If all rows
/// have a value, the last field is `None`.
type HostValues<'py> = (
    Option<&'static str>,
    Bound<'py, PyBytes>,
    Option<Bound<'py, PyBytes>>,
    Option<Bound<'py, PyBytes>>,
);

fn flags<'py>(py: Python<'py>, present: Option<&Vec<bool>>) -> Option<Bound<'py, PyBytes>> {
    let bytes = |all: &Vec<bool>| all.iter().map(|one| u8::from(*one)).collect::<Vec<u8>>();
    present.map(|all| PyBytes::new(py, &bytes(all)))
}

#[pymethods]
impl GroupKeys {
    fn __len__(&self) -> usize {
        self.keys.len()
    }
}

impl GroupKeys {
    /// Returns the columns of the keys.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Vec<HostValues<'py>>> {
        let made = run(py, || self.keys.columns(&self.types))?;
        let types = self.types.iter().map(|of| match of {
            KeyType::Number(of) => Some(of.name()),
            KeyType::Text => None,
        });
        let column = |(of, column): (_, gpuheap_groups::KeyColumn)| {
            let offsets = column.offsets.map(|offsets| bytes(py, &offsets)).transpose()?;
            let present = flags(py, column.present.as_ref());
            Ok((of, PyBytes::new(py, &column.values), offsets, present))
        };
        types.zip(made).map(column).collect()
    }
}

/// Assigns a number to each distinct key. Returns the distinct keys, and the number of each row's
/// key, as the bytes of a `uint32` array.
#[pyfunction]
pub(crate) fn _factorize<'py>(
    py: Python<'py>,
    of: Vec<Py<HostColumn>>,
    keeps_missing: bool,
) -> PyResult<(GroupKeys, Bound<'py, PyBytes>)> {
    let missing = if keeps_missing { Missing::Group } else { Missing::LeftOut };
    let (dense, types) = run(py, || {
        let columns = columns(&of)?;
        Ok((factorize(&columns, missing)?, columns.iter().map(KeyType::of).collect()))
    })?;
    let codes = bytes(py, &dense.codes)?;
    Ok((GroupKeys { keys: dense.keys, types }, codes))
}

/// Sorts rows by their keys. Returns the sorted rows' indices, as the bytes of a `uint32` array.
#[pyfunction]
pub(crate) fn _sort_rows<'py>(
    py: Python<'py>,
    of: Vec<Py<HostColumn>>,
    descending: Vec<bool>,
) -> PyResult<Bound<'py, PyBytes>> {
    bytes(py, &run(py, || sort(&columns(&of)?, &descending))?)
}

/// Returns the index of the first row of each distinct key, as the bytes of a `uint32` array.
#[pyfunction]
pub(crate) fn _unique_rows<'py>(
    py: Python<'py>,
    of: Vec<Py<HostColumn>>,
) -> PyResult<Bound<'py, PyBytes>> {
    bytes(py, &run(py, || unique(&columns(&of)?))?)
}

/// Returns the indices of the bytes of `mask` that are not 0, as the bytes of a `uint32` array.
#[pyfunction]
pub(crate) fn _true_rows<'py>(py: Python<'py>, mask: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    bytes(py, &run(py, || true_rows(mask))?)
}

/// Returns the indices of matching rows in the left and in the right table, as bytes.
#[pyfunction]
pub(crate) fn _join_rows<'py>(
    py: Python<'py>,
    left: Vec<Py<HostColumn>>,
    right: Vec<Py<HostColumn>>,
    keeps_left: bool,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let found = run(py, || join(&columns(&left)?, &columns(&right)?, keeps_left))?;
    Ok((bytes(py, &found.left)?, bytes(py, &found.right)?))
}

/// Returns the offsets and the bytes of the texts at the given indices.
#[pyfunction]
pub(crate) fn _take_text<'py>(
    py: Python<'py>,
    column: &HostColumn,
    indices: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (offsets, text) = run(py, || {
        let read = |bytes: &[u8]| bytes.try_into().map_or(u32::MAX, u32::from_ne_bytes);
        let indices: Vec<u32> = indices.chunks_exact(4).map(read).collect();
        take_text(&column.column()?, &indices)
    })?;
    Ok((bytes(py, &offsets)?, PyBytes::new(py, &text)))
}

/// Merges the aggregates of batches. After [`end`](PartsMerger::end), the merger contains the
/// groups.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_PartsMerger")]
pub(crate) struct PartsMerger {
    plan: Plan,
    state: Mutex<MergerState>,
}

enum MergerState {
    Adding(Merger, Vec<KeyType>),
    Ended(Merged, Vec<KeyType>),
    /// A step failed with a panic.
    Broken,
}

const BROKEN: &str = "the groups were used out of order; make them again";

#[pymethods]
impl PartsMerger {
    /// `of` contains, for each column, the type of its numbers and the names of its aggregates,
    /// such as `sum`. The type is `None` if the column does not contain numbers.
    #[new]
    fn new(
        py: Python<'_>,
        of: Vec<(Option<String>, Vec<String>)>,
        limit: usize,
        folder: std::path::PathBuf,
    ) -> PyResult<PartsMerger> {
        let mut planned = Vec::new();
        for (of, names) in of {
            let of = of.map(|of| number_type(&of)).transpose()?;
            planned.push((of, names.iter().map(|name| aggregate(name)).collect::<PyResult<_>>()?));
        }
        let plan = Plan::new(&planned).map_err(|error| exception(py, &error))?;
        let merger = Merger::new(plan.clone(), limit, folder);
        Ok(PartsMerger { plan, state: Mutex::new(MergerState::Adding(merger, Vec::new())) })
    }

    /// Returns the names of the partial aggregates that each batch computes for a column.
    fn parts(&self, column: usize) -> Vec<&'static str> {
        let name = |part: &Part| match part {
            Part::Count => "count",
            Part::Sum => "sum",
            Part::Total => "total",
            Part::Squares => "squares",
            Part::Min => "min",
            Part::Max => "max",
        };
        self.plan.parts(column).iter().map(name).collect()
    }

    /// Adds a batch's partial aggregates. Each of `parts` has one number for each key, as bytes.
    fn add(
        &self,
        py: Python<'_>,
        keys: &GroupKeys,
        parts: Vec<pyo3::pybacked::PyBackedBytes>,
    ) -> PyResult<()> {
        run(py, || {
            let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
            match &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
                MergerState::Adding(merger, types) => {
                    types.clone_from(&keys.types);
                    merger.add(keys.keys.clone(), &parts)
                }
                _ => Err(Error::Invalid(BROKEN.to_owned())),
            }
        })
    }

    /// Merges the added batches into groups. No batch can be added afterwards. Returns the number
    /// of bytes in temporary files.
    fn end(&self, py: Python<'_>) -> PyResult<u64> {
        run(py, || {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            *state = match std::mem::replace(&mut *state, MergerState::Broken) {
                MergerState::Adding(merger, types) => MergerState::Ended(merger.merged(), types),
                other => other,
            };
            match &*state {
                MergerState::Ended(merged, _) => Ok(merged.spilled()),
                _ => Err(Error::Invalid(BROKEN.to_owned())),
            }
        })
    }

    /// An iteration over the groups.
    fn groups(&self, py: Python<'_>) -> PyResult<GroupChunks> {
        run(py, || match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            MergerState::Ended(merged, types) => {
                let groups = Mutex::new(merged.groups()?);
                Ok(GroupChunks { groups, plan: self.plan.clone(), types: types.clone() })
            }
            _ => Err(Error::Invalid(BROKEN.to_owned())),
        })
    }
}

fn aggregate(name: &str) -> PyResult<Aggregate> {
    let found = Aggregate::ALL.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, aggregate)| aggregate).ok_or_else(|| {
        PyValueError::new_err(format!(
            "there is no aggregate {name:?}; there are {}",
            Aggregate::ALL.map(|(known, _)| known).join(", ")
        ))
    })
}

/// An iteration over groups.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_GroupChunks")]
pub(crate) struct GroupChunks {
    groups: Mutex<Groups>,
    plan: Plan,
    types: Vec<KeyType>,
}

#[pymethods]
impl GroupChunks {
    /// The next groups, at most `most` groups. Empty after the last group.
    fn next(&self, py: Python<'_>, most: usize) -> PyResult<GroupChunk> {
        let (keys, states) = run(py, || {
            self.groups.lock().unwrap_or_else(PoisonError::into_inner).next_chunk(most)
        })?;
        let keys = GroupKeys { keys, types: self.types.clone() };
        Ok(GroupChunk { keys, states, plan: self.plan.clone() })
    }
}

/// Some groups with their aggregates.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_GroupChunk")]
pub(crate) struct GroupChunk {
    keys: GroupKeys,
    states: Vec<u64>,
    plan: Plan,
}

#[pymethods]
impl GroupChunk {
    fn __len__(&self) -> usize {
        self.keys.keys.len()
    }

    /// The columns of the keys.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Vec<HostValues<'py>>> {
        self.keys.columns(py)
    }

    /// An aggregate of a column.
    fn result<'py>(&self, py: Python<'py>, column: usize, name: &str) -> PyResult<HostValues<'py>> {
        let aggregate = aggregate(name)?;
        let made = detached(py, || self.plan.result(column, aggregate, &self.states))?;
        let made = made.ok_or_else(|| PyValueError::new_err(BROKEN))?;
        let present = flags(py, made.present.as_ref());
        Ok((Some(made.of.name()), PyBytes::new(py, &made.values), None, present))
    }
}
