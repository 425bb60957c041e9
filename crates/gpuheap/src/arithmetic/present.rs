//! Aggregates columns with missing values by key, and copies elements by index.

use std::panic::Location;

use gpuheap_kernels as kernels;
use gpuheap_kernels::{ByKey, Fold, Type};
use ndarray::Ix1;

use super::cast::recast;
use super::launch::{Window, run};
use super::number::{Number, Scalar};
use crate::Caller;
use crate::array::{ArrayBase, ArrayData, DeviceArray, UninitArray};
use crate::error::{Error, ErrorKind};
use crate::kind::MemoryKind;

/// Grouped rows of a column that may lack some values. A value is missing if it is NaN, or if its
/// bit in a bitmap is 0. Missing values are left out, and so are rows whose key is not one of
/// `0..groups`. No method waits.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let (values, keys) = (target.array(&[1.5, f64::NAN, 4.0])?, target.array(&[0_u32, 1, 0])?);
/// let rows = gpuheap::arithmetic::GroupedRows::new(&keys, 2);
/// assert_eq!(rows.count(&values)?.to_vec()?, [2, 0]);
/// assert_eq!(rows.max(&values)?.slice(0..1)?.to_vec()?, [4.0]);
/// let first = target.array(&[0b001_u8])?;
/// assert_eq!(rows.valid(&first)?.sum(&values)?.to_vec()?, [1.5, 0.0]);
/// # Ok(()) }
/// ```
pub struct GroupedRows<'a, R: ArrayData> {
    keys: &'a ArrayBase<R, u32, Ix1>,
    groups: usize,
    valid: Option<&'a ArrayBase<R, u8, Ix1>>,
}

