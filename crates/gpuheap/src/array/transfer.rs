//! Copies data between host and device, and between arrays.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;

use gpuheap_driver::{CUmemorytype, CUpointer_attribute};
use gpuheap_pool::PoolKind;
use ndarray::{Array, Dimension};

use super::element::{Element, bytes_of, check_bits};
use super::source::HostData;
use super::staging::Slots;
use super::{ArrayBase, ArrayData, ArrayDataMut, DeviceArray};
use crate::array::target::Target;
use crate::device::{Context, Visited};
use crate::error::{Error, ErrorKind};
use crate::kind::MemoryKind;
use crate::stream::Stream;

impl<S: ArrayDataMut, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// Writes the whole array from host data, in stream order. The source may be changed as soon as
    /// this returns: the call copies pageable memory, and waits until the device has read
    /// page-locked memory. If pinned memory of the heap is available, several threads copy a large
    /// pageable source through that memory.
    ///
    /// # Errors
    ///
    /// The source and the array differ in the number of elements (their shapes may differ); the
    /// array was freed; a driver error.
    pub fn write_from<H: HostData<Element = T> + ?Sized>(
        &mut self,
        source: &H,
    ) -> Result<(), Error> {
        let shape = source.shape();
        self.same_length(shape.size_checked().unwrap_or(usize::MAX), shape.slice())?;
        source.with_elements(|elements| {
            // Counts the elements instead of reading the shape: a type of the program may implement
            // `HostData` incorrectly.
            self.same_length(elements.len(), shape.slice())?;
            self.upload(bytes_of(elements))
        })
    }

    /// Writes the whole array from another array, in stream order. The source may be of another
    /// kind of memory, or on another device; the driver then copies between them. Does not wait,
    /// unless the devices have no driver in common: then the host copies and waits.
    ///
    /// # Errors
    ///
    /// The source has another number of elements; an array was freed; a driver error.
    pub fn copy_from<R: ArrayData, E: Dimension>(
        &mut self,
        source: &ArrayBase<R, T, E>,
    ) -> Result<(), Error> {
        self.same_length(source.len(), source.shape())?;
        let (ours, theirs) = (self.storage().context(), source.storage().context());
        // Memory that a heap maps itself is accessible only to devices that were given access. A
        // copy enqueued by another device cannot read it.
        let is_mapped = source.storage().kind() == MemoryKind::Device
            && source.storage().heap().pool() == PoolKind::Stitched;
        if !ours.shares_driver(theirs)
            || is_mapped && !ours.can_reach(theirs, &mut Visited::new())?
        {
            return self.upload(bytes_of(&source.to_vec()?));
        }
        let bytes = self.bytes() as usize;
        self.storage().use_with(source.storage(), |to, from, stream| {
            let (to, from) = (self.at(to), source.at(from));
            if bytes == 0 || to == from {
                return Ok(());
            }
            if to.abs_diff(from) < bytes as u64 {
                return Err(ErrorKind::Overlap.error(format!(
                    "the source overlaps what it is to be copied to: both are windows of one memory, \
                     {} bytes apart, and have {bytes}; copy the source first",
                    to.abs_diff(from)
                )));
            }
            // Between devices, `cuMemcpyPeerAsync` takes memory of every kind, with or without peer
            // access. `cuMemcpyAsync` refuses memory of a stream-ordered pool of another device
            // (two H200, driver 580).
            let crosses = !ours.is_same(theirs);
            let function = if crosses { "cuMemcpyPeerAsync" } else { "cuMemcpyAsync" };
            stream.enqueue(function, |driver| {
                // SAFETY: both arrays are `bytes` long and alive, and the stream is alive.
                unsafe {
                    if crosses {
                        let (into, out_of) = (ours.raw(), theirs.raw());
                        driver.cuMemcpyPeerAsync(to, into, from, out_of, bytes, stream.raw())
                    } else {
                        driver.cuMemcpyAsync(to, from, bytes, stream.raw())
                    }
                }
            })
        })
    }

    pub(crate) fn upload(&self, bytes: &[u8]) -> Result<(), Error> {
        let storage = self.storage();
        // Only pageable memory is staged, because the device reads page-locked memory itself.
        let is_staged =
            Slots::pay_for(storage, bytes.len()) && !is_page_locked(bytes, storage.context());
        let mut slots = if is_staged { Slots::take(storage, bytes.len()) } else { None };
        storage.use_on(None, |address, stream| {
            if bytes.is_empty() {
                return Ok(());
            }
            // A captured graph would read the source only when the graph runs.
            stream.refuse_capturing()?;
            if let Some(slots) = slots.as_mut().filter(|slots| slots.serve(stream)) {
                return slots.upload(bytes, self.at(address), stream);
            }
            let later = is_read_later(bytes, stream)?;
            stream.enqueue("cuMemcpyHtoDAsync_v2", |driver| {
                let (from, length) = (bytes.as_ptr().cast(), bytes.len());
                // SAFETY: the array is `length` bytes long. The driver reads pageable memory before
                // the call returns. If it may read the source later, the wait below keeps the
                // source until then.
                unsafe { driver.cuMemcpyHtoDAsync_v2(self.at(address), from, length, stream.raw()) }
            })?;
            if later { wait_or_drain(stream).0 } else { Ok(()) }
        })
    }

    fn same_length(&self, count: usize, shape: &[usize]) -> Result<(), Error> {
        if count == self.len() {
            return Ok(());
        }
        Err(ErrorKind::WrongShape.error(format!(
            "the array has {} elements (shape {:?}) and the source {count} (shape {shape:?}); slice \
             one of them to the other's length",
            self.len(),
            self.shape()
        )))
    }
}

