//! The driver's pools in whose place a heap serves.
//!
//! `cuMemAllocAsync` takes memory from the device's current pool. The drop-in serves it from the
//! heap, so figures of that pool include the heap's, and a trim of that pool flushes the heap.
//! Memory that the program takes from the pool by its handle stays with the driver, and is in the
//! driver's own figures.

use std::ffi::c_void;

use gpuheap::Error;
use gpuheap_driver::{CUmemPool_attribute as Attribute, CUmemoryPool, CUresult};

use crate::devices::{self, Served};
use crate::figures::Figures;
use crate::real;
use crate::table::Out;

/// Adds the heap's bytes to a figure of a pool that the driver wrote to `value`.
pub(crate) fn add_to_figure(pool: CUmemoryPool, attribute: Attribute, value: Out<c_void>) {
    let figure: fn(&Figures) -> u64 = match attribute {
        Attribute::USED_MEM_CURRENT => |figures| figures.used,
        Attribute::USED_MEM_HIGH => |figures| figures.used_high,
        Attribute::RESERVED_MEM_CURRENT => |figures| figures.reserved,
        Attribute::RESERVED_MEM_HIGH => |figures| figures.reserved_high,
        _ => return,
    };
    let Some(Ok(figures)) = served(pool).map(figures) else { return };
    let value = value.cast::<u64>();
    let _ = value.get().and_then(|bytes| value.write(bytes.saturating_add(figure(&figures))));
}

/// Changes an attribute of the heap in the place of a pool: resets a mark, or takes a release
/// threshold as the soft limit. A threshold of 0, the driver's default, and one without bound leave
/// the limit that the heap was opened with. The driver has taken the attribute from `value`.
pub(crate) fn set_attribute(pool: CUmemoryPool, attribute: Attribute, value: Out<c_void>) {
    let Some(served) = served(pool) else { return };
    let (heap, marks) = (served.heap(), &served.marks);
    match attribute {
        Attribute::USED_MEM_HIGH => marks.reset_used(heap),
        Attribute::RESERVED_MEM_HIGH => marks.reset_reserved(heap),
        Attribute::RELEASE_THRESHOLD => {
            let Ok(threshold) = value.cast::<u64>().get() else { return };
            // The driver has taken the threshold, so a failure to give memory back is not the
            // program's.
            let _ = heap.set_limits(marks.limits(heap, threshold));
        }
        _ => {}
    }
}

/// Returns the heap's cached memory above `keep` bytes to the driver, in the place of a pool that
/// the driver trimmed.
pub(crate) fn trim(pool: CUmemoryPool, keep: usize) -> CUresult {
    let Some(served) = served(pool) else { return CUresult::SUCCESS };
    let trimmed = match keep as u64 {
        0 => served.heap().reclaim_all(),
        keep => figures(served).and_then(|figures| match figures.reserved.saturating_sub(keep) {
            0 => Ok(0),
            above => served.heap().reclaim(above),
        }),
    };
    served.plain_bytes.trimmed();
    match trimmed {
        Ok(_) => CUresult::SUCCESS,
        Err(error) => error.driver().map_or(CUresult::ERROR_UNKNOWN, |error| error.code()),
    }
}

/// Returns the heap that serves in the place of a pool: the pool is the current one of its device.
fn served(pool: CUmemoryPool) -> Option<&'static Served> {
    devices::all().find(|served| {
        let (code, current) = Out::local(CUmemoryPool::NULL, |current| {
            real::cuDeviceGetMemPool(current, served.device().ordinal())
        });
        code.is_success() && current == pool
    })
}

fn figures(served: &Served) -> Result<Figures, Error> {
    Figures::read(served.heap(), &served.plain_bytes, &served.marks)
}
