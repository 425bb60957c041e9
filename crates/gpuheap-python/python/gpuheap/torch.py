"""Makes PyTorch allocate from a heap of gpuheap, instead of PyTorch's caching allocator.

    import torch, gpuheap.torch
    gpuheap.torch.install(limit="80%")      # before the first tensor on the GPU
    ...
    gpuheap.torch.max_memory_allocated()

After `install`, PyTorch's own statistics (`torch.cuda.memory_allocated` and the like) raise an
error, because PyTorch keeps no statistics for another allocator. The functions of this module
replace those statistics. `torch.cuda.MemPool`, `torch.compile` with `mode="reduce-overhead"` and
tensors shared between processes do not work either. For these, leave PyTorch's allocator in place,
and let `pool()` take segments from the heap.

CUDA graphs work (`torch.cuda.graph`, `make_graphed_callables`; tried with PyTorch 2.11). Memory
that a capture allocated serves only the pool of that graph until the graph is deleted. This memory
counts as live until then.

If memory runs out, an allocation raises `torch.OutOfMemoryError`. Its text begins with "CUDA out of
memory.", which Accelerate and Lightning recognise. `gpuheap.explain` can read the error. With
wheels of PyTorch before 2.7, the error is a `RuntimeError` with this text.
"""

# Type checkers confuse the library `torch` with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from gpuheap import _gpuheap, _heap
from gpuheap._errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Track = Literal["off", "lines"]

#: Heaps that `install` set as PyTorch's allocator, keyed by device.
_installed: dict[int, _heap.Heap] = {}
#: Heaps that serve PyTorch until the end of the process, keyed by device.
_served: dict[int, _heap.Heap] = {}


def install(
    heap: _heap.Heap | list[_heap.Heap] | None = None,
    *,
    limit: int | str | None = None,
    track: Track | None = None,
) -> _heap.Heap:
    """Makes PyTorch allocate device memory from `heap`. `heap` may be a list with one heap for each
    device. Without `heap`, makes a heap of cuda:0 with `limit`. Returns the first heap. Call this
    before PyTorch's first allocation. The call cannot be undone.

    `record_stream`, `empty_cache` and `set_per_process_memory_fraction` work on the heaps. PyTorch
    can allocate only on the heaps' devices.
    """
    import torch

    if _installed:
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
    were_served = set(_served)
    try:
        # Use device 0, because `torch.cuda.current_device()` would initialize PyTorch's allocator.
        heaps = [
            _serve(0, each, limit, track) for each in (heap if isinstance(heap, list) else [heap])
        ]
        torch._C._cuda_changeCurrentAllocator(allocator)
    except BaseException as error:
        for ordinal in set(_served) - were_served:
            # PyTorch holds no memory of the heap yet, so the heap can be removed.
            _gpuheap._torch_leave(ordinal)
            del _served[ordinal]
        if isinstance(error, RuntimeError):
            raise BadInput(f"{_TOO_LATE} (PyTorch: {error})") from None
        raise
    _installed.update({each.device.ordinal: each for each in heaps})
    _kept.append(allocator)
    return heaps[0]


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

    if _installed:
        raise BadInput(
            "gpuheap replaced PyTorch's allocator, which then makes no MemPool; use one of the two"
        )
    _serve(torch.cuda.current_device(), heap, limit, track)
    functions = _gpuheap._torch_functions()
    allocator = torch._C._cuda_customAllocator(functions["segment"], functions["free"])
    _kept.append(allocator)
    return torch.cuda.MemPool(allocator)


def memory_allocated(device: Any = None) -> int:
    """Returns the requested bytes of a device's live tensors. The default is PyTorch's current
    device. Replaces `torch.cuda.memory_allocated`."""
    return _of_install(device).stats()["live"]


def max_memory_allocated(device: Any = None) -> int:
    """Returns the peak bytes of a device's live tensors since `install`, or since
    `reset_peak_memory_stats`."""
    heap = _of_install(device)
    meter = _meters.get(heap.device.ordinal)
    return meter.read()[2] if meter is not None else heap.stats()["live_peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Restarts the measurement of `max_memory_allocated`."""
    heap = _of_install(device)
    _meters[heap.device.ordinal] = heap._meter()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Returns figures of a device's heap. The keys are PyTorch's names, such as
    `allocated_bytes.all.current`."""
    stats = _of_install(device).stats()
    return {
        "allocated_bytes.all.current": stats["live"],
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "requested_bytes.all.current": stats["live"],
        "reserved_bytes.all.current": stats["reserved"],
        "reserved_bytes.all.peak": stats["reserved_peak"],
        "inactive_split_bytes.all.current": stats["cached"],
        "allocation.all.allocated": stats["allocations"],
        "allocation.all.freed": stats["frees"],
        "allocation.all.current": stats["allocations"] - stats["frees"],
    }


#: Meters since `reset_peak_memory_stats`, keyed by device.
_meters: dict[int, _gpuheap._Meter] = {}
#: Allocators that PyTorch uses until the end of the process.
_kept: list[Any] = []
_TOO_LATE = (
    "PyTorch has used the GPU already and keeps its allocator; call gpuheap.torch.install() before anything of "
    "torch.cuda that initializes it, or use gpuheap.torch.pool()"
)


def _serve(
    ordinal: int, heap: _heap.Heap | None, limit: int | str | None, track: Track | None
) -> _heap.Heap:
    """Returns the heap that gives PyTorch a device's memory. A device never changes its heap."""
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


def _of_install(device: Any) -> _heap.Heap:
    """Returns the heap of a device. `device` is a number, a name, a `torch.device`, or `None` for
    PyTorch's current device."""
    if not _installed:
        raise BadInput("gpuheap is not installed for PyTorch; call gpuheap.torch.install() first")
    if device is None and len(_installed) == 1:
        return next(iter(_installed.values()))
    import torch

    given = device if device is None or isinstance(device, int) else torch.device(device).index
    ordinal = torch.cuda.current_device() if given is None else given
    if ordinal not in _installed:
        served = ", ".join(f"cuda:{each}" for each in sorted(_installed))
        raise BadInput(f"gpuheap serves {served} to PyTorch, and not cuda:{ordinal}")
    return _installed[ordinal]
