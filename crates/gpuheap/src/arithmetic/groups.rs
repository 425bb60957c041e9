//! Sums, counts and means of groups. The keys of the groups are small integers.

use std::panic::Location;

use gpuheap_kernels as kernels;
use gpuheap_kernels::{Arithmetic, ByKey, Fold, Type};
use ndarray::{Dimension, Ix1, RemoveAxis};

use super::cast::{cast, recast};
use super::launch::{check_device, run};
use super::number::{Key, Scalar};
use super::operand::{Side, strides};
use super::operators::{Op, enqueue_strided};
use super::reduce::size;
use crate::Caller;
use crate::array::target::Target;
use crate::array::{ArrayBase, ArrayData, DeviceArray};
use crate::error::{Error, ErrorKind};
use crate::kind::MemoryKind;

/// Sums and means of groups of rows. A row is an index of the leading axis. The key of a row is the
/// index of the row's group. The result has one row for each group, and is allocated by this
/// array's [`target`](ArrayBase::target). Every method here waits in order to check the keys.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// use gpuheap::ndarray::array;
///
/// let values = target.array(&array![[1_i32, 2], [3, 4], [5, 6]])?;
/// let keys = target.array(&[2_u8, 0, 2])?;
/// assert_eq!(values.sum_by_key(&keys, 3)?.to_ndarray()?, array![[3, 4], [0, 0], [6, 8]]);
/// assert_eq!(keys.count_by_key(3)?.to_vec()?, [1, 0, 2]);
/// assert!(values.sum_by_key(&keys, 2).is_err()); // 2 is not one of 0..2
/// # Ok(()) }
/// ```
impl<S: ArrayData, T: Scalar, D: RemoveAxis> ArrayBase<S, T, D> {
    /// Returns the sum of each group's rows; 0 for an empty group. Adds as [`sum`](ArrayBase::sum)
    /// does, but the order of floats may differ from run to run. Their sum may then differ in the
    /// last bits. Waits.
    ///
    /// # Errors
    ///
    /// A key is outside `0..groups`; the number of keys differs from the number of rows; the array
    /// has no axis; the keys are on another device; an array was freed; the errors of
    /// [`Target::uninit`], for the result and for temporary memory; a driver error.
    #[track_caller]
    pub fn sum_by_key<R: ArrayData, K: Key>(
        &self,
        keys: &ArrayBase<R, K, Ix1>,
        groups: usize,
    ) -> Result<DeviceArray<T::Sum, D>, Error> {
        let at = Location::caller();
        let sums = recast(totals::<T::Total, _, _, _, _, _>(self, keys, groups, at)?, at)?;
        placed(sums, &self.target(), at)
    }

    /// Returns the mean of each group's rows; NaN for an empty group. Computes as
    /// [`mean`](ArrayBase::mean) does, but the order of additions may differ from run to run.
    /// Waits.
    ///
    /// # Errors
    ///
    /// The errors of [`sum_by_key`](ArrayBase::sum_by_key).
    #[track_caller]
    pub fn mean_by_key<R: ArrayData, K: Key>(
        &self,
        keys: &ArrayBase<R, K, Ix1>,
        groups: usize,
    ) -> Result<DeviceArray<T::Mean, D>, Error> {
        let at = Location::caller();
        // 64-bit sums of such integers could wrap.
        let is_wide = matches!(T::TYPE, Type::I64 | Type::U64);
        let means: DeviceArray<f64, D> = if is_wide {
            let values: DeviceArray<f64, D> = cast(self, at)?;
            totals::<f64, _, _, _, _, _>(&values, keys, groups, at)?
        } else {
            recast(totals::<T::Total, _, _, _, _, _>(self, keys, groups, at)?, at)?
        };
        let counts: DeviceArray<f64> = recast(counts(keys, groups, at)?, at)?;
        // `means` contains sums so far. A row is a group, and one count divides all its sums.
        let (window, mut shape) = (means.window(), vec![1; means.ndim()]);
        if let Some(rows) = shape.first_mut() {
            *rows = groups;
        }
        let steps = [strides(window.shape, window.shape), strides(&shape, window.shape)];
        let sides = [&Side::Array(window), &Side::Array(counts.window())];
        let divide = Op::Arithmetic(Arithmetic::Divide);
        enqueue_strided(divide, Type::F64, &window, sides, &steps)?;
        placed(recast(means, at)?, &self.target(), at)
    }
}

/// Counts of keys.
impl<S: ArrayData, K: Key> ArrayBase<S, K, Ix1> {
    /// Returns how often each key of `0..groups` occurs. Waits.
    ///
    /// # Errors
    ///
    /// A key is outside `0..groups`; the array was freed; the errors of [`Target::uninit`], for the
    /// result and for temporary memory; a driver error.
    #[track_caller]
    #[doc(alias = "bincount")]
    #[doc(alias = "histogram")]
    pub fn count_by_key(&self, groups: usize) -> Result<DeviceArray<u64>, Error> {
        let at = Location::caller();
        placed(counts(self, groups, at)?, &self.target(), at)
    }
}

