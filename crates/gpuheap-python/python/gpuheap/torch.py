"""PyTorch: takes device memory from a heap of gpuheap, instead of PyTorch's caching allocator.

    import torch, gpuheap.torch
    gpuheap.torch.install(limit="80%")      # before the first tensor on the GPU
    ...
    gpuheap.torch.max_memory_allocated()

After `install`, PyTorch's own statistics (`torch.cuda.memory_allocated` and the like) raise an
error, because PyTorch keeps no statistics for another allocator. The functions of this module
replace them. `torch.cuda.MemPool`, `torch.compile` with `mode="reduce-overhead"` and tensors shared
between processes do not work either. For those, leave PyTorch's allocator in place, and let
`pool()` take segments from the heap.

CUDA graphs work (`torch.cuda.graph`, `make_graphed_callables`; tried with PyTorch 2.11). Memory
that a capture allocated serves only the pool of that graph until the graph is deleted. It counts as
live until then.

If memory runs out, an allocation raises `torch.OutOfMemoryError`. Its text begins with "CUDA out of
memory.", which Accelerate and Lightning recognise. `gpuheap.explain` can read the error. Wheels of
PyTorch before 2.7 have an older C++ interface, and raise a `RuntimeError` with the same text.
"""

# Type checkers confuse the library with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from gpuheap import _gpuheap, _heap
from gpuheap._errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Track = Literal["off", "lines"]

_installed: _heap.Heap | None = None
#: Heaps that serve PyTorch until the end of the process, keyed by device.
_served: dict[int, _heap.Heap] = {}


def install(
    heap: _heap.Heap | None = None, *, limit: int | str | None = None, track: Track | None = None
) -> _heap.Heap:
    """Makes PyTorch allocate device memory from `heap`, or from a new heap of cuda:0 with `limit`.
    Returns the heap. Call it before PyTorch's first allocation. It cannot be undone.

    `record_stream`, `empty_cache` and `set_per_process_memory_fraction` work on the heap. Only the
    heap's device is served.
    """
    import torch

    global _installed
    if _installed is not None:
        raise BadInput(
            "gpuheap is installed for PyTorch already; it serves all allocations until the process ends"
        )
    functions = _gpuheap._torch_functions()
    if "entry" not in functions:
        raise BadInput(
            "this build of gpuheap lacks the entrance for PyTorch; install the wheel, which has it"
        )
    if torch.cuda.is_initialized():
        raise BadInput(_TOO_LATE)
    try:
        allocator = torch._C._cuda_customAllocator(functions["entry"], functions["free"])
    except AttributeError:
        raise BadInput(
            f"PyTorch {torch.__version__} has no CUDA; install a build that has it"
        ) from None
    allocator.set_record_stream_fn(functions["record_stream"])
    allocator.set_reset_fn(functions["reset"])
    allocator.set_memory_fraction_fn(functions["fraction"])
    # Older versions of PyTorch have other names and types for these functions. With those versions,
    # graph captures are refused.
    if hasattr(allocator, "set_begin_allocate_to_pool"):
        allocator.set_begin_allocate_to_pool(functions["begin_pool"])
        allocator.set_end_allocate_to_pool_fn(functions["end_pool"])
        allocator.set_release_pool(functions["release_pool"])
    was_served = 0 in _served
    # Uses device 0, because `torch.cuda.current_device()` would initialize PyTorch's allocator.
    heap = _serve(0, heap, limit, track)
    try:
        torch._C._cuda_changeCurrentAllocator(allocator)
    except BaseException as error:
        if not was_served:
            # PyTorch holds no memory of the heap yet, so the heap can be removed.
            _gpuheap._torch_leave(0)
            del _served[0]
        if isinstance(error, RuntimeError):
            raise BadInput(f"{_TOO_LATE} (PyTorch: {error})") from None
        raise
    _installed = heap
    _kept.append(allocator)
    return heap


