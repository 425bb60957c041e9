//! Download of structures to the host.

use std::cell::RefCell;
use std::sync::Arc;

use ndarray::{Array, Dimension, Ix1};
use rustc_hash::FxHashMap;

use super::Adapt;
use crate::array::storage::Storage;
use crate::array::{ArrayBase, ArrayData, DeviceArray, Element};
use crate::error::{Error, ErrorKind};

/// The host. [`Host::adapt`] downloads a structure to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host;

impl Host {
    /// Downloads a structure, by the [rules](crate::adapt#rules): its arrays become arrays of
    /// `ndarray`. Host data in it is cloned. Waits for the last use of each array.
    ///
    /// Small arrays that were uploaded together share a block of memory. The first request for an
    /// array of a block reads only that array. The second request reads the whole block, in one
    /// copy for all further arrays. If a rule writes to one of these arrays later in the same call,
    /// [`Adapt::adapt`] returns the bytes from before that write.
    /// [`to_vec`](crate::DeviceArray::to_vec) always returns the bytes written.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// use gpuheap::Host;
    ///
    /// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let pair = target.adapt(&(vec![1, 2], 3))?;
    /// assert_eq!(Host.adapt(&pair)?, (ndarray::arr1(&[1, 2]), 3));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An array was freed; its bytes are not valid elements; a driver error.
    pub fn adapt<V: Adapt<Download> + ?Sized>(self, value: &V) -> Result<V::Output, Error> {
        value.adapt(&Download { blocks: RefCell::default() })
    }
}

/// A download to the host. It is the type parameter `To` of the [`Adapt`] implementations that
/// [`Host::adapt`] calls.
pub struct Download {
    /// Blocks that hold several arrays, keyed by the host address of the block's `Storage`.
    blocks: RefCell<FxHashMap<usize, HostBlock>>,
}

/// A block of small arrays. The second request for an array in the block reads the whole block.
struct HostBlock {
    /// Keeps the storage alive, so that its address is not used again.
    whole: Arc<Storage>,
    bytes: Option<Vec<u8>>,
}

impl Download {
    /// Returns an array's elements with its shape.
    pub(super) fn array<S: ArrayData, T: Element, D: Dimension>(
        &self,
        source: &ArrayBase<S, T, D>,
    ) -> Result<Array<T, D>, Error> {
        let elements = match self.with_others(source)? {
            Some(elements) => elements,
            None => source.to_vec()?,
        };
        Array::from_shape_vec(source.raw_dim(), elements)
            .map_err(|error| ErrorKind::WrongShape.error(error.to_string()))
    }

    /// Returns the elements of an array that shares a block with others, from one read of the
    /// block. Returns `None` if the array must be read alone, such as the first one of a block.
    fn with_others<S: ArrayData, T: Element, D: Dimension>(
        &self,
        source: &ArrayBase<S, T, D>,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some((whole, start, stream)) = source.storage().part() else { return Ok(None) };
        if source.is_empty() || size_of::<T>() == 0 {
            return Ok(None);
        }
        // If the host can access the memory, another thread may be writing to another array of the
        // block, so only this array is read.
        if source.kind().is_host_accessible() {
            return Ok(None);
        }
        let mut blocks = self.blocks.borrow_mut();
        let key = Arc::as_ptr(&whole) as usize;
        let Some(block) = blocks.get_mut(&key) else {
            blocks.insert(key, HostBlock { whole, bytes: None });
            return Ok(None);
        };
        let bytes = match &block.bytes {
            Some(bytes) => bytes,
            None => {
                // The stream waits for the last use of each array in the block.
                block.whole.use_on(Some(stream), |_, _| Ok(()))?;
                let length = block.whole.bytes() as usize;
                let all = DeviceArray::<u8>::over(block.whole.clone(), Ix1(length)).to_vec()?;
                block.bytes.insert(all)
            }
        };
        let start = start as usize + source.offset() as usize;
        let Some(bytes) = bytes.get(start..start + source.bytes() as usize) else {
            return Ok(None);
        };
        let read = |bytes| bytemuck::checked::try_pod_read_unaligned(bytes).ok();
        // If bytes are not valid elements, returns `None`. The caller's read of the array then
        // returns the error.
        Ok(bytes.chunks_exact(size_of::<T>()).map(read).collect())
    }
}