impl<S: ArrayData, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// Returns the elements in row-major order. Waits for the array's last use. If the array has at
    /// least 8 MiB and pinned memory of the heap is available, several threads read the elements
    /// through that memory.
    ///
    /// # Errors
    ///
    /// The array was freed; its bytes are not valid `T`; a driver error.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        self.ranges(std::iter::once(0..self.len()))
    }

    /// Returns the elements with their shape. Waits for the array's last use.
    ///
    /// # Errors
    ///
    /// The errors of [`to_vec`](ArrayBase::to_vec).
    pub fn to_ndarray(&self) -> Result<Array<T, D>, Error> {
        let elements = self.to_vec()?;
        Array::from_shape_vec(self.raw_dim(), elements)
            .map_err(|error| ErrorKind::WrongShape.error(error.to_string()))
    }

    /// Reads the whole array into host memory. Waits for the array's last use.
    ///
    /// # Errors
    ///
    /// The slice has another length; the errors of [`to_vec`](ArrayBase::to_vec). After an error,
    /// the slice is unchanged.
    pub fn read_into(&self, target: &mut [T]) -> Result<(), Error> {
        if target.len() != self.len() {
            return Err(ErrorKind::WrongShape.error(format!(
                "the array has {0} elements (shape {1:?}) and the slice to read it into {2}; read \
                 into a slice of {0}, or slice the array",
                self.len(),
                self.shape(),
                target.len()
            )));
        }
        // Elements are copied through a vector, so that the slice never holds invalid bytes.
        target.copy_from_slice(&self.to_vec()?);
        Ok(())
    }

    /// Returns a copy in new memory of the same heap and kind, on the same stream.
    ///
    /// # Errors
    ///
    /// The errors of [`Target::uninit`]; the array was freed.
    #[track_caller]
    #[doc(alias = "clone")]
    pub fn copy(&self) -> Result<DeviceArray<T, D>, Error> {
        self.target().copy_of(self)
    }

    /// Returns a copy on another heap, device, stream or kind of memory.
    ///
    /// # Errors
    ///
    /// The errors of [`copy`](ArrayBase::copy).
    #[track_caller]
    pub fn copy_to(&self, target: &Target) -> Result<DeviceArray<T, D>, Error> {
        target.copy_of(self)
    }

    /// Returns the elements of several ranges of the array, one range after another. Waits once.
    pub(super) fn ranges(
        &self,
        ranges: impl IntoIterator<Item = Range<usize>> + Clone,
    ) -> Result<Vec<T>, Error> {
        let count = ranges.clone().into_iter().map(|range| range.len()).sum();
        // Bits of the elements, which may be invalid until they are checked.
        let mut bits: Vec<T::Bits> = Vec::new();
        if bits.try_reserve_exact(count).is_err() {
            return Err(ErrorKind::HostResources.error(format!(
                "the host has no memory for the {} bytes to be read; read a slice at a time",
                count * size_of::<T>()
            )));
        }
        let mut bits = ManuallyDrop::new(bits);
        let longest = ranges.clone().into_iter().map(|range| range.len()).max().unwrap_or(0);
        let mut slots = Slots::take(self.storage(), longest * size_of::<T>());
        let read = self.storage().use_on(None, |address, stream| {
            stream.refuse_capturing()?;
            let (mut done, mut waited) = (0, false);
            for range in ranges {
                let bytes = range.len() * size_of::<T>();
                if bytes == 0 {
                    continue;
                }
                let from = self.at(address) + (range.start * size_of::<T>()) as u64;
                // SAFETY: the buffer has room for all ranges together.
                let to = unsafe { bits.as_mut_ptr().add(done) }.cast::<c_void>();
                done += range.len();
                let slots = slots.as_mut().filter(|slots| slots.serve(stream));
                if let Some(slots) = slots.filter(|_| Slots::pay_for(self.storage(), bytes)) {
                    let copied = slots.download(from, to.cast(), bytes, stream);
                    if copied.is_err() {
                        return Ok((copied, wait_or_drain(stream).1));
                    }
                    continue;
                }
                // Waits for the stream before the copy. Otherwise the driver waits during the copy,
                // and no other thread can enqueue work meanwhile. Threads could then upload no
                // batches ahead (H200, driver 580: `prefetch_on` saved no time).
                if !std::mem::replace(&mut waited, true)
                    && let Err(error) = stream.synchronize()
                {
                    return Ok((Err(error), wait_or_drain(stream).1));
                }
                let copied = stream.enqueue("cuMemcpyDtoHAsync_v2", |driver| {
                    // SAFETY: both sides are `bytes` long, and the copy is waited for below.
                    unsafe { driver.cuMemcpyDtoHAsync_v2(to, from, bytes, stream.raw()) }
                });
                if copied.is_err() {
                    return Ok((copied, wait_or_drain(stream).1));
                }
            }
            Ok(if done > 0 { wait_or_drain(stream) } else { (Ok(()), true) })
        });
        let (read, settled) = read.unwrap_or_else(|error| (Err(error), true));
        // A buffer that the driver may still write to is never freed.
        let mut bits = match settled {
            true => ManuallyDrop::into_inner(bits),
            false => Vec::new(),
        };
        read?;
        // SAFETY: the copies wrote all elements, or elements have no size. Any bytes are valid
        // `T::Bits`.
        unsafe { bits.set_len(count) };
        check_bits::<T>(&bits)?;
        let mut bits = ManuallyDrop::new(bits);
        // SAFETY: the values have the size and alignment of `T`, and `check_bits` found them valid.
        Ok(unsafe { Vec::from_raw_parts(bits.as_mut_ptr().cast(), count, bits.capacity()) })
    }
}

