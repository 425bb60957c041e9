//! Replaces the driver's memory figures. With a limit, the figures describe a smaller device.
#![allow(non_snake_case, reason = "named as in C")]

use gpuheap_driver::{CUdevice, CUresult};

use crate::table::Out;
use crate::threads::Guard;
use crate::{contexts, limit, real};

pub(crate) fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> CUresult {
    let code = real::cuMemGetInfo_v2(free, total);
    let Some(_guard) = Guard::enter() else { return code };
    if code.is_success()
        && let Some((limit, used)) = limit::figures(contexts::current().1)
    {
        lower(free, limit.saturating_sub(used));
        lower(total, limit);
    }
    code
}

pub(crate) fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) -> CUresult {
    let code = real::cuDeviceTotalMem_v2(bytes, device);
    let Some(_guard) = Guard::enter() else { return code };
    if code.is_success()
        && let Some((limit, _)) = limit::figures(device)
    {
        lower(bytes, limit);
    }
    code
}

/// Lowers a figure to `most`. The program may pass null for a figure that it does not need.
fn lower(place: Out<usize>, most: u64) {
    if let Ok(bytes) = place.get() {
        let _ = place.write(bytes.min(usize::try_from(most).unwrap_or(usize::MAX)));
    }
}
