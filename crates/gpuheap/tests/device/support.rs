//! Makes devices to test on, and enqueues work on their streams.

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Block, Device, Stream};
use gpuheap_driver::check;

/// Returns the device under test: the device that `GPUHEAP_TEST_DEVICE` names, or otherwise an
/// emulated device of 1 GiB with the checks on.
pub(crate) fn device(schedule: Schedule) -> Device {
    match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => emulated(schedule),
    }
}

pub(crate) fn emulated(schedule: Schedule) -> Device {
    let options = Options::with_device(Profile::with_memory(1 << 30));
    Device::emulated_with(Options { schedule, ..options }).unwrap()
}

pub(crate) fn on_real_gpu() -> bool {
    std::env::var_os("GPUHEAP_TEST_DEVICE").is_some()
}

/// Enqueues a fill of a block on a stream.
pub(crate) fn fill(block: &Block, tag: u8, stream: &Stream) {
    let filled = stream.device().with_current(|driver| {
        // SAFETY: the borrowed block keeps its memory, and the borrowed stream its handle.
        unsafe {
            driver.cuMemsetD8Async(block.address(), tag, block.bytes() as usize, stream.raw())
        }
    });
    check("cuMemsetD8Async", filled.unwrap()).unwrap();
}

/// Enqueues, on a stream, a copy of a block to another block of the same size.
pub(crate) fn copy(from: &Block, to: &Block, stream: &Stream) {
    let copied = stream.device().with_current(|driver| {
        // SAFETY: both blocks are live and of this size, and the stream is alive.
        unsafe {
            let bytes = to.bytes() as usize;
            driver.cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, stream.raw())
        }
    });
    check("cuMemcpyDtoDAsync_v2", copied.unwrap()).unwrap();
}

/// Waits for the device's work, and returns the contents of a block.
pub(crate) fn read(block: &Block, device: &Device) -> Vec<u8> {
    device.synchronize().unwrap();
    let mut seen = vec![0_u8; block.bytes() as usize];
    let read = device.with_current(|driver| {
        // SAFETY: `seen` has as many bytes as the live block.
        unsafe { driver.cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), block.address(), seen.len()) }
    });
    check("cuMemcpyDtoH_v2", read.unwrap()).unwrap();
    seen
}

pub(crate) fn assert_no_findings(device: &Device) {
    if let Some(emulator) = device.emulator() {
        assert_eq!(emulator.findings().unwrap(), []);
    }
}
