//! Adapts figures and settings of the driver's pools, because heaps replace these pools.
//!
//! The driver's `cuMemAllocAsync` takes memory from the device's current pool. The drop-in serves
//! these allocations from a heap. The pool's figures therefore include the heap's bytes, and a trim
//! of the pool reclaims the heap's memory. If the program allocates by a pool's handle, the driver
//! serves the memory and counts it in the pool's figures.

use std::ffi::c_void;

use gpuheap::Error;
use gpuheap_driver::{CUmemPool_attribute as Attribute, CUmemoryPool, CUresult};

use crate::devices::{self, Served};
use crate::figures::Figures;
use crate::real;
use crate::table::Out;

/// Adds the heap's bytes to a pool's figure. The driver has already written its figure to `value`.
pub(crate) fn add_to_figure(
    pool: CUmemoryPool,
    attribute: Attribute,
    value: Out<c_void>,
) -> CUresult {
    let figure: fn(&Figures) -> u64 = match attribute {
        Attribute::USED_MEM_CURRENT => |figures| figures.used,
        Attribute::USED_MEM_HIGH => |figures| figures.used_high,
        Attribute::RESERVED_MEM_CURRENT => |figures| figures.reserved,
        Attribute::RESERVED_MEM_HIGH => |figures| figures.reserved_high,
        _ => return CUresult::SUCCESS,
    };
    let Some(Ok(figures)) = served(pool).map(figures) else { return CUresult::SUCCESS };
    // SAFETY: the program passes a pointer to a `u64` for each of these attributes.
    let value = unsafe { value.cast::<u64>() };
    let added = value.get().and_then(|bytes| value.write(bytes.saturating_add(figure(&figures))));
    added.err().unwrap_or(CUresult::SUCCESS)
}

/// Applies an attribute of a pool to the heap that replaces the pool. Either resets a high-water
/// mark, or sets the soft limit to the release threshold. If the threshold is 0 (the driver's
/// default) or unbounded, restores the soft limit with which the heap was opened. The driver has
/// already applied the attribute to its pool.
pub(crate) fn set_attribute(
    pool: CUmemoryPool,
    attribute: Attribute,
    value: Out<c_void>,
) -> CUresult {
    let Some(served) = served(pool) else { return CUresult::SUCCESS };
    let (heap, marks) = (&served.heap, &served.marks);
    match attribute {
        Attribute::USED_MEM_HIGH => marks.reset_used(heap),
        Attribute::RESERVED_MEM_HIGH => marks.reset_reserved(heap),
        Attribute::RELEASE_THRESHOLD => {
            // SAFETY: the program passes a pointer to a `u64` for this attribute.
            let Ok(threshold) = (unsafe { value.cast::<u64>() }).get() else {
                return CUresult::SUCCESS;
            };
            // The driver has accepted the threshold, so the program's call succeeds even if the
            // heap cannot give back memory.
            let _ = heap.set_limits(marks.limits(heap, threshold));
        }
        _ => {}
    }
    CUresult::SUCCESS
}

/// Returns cached memory above `keep` bytes to the driver, from the heap that replaces the pool.
/// The driver has already trimmed the pool itself.
pub(crate) fn trim(pool: CUmemoryPool, keep: usize) -> CUresult {
    let Some(served) = served(pool) else { return CUresult::SUCCESS };
    let trimmed = match keep as u64 {
        0 => served.heap.reclaim_all(),
        keep => figures(served).and_then(|figures| match figures.reserved.saturating_sub(keep) {
            0 => Ok(0),
            above => served.heap.reclaim(above),
        }),
    };
    if keep == 0 {
        served.plain_bytes.trimmed();
    }
    match trimmed {
        Ok(_) => CUresult::SUCCESS,
        Err(error) => error.driver().map_or(CUresult::ERROR_UNKNOWN, |error| error.code()),
    }
}

/// Returns the heap that replaces a pool; `None` if the pool is not the current pool of its device.
fn served(pool: CUmemoryPool) -> Option<&'static Served> {
    devices::all().find(|served| {
        let mut current = CUmemoryPool::NULL;
        let code = real::cuDeviceGetMemPool(&mut current, served.device.ordinal());
        code.is_success() && current == pool
    })
}

fn figures(served: &Served) -> Result<Figures, Error> {
    Figures::read(&served.heap, &served.plain_bytes, &served.marks)
}
