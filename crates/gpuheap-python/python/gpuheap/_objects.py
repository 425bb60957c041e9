"""Python objects that hold device memory: gpuheap's, and other libraries'."""

from __future__ import annotations

import gc
import operator
from typing import Any

from gpuheap import _frames, _gpuheap, _plain

_OWN = (_gpuheap.Array, _gpuheap.Buffer, _gpuheap.HostBuffer)
# Objects that are examined together. Most of them have a known class.
_CHUNK = 500


def memory_of(holder: Any) -> tuple[int, int] | None:
    """Returns address and bytes of the device memory that an object holds; `None` if it holds none.
    Of the object's class, runs only the code that returns the address."""
    try:
        return _memory_of(holder, type(holder))
    except KeyboardInterrupt:
        raise
    except BaseException:
        # The object has no address, such as a tensor that needs gradients.
        return None


def _memory_of(holder: Any, kind: type) -> tuple[int, int] | None:
    if any(kind is own for own in _OWN):
        return None if holder.freed else (holder.ptr, holder.nbytes)
    if _plain.has(kind, "untyped_storage"):
        # A PyTorch tensor on the host has a storage too.
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
    """Returns all objects that may hold device memory, if Python's collector knows them or objects
    that refer to them. Examines every object of the program, and runs no code of it."""
    found: dict[int, Any] = {}
    look = _Look(found)
    everything, chunk = gc.get_objects(), []
    for start in range(0, len(everything), _CHUNK):
        chunk = everything[start : start + _CHUNK]
        look.at(chunk)
        # The collector does not track a buffer: it refers to no other object.
        look.at(gc.get_referents(*chunk))
    # They have the dictionaries of locals, and would keep them filled.
    del everything, chunk
    for _, frame in _frames.running_frames():
        look.at(_frames.local_values(frame))
    return list(found.values())


class _Look:
    """An examination of many objects. It lasts as long as one search, because it keeps their
    classes alive."""

    def __init__(self, found: dict[int, Any]) -> None:
        self.found = found
        # By the `id` of a class: hashing the class may run code of its metaclass.
        self.kinds: dict[int, type] = {}
        self.holding: set[int] = set()

    def at(self, objects: list[Any]) -> None:
        """Notes the objects that may hold device memory."""
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
    """Returns `True` for buffers of cuda.core. They have no array interface."""
    return _plain.has(kind, "memory_resource") and _plain.module_of(kind).startswith("cuda.core")


def _is_of_pycuda(kind: type) -> bool:
    """Returns `True` for gpuheap's pointers in PyCUDA's arrays. The collector does not track them,
    so a search from the buffer inside ends at them."""
    return _plain.module_of(kind) == "gpuheap.pycuda"


def _span(interface: dict[str, Any]) -> int:
    """Returns the bytes from the first element to the end of the last one."""
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
