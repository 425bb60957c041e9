//! Sparse matrices.

use std::fmt;
use std::ops::Deref;

use ndarray::Ix1;
use sprs::{CompressedStorage, CsMatBase, CsMatI, SpIndex};

use super::{Adapt, Download, ElementRule, Item, Plain, Same, Structures, Upload};
use crate::array::{DeviceArray, Element};
use crate::error::{Error, ErrorKind};

/// A compressed sparse matrix on the device. Adapting a matrix or view of `sprs` makes it.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// use gpuheap::Host;
///
/// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let matrix = sprs::CsMat::new((2, 2), vec![0, 1, 2], vec![1, 0], vec![1.5, 2.5]);
/// let up = target.cu(&matrix)?;
/// assert_eq!((up.values.to_vec()?, up.indices.to_vec()?), (vec![1.5_f32, 2.5], vec![1, 0]));
/// assert_eq!(Host.adapt(&up)?.get(0, 1), Some(&1.5));
/// # Ok(()) }
/// ```
pub struct DeviceCsMat<N, I = usize, Iptr = I> {
    /// Compressed dimension: rows or columns.
    pub storage: CompressedStorage,
    /// Number of rows and of columns.
    pub shape: (usize, usize),
    /// Offset in `indices` and `values` at which each compressed row or column starts. The last
    /// entry is the end of the last row or column.
    pub starts: DeviceArray<Iptr>,
    /// Uncompressed coordinate of each value: its column if rows are compressed, otherwise its row.
    pub indices: DeviceArray<I>,
    /// Nonzero values.
    pub values: DeviceArray<N>,
}

impl<N, I, Iptr, IptrStorage, IndStorage, DataStorage, R> Adapt<Upload<R>>
    for CsMatBase<N, I, IptrStorage, IndStorage, DataStorage, Iptr>
where
    N: Plain,
    I: SpIndex + Plain,
    Iptr: SpIndex + Plain,
    IptrStorage: Deref<Target = [Iptr]>,
    IndStorage: Deref<Target = [I]>,
    DataStorage: Deref<Target = [N]>,
    R: ElementRule,
{
    type Output = DeviceCsMat<R::Of<N>, I, Iptr>;

    fn adapt(&self, to: &Upload<R>) -> Result<Self::Output, Error> {
        let starts = self.proper_indptr();
        let (indices, values) = (self.indices(), self.data());
        Ok(DeviceCsMat {
            storage: self.storage(),
            shape: self.shape(),
            starts: to.array::<Same, _, _>(&starts, Ix1(starts.len()))?,
            indices: to.array::<Same, _, _>(indices, Ix1(indices.len()))?,
            values: to.array::<R, _, _>(values, Ix1(values.len()))?,
        })
    }
}

impl<N, I, Iptr, IptrStorage, IndStorage, DataStorage> Adapt<Download>
    for CsMatBase<N, I, IptrStorage, IndStorage, DataStorage, Iptr>
where
    N: Clone,
    I: SpIndex,
    Iptr: SpIndex,
    IptrStorage: Deref<Target = [Iptr]>,
    IndStorage: Deref<Target = [I]>,
    DataStorage: Deref<Target = [N]>,
{
    type Output = CsMatI<N, I, Iptr>;

    fn adapt(&self, _: &Download) -> Result<Self::Output, Error> {
        Ok(self.to_owned())
    }
}

impl<N, I, Iptr, IptrStorage, IndStorage, DataStorage> Item
    for CsMatBase<N, I, IptrStorage, IndStorage, DataStorage, Iptr>
where
    I: SpIndex,
    Iptr: SpIndex,
    IptrStorage: Deref<Target = [Iptr]>,
    IndStorage: Deref<Target = [I]>,
    DataStorage: Deref<Target = [N]>,
{
    type Group = Structures;
}

impl<N, I, Iptr, R> Adapt<Upload<R>> for DeviceCsMat<N, I, Iptr>
where
    N: Plain,
    I: Plain,
    Iptr: Plain,
    R: ElementRule,
{
    type Output = DeviceCsMat<R::Of<N>, I, Iptr>;

    fn adapt(&self, to: &Upload<R>) -> Result<Self::Output, Error> {
        Ok(DeviceCsMat {
            storage: self.storage,
            shape: self.shape,
            starts: to.copy::<Same, _, _, _>(&self.starts)?,
            indices: to.copy::<Same, _, _, _>(&self.indices)?,
            values: to.copy::<R, _, _, _>(&self.values)?,
        })
    }
}

impl<N, I, Iptr> Adapt<Download> for DeviceCsMat<N, I, Iptr>
where
    N: Element,
    I: SpIndex + Element,
    Iptr: SpIndex + Element,
{
    type Output = CsMatI<N, I, Iptr>;

    fn adapt(&self, to: &Download) -> Result<Self::Output, Error> {
        let starts = to.array(&self.starts)?.into_raw_vec_and_offset().0;
        let indices = to.array(&self.indices)?.into_raw_vec_and_offset().0;
        let values = to.array(&self.values)?.into_raw_vec_and_offset().0;
        let matrix = match self.storage {
            CompressedStorage::CSR => CsMatI::try_new(self.shape, starts, indices, values),
            CompressedStorage::CSC => CsMatI::try_new_csc(self.shape, starts, indices, values),
        };
        matrix.map_err(|(.., why)| {
            ErrorKind::InvalidData.error(format!(
                "what the device has is no sparse matrix of shape {:?}: {why}",
                self.shape
            ))
        })
    }
}

impl<N, I, Iptr> Item for DeviceCsMat<N, I, Iptr> {
    type Group = Structures;
}

impl<N, I, Iptr> fmt::Debug for DeviceCsMat<N, I, Iptr>
where
    N: Element + fmt::Debug,
    I: Element + fmt::Debug,
    Iptr: Element + fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCsMat")
            .field("storage", &self.storage)
            .field("shape", &self.shape)
            .field("starts", &self.starts)
            .field("indices", &self.indices)
            .field("values", &self.values)
            .finish()
    }
}