impl<'a, R: ArrayData> GroupedRows<'a, R> {
    /// Groups rows by a key for each row.
    pub fn new(keys: &'a ArrayBase<R, u32, Ix1>, groups: usize) -> GroupedRows<'a, R> {
        GroupedRows { keys, groups, valid: None }
    }

    /// Leaves out values whose bit is 0. The first value has the lowest bit of the first byte, as
    /// in Arrow.
    ///
    /// # Errors
    ///
    /// There are fewer bits than keys.
    pub fn valid(self, bits: &'a ArrayBase<R, u8, Ix1>) -> Result<GroupedRows<'a, R>, Error> {
        let (rows, bytes) = (self.keys.len(), bits.len());
        if bytes < rows.div_ceil(8) {
            return Err(ErrorKind::WrongShape.error(format!(
                "the bitmap has {bytes} bytes, and {rows} rows need {}",
                rows.div_ceil(8)
            )));
        }
        Ok(GroupedRows { valid: Some(bits), ..self })
    }

    /// Returns the number of values of each group.
    ///
    /// # Errors
    ///
    /// The number of values differs from the number of keys; the arrays are on several devices; an
    /// array was freed; the errors of [`Target::uninit`](crate::Target::uninit), for the result; a
    /// driver error.
    #[track_caller]
    pub fn count<S: ArrayData, T: Scalar>(
        &self,
        values: &ArrayBase<S, T, Ix1>,
    ) -> Result<DeviceArray<u64>, Error> {
        self.fold(Fold::Count, values, None, Location::caller())
    }

    /// Returns the sum of each group's values; 0 for a group without values. Adds as
    /// [`sum_by_key`](ArrayBase::sum_by_key) does.
    ///
    /// # Errors
    ///
    /// The errors of [`count`](GroupedRows::count).
    #[track_caller]
    pub fn sum<S: ArrayData, T: Scalar>(
        &self,
        values: &ArrayBase<S, T, Ix1>,
    ) -> Result<DeviceArray<T::Sum>, Error> {
        let at = Location::caller();
        recast(self.fold::<_, _, T::Total>(Fold::Sum, values, None, at)?, at)
    }

    /// Returns the smallest value of each group. For a group without values, whose
    /// [`count`](GroupedRows::count) is 0, the result is unspecified.
    ///
    /// # Errors
    ///
    /// The errors of [`count`](GroupedRows::count).
    #[track_caller]
    pub fn min<S: ArrayData, T: Number>(
        &self,
        values: &ArrayBase<S, T, Ix1>,
    ) -> Result<DeviceArray<T>, Error> {
        let at = Location::caller();
        recast(self.fold::<_, _, T::Total>(Fold::Min, values, None, at)?, at)
    }

    /// Returns the largest value of each group. For a group without values, whose
    /// [`count`](GroupedRows::count) is 0, the result is unspecified.
    ///
    /// # Errors
    ///
    /// The errors of [`count`](GroupedRows::count).
    #[track_caller]
    pub fn max<S: ArrayData, T: Number>(
        &self,
        values: &ArrayBase<S, T, Ix1>,
    ) -> Result<DeviceArray<T>, Error> {
        let at = Location::caller();
        recast(self.fold::<_, _, T::Total>(Fold::Max, values, None, at)?, at)
    }

    /// Returns the sum of the squared distances of each group's values from the group's mean in
    /// `means`. The variance is this sum divided by the count minus one.
    ///
    /// # Errors
    ///
    /// The number of means differs from the number of groups; the errors of
    /// [`count`](GroupedRows::count).
    #[track_caller]
    pub fn squares<S: ArrayData, T: Scalar, M: ArrayData>(
        &self,
        values: &ArrayBase<S, T, Ix1>,
        means: &ArrayBase<M, f64, Ix1>,
    ) -> Result<DeviceArray<f64>, Error> {
        if means.len() != self.groups {
            return Err(ErrorKind::WrongShape.error(format!(
                "there are {} means for {} groups; give one for each",
                means.len(),
                self.groups
            )));
        }
        self.fold(Fold::Squares, values, Some(means.window()), Location::caller())
    }

    /// Computes in device memory, because many threads of a kernel may add to the same element.
    fn fold<S: ArrayData, T: Scalar, A: Scalar>(
        &self,
        fold: Fold,
        values: &ArrayBase<S, T, Ix1>,
        means: Option<Window<'_>>,
        at: Caller,
    ) -> Result<DeviceArray<A>, Error> {
        let (rows, groups) = (values.len(), self.groups);
        if rows != self.keys.len() {
            return Err(ErrorKind::WrongShape.error(format!(
                "there are {} keys for {rows} values; give a key for each value",
                self.keys.len()
            )));
        }
        let target = values.target().kind(MemoryKind::Device);
        let out = target.uninit_at::<u64, _>(Ix1(groups), at)?.fill(fold.identity(T::TYPE))?;
        let out: DeviceArray<A> = out.into_reinterpreted()?;
        let keys = self.keys.window();
        let valid = self.valid.map(|bits| bits.window());
        let (bits, distances) = (valid.unwrap_or(keys), means.unwrap_or(keys));
        let arrays = [&values.window(), &keys, &bits, &distances, &out.window()];
        run(arrays, |[values, keys, bits, distances, out]| {
            kernels::group(&ByKey {
                fold,
                values: Some((T::TYPE, values)),
                keys: (Type::U32, keys),
                rows,
                inner: 1,
                groups,
                out,
                bad: None,
                valid: valid.map(|_| bits),
                means: distances,
                skips_nan: true,
            })
        })?;
        Ok(out)
    }
}

/// Rows by index.
impl<S: ArrayData, T: Scalar> ArrayBase<S, T, Ix1> {
    /// Copies the elements at `indices`, in the order of the indices. If an index is not below the
    /// array's length, the result is 0 there. Does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let names = target.array(&[10, 20, 30])?;
    /// let indices = target.array(&[2_u32, 2, 0, u32::MAX])?;
    /// assert_eq!(names.take(&indices)?.to_vec()?, [30, 30, 10, 0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The indices are on another device; an array was freed; the errors of
    /// [`Target::uninit`](crate::Target::uninit), for the result; a driver error.
    #[track_caller]
    #[doc(alias = "gather")]
    pub fn take<R: ArrayData>(
        &self,
        indices: &ArrayBase<R, u32, Ix1>,
    ) -> Result<DeviceArray<T>, Error> {
        let shape = Ix1(indices.len());
        let UninitArray(out) = self.target().uninit_at::<T, _>(shape, Location::caller())?;
        run([&self.window(), &indices.window(), &out.window()], |[input, indices_at, out]| {
            let (unit, count) = (T::TYPE.size(), indices.len());
            kernels::take(unit, count, out, input, self.len(), indices_at)
        })?;
        Ok(out)
    }
}
