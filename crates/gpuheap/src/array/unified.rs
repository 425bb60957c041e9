//! Placement of the pages of unified memory.

use gpuheap_driver::{CU_DEVICE_CPU, CUdevice};
use ndarray::Dimension;

use super::element::Element;
use super::storage::DriverAdvice;
use super::{ArrayBase, ArrayData};
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::kind::MemoryKind;

/// Location of pages of unified memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Location {
    /// The array's own device.
    Device,
    /// The host.
    Host,
    /// Another device of the same machine.
    Other(Device),
}

/// Advice to the driver on the use of unified memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// The memory is mostly read. Each processor that reads it gets its own copy, and a write
    /// discards the copies.
    ReadMostly,
    /// Preferred location of the pages. The driver keeps the pages there if it can.
    PreferredLocation(Location),
    /// A processor accesses the memory. The driver maps the pages for that processor wherever they
    /// are, so that its accesses do not fault.
    AccessedBy(Location),
}

impl<S: ArrayData, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// Migrates the pages, in stream order and without waiting. Whole pages move, including other
    /// data next to a small array. To move a part of an array, use a [slice](ArrayBase::slice).
    ///
    /// # Errors
    ///
    /// The array is not in unified memory, or was freed; the device has no concurrent access to
    /// managed memory (WSL2), and cannot migrate pages; a driver error.
    pub fn prefetch(&self, to: Location) -> Result<(), Error> {
        let place = self.place(&to, "prefetched")?;
        let bytes = self.bytes() as usize;
        self.storage().use_on(None, |address, stream| {
            if bytes == 0 {
                return Ok(());
            }
            // Drivers before 12.2 have only this first version of the call.
            stream.enqueue("cuMemPrefetchAsync", |driver| {
                // SAFETY: the array has these bytes and is alive, and so is the stream.
                unsafe { driver.cuMemPrefetchAsync(self.at(address), bytes, place, stream.raw()) }
            })
        })
    }

    /// Advises the driver how the array will be used. The advice takes effect immediately, for
    /// whole pages. When the memory is freed, the advice is withdrawn, so that it does not affect
    /// the next array there.
    ///
    /// # Errors
    ///
    /// The errors of [`prefetch`](ArrayBase::prefetch), except that [`Advice::ReadMostly`] does not
    /// need concurrent access.
    pub fn advise(&self, advice: Advice) -> Result<(), Error> {
        self.set_advice(&advice, true)
    }

    /// Withdraws advice.
    ///
    /// # Errors
    ///
    /// The errors of [`advise`](ArrayBase::advise).
    pub fn unadvise(&self, advice: Advice) -> Result<(), Error> {
        self.set_advice(&advice, false)
    }

    fn set_advice(&self, advice: &Advice, set: bool) -> Result<(), Error> {
        let (set_it, unset_it, location) = match advice {
            Advice::ReadMostly => (1, 2, None),
            Advice::PreferredLocation(location) => (3, 4, Some(location)),
            Advice::AccessedBy(location) => (5, 6, Some(location)),
        };
        let place = match location {
            Some(location) => self.place(location, "advised")?,
            None => {
                self.check_unified("advised")?;
                CU_DEVICE_CPU
            }
        };
        let bytes = self.bytes();
        let set_or_unset = if set { set_it } else { unset_it };
        if set {
            // Stores how to withdraw the advice before it is given. If the array is freed between
            // the two calls, a withdrawal without advice has no effect. In the other order, the
            // advice would stay.
            self.storage().note_advice(DriverAdvice { advice: unset_it, place });
        }
        self.storage().use_on(None, |address, stream| {
            if bytes == 0 {
                return Ok(());
            }
            let at = self.at(address);
            DriverAdvice { advice: set_or_unset, place }.apply(stream.context(), at, bytes)
        })
    }

    /// Returns the driver's number for a location, or an error if pages cannot be migrated.
    fn place(&self, location: &Location, done: &str) -> Result<CUdevice, Error> {
        self.check_unified(done)?;
        let context = self.storage().context();
        let place = match location {
            Location::Device => context.ordinal(),
            Location::Host => CU_DEVICE_CPU,
            Location::Other(device) if device.context().shares_driver(context) => {
                device.context().check_alive()?;
                check_concurrent(device.context().info().concurrent_managed_access, device, done)?;
                device.context().ordinal()
            }
            Location::Other(device) => {
                return Err(ErrorKind::WrongDevice.error(format!(
                    "the array is on {}, whose driver knows nothing of {}; copy it there with copy_to",
                    context.beside(device.context()),
                    device.context().beside(context)
                )));
            }
        };
        check_concurrent(context.info().concurrent_managed_access, &self.device(), done)?;
        Ok(place)
    }

    fn check_unified(&self, done: &str) -> Result<(), Error> {
        if self.kind() == MemoryKind::Unified {
            return Ok(());
        }
        Err(ErrorKind::WrongMemory.error(format!(
            "an array of shape {:?} in {} memory cannot be {done}, because its pages never move; \
             allocate it as unified memory",
            self.shape(),
            self.kind()
        )))
    }
}

fn check_concurrent(concurrent: bool, device: &Device, done: &str) -> Result<(), Error> {
    if concurrent {
        return Ok(());
    }
    Err(ErrorKind::Unsupported.error(format!(
        "unified memory cannot be {done} to any place with {device}, because it lacks concurrent \
         access to managed memory, as under WSL2: the driver moves all of it to the device whenever \
         the device works; use it without, or copy between device and pinned memory"
    )))
}
