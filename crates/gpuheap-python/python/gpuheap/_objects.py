"""Python objects that hold device memory: ours, and those of libraries."""

from __future__ import annotations

import gc
import itertools
from typing import Any

from gpuheap import _gpuheap

_OWN = (_gpuheap.Array, _gpuheap.Buffer, _gpuheap.HostBuffer)
_CHUNK = 10_000


def memory_of(holder: Any) -> tuple[int, int] | None:
    """Address and bytes of the device memory that an object holds; `None` if it holds none."""
    kind = type(holder)
    try:
        if isinstance(holder, _OWN):
            return None if holder.freed else (holder.ptr, holder.nbytes)
        if hasattr(kind, "untyped_storage"):
            # PyTorch: a tensor on the host has a storage too.
            if not holder.is_cuda:
                return None
            storage = holder.untyped_storage()
            return storage.data_ptr(), storage.nbytes()
        if hasattr(kind, "__cuda_array_interface__"):
            interface = holder.__cuda_array_interface__
            return interface["data"][0], _span(interface)
        if _is_of_cuda_core(kind):
            return int(holder.handle), holder.size
    except Exception:
        # An object that cannot say where its memory is, such as a tensor that needs gradients.
        return None
    return None


def memory_objects() -> list[Any]:
    """All objects that hold device memory, as far as Python's collector knows them or what refers to
    them. Looks at every object of the program."""
    from gpuheap._frames import running_frames

    found: dict[int, Any] = {}
    everything = gc.get_objects()
    for start in range(0, len(everything), _CHUNK):
        chunk = everything[start : start + _CHUNK]
        # The collector does not know a buffer itself, which refers to no other object.
        for candidate in itertools.chain(chunk, gc.get_referents(*chunk)):
            if _may_hold(type(candidate)):
                found[id(candidate)] = candidate
    for _, frame in running_frames():
        for candidate in list(frame.f_locals.values()):
            if _may_hold(type(candidate)):
                found[id(candidate)] = candidate
        _forget(frame)
    return [holder for holder in found.values() if memory_of(holder) is not None]


def _forget(frame: Any) -> None:
    from gpuheap._frames import local_names

    local_names(frame)


def _may_hold(kind: type) -> bool:
    known = _known.get(kind)
    if known is None:
        known = _known[kind] = (
            kind in _OWN
            or hasattr(kind, "untyped_storage")
            or hasattr(kind, "__cuda_array_interface__")
            or _is_of_cuda_core(kind)
        )
    return known


def _is_of_cuda_core(kind: type) -> bool:
    """Returns `True` for buffers of cuda.core, which have no array interface."""
    return hasattr(kind, "memory_resource") and str(kind.__module__).startswith("cuda.core")


_known: dict[type, bool] = {}


def _span(interface: dict[str, Any]) -> int:
    """Bytes from the first element to the end of the last one."""
    shape: tuple[int, ...] = interface["shape"]
    item = int(interface["typestr"][2:])
    if 0 in shape:
        return 0
    strides = interface.get("strides")
    if strides is None:
        total: int = item
        for length in shape:
            total *= length
        return total
    return item + sum((length - 1) * abs(stride) for length, stride in zip(shape, strides))
