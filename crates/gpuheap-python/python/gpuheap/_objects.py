"""Finds Python objects of gpuheap and of other libraries that hold device memory."""

from __future__ import annotations

import gc
import operator
from typing import Any

from gpuheap import _frames, _gpuheap, _plain

_OWN = (_gpuheap.Array, _gpuheap.Buffer, _gpuheap.HostBuffer)
# Number of objects in a chunk. A chunk is examined quickly if all of its classes were seen before.
_CHUNK = 500


def memory_of(holder: Any) -> tuple[int, int] | None:
    """Returns address and bytes of the device memory that an object holds. Returns `None` if the
    object holds no device memory. Of the object's own code, runs only the function that returns
    the address."""
    try:
        return _memory_of(holder, type(holder))
    except KeyboardInterrupt:
        raise
    except BaseException:
        # Some objects, such as sparse tensors, have no single address and raise an error.
        return None


def _memory_of(holder: Any, kind: type) -> tuple[int, int] | None:
    if any(kind is own for own in _OWN):
        return None if holder.freed else (holder.ptr, holder.nbytes)
    if _plain.has(kind, "untyped_storage"):
        # A PyTorch tensor in host memory has a storage too.
        if not holder.is_cuda:
            return None
        storage = holder.untyped_storage()
        found = storage.data_ptr(), storage.nbytes()
    elif _plain.has(kind, "__cuda_array_interface__"):
        interface = object.__getattribute__(holder, "__cuda_array_interface__")
        found = interface["data"][0], _span(interface)
    elif _is_of_cuda_core(kind):
        found = int(holder.handle), holder.size
    elif _is_of_pycuda(kind):
        return None if holder.buffer.freed else (holder.buffer.ptr, holder.buffer.nbytes)
    else:
        return None
    return operator.index(found[0]), operator.index(found[1])


def memory_objects() -> list[Any]:
    """Returns all objects that may hold device memory. Finds objects that Python's collector
    tracks, and objects that a tracked object refers to. Examines every object of the program,
    and runs no code of the program."""
    found: dict[int, Any] = {}
    look = _Look(found)
    everything, chunk = gc.get_objects(), []
    for start in range(0, len(everything), _CHUNK):
        chunk = everything[start : start + _CHUNK]
        look.at(chunk)
        # The collector does not track a buffer, because a buffer refers to no other object. So also
        # examine the objects that the chunk refers to.
        look.at(gc.get_referents(*chunk))
    # These lists refer to the dictionaries of frames' locals. `local_values` below empties such a
    # dictionary only if no other object refers to it.
    del everything, chunk
    for _, frame in _frames.running_frames():
        look.at(_frames.local_values(frame))
    return list(found.values())


class _Look:
    """An examination of many objects. It keeps the objects' classes alive, so use a new one for
    each search."""

    def __init__(self, found: dict[int, Any]) -> None:
        self.found = found
        # Classes, keyed by `id`: hashing a class may run code of its metaclass.
        self.kinds: dict[int, type] = {}
        self.holding: set[int] = set()

    def at(self, objects: list[Any]) -> None:
        """Adds the objects that may hold device memory to `found`."""
        numbers = set(map(id, map(type, objects)))
        if not numbers <= self.kinds.keys():
            for one in objects:
                kind = type(one)
                if id(kind) not in self.kinds:
                    self.kinds[id(kind)] = kind
                    if may_hold(kind):
                        self.holding.add(id(kind))
        if not self.holding.isdisjoint(numbers):
            self.found.update((id(one), one) for one in objects if id(type(one)) in self.holding)


def may_hold(kind: type) -> bool:
    return (
        any(kind is own for own in _OWN)
        or _plain.has(kind, "untyped_storage")
        or _plain.has(kind, "__cuda_array_interface__")
        or _is_of_cuda_core(kind)
        or _is_of_pycuda(kind)
    )


def _is_of_cuda_core(kind: type) -> bool:
    """Returns `True` for the class of cuda.core's buffers. These buffers have no CUDA array
    interface."""
    return _plain.has(kind, "memory_resource") and _plain.module_of(kind).startswith("cuda.core")


def _is_of_pycuda(kind: type) -> bool:
    """Returns `True` for the class of the pointers by which PyCUDA's arrays hold gpuheap's memory.
    Python's collector does not track a pointer, so no search from the buffer upwards finds the
    array that holds the pointer."""
    return _plain.module_of(kind) == "gpuheap.pycuda"


def _span(interface: dict[str, Any]) -> int:
    """Returns the number of bytes between the start of the first element and the end of the last
    element."""
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
