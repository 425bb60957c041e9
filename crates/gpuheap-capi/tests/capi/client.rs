//! Calls the C functions as a C program does.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use gpuheap::emu::Schedule;
use gpuheap::{Device, Heap, PoolKind, Tracking};
use gpuheap_capi::*;
use gpuheap_driver::{CU_STREAM_NON_BLOCKING, CUstream, check};

use crate::support;

pub(crate) use gpuheap_capi::gpuheap_status as Status;

/// A heap handle as a C program uses it. The heap's device is a Rust [`Device`] of the test.
#[derive(Clone, Copy)]
pub(crate) struct Client(pub(crate) *mut gpuheap_heap);

// SAFETY: the C functions may be called from any thread.
unsafe impl Send for Client {}
// SAFETY: the C functions may be called from any thread.
unsafe impl Sync for Client {}

impl Client {
    pub(crate) fn new(device: &Device, pool: PoolKind) -> Client {
        let heap = support::heap(device, pool);
        Client(gpuheap_heap::new(device, &heap))
    }

    /// Makes a client of a device with this schedule.
    pub(crate) fn scheduled(schedule: Schedule, pool: PoolKind) -> (Device, Client) {
        let device = device(schedule);
        let client = Client::new(&device, pool);
        (device, client)
    }

    pub(crate) fn tracked(device: &Device, pool: PoolKind) -> Client {
        let heap = Heap::builder(device).pool(pool).track(Tracking::Counts).build().unwrap();
        Client(gpuheap_heap::new(device, &heap))
    }

    /// Makes a client whose streams end unannounced. If `zero_on_free` is set, the heap zeroes
    /// freed memory.
    pub(crate) fn with_unannounced_streams(
        device: &Device,
        pool: PoolKind,
        zero_on_free: bool,
    ) -> Client {
        let heap = Heap::builder(device).pool(pool).zero_on_free(zero_on_free).build().unwrap();
        Client(gpuheap_heap::with_streams(device, &heap, true))
    }

    /// Returns the device and the heap of the handle, for calls of the Rust interface.
    pub(crate) fn inside(&self) -> (Device, Heap) {
        // SAFETY: a handle that was once opened is never freed.
        unsafe { &*self.0 }.inside().unwrap()
    }

    pub(crate) fn allocate(&self, bytes: u64, stream: CUstream) -> Result<Memory, Status> {
        let mut address = ptr::without_provenance_mut(1);
        let status = call!(gpuheap_allocate(self.0, bytes, handle(stream), &mut address));
        match status {
            Status::Ok => Ok(Memory { address, bytes }),
            status => {
                assert!(address.is_null(), "nothing that fails leaves an address");
                Err(status)
            }
        }
    }

    pub(crate) fn free(&self, memory: Memory) -> Status {
        call!(gpuheap_free(self.0, memory.address))
    }

    pub(crate) fn free_on(&self, memory: Memory, stream: CUstream) -> Status {
        call!(gpuheap_free_on(self.0, memory.address, handle(stream)))
    }

    pub(crate) fn stream_ended(&self, stream: CUstream) -> Status {
        call!(gpuheap_stream_ended(self.0, handle(stream)))
    }

    pub(crate) fn statistics(&self) -> gpuheap_statistics {
        let size = size_of::<gpuheap_statistics>();
        let mut now = gpuheap_statistics { size, ..Default::default() };
        assert_eq!(call!(gpuheap_get_statistics(self.0, &mut now)), Status::Ok);
        now
    }

    /// Asserts that all memory is returned, closes the heap, and asserts that the emulator's checks
    /// found nothing.
    pub(crate) fn assert_all_returned(self, what: &str) {
        let (device, heap) = self.inside();
        support::assert_memory_returned(&device, &heap, what);
        drop(heap);
        assert_eq!(call!(gpuheap_close(self.0)), Status::Ok, "{what}");
        if let Some(emulator) = device.emulator() {
            let used = emulator.usage(device.ordinal());
            assert_eq!((used.plain, used.pools), (0, 0), "{what}");
        }
        // `findings` returns an error if the program opened the device by name: the checks are off.
        if device.emulator().is_some_and(|emulator| emulator.findings().is_ok()) {
            support::assert_no_findings(&device, what);
        }
    }
}

/// A live allocation of a C program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) address: *mut c_void,
    pub(crate) bytes: u64,
}

// SAFETY: the value is a device address, which any thread may use.
unsafe impl Send for Memory {}
// SAFETY: the value is a device address, which any thread may use.
unsafe impl Sync for Memory {}

impl Memory {
    /// Enqueues a fill of the memory on a stream.
    pub(crate) fn fill(self, device: &Device, tag: u8, stream: CUstream) {
        let filled = device.with_current(|driver| {
            let (address, bytes) = (self.address as u64, self.bytes as usize);
            // SAFETY: the memory is live and the stream alive.
            unsafe { driver.cuMemsetD8Async(address, tag, bytes, stream) }
        });
        check("cuMemsetD8Async", filled.unwrap()).unwrap();
    }
}

pub(crate) fn handle(stream: CUstream) -> *mut c_void {
    stream.0 as *mut c_void
}

/// Returns a structure of zeros for a function of the C interface to fill, with its size set.
pub(crate) fn sized_room<T>() -> MaybeUninit<T> {
    let mut room = MaybeUninit::<T>::zeroed();
    // SAFETY: the first field of each structure of the interface is its size.
    unsafe { room.as_mut_ptr().cast::<usize>().write(size_of::<T>()) };
    room
}

pub(crate) fn last_error() -> String {
    // SAFETY: the pointer is never null, and the text is copied before this thread's next call.
    unsafe { CStr::from_ptr(gpuheap_last_error()) }.to_str().unwrap().to_owned()
}

/// Opens an emulated device with 1 GiB, more than most tests need.
pub(crate) fn device(schedule: Schedule) -> Device {
    support::device(1 << 30, schedule)
}

/// Makes a stream that the program owns.
pub(crate) fn make_stream(device: &Device) -> CUstream {
    let mut stream = CUstream::NULL;
    let made = device.with_current(|driver| {
        // SAFETY: `stream` receives the handle.
        unsafe { driver.cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING) }
    });
    check("cuStreamCreate", made.unwrap()).unwrap();
    stream
}

/// Makes `later` wait for all work enqueued on `earlier` so far.
pub(crate) fn order(device: &Device, earlier: CUstream, later: CUstream) {
    // SAFETY: the streams are alive, and the test uses them only through their handles.
    let [earlier, later] =
        [earlier, later].map(|raw| unsafe { device.foreign_stream(raw) }.unwrap());
    support::order(device, &earlier, &later);
}

pub(crate) fn destroy_stream(device: &Device, stream: CUstream) {
    // SAFETY: the test made the stream, and does not use it again.
    let ended = device.with_current(|driver| unsafe { driver.cuStreamDestroy_v2(stream) });
    check("cuStreamDestroy_v2", ended.unwrap()).unwrap();
}
