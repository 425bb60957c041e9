//! Functions exported in addition to the driver API. Heaps and allocators of the program call them
//! to report their memory, and the emulated NVML calls them to find the devices.

use std::ffi::{c_char, c_int};

use gpuheap_driver::abi::{Out, Text};
use gpuheap_driver::{
    BlockEvent, BlockNote, CUcontext, CUdeviceptr, CUresult, CUstream, Driver, EmulatedBlock,
    EmulatedDevice, export,
};
use gpuheap_emu::{Profile, Request, Usage, put_request};

use crate::process;
use crate::requests::{self, HEAP_REQUEST};

/// Checks at compile time that the export has the type that heaps expect.
const _: EmulatedBlock = gpuheap_emulated_block;

export! {
    /// Writes the description of the device `ordinal` and returns 1. Returns 0 if there is no such
    /// device; a forked child has no devices. Ignores `CUDA_VISIBLE_DEVICES`, like NVML. May be
    /// called before `cuInit`.
    fn gpuheap_emulated_device(
        ordinal: c_int, description: Out<EmulatedDevice, CUresult>,
    ) -> c_int {
        let code = process::call(|emulator| {
            let options = emulator.options();
            let profile = usize::try_from(ordinal).ok().and_then(|at| options.devices.get(at));
            let Some(profile) = profile else {
                return CUresult::ERROR_INVALID_DEVICE;
            };
            let shown = options.shown().into_iter().position(|number| number == ordinal as usize);
            let usage = shown.map_or(Usage::default(), |shown| emulator.usage(shown as c_int));
            let found = EmulatedDevice {
                name: c_text(&profile.name),
                uuid: Profile::uuid(ordinal),
                memory_bytes: profile.memory_bytes,
                used_bytes: usage.in_use(),
                compute_capability: profile.compute_capability.into(),
                clocks_khz: [profile.clock_khz, profile.memory_clock_khz],
                memory_bus_bits: profile.memory_bus_bits,
                driver_version: options.driver_version,
            };
            description.write(found).err().unwrap_or(CUresult::SUCCESS)
        });
        c_int::from(code.is_success())
    }

    /// Reports an event of a heap's block to the checks. Returns 1 if the checks are on, else 0.
    /// `event` is the number of a `gpuheap_driver::BlockEvent`. Other numbers are ignored.
    fn gpuheap_emulated_block(
        event: c_int, context: CUcontext, address: CUdeviceptr, bytes: u64, room: u64,
        stream: CUstream,
    ) -> c_int {
        let mut are_on = false;
        process::report(|device| {
            if let Some(checks) = device.block_checks() {
                are_on = true;
                let block = BlockNote { context, address, bytes, room, stream };
                if let Some(event) = BlockEvent::from_number(event) {
                    checks.note(event, &block);
                }
            }
        });
        c_int::from(are_on)
    }

    /// Marks a range of device memory as never written.
    fn gpuheap_emulated_handed_out(address: CUdeviceptr, bytes: u64) -> () {
        process::report(|device| device.handed_out(address, bytes));
    }

    /// Handles a framework's report that it changed a range in place. Kernels do not run, so the
    /// new contents are unknown: marks the range as never written. Exception: the contents are
    /// known if one copy or fill has written the whole range since the last launch.
    fn gpuheap_emulated_changed(address: CUdeviceptr, bytes: u64) -> () {
        process::report(|device| device.changed(address, bytes));
    }

    /// Fills a range of device memory with copies of the first `width` bytes of `value`, at most 8.
    fn gpuheap_emulated_filled(address: CUdeviceptr, bytes: u64, value: u64, width: c_int) -> () {
        let value = value.to_le_bytes();
        let width = usize::try_from(width).unwrap_or(0).clamp(1, value.len());
        let _ = process::call(|device| {
            device.filled(address, bytes, &value[..width]);
            CUresult::SUCCESS
        });
    }

    /// Records that a heap received a request. The arguments are as in
    /// `gpuheap_driver::EmulatedRequest`. `place` is an address that identifies the requesting
    /// code. `line` is the program's line; null if the caller is C. `is_granted` is 1 if the
    /// request was granted, else 0.
    fn gpuheap_emulated_request(
        bytes: u64, place: u64, line: Text<CUresult>, is_granted: c_int,
    ) -> () {
        process::report(|device| {
            let line = line.text().ok();
            let function = if line.is_some() { HEAP_REQUEST } else { "gpuheap_allocate" };
            let options = device.options();
            let shown = options.shown().first().and_then(|&first| options.devices.get(first));
            let total = shown.map_or(0, |first| first.memory_bytes);
            let mut request = Request::new(function, 0, bytes, place, is_granted != 0);
            request.free_bytes = total.saturating_sub(device.usage(0).in_use());
            requests::put_line(line);
            put_request(request);
        });
    }

    /// Records that the program completed another step although a heap had refused requests.
    fn gpuheap_emulated_step_done() -> () {
        process::report(|_| requests::note_step());
    }
}

/// Returns `text` as a C string, truncated to the length of the array.
fn c_text<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut place = [0; LENGTH];
    for (to, from) in place.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *to = from as c_char;
    }
    place
}
