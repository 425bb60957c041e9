//! A limit that the heaps of several devices share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use gpuheap_pool::{SourceError, SourceResult};

use crate::device::{Context, ReclaimTurn};

/// A limit on the device memory that several heaps, on one or several devices, reserve together.
/// Clones are the same limit. [`HeapBuilder::total_limit`](crate::HeapBuilder::total_limit) puts a
/// heap under it.
///
/// ```
/// use gpuheap::{Cause, Device, Heap, TotalLimit};
///
/// # fn main() -> Result<(), gpuheap::Error> {
/// let limit = TotalLimit::new(1 << 30);
/// let heap = || {
///     let device = Device::open("emulated:1GiB")?;
///     Heap::builder(&device).total_limit(limit.clone()).build()
/// };
/// let (one, other) = (heap()?, heap()?);
/// drop(one.target()?.zeroed::<u8, _>(700 << 20)?); // cached, so the other heap can have it
/// let live = other.target()?.zeroed::<u8, _>(700 << 20)?;
/// let error = one.target()?.zeroed::<u8, _>(700 << 20).unwrap_err();
/// assert_eq!(error.out_of_memory().unwrap().cause, Cause::TotalLimit);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TotalLimit(Arc<Total>);

#[derive(Debug)]
struct Total {
    most: u64,
    reserved: AtomicU64,
    devices: Mutex<Vec<Arc<Part>>>,
    /// The turn to reclaim memory from the other heaps, in the last reclaim step.
    turn: ReclaimTurn,
}

/// Bytes of one device under the limit.
#[derive(Debug)]
struct Part {
    context: Weak<Context>,
    name: String,
    reserved: AtomicU64,
}

impl TotalLimit {
    /// Makes a limit of `bytes`, for heaps that are built later.
    pub fn new(bytes: u64) -> TotalLimit {
        TotalLimit(Arc::new(Total {
            most: bytes,
            reserved: AtomicU64::new(0),
            devices: Mutex::default(),
            turn: ReclaimTurn::default(),
        }))
    }

    /// Returns the limit of all heaps that the environment configures. The first call sets it.
    pub(crate) fn from_environment(bytes: u64) -> TotalLimit {
        static LIMIT: OnceLock<TotalLimit> = OnceLock::new();
        LIMIT.get_or_init(|| TotalLimit::new(bytes)).clone()
    }

    /// Returns the limit in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.most
    }

    /// Returns the bytes that the heaps have reserved together.
    pub fn reserved(&self) -> u64 {
        self.0.reserved.load(Ordering::Relaxed)
    }

    /// Returns a [`Share`] of 0 bytes for a new source of memory on `context`, under this limit.
    pub(crate) fn share(&self, context: &Arc<Context>) -> Share {
        let mut devices = self.0.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|part| part.context.strong_count() > 0);
        let known = devices.iter().find(|part| part.context.as_ptr() == Arc::as_ptr(context));
        let part = known.cloned().unwrap_or_else(|| {
            let name = context.sibling_name().unwrap_or_else(|| context.info().name.clone());
            let part = Part { context: Arc::downgrade(context), name, reserved: AtomicU64::new(0) };
            devices.push(Arc::new(part));
            devices[devices.len() - 1].clone()
        });
        Share { of: Some((self.clone(), part)), reserved: 0 }
    }

    pub(crate) fn is_same(&self, other: &TotalLimit) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn turn(&self) -> &ReclaimTurn {
        &self.0.turn
    }

    /// Returns the contexts of the heaps. The caller holds no lock of any heap.
    pub(crate) fn contexts(&self) -> Vec<Arc<Context>> {
        let devices = self.0.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.iter().filter_map(|part| part.context.upgrade()).collect()
    }

    /// Returns the name and the reserved bytes of each device.
    pub(crate) fn by_device(&self) -> Vec<(String, u64)> {
        let devices = self.0.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = devices.iter();
        parts.map(|part| (part.name.clone(), part.reserved.load(Ordering::Relaxed))).collect()
    }
}

/// Bytes that one source counts against its total limit, if it has one.
#[derive(Default)]
pub(crate) struct Share {
    of: Option<(TotalLimit, Arc<Part>)>,
    reserved: u64,
}

impl Share {
    /// Returns a [`Share`] of 0 bytes for a new source on the same device, under the same limit.
    pub(crate) fn sibling(&self) -> Share {
        Share { of: self.of.clone(), reserved: 0 }
    }

    /// Counts `bytes` before a driver call takes them, unless the sum would exceed the limit. Call
    /// [`settle`](Share::settle) after the driver call.
    pub(crate) fn claim(&mut self, bytes: u64) -> SourceResult {
        let Some((limit, part)) = &self.of else { return Ok(()) };
        let Total { most, reserved, .. } = &*limit.0;
        let grown = |sum: u64| sum.checked_add(bytes).filter(|sum| sum <= most);
        let claimed = reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        claimed.map_err(|_| SourceError::Limited)?;
        part.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.reserved += bytes;
        Ok(())
    }

    /// Lowers the count to the bytes that the source has reserved.
    pub(crate) fn settle(&mut self, reserved: u64) {
        let Some((limit, part)) = &self.of else { return };
        let unused = self.reserved.saturating_sub(reserved);
        self.reserved -= unused;
        part.reserved.fetch_sub(unused, Ordering::Relaxed);
        limit.0.reserved.fetch_sub(unused, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.settle(0);
    }
}