def pool(
    heap: _heap.Heap | None = None, *, limit: int | str | None = None, track: Track | None = None
) -> Any:
    """Returns a `torch.cuda.MemPool` that takes its segments from `heap`. PyTorch keeps its own
    allocator and statistics.

        with torch.cuda.use_mem_pool(gpuheap.torch.pool(limit="4GiB")):
            model = load()

    If memory runs out inside such a pool, PyTorch does not retry. PyTorch uses the pool only on the
    current thread.
    """
    import torch

    if _installed is not None:
        raise BadInput(
            "gpuheap replaced PyTorch's allocator, which then makes no MemPool; use one of the two"
        )
    _serve(torch.cuda.current_device(), heap, limit, track)
    functions = _gpuheap._torch_functions()
    allocator = torch._C._cuda_customAllocator(functions["segment"], functions["free"])
    _kept.append(allocator)
    return torch.cuda.MemPool(allocator)


def memory_allocated() -> int:
    """Returns the bytes of live tensors, as requested. Replaces `torch.cuda.memory_allocated`."""
    return _of_install().stats()["live"]


def max_memory_allocated() -> int:
    """Returns the peak of the bytes of live tensors since `install`, or since
    `reset_peak_memory_stats`."""
    heap = _of_install()
    return _meter.read()[2] if _meter is not None else heap.stats()["live_peak"]


def reset_peak_memory_stats() -> None:
    """Restarts the measurement of `max_memory_allocated`."""
    global _meter
    _meter = _of_install()._meter()


def memory_stats() -> dict[str, int]:
    """Returns figures of the heap, keyed by PyTorch's names: `allocated_bytes.all.current` and
    others."""
    stats = _of_install().stats()
    return {
        "allocated_bytes.all.current": stats["live"],
        "allocated_bytes.all.peak": max_memory_allocated(),
        "requested_bytes.all.current": stats["live"],
        "reserved_bytes.all.current": stats["reserved"],
        "reserved_bytes.all.peak": stats["reserved_peak"],
        "inactive_split_bytes.all.current": stats["cached"],
        "allocation.all.allocated": stats["allocations"],
        "allocation.all.freed": stats["frees"],
        "allocation.all.current": stats["allocations"] - stats["frees"],
    }


_meter: _gpuheap._Meter | None = None
#: Allocators that PyTorch uses until the end of the process.
_kept: list[Any] = []
_TOO_LATE = (
    "PyTorch has used the GPU already and keeps its allocator; call gpuheap.torch.install() before anything of "
    "torch.cuda that initializes it, or use gpuheap.torch.pool()"
)


def _serve(
    ordinal: int, heap: _heap.Heap | None, limit: int | str | None, track: Track | None
) -> _heap.Heap:
    """Returns the heap that serves a device to PyTorch. A device never changes its heap."""
    if heap is not None and (limit is not None or track is not None):
        raise BadInput(
            "limit and track are for a new heap; set them where you make the heap that you pass"
        )
    if heap is not None and heap.device.emulated:
        raise BadInput(
            f"{heap.device.name} is emulated inside gpuheap, and PyTorch cannot read its memory; PyTorch needs a "
            "real GPU"
        )
    if heap is not None:
        ordinal = heap.device.ordinal
    served = _served.get(ordinal)
    if served is None:
        heap = _heap.Heap(f"cuda:{ordinal}", limit=limit, track=track) if heap is None else heap
        _gpuheap._torch_serve(heap)
        _served[ordinal] = heap
        return heap
    if limit is not None or track is not None or heap not in (None, served):
        raise BadInput(
            f"PyTorch takes memory of cuda:{ordinal} from another heap of gpuheap already, and keeps it until the "
            "process ends; pass that heap, or leave out heap, limit and track"
        )
    return served


def _of_install() -> _heap.Heap:
    if _installed is None:
        raise BadInput("gpuheap is not installed for PyTorch; call gpuheap.torch.install() first")
    return _installed
