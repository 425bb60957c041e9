//! What C holds of a heap.

use std::ffi::c_void;
use std::fmt;

use gpuheap::{Block, Device, Heap, Stream};
use gpuheap_driver::CUstream;

use crate::blocks::Blocks;
use crate::entry::{Failure, gpuheap_status};
use crate::streams::Streams;

/// The memory of one device. From gpuheap_open; ended by gpuheap_close.
#[allow(non_camel_case_types, reason = "named as in C")]
pub struct gpuheap_heap {
    // First: blocks are freed while their heap is there, for which they hold it themselves.
    blocks: Blocks,
    streams: Streams,
    heap: Heap,
    device: Device,
}

impl gpuheap_heap {
    /// A handle over a heap of `device`, to be given to C as a pointer
    /// ([`Box::into_raw`]) and ended by [`gpuheap_close`](crate::gpuheap_close). That lets go of the
    /// foreign streams of all who hold the heap ([`Heap::retire_all`]): they may free their blocks after
    /// it, and give them no more work. A heap that goes on is closed when its streams are idle.
    pub fn new(device: &Device, heap: &Heap) -> gpuheap_heap {
        gpuheap_heap {
            blocks: Blocks::new(),
            streams: Streams::default(),
            heap: heap.clone(),
            device: device.clone(),
        }
    }

    /// The heap behind it.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// The heap's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What a pointer from C points to, if it may be used. Before any lock is taken: a thread of a
    /// forked child's parent may have held it.
    ///
    /// # Safety
    ///
    /// `heap` is null or from [`gpuheap_open`](crate::gpuheap_open), and not closed during `'a`.
    pub(crate) unsafe fn get<'a>(heap: *const gpuheap_heap) -> Result<&'a gpuheap_heap, Failure> {
        // SAFETY: as the caller says.
        let heap = unsafe { heap.as_ref() };
        let heap = heap.ok_or_else(|| Failure::refused("the heap is a null pointer"))?;
        heap.heap.check_alive()?;
        Ok(heap)
    }

    /// Memory for use on a stream; a null address for no bytes.
    ///
    /// # Safety
    ///
    /// The stream is as [`Device::foreign_stream`] asks.
    pub(crate) unsafe fn allocate(&self, bytes: u64, stream: *mut c_void) -> Result<u64, Failure> {
        // SAFETY: as the caller says.
        let stream = unsafe { self.stream(stream) }?;
        let block = self.heap.allocate(bytes, &stream)?;
        let address = block.address();
        if address != 0 {
            self.blocks.put(block);
        }
        Ok(address)
    }

    /// Takes the block at an address out, to be freed.
    pub(crate) fn take(&self, address: *mut c_void) -> Result<Block, Failure> {
        self.blocks.take(address as u64).ok_or_else(|| unknown(address))
    }

    /// The size of the allocation at an address as requested, bytes.
    pub(crate) fn bytes(&self, address: *mut c_void) -> Result<u64, Failure> {
        self.blocks.bytes(address as u64).ok_or_else(|| unknown(address))
    }

    /// The stream of a handle.
    ///
    /// # Safety
    ///
    /// As [`Device::foreign_stream`].
    pub(crate) unsafe fn stream(&self, raw: *mut c_void) -> Result<Stream, Failure> {
        // SAFETY: as the caller says.
        Ok(unsafe { self.streams.get(&self.device, CUstream(raw as usize)) }?)
    }

    /// The stream is about to end.
    pub(crate) fn stream_ended(&self, raw: *mut c_void) -> Result<(), Failure> {
        let raw = CUstream(raw as usize);
        // One that was never used here is of no interest.
        let Some(stream) = self.streams.find(raw) else { return Ok(()) };
        self.heap.retire(&stream)?;
        self.streams.forget(raw, stream.id());
        Ok(())
    }

    /// Whether this is a forked child, or the device was reset: there is nothing to be freed.
    pub(crate) fn is_gone(&self) -> bool {
        self.heap.check_alive().is_err()
    }

    /// Waits for the device, so that what is still allocated can be freed, on no stream.
    pub(crate) fn before_close(&self) -> Result<(), Failure> {
        Ok(self.heap.retire_all()?)
    }
}

fn unknown(address: *mut c_void) -> Failure {
    Failure::new(
        gpuheap_status::UnknownAddress,
        format!(
            "no allocation of this heap begins at {address:p}: it was freed before, or comes from \
             another heap or library; free each address once, by the heap that it is from"
        ),
    )
}

impl fmt::Debug for gpuheap_heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.heap, self.device)
    }
}

#[cfg(test)]
mod tests {
    use gpuheap_driver::{CU_STREAM_NON_BLOCKING, check};

    use super::*;

    #[test]
    fn nothing_is_kept_of_a_stream_that_ended() {
        let device = Device::open("emulated:1GiB").unwrap();
        let handle = gpuheap_heap::new(&device, &Heap::new(&device).unwrap());
        let mut raw = CUstream::NULL;
        let made = device.with_current(|driver| {
            // SAFETY: the pointer is valid.
            unsafe { driver.cuStreamCreate(&mut raw, CU_STREAM_NON_BLOCKING) }
        });
        check("cuStreamCreate", made.unwrap()).unwrap();
        let pointer = raw.0 as *mut c_void;
        // SAFETY: the stream is alive.
        assert!(unsafe { handle.allocate(1000, pointer) }.is_ok());
        assert!(handle.streams.find(raw).is_some());
        assert!(handle.stream_ended(pointer).is_ok());
        assert!(handle.streams.find(raw).is_none());
    }
}