/// Counts the keys in device memory, because many threads of a kernel may add to the same element
/// at the same time.
fn counts<S: ArrayData, K: Key>(
    keys: &ArrayBase<S, K, Ix1>,
    groups: usize,
    at: Caller,
) -> Result<DeviceArray<u64>, Error> {
    let target = keys.target().kind(MemoryKind::Device);
    let out: DeviceArray<u64> = zeros(&target, Ix1(groups), at)?;
    let bad = BadKeys::new(&target, at)?;
    let arrays = [&keys.window(), &out.window(), &bad.0.window()];
    run(arrays, |[from, out, bad]| {
        let (keys, rows) = ((K::TYPE, from), keys.len());
        kernels::group(&plan(Fold::Count, None, keys, [rows, 1, groups], out, Some(bad)))
    })?;
    bad.check(keys, groups)?;
    Ok(out)
}

/// Sums the rows of each group. The sums are in device memory for the reason given at [`counts`].
fn totals<A: Scalar, S: ArrayData, T: Scalar, D: RemoveAxis, R: ArrayData, K: Key>(
    values: &ArrayBase<S, T, D>,
    keys: &ArrayBase<R, K, Ix1>,
    groups: usize,
    at: Caller,
) -> Result<DeviceArray<A, D>, Error> {
    let mut shape = values.raw_dim();
    let rows = match shape.slice_mut().first_mut() {
        Some(first) => std::mem::replace(first, groups),
        None => {
            return Err(ErrorKind::WrongShape.error(
                "an array with no axis has no rows to group; give it a shape of one axis first"
                    .to_owned(),
            ));
        }
    };
    if rows != keys.len() {
        return Err(ErrorKind::WrongShape.error(format!(
            "there are {} keys for {rows} rows (shape {:?}); give a key for each row",
            keys.len(),
            values.shape()
        )));
    }
    check_device(&values.window(), &keys.window())?;
    let inner = size(shape.slice().get(1..).unwrap_or_default());
    let target = values.target().kind(MemoryKind::Device);
    let out: DeviceArray<A, D> = zeros(&target, shape, at)?;
    if inner == 0 {
        // No elements to add. Checks only that `values` is not freed, and that all keys are valid.
        values.storage().use_on(None, |_, _| Ok(()))?;
        counts(keys, groups, at)?;
        return Ok(out);
    }
    let bad = BadKeys::new(&target, at)?;
    let arrays = [&values.window(), &keys.window(), &out.window(), &bad.0.window()];
    run(arrays, |[values, keys, out, bad]| {
        let (values, keys) = (Some((T::TYPE, values)), (K::TYPE, keys));
        kernels::group(&plan(Fold::Sum, values, keys, [rows, inner, groups], out, Some(bad)))
    })?;
    bad.check(keys, groups)?;
    Ok(out)
}

/// Plans an aggregate of all values, including NaN.
fn plan(
    fold: Fold,
    values: Option<(Type, u64)>,
    keys: (Type, u64),
    [rows, inner, groups]: [usize; 3],
    out: u64,
    bad: Option<u64>,
) -> ByKey {
    let (valid, means, skips_nan) = (None, 0, false);
    ByKey { fold, values, keys, rows, inner, groups, out, bad, valid, means, skips_nan }
}

/// Moves a result to the kind of memory that the caller requested.
fn placed<T: Scalar, D: Dimension>(
    array: DeviceArray<T, D>,
    target: &Target,
    at: Caller,
) -> Result<DeviceArray<T, D>, Error> {
    if array.kind() == target.memory_kind() {
        return Ok(array);
    }
    target.uninit_at(array.raw_dim(), at)?.copy_from(&array)
}

/// Allocates as [`Target::zeroed`] does, and records `at` as the line that made the array.
fn zeros<A: Scalar, D: Dimension>(
    target: &Target,
    shape: D,
    at: Caller,
) -> Result<DeviceArray<A, D>, Error> {
    target.uninit_at(shape, at)?.fill(A::zeroed())
}

/// Number of keys outside `0..groups`, and the row of the first of them, counted by a kernel.
struct BadKeys(DeviceArray<u64>);

impl BadKeys {
    fn new(target: &Target, at: Caller) -> Result<BadKeys, Error> {
        Ok(BadKeys(target.uninit_at(Ix1(2), at)?.write_from(&[0, u64::MAX])?))
    }

    /// Waits for the kernel that counts bad keys. Returns an error if a key is outside `0..groups`.
    fn check<S: ArrayData, K: Key>(
        &self,
        keys: &ArrayBase<S, K, Ix1>,
        groups: usize,
    ) -> Result<(), Error> {
        let [count, row] = self.0.to_vec()?[..] else { return Ok(()) };
        if count == 0 {
            return Ok(());
        }
        let key = keys.slice(row as usize..=row as usize)?.to_vec()?;
        let key = key.first().map_or_else(String::new, |key| format!(" ({key})"));
        Err(ErrorKind::InvalidData.error(format!(
            "{count} of {} keys are not within 0..{groups}, the first of them that of row {row}{key}; \
             ask for more groups, or leave such rows out",
            keys.len()
        )))
    }
}