/// Waits for a stream. If that fails, waits for the stream's device. Returns the result of the
/// first wait, and `true` if the work is known to have completed.
pub(super) fn wait_or_drain(stream: &Stream) -> (Result<(), Error>, bool) {
    match stream.synchronize() {
        Ok(()) => (Ok(()), true),
        Err(error) => (Err(error), stream.context().synchronize().is_ok()),
    }
}

/// Returns `true` if the driver may still read `bytes` after the copying call has returned. That
/// applies to page-locked memory, and to all host memory if the device reads the host's pages
/// itself.
pub(super) fn is_read_later(bytes: &[u8], stream: &Stream) -> Result<bool, Error> {
    if stream.context().info().pageable_memory_access {
        return Ok(true);
    }
    let _current = stream.context().enter()?;
    Ok(is_known(bytes, stream.context()))
}

/// Returns `true` if the driver knows `bytes` as page-locked memory. Copies from or to such memory
/// need no staging.
fn is_page_locked(bytes: &[u8], context: &Context) -> bool {
    context.enter().is_ok_and(|_current| is_known(bytes, context))
}

/// Returns `true` if the driver knows the memory; otherwise it is pageable. The context is current.
fn is_known(bytes: &[u8], context: &Context) -> bool {
    let mut kind = CUmemorytype(0);
    // SAFETY: the attribute is an enumeration of 32 bits.
    let asked = unsafe {
        context.driver().cuPointerGetAttribute(
            (&raw mut kind).cast(),
            CUpointer_attribute::MEMORY_TYPE,
            bytes.as_ptr() as u64,
        )
    };
    asked.is_success()
}
