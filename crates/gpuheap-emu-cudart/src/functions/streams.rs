//! Streams, and the device memory that the driver takes for them.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_driver::CUstream;

use crate::error::{Out, Outcome, call};
use crate::{context, kernels};

/// Granule of the driver's allocations for streams, in bytes.
const GRANULE: usize = 2 << 20;

#[derive(Default)]
struct Streams {
    live: usize,
    /// Granules allocated so far. They are kept for later streams.
    granules: usize,
}

/// Streams, keyed by device ordinal.
static STREAMS: Mutex<BTreeMap<c_int, Streams>> = Mutex::new(BTreeMap::new());

/// Creates a stream, and allocates the memory that a real driver would allocate for it.
pub(crate) fn create_stream(stream: Out<CUstream>, flags: c_uint, priority: c_int) -> Outcome {
    let device = context::device()?;
    call!(cuStreamCreateWithPriority(stream, flags, priority))?;
    let mut streams = lock();
    let streams = streams.entry(device).or_default();
    let granules = granules(streams.live + 1);
    if granules > streams.granules {
        let (mut address, bytes) = (0, (granules - streams.granules) * GRANULE);
        if let Err(code) = call!(cuMemAlloc_v2(&mut address, bytes)) {
            // Without this memory, the program does not get the stream. So destroys the stream
            // that was just created.
            call!(cuStreamDestroy_v2(stream.get()?))?;
            return Err(code);
        }
        streams.granules = granules;
    }
    streams.live += 1;
    Ok(())
}

/// Destroys a stream once the stream's work is done.
pub(crate) fn destroy_stream(stream: CUstream) -> Outcome {
    let mut device = 0;
    call!(cuStreamGetDevice(stream, &mut device))?;
    call!(cuStreamDestroy_v2(stream))?;
    if let Some(streams) = lock().get_mut(&device) {
        streams.live = streams.live.saturating_sub(1);
    }
    Ok(())
}

/// Forgets the variables and streams of a device whose context was destroyed.
pub(crate) fn forget_objects(device: c_int) {
    kernels::forget_variables(device);
    lock().remove(&device);
}

/// Returns the number of granules that a driver allocates for `streams` streams of a device. On an
/// H200 (580.159, 2026-11-28), the 2nd, the 6th and the 10th stream took one more granule each. The
/// 128 streams that PyTorch creates together took 35 granules.
fn granules(streams: usize) -> usize {
    (3 * streams + 5) / 11
}

fn lock() -> MutexGuard<'static, BTreeMap<c_int, Streams>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_take_measured_granules() {
        let found = [1, 2, 5, 6, 10, 40, 128].map(granules);
        assert_eq!(found, [0, 1, 1, 2, 3, 11, 35]);
    }
}
