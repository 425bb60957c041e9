//! Fallback of a heap whose device does not support the requested pool.

use std::fmt;
use std::sync::Arc;

use gpuheap_pool::PoolKind;

use crate::device::{Context, NoVirtualMemory};

/// Reason why a heap uses `split` instead of the requested pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fallback {
    requested: PoolKind,
    why: NoVirtualMemory,
}

/// Returns the requested pool if the device supports it. Otherwise, returns the pool to use
/// instead, and the reason.
pub(crate) fn available(
    context: &Arc<Context>,
    requested: PoolKind,
) -> (PoolKind, Option<Fallback>) {
    // Only a `stitched` pool needs virtual memory: it maps physical memory to addresses itself.
    if requested != PoolKind::Stitched {
        return (requested, None);
    }
    match context.virtual_memory() {
        Ok(_) => (requested, None),
        Err(why) => (PoolKind::Split, Some(Fallback { requested, why })),
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, because {} cannot be had: {}", PoolKind::Split, self.requested, self.why)
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use gpuheap_driver::CUresult;
    use gpuheap_emu::{Fault, FaultPlan, Profile};

    use super::*;
    use crate::{Device, Heap};

    const REQUESTED: PoolKind = PoolKind::Stitched;

    #[test]
    fn device_without_virtual_memory_uses_split() {
        let device = Device::emulated(Profile::named("wsl2-rtx4060").unwrap()).unwrap();
        let (pool, fallback) = available(device.context(), REQUESTED);
        assert_eq!(pool, PoolKind::Split);
        assert_eq!(
            fallback.unwrap().to_string(),
            "split, because stitched cannot be had: the device has no virtual memory management"
        );
        assert_eq!(available(device.context(), PoolKind::Binned), (PoolKind::Binned, None));
    }

    #[test]
    fn status_names_refused_call() {
        let device = Device::emulated(Profile::with_memory(1 << 30)).unwrap();
        let emulator = device.emulator().unwrap();
        let refused = Fault::nth("cuMemSetAccess", 1, CUresult::ERROR_NOT_SUPPORTED);
        emulator.set_faults(FaultPlan::new([refused]));
        let heap = Heap::builder(&device).without_environment().pool(REQUESTED).build().unwrap();
        let status = heap.memory_status().unwrap();
        assert_eq!(status.pool, PoolKind::Split);
        let why = status.fallback.clone().unwrap();
        assert!(why.contains("cuMemSetAccess failed with CUDA_ERROR_NOT_SUPPORTED"), "{why}");
        assert!(status.to_string().contains(&format!("\nPool: {why}")), "{status}");
        assert!(status.to_json().contains("\"fallback\":\"split, because stitched"));
    }

    #[test]
    fn supported_pool_is_not_replaced() {
        let device = Device::emulated(Profile::h200()).unwrap();
        assert_eq!(available(device.context(), REQUESTED), (REQUESTED, None));
        let heap = Heap::new(&device).unwrap();
        assert_eq!(heap.memory_status().unwrap().fallback, None);
        assert!(!heap.memory_status().unwrap().to_string().contains("Pool: "));
    }
}
