//! Explains errors of the driver and the runtime by their names.

use super::explanation::{Explanation, explanation};

use gpuheap_driver::wsl2::USABLE_PERCENT;

/// Explains "device not ready". Under WSL2, it means that Windows did not keep memory on the card.
/// Elsewhere, a query found unfinished work.
pub(super) fn not_ready(text: &str, on_wsl2: bool) -> Option<Explanation> {
    const NAMES: [&str; 3] = ["device not ready", "cudaErrorNotReady", "CUDA_ERROR_NOT_READY"];
    if !NAMES.iter().any(|name| text.contains(name)) {
        return None;
    }
    Some(if on_wsl2 {
        explanation(
            "CUDA",
            "Windows could not keep the program's memory on the card, although memory looked free",
            format!(
                "leave {} % of the card free: torch.cuda.set_per_process_memory_fraction({})",
                100 - USABLE_PERCENT,
                USABLE_PERCENT as f64 / 100.0
            ),
        )
        .with_alternatives(&[
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            "gpuheap free # who holds the card, programs of Windows included",
            "sudo dmesg | grep dxgkio_make_resident # -12 confirms it; gpuheap explain W06",
        ])
        .with_wsl2_guide()
    } else {
        explanation(
            "CUDA",
            "on Linux this is no lack of memory: a query of a stream or an event found work that is \
             not done, and the program took the answer for an error",
            "CUDA_LAUNCH_BLOCKING=1 python program.py # the first error is the one to read",
        )
        .with_note(
            "under WSL2 it stands for memory that Windows did not keep on the card: gpuheap explain \
             --profile wsl2-rtx4060",
        )
    })
}

/// Explains "invalid device ordinal". Under WSL2, a prefetch of managed memory fails with this
/// error.
pub(super) fn invalid_device(text: &str, on_wsl2: bool) -> Option<Explanation> {
    const NAMES: [&str; 3] =
        ["invalid device ordinal", "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE"];
    if !NAMES.iter().any(|name| text.contains(name)) {
        return None;
    }
    let names_managed = ["prefetch", "Prefetch", "managed", "Managed"];
    let is_managed = names_managed.iter().any(|word| text.contains(word));
    Some(if on_wsl2 {
        let cause = "Windows has no prefetch and no advice for managed memory; the first one fails \
                     with this name, whatever the device's number is";
        explanation("CUDA", cause, "rmm.reinitialize(pool_allocator=True, managed_memory=False)")
            .with_alternatives(&[
                "export CUDF_PANDAS_RMM_MODE=pool # for cudf.pandas, before it starts",
                "nvidia-smi -L # if the program names a device by a number that is not there",
            ])
            .with_wsl2_guide()
    } else if is_managed {
        explanation(
            "CUDA",
            "a prefetch of managed memory was refused: the device has no concurrent access to \
             managed memory, as under WSL2 and on native Windows",
            "rmm.reinitialize(pool_allocator=True, managed_memory=False)",
        )
        .with_alternatives(&["gpuheap doctor --probe-cuda # says whether it has"])
    } else {
        explanation(
            "CUDA",
            "the program names a device by a number that is not there, which is no lack of memory",
            "nvidia-smi -L # lists the devices; CUDA_VISIBLE_DEVICES numbers them anew from 0",
        )
        .with_note(
            "under WSL2 it stands for a prefetch of managed memory: gpuheap explain --profile \
             wsl2-rtx4060",
        )
    })
}

/// Explains a text that has no sizes, and names the error as the driver or the runtime does.
pub(super) fn bare(text: &str, on_wsl2: bool) -> Option<Explanation> {
    const NAMES: [&str; 6] = [
        // Printed by the macro `gpuErrchk` of many C++ programs.
        "GPUassert: out of memory",
        "cudaErrorMemoryAllocation",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA error: out of memory",
        "CUDA error 2",
        "cudaMalloc failed: out of memory",
    ];
    // Functions that pin memory of the host.
    const PINS: [&str; 5] = [
        "cudaHostAlloc",
        "cudaMallocHost",
        "cudaHostRegister",
        "cuMemHostAlloc",
        "cuMemHostRegister",
    ];
    if !NAMES.iter().any(|name| text.contains(name)) {
        return None;
    }
    let is_pinned = PINS.iter().any(|name| text.contains(name));
    Some(match (on_wsl2, is_pinned) {
        (true, true) => pinned("CUDA"),
        (true, false) => explanation(
            "CUDA",
            "Windows refused a request; it may refuse device memory that the driver calls free, and \
             pinned memory from 0.5 to 1 GiB on; the text does not say for how much",
            "gpuheap free # who holds the card, programs of Windows included",
        )
        .with_alternatives(&["gpuheap doctor --probe-cuda # how much of each kind this machine gives"])
        .with_wsl2_guide()
        .confirmed(true),
        (false, true) => explanation(
            "CUDA",
            "the host has no memory left that can be pinned",
            "free -h # then fewer or smaller pinned buffers, each used again",
        )
        .confirmed(true),
        (false, false) => explanation(
            "CUDA",
            "the driver has no memory left for a request; the text does not say for how much",
            "gpuheap status",
        )
        .with_alternatives(&["gpuheap free # steps that would give memory back"])
        .confirmed(true),
    })
}

/// Explains cudarc: `DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")`.
pub(super) fn cudarc(text: &str) -> Option<Explanation> {
    text.contains("DriverError(CUDA_ERROR_OUT_OF_MEMORY").then(|| {
        explanation("cudarc", "the driver has no memory left for the request", "gpuheap status")
    })
}

/// Under WSL2, extends the explanation of a full device by a command that also shows Windows'
/// programs.
pub(super) fn add_windows(found: Explanation, on_wsl2: bool) -> Explanation {
    if !on_wsl2 {
        return found;
    }
    found
        .with_alternatives(&["gpuheap free # who holds the card, programs of Windows included"])
        .with_wsl2_guide()
}

/// Explains why Windows refused to pin memory.
pub(super) fn pinned(program: &'static str) -> Explanation {
    explanation(
        program,
        "Windows refused pinned memory: a program under WSL2 may pin 0.5 to 1 GiB in all, however \
         much the host has",
        "pin less than 0.5 GiB in all: pin_memory=False, or one small buffer that is used again",
    )
    .with_alternatives(&["gpuheap doctor --probe-cuda # how much this machine pins"])
    .with_wsl2_guide()
}
