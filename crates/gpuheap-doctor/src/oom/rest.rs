//! Errors of Julia, of Rust, of gpuheap, and of the driver itself.

use super::explanation::{Explanation, explanation};
use super::sizes::{after, leading};

use crate::words::Amount;

/// Explains gpuheap's own error, which has its cause and its remedy.
pub(super) fn gpuheap(text: &str) -> Option<Explanation> {
    let kinds = ["GPU", "unified", "pinned host"];
    let (at, start) = kinds.iter().find_map(|kind| {
        let start = format!("out of {kind} memory: ");
        Some((text.find(&start)?, start))
    })?;
    let text = text[at + start.len()..].lines().next()?;
    let requested = leading(text)?;
    let (head, tail) = text.split_once("; ")?;
    let (_, rest) = head.split_once(" requested, ")?;
    let (short, cause) = match rest.split_once(" short, because ") {
        Some((short, cause)) => (leading(short), cause),
        None => (None, rest.strip_prefix("but ").unwrap_or(rest)),
    };
    let remedy = tail.split(" (").next().unwrap_or(tail);
    let mut found = explanation("gpuheap", cause, remedy);
    found.from_documentation = false;
    Some(found.with(&[("requested", Some(requested)), ("short by", short)]))
}

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

/// Explains the names of the error in the driver and the runtime, which come without figures.
pub(super) fn bare(text: &str) -> Option<Explanation> {
    const NAMES: [&str; 5] = [
        "cudaErrorMemoryAllocation",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA error: out of memory",
        "CUDA error 2",
        "cudaMalloc failed: out of memory",
    ];
    NAMES.iter().any(|name| text.contains(name)).then(|| {
        let mut found = explanation(
            "CUDA",
            "the driver has no memory left for a request; the text does not say for how much",
            "gpuheap status",
        );
        found.from_documentation = false;
        found
    })
}
