//! The way back to the host.

use std::cell::RefCell;
use std::sync::Arc;

use ndarray::{Array, Dimension, Ix1};
use rustc_hash::FxHashMap;

use super::Adapt;
use crate::array::storage::Storage;
use crate::array::{ArrayBase, DeviceArray, Element, Hold};
use crate::error::{Error, ErrorKind};

/// The host, as where structures are brought back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host;

impl Host {
    /// The same structure with its arrays as `ndarray`'s, by the [rules](crate::adapt#rules); what is
    /// of the host already is cloned. Waits for what the arrays were last used for.
    ///
    /// Small arrays that were uploaded together are read together, when the second of them is asked for.
    /// A rule that writes one of them after that, in the midst of the call, gets the bytes from before
    /// the write by [`Adapt::adapt`], and what it wrote by
    /// [`to_vec`](crate::DeviceArray::to_vec).
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
    /// The array was freed; bytes that are no valid elements; a driver error.
    pub fn adapt<V: Adapt<Download> + ?Sized>(self, value: &V) -> Result<V::Output, Error> {
        value.adapt(&Download { blocks: RefCell::default() })
    }
}

/// The way back to the host: what [`Adapt`] is asked with by [`Host::adapt`].
pub struct Download {
    /// Blocks with several arrays, by their addresses on the host.
    blocks: RefCell<FxHashMap<usize, Block>>,
}

/// A block of which one array was asked for, and all of it once there was a second.
struct Block {
    /// Holds the address.
    whole: Arc<Storage>,
    bytes: Option<Vec<u8>>,
}

impl Download {
    /// An array's elements with its shape.
    pub(super) fn array<S: Hold, T: Element, D: Dimension>(
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

    /// The elements of an array that was uploaded together with others that are read too.
    fn with_others<S: Hold, T: Element, D: Dimension>(
        &self,
        source: &ArrayBase<S, T, D>,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some((whole, start, stream)) = source.storage().part() else { return Ok(None) };
        if source.is_empty() || size_of::<T>() == 0 {
            return Ok(None);
        }
        // Another thread may be writing one of the others in place.
        if source.kind().is_host_accessible() {
            return Ok(None);
        }
        let mut blocks = self.blocks.borrow_mut();
        let key = Arc::as_ptr(&whole) as usize;
        let Some(block) = blocks.get_mut(&key) else {
            blocks.insert(key, Block { whole, bytes: None });
            return Ok(None);
        };
        let bytes = match &block.bytes {
            Some(bytes) => bytes,
            None => {
                // Behind what the arrays were used for.
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
        // What is no element is for the array to tell about.
        Ok(bytes.chunks_exact(size_of::<T>()).map(read).collect())
    }
}
