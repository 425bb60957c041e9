//! Explains errors of Julia.

use gpuheap_text::Amount;

use super::explanation::{Explanation, explanation};
use super::sizes::{after, leading};

/// Explains CUDA.jl's error `Out of GPU memory trying to allocate 1.000 GiB`. The pool's state
/// follows the error.
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
    let (cause, fix) = match (kept, others) {
        (Some(kept @ 1..), _) if kept.saturating_add(free.unwrap_or(0)) >= wanted => (
            format!("the pool keeps {} that are not live, but in pieces", Amount(kept)),
            "GC.gc(true); CUDA.reclaim()",
        ),
        (_, Some(others)) if others >= wanted && others > 2 << 30 => (
            format!("{} of the device are in use outside of the pool", Amount(others)),
            "gpuheap status",
        ),
        _ => (
            "live arrays, and those that Julia has not collected, fill the device".to_owned(),
            "CUDA.unsafe_free!(array) for arrays that are done with",
        ),
    };
    let found = explanation("CUDA.jl", cause, fix).rounded(true);
    Some(found.with_figures(&[
        ("requested", requested),
        ("device", total),
        ("free", free),
        ("live in the pool", live),
        ("kept by the pool, not live", kept),
        ("outside of the pool", others),
    ]))
}
