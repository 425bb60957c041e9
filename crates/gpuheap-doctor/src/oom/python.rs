//! Explains errors of Python libraries.

use gpuheap_text::Amount;

use super::driver::add_windows;
use super::explanation::{Explanation, explanation};
use super::sizes::{after, before};

/// Explains the error `torch.OutOfMemoryError: CUDA out of memory. Tried to allocate …` of PyTorch
/// 1.x and 2.x.
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
        // Memory that is neither free nor the process's own belongs to other processes, even if
        // PyTorch's message does not name them.
        Some(((own, total), free)) if is_new => {
            let rest = total.saturating_sub(free).saturating_sub(own);
            // Ignores 1 %: the message rounds sizes, and the driver keeps some memory.
            if rest > total / 100 { others.max(rest) } else { others }
        }
        _ => others,
    };
    let (free_bytes, unallocated_bytes) = (free.unwrap_or(0), unallocated.unwrap_or(0));
    let taken = allocated.unwrap_or(0).saturating_add(unallocated_bytes);
    let short = requested.saturating_sub(free_bytes);
    const LARGER: &str =
        "a smaller batch, or a device with more memory: gpuheap replay --find-minimum SNAPSHOT";
    let (cause, fix) = if total.is_some_and(|total| requested > total) {
        (format!("one request of {} is larger than the device", Amount(requested)), LARGER)
    } else if let Some(allowed) =
        allowed.filter(|&allowed| taken.saturating_add(requested) > allowed)
    {
        (
            format!("the program's own limit is reached: {} are allowed", Amount(allowed)),
            "torch.cuda.set_per_process_memory_fraction(1.0) # or another larger fraction",
        )
    } else if unallocated_bytes >= short && unallocated_bytes > 0 {
        (
            format!(
                "{} that PyTorch keeps are enough, but lie in pieces (fragmentation)",
                Amount(unallocated_bytes)
            ),
            // Windows has refused the large address range that expandable segments need.
            match (on_wsl2, is_hip) {
                (_, true) => "export PYTORCH_HIP_ALLOC_CONF=expandable_segments:True",
                (true, false) => "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
                (false, false) => "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            },
        )
    } else if others >= short && others > 1 << 30 {
        let command = if is_hip { "rocm-smi --showpids" } else { "gpuheap status" };
        (format!("other processes hold {} of the device", Amount(others)), command)
    } else {
        let missing = Amount(short.saturating_sub(unallocated_bytes));
        (format!("the program needs {missing} more than the device has"), LARGER)
    };
    // Real runs confirmed only the wording for CUDA (tests/machine/texts).
    let found = explanation("PyTorch", cause, fix).rounded(true).confirmed(!is_hip);
    let mut found = found.with_figures(&[
        ("requested", Some(requested)),
        ("device", total),
        ("free", free),
        ("live in PyTorch", allocated),
        ("kept by PyTorch, not live", unallocated),
        ("allowed", allowed),
        ("other processes", (others > 0).then_some(others)),
    ]);
    if is_hip {
        found.guide = Some("docs/other-gpus.md");
        return Some(found);
    }
    Some(add_windows(found, on_wsl2))
}

/// Explains CuPy's error `Out of memory allocating N bytes (allocated so far: N bytes, limit set
/// to: N bytes).`
pub(super) fn cupy(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let at = text.find("Out of memory allocating ")?;
    let text = &text[at..];
    let taken = after(text, "allocated so far: ")?;
    let requested = after(text, "allocating ")?;
    let limit = after(text, "limit set to: ");
    let cause = match limit {
        Some(limit) if taken.saturating_add(requested) > limit => format!(
            "the pool's limit is reached; {} more would do, or less if cached memory is given back",
            Amount(taken.saturating_add(requested) - limit)
        ),
        _ => format!("the device has less than {} left in one piece", Amount(requested)),
    };
    let found = explanation("CuPy", cause, "cupy.get_default_memory_pool().free_all_blocks()");
    let found = found.with_figures(&[
        ("requested", Some(requested)),
        ("taken by the pool", Some(taken)),
        ("limit", limit),
    ]);
    Some(add_windows(found, on_wsl2))
}

/// Explains the error `RESOURCE_EXHAUSTED: Out of memory while trying to allocate N bytes.` of JAX
/// and XLA.
pub(super) fn jax(text: &str) -> Option<Explanation> {
    let at = text.find("RESOURCE_EXHAUSTED: Out of memory")?;
    let text = &text[at..];
    let requested = after(text, "trying to allocate ").or_else(|| after(text, "allocating "));
    let program = after(text, "total allocation:");
    let (cause, fix) = match program {
        Some(program) => (
            format!("the compiled program needs {} beyond the live memory", Amount(program)),
            "jax.checkpoint around the layers, or a smaller batch",
        ),
        None => (
            "XLA's pool, 75 % of the device by default, has no room for the request".to_owned(),
            "XLA_PYTHON_CLIENT_MEM_FRACTION=.95",
        ),
    };
    Some(explanation("JAX", cause, fix).with_figures(&[
        ("requested", requested),
        ("the program's buffers", program),
        ("of these, temporary", after(text, "preallocated temp allocation:")),
    ]))
}

/// Explains errors of PyCUDA. A context is current only on the thread that pushed the context.
pub(super) fn pycuda(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let is_pycuda = text.contains("pycuda");
    let known = |cause: &str, fix: &str| Some(explanation("PyCUDA", cause, fix).confirmed(true));
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
        let cause = "the driver has no memory left for the request";
        // PyCUDA 2026.1 printed this name of its exception in a real run.
        let is_confirmed = text.contains("pycuda._driver.MemoryError");
        let found = explanation("PyCUDA", cause, "gpuheap status").confirmed(is_confirmed);
        add_windows(found, on_wsl2)
    })
}

/// Explains Numba's error `[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY`. In
/// numba-cuda 0.30 the number is `[<CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>]`.
pub(super) fn numba(text: &str) -> Option<Explanation> {
    text.contains("results in CUDA_ERROR_OUT_OF_MEMORY").then(|| {
        let cause =
            "the device is full; Numba frees late, and frees all waiting memory before it fails";
        let is_confirmed = text.contains("[<CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>]");
        explanation("Numba", cause, "gpuheap status").confirmed(is_confirmed)
    })
}
