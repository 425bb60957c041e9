//! Memory of the program that is page-locked and mapped for the device.

use std::ffi::c_void;
use std::fmt;
use std::panic::Location;

use gpuheap_driver::check;
use gpuheap_pool::Gone;

use crate::device::Context;
use crate::error::{Error, ErrorKind, failure};
use crate::heap::Heap;
use crate::kind::MemoryKind;
use crate::measure;
use crate::stream::Stream;
use crate::track::TrackId;

/// `CU_MEMHOSTREGISTER_PORTABLE` (for all devices) and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const FLAGS: u32 = 1 | 2;

/// Memory of the program, page-locked and mapped for the device until this is dropped. The drop
/// waits for all work of the device. Counted as [`Registered`](MemoryKind::Registered).
pub struct PageLock {
    heap: Heap,
    host: u64,
    device: u64,
    bytes: u64,
    track: Option<TrackId>,
    is_locked: bool,
}

impl Heap {
    /// Page-locks memory of the program and maps it for the device. If the driver refuses to lock
    /// more memory, the heap runs its reclaim steps for pinned memory, on behalf of `stream`.
    /// Memory of zero bytes is not locked, and has the device address 0.
    ///
    /// # Safety
    ///
    /// The memory stays valid until the result is dropped or [`unlock`](PageLock::unlock) has
    /// succeeded.
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory), with the figures of pinned memory; the device cannot
    /// register memory; the memory is registered already; a driver error.
    #[track_caller]
    pub unsafe fn lock_pages(
        &self,
        memory: *mut c_void,
        bytes: usize,
        stream: &Stream,
    ) -> Result<PageLock, Error> {
        let host = memory.expose_provenance() as u64;
        let device = self.lock_and_map(host, bytes, stream)?;
        let (bytes, kind) = (bytes as u64, MemoryKind::Registered);
        let track =
            self.inner().tracker.allocated(device, bytes, kind, stream.id(), Location::caller());
        self.inner().registered.add(bytes);
        measure::count_allocation(bytes);
        Ok(PageLock { heap: self.clone(), host, device, bytes, track, is_locked: true })
    }

    /// Page-locks memory and returns the device's address; 0 for zero bytes.
    fn lock_and_map(&self, host: u64, bytes: usize, stream: &Stream) -> Result<u64, Error> {
        self.inner().device.check_stream(stream)?;
        let context = stream.context();
        context.check_alive()?;
        if !context.info().host_register {
            return Err(ErrorKind::Unsupported.error(format!(
                "{context} cannot register memory of the program's own; copy it to pinned memory"
            )));
        }
        if bytes == 0 {
            return Ok(0);
        }
        let register = || {
            let _current = context.enter_aside()?;
            // SAFETY: the caller of `lock_pages` keeps these bytes in place until they are
            // unlocked.
            let locked =
                unsafe { context.driver().cuMemHostRegister_v2(pointer(host), bytes, FLAGS) };
            check("cuMemHostRegister_v2", locked).map_err(failure)
        };
        let pinned = self.store(MemoryKind::Pinned).recover_with(bytes as u64, stream, register);
        pinned.map_err(|error| self.inner().with_consumers(error))?;
        device_pointer(context, host).inspect_err(|_| {
            // Unlocks the memory, because the caller may reuse it after the error. No work uses the
            // memory yet.
            let _ = unlock(context, host);
        })
    }
}

impl PageLock {
    /// Returns the address on the host.
    pub fn host_address(&self) -> u64 {
        self.host
    }

    /// Returns the address on the device. With Windows drivers it may differ from the address on
    /// the host.
    pub fn device_address(&self) -> u64 {
        self.device
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits for all work of the device, and unlocks the memory, like a drop.
    ///
    /// # Errors
    ///
    /// A driver error. The device may then still use the memory, so never free it.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.end(|context| Ok(context.synchronize()?))
    }

    /// Waits for all work of `last`, and unlocks the memory. The caller ensures that no other
    /// stream uses the memory.
    #[cfg(feature = "arrays")]
    pub(crate) fn unlock_after(mut self, last: &Stream) -> Result<(), Error> {
        self.end(|_| last.synchronize())
    }

    fn end(&mut self, wait: impl FnOnce(&Context) -> Result<(), Error>) -> Result<(), Error> {
        self.is_locked = false;
        let _time = measure::memory_management();
        let context = &self.heap.inner().context;
        match context.check_alive() {
            // The reset of the context unlocked the pages.
            Err(Gone::Reset) => {}
            _ if self.bytes == 0 => {}
            _ => wait(context).and_then(|()| unlock(context, self.host))?,
        }
        self.heap.inner().registered.remove(self.bytes);
        self.heap.inner().untrack(self.track, None);
        Ok(())
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        if self.is_locked {
            // A destructor cannot return the error. After an error, the memory stays locked and
            // counts as live.
            let _ = self.end(|context| Ok(context.synchronize()?));
        }
    }
}

impl fmt::Debug for PageLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageLock of {} bytes at {:#x}", self.bytes, self.host)
    }
}

/// Unlocks the pages of the host's memory at an address.
fn unlock(context: &Context, host: u64) -> Result<(), Error> {
    let _current = context.enter_aside()?;
    // SAFETY: `lock_and_map` locked these pages, and the caller waited for the work that used them.
    let unlocked = unsafe { context.driver().cuMemHostUnregister(pointer(host)) };
    Ok(check("cuMemHostUnregister", unlocked)?)
}

/// Returns the device's address of locked memory.
fn device_pointer(context: &Context, host: u64) -> Result<u64, Error> {
    let _current = context.enter()?;
    let mut device = 0;
    // SAFETY: `device` outlives the call, and the pages of the memory at `host` are locked.
    let code =
        unsafe { context.driver().cuMemHostGetDevicePointer_v2(&mut device, pointer(host), 0) };
    check("cuMemHostGetDevicePointer_v2", code)?;
    Ok(device)
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
