//! Errors of Python libraries.

use gpuheap_text::Amount;

use super::driver::of_windows;
use super::explanation::{Explanation, explanation};
use super::sizes::{after, before};

/// Explains PyTorch 1.x and 2.x: `torch.OutOfMemoryError: CUDA out of memory. Tried to allocate …`.
pub(super) fn torch(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let cuda = text.find("CUDA out of memory. Tried to allocate");
    // PyTorch on ROCm.
    let is_hip = cuda.is_none();
    let at = cuda.or_else(|| text.find("HIP out of memory. Tried to allocate"))?;
    let text = &text[at..];
    let requested = after(text, "Tried to allocate ")?;
    let is_new = text.contains("total capacity of");
    let total =
        if is_new { after(text, "total capacity of ") } else { before(text, " total capacity") };
    let free = if is_new { after(text, "of which ") } else { before(text, " free") };
    let allocated = if is_new {
        after(text, "Of the allocated memory ")
    } else {
        before(text, " already allocated")
    };
    let unallocated = if is_new {
        before(text, " is reserved by PyTorch but unallocated")
    } else {
        let reserved = before(text, " reserved in total by PyTorch");
        reserved.zip(allocated).map(|(reserved, allocated)| reserved.saturating_sub(allocated))
    };
    let own = after(text, "this process has ");
    let allowed = before(text, " allowed");
    let others = text
        .match_indices("Process ")
        .filter_map(|(at, _)| after(&text[at..], " has "))
        .fold(0, u64::saturating_add);
    let others = match own.zip(total).zip(free) {
        // Memory that is neither free nor the process's own belongs to others, named in the text or
        // not.
        Some(((own, total), free)) if is_new => {
            let rest = total.saturating_sub(free).saturating_sub(own);
            // Sizes are rounded, and the driver keeps some memory for itself.
            if rest > total / 100 { others.max(rest) } else { others }
        }
        _ => others,
    };
    let (free_bytes, unallocated_bytes) = (free.unwrap_or(0), unallocated.unwrap_or(0));
    let taken = allocated.unwrap_or(0).saturating_add(unallocated_bytes);
    let short = requested.saturating_sub(free_bytes);
    let found = if total.is_some_and(|total| requested > total) {
        explanation(
            "PyTorch",
            format!("one request of {} is larger than the device", Amount(requested)),
            "a smaller batch, or a device with more memory: gpuheap replay --find-minimum SNAPSHOT",
        )
    } else if allowed.is_some_and(|allowed| taken.saturating_add(requested) > allowed) {
        explanation(
            "PyTorch",
            format!(
                "the program's own limit is reached: {} are allowed",
                Amount(allowed.unwrap_or(0))
            ),
            "torch.cuda.set_per_process_memory_fraction(1.0) # or another larger fraction",
        )
    } else if unallocated_bytes >= short && unallocated_bytes > 0 {
        explanation(
            "PyTorch",
            format!(
                "{} that PyTorch keeps are enough, but lie in pieces (fragmentation)",
                Amount(unallocated_bytes)
            ),
            // Windows was seen to refuse the large range of addresses that segments need.
            match (on_wsl2, is_hip) {
                (_, true) => "export PYTORCH_HIP_ALLOC_CONF=expandable_segments:True",
                (true, false) => "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
                (false, false) => "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            },
        )
    } else if others >= short && others > 1 << 30 {
        explanation(
            "PyTorch",
            format!("other processes hold {} of the device", Amount(others)),
            if is_hip { "rocm-smi --showpids" } else { "gpuheap status" },
        )
    } else {
        let missing = short.saturating_sub(unallocated_bytes);
        explanation(
            "PyTorch",
            format!("the program needs {} more than the device has", Amount(missing)),
            "a smaller batch, or a device with more memory: gpuheap replay --find-minimum SNAPSHOT",
        )
    };
    let mut found = found.with(&[
        ("requested", Some(requested)),
        ("device", total),
        ("free", free),
        ("live in PyTorch", allocated),
        ("kept by PyTorch, not live", unallocated),
        ("allowed", allowed),
        ("other processes", (others > 0).then_some(others)),
    ]);
    // This repository has recorded texts of real runs.
    found.from_documentation = is_hip;
    found.is_rounded = true;
    if is_hip {
        found.guide = Some("docs/other-gpus.md");
        return Some(found);
    }
    Some(of_windows(found, on_wsl2))
}

/// Explains CuPy: `Out of memory allocating N bytes (allocated so far: N bytes, limit set to: N
/// bytes).`
pub(super) fn cupy(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let at = text.find("Out of memory allocating ")?;
    let text = &text[at..];
    let taken = after(text, "allocated so far: ")?;
    let requested = after(text, "allocating ")?;
    let limit = after(text, "limit set to: ");
    let found = match limit {
        Some(limit) if taken.saturating_add(requested) > limit => explanation(
            "CuPy",
            format!(
                "the pool's limit is reached; {} more would do, or less if what it keeps is given back",
                Amount(taken.saturating_add(requested) - limit)
            ),
            "cupy.get_default_memory_pool().free_all_blocks()",
        ),
        _ => explanation(
            "CuPy",
            format!("the device has less than {} left in one piece", Amount(requested)),
            "cupy.get_default_memory_pool().free_all_blocks()",
        ),
    };
    let found = found.with(&[
        ("requested", Some(requested)),
        ("taken by the pool", Some(taken)),
        ("limit", limit),
    ]);
    Some(of_windows(found, on_wsl2))
}

/// Explains JAX and XLA: `RESOURCE_EXHAUSTED: Out of memory while trying to allocate N bytes.`
pub(super) fn jax(text: &str) -> Option<Explanation> {
    let at = text.find("RESOURCE_EXHAUSTED: Out of memory")?;
    let text = &text[at..];
    let requested = after(text, "trying to allocate ").or_else(|| after(text, "allocating "));
    let program = after(text, "total allocation:");
    let found = match program {
        Some(program) => explanation(
            "JAX",
            format!("the compiled program needs {} beside what is live", Amount(program)),
            "jax.checkpoint around the layers, or a smaller batch",
        ),
        None => explanation(
            "JAX",
            "XLA's pool, 75 % of the device unless told otherwise, has no room for the request",
            "XLA_PYTHON_CLIENT_MEM_FRACTION=.95",
        ),
    };
    Some(found.with(&[
        ("requested", requested),
        ("the program's buffers", program),
        ("of these, temporary", after(text, "preallocated temp allocation:")),
    ]))
}

/// Explains PyCUDA, where a context is current only on the thread that pushed it.
pub(super) fn pycuda(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let is_pycuda = text.contains("pycuda");
    let known = |cause: &str, fix: &str| {
        let mut found = explanation("PyCUDA", cause, fix);
        found.from_documentation = false;
        Some(found)
    };
    if text.contains("out-of-thread context could not be cleaned up")
        || text.contains("cuMemFree failed: invalid device context")
    {
        return known(
            "an object was freed on a thread on which its context is not current, so that its memory \
             stays until the process ends",
            "del the arrays before context.pop(), on the thread that made them",
        );
    }
    if is_pycuda && text.contains("has no attribute 'mem_free'") {
        return known(
            "there is no mem_free: mem_alloc returns an object that frees its own memory",
            "memory.free() in the place of mem_free(memory), before context.pop()",
        );
    }
    if text.contains("The context stack was not empty upon module cleanup") {
        return known(
            "a thread pushed a context and ended without popping it",
            "context.pop() in a finally, on the thread that pushed the context",
        );
    }
    if is_pycuda && text.contains("failed: invalid device context") {
        return known(
            "the thread has no current context; pycuda.autoinit makes one current only on the thread \
             that imports it",
            "pycuda.autoinit.context.push() at the thread's start, and .pop() in a finally",
        );
    }
    text.contains("cuMemAlloc failed: out of memory").then(|| {
        let mut found = explanation(
            "PyCUDA",
            "the driver has no memory left for the request",
            "gpuheap status",
        );
        // Seen in PyCUDA 2026.1, whose exceptions name their module.
        found.from_documentation = !text.contains("pycuda._driver.MemoryError");
        of_windows(found, on_wsl2)
    })
}

/// Explains Numba: `[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY`, where numba-cuda
/// 0.30 has `[<CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>]`.
pub(super) fn numba(text: &str) -> Option<Explanation> {
    text.contains("results in CUDA_ERROR_OUT_OF_MEMORY").then(|| {
        let mut found = explanation(
            "Numba",
            "the device is full; Numba frees late, and has freed what waited before it failed",
            "gpuheap status",
        );
        found.from_documentation = !text.contains("[<CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>]");
        found
    })
}
