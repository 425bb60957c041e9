//! Errors of Julia and of Rust.

use gpuheap_text::Amount;

use super::explanation::{Explanation, explanation};
use super::sizes::{after, leading};

/// Explains CUDA.jl: `Out of GPU memory trying to allocate 1.000 GiB`, with the pool's state below.
pub(super) fn julia(text: &str) -> Option<Explanation> {
    let at = text.find("Out of GPU memory")?;
    let text = &text[at..];
    let requested = after(text, "trying to allocate ");
    let usage = text.split_once("Effective GPU memory usage: ").map(|(_, rest)| rest);
    let (used, total) = match usage.and_then(|rest| rest.split_once('(')) {
        Some((_, rest)) => (leading(rest), after(rest, "/")),
        None => (None, None),
    };
    let pool = text.split_once("Memory pool usage: ").map(|(_, rest)| rest);
    let live = pool.and_then(leading);
    let reserved = pool.and_then(|rest| after(rest, "("));
    let kept = reserved.zip(live).map(|(reserved, live)| reserved.saturating_sub(live));
    let others = used.zip(reserved).map(|(used, reserved)| used.saturating_sub(reserved));
    let free = total.zip(used).map(|(total, used)| total.saturating_sub(used));
    let wanted = requested.unwrap_or(0);
    let found = if kept.unwrap_or(0).saturating_add(free.unwrap_or(0)) >= wanted
        && kept.is_some_and(|kept| kept > 0)
    {
        explanation(
            "CUDA.jl",
            format!(
                "the pool keeps {} that are not live, but in pieces",
                Amount(kept.unwrap_or(0))
            ),
            "GC.gc(true); CUDA.reclaim()",
        )
    } else if others.is_some_and(|others| others >= wanted && others > 2 << 30) {
        explanation(
            "CUDA.jl",
            format!("{} of the device are in use outside of the pool", Amount(others.unwrap_or(0))),
            "gpuheap status",
        )
    } else {
        explanation(
            "CUDA.jl",
            "live arrays, and those that Julia has not collected, fill the device",
            "CUDA.unsafe_free!(array) for arrays that are done with",
        )
    };
    let mut found = found;
    found.is_rounded = true;
    Some(found.with(&[
        ("requested", requested),
        ("device", total),
        ("free", free),
        ("live in the pool", live),
        ("kept by the pool, not live", kept),
        ("outside of the pool", others),
    ]))
}

/// Explains cudarc: `DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")`.
pub(super) fn cudarc(text: &str) -> Option<Explanation> {
    text.contains("DriverError(CUDA_ERROR_OUT_OF_MEMORY").then(|| {
        explanation("cudarc", "the driver has no memory left for the request", "gpuheap status")
    })
}
