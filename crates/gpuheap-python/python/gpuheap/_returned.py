"""Finds device memory inside the value that a function returns."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from gpuheap import _gpuheap, _plain
from gpuheap._errors import BadInput
from gpuheap._objects import may_hold, memory_of
from gpuheap._table import Column, Table

_OWN = (_gpuheap.Array, _gpuheap.Buffer, _gpuheap.HostBuffer)
_ATOMS = frozenset(
    (int, float, str, bytes, bool, complex, type(None), bytearray, memoryview, range, slice)
)
#: Types of objects that are not data. Following such objects would lead through the whole program.
_CODE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
)
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
#: Maximum number of objects that are searched. Structures of arrays have far fewer objects.
_MOST = 100_000


def memory_in(result: Any) -> Iterator[Any]:
    """Returns the buffers and arrays in a value: the value itself, and the parts of lists, tuples,
    sets, dictionaries and objects."""
    seen: set[int] = set()
    # `kept` holds the objects: the `id` of an ended object may be reused.
    left, kept = [result], []
    while left:
        one = left.pop()
        kind = type(one)
        if kind in _ATOMS or id(one) in seen:
            continue
        seen.add(id(one))
        kept.append(one)
        if kind in _OWN:
            if not one.freed:
                yield one
        elif kind is Column or kind is Table:
            left += one._arrays()
        elif _plain.has(kind, "untyped_storage"):
            # Skip PyTorch's tensors, because scopes neither count nor free them.
            continue
        elif may_hold(kind):
            if memory_of(one) is not None:
                yield one
        else:
            left += _parts(one)
            if len(kept) > _MOST:
                raise BadInput(
                    f"the function returned more than {_MOST:,} objects, and the end of its scope frees the arrays "
                    "among them; keep those that have to stay in the function: gpuheap.current_scope().keep(array)"
                )


def _parts(one: Any) -> list[Any]:
    """Returns the items, attributes and slots of an object. Runs no code of its class."""
    if any(_plain.is_a(one, kind) for kind in _CODE):
        return []
    if _plain.is_a(one, dict):
        return [part for item in _plain.items(one) for part in item]
    for container in _CONTAINERS:
        if _plain.is_a(one, container):
            return list(container.__iter__(one))
    found = [value for _, value in _plain.items(_plain.variables(one) or {})]
    for kind in _plain.classes(type(one)):
        for _, slot in _plain.items(_plain.contents(kind)):
            if type(slot) is types.MemberDescriptorType:
                try:
                    found.append(slot.__get__(one))
                except Exception:
                    # The slot is empty.
                    continue
    return found
