"""Structures with arrays inside, moved to a device and back: `Heap.adapt` and `gpuheap.host`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuheap._gpuheap import Array

if TYPE_CHECKING:
    from gpuheap._heap import Heap


def adapt(heap: Heap, structure: Any, narrow: bool = False) -> Any:
    """Returns a structure with device arrays in the place of its host arrays."""
    return adapt_noting(heap, structure, narrow)[0]


def adapt_noting(heap: Heap, structure: Any, narrow: bool) -> tuple[Any, list[Array]]:
    """Returns the adapted structure, and the arrays that were uploaded for it. Device arrays of the caller
    in the structure are not among them."""
    made: list[Array] = []

    def upload(leaf: Any) -> Any:
        array = heap.array(leaf, "float32" if narrow and is_wide(leaf) else None)
        made.append(array)
        return array

    try:
        return walk(structure, lambda leaf: upload(leaf) if is_host_array(leaf) else leaf), made
    except BaseException:
        # An exception keeps frames, and those would keep the arrays.
        for array in made:
            array.free()
        raise


def host(structure: Any) -> Any:
    """Moves a structure back to the host: the inverse of `Heap.adapt`.

    Each `gpuheap.Array` becomes an array of NumPy, or nested lists if NumPy is not installed. Everything
    else stays. Waits for the work on the arrays.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB")
    >>> up = heap.adapt({"weights": memoryview(bytes(2)), "rate": 0.5})
    >>> up["weights"]
    <gpuheap.Array uint8 [2] on emulated:1GiB>
    >>> down = gpuheap.host(up)
    >>> down["weights"].tolist(), down["rate"]
    ([0, 0], 0.5)
    """

    def download(leaf: Any) -> Any:
        if not isinstance(leaf, Array):
            return leaf
        try:
            return leaf.to_numpy()
        except ImportError:
            return leaf.to_list()

    return walk(structure, download)


def walk(structure: Any, leaf: Callable[[Any], Any]) -> Any:
    """Rebuilds dicts, lists, tuples, named tuples and dataclasses with their leaves replaced. An object that
    occurs twice is replaced once."""
    return Walk(leaf).visit(structure, "")


class Walk:
    """State of a walk. An object and not nested functions: those would refer to each other, and keep arrays
    until the collector runs."""

    def __init__(self, leaf: Callable[[Any], Any]) -> None:
        self.leaf = leaf
        # Each object with what replaces it, by its identity.
        self.done: dict[int, tuple[Any, Any]] = {}
        # Objects whose parts are being replaced. They live as long as the structure.
        self.open: set[int] = set()

    def visit(self, part: Any, path: str) -> Any:
        key = id(part)
        if key in self.done:
            return self.done[key][1]
        if key in self.open:
            raise ValueError(f"the structure contains itself at {path or 'its root'}; cut the circle first")
        self.open.add(key)
        try:
            made = self.rebuilt(part, path)
        except (TypeError, ValueError) as error:
            if path and not getattr(error, "__notes__", None):
                error.add_note(f"in the structure: {path}")
            raise
        finally:
            self.open.discard(key)
        self.done[key] = part, made
        return made

    def rebuilt(self, part: Any, path: str) -> Any:
        kind = type(part)
        if isinstance(part, dict):
            items = {name: self.visit(value, f"{path}[{name!r}]") for name, value in part.items()}
            if kind is dict:
                return items
            # Other kinds of dict (ordered, with defaults) keep their settings.
            same = part.copy()
            same.update(items)
            return same
        if isinstance(part, (list, tuple)):
            parts = [self.visit(value, f"{path}[{nth}]") for nth, value in enumerate(part)]
            return kind(*parts) if hasattr(part, "_fields") else kind(parts)
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            fields = {
                field.name: self.visit(getattr(part, field.name), f"{path}.{field.name}")
                for field in dataclasses.fields(part)
            }
            return with_fields(part, fields)
        return self.leaf(part)


def with_fields(part: Any, fields: dict[str, Any]) -> Any:
    """Copies a dataclass with other values. Its `__init__` does not run, for it may reject device arrays."""
    import copy

    same = copy.copy(part)
    for name, value in fields.items():
        object.__setattr__(same, name, value)
    return same


def is_host_array(part: Any) -> bool:
    """Returns `True` for what becomes a device array: objects with the buffer protocol, but for `bytes` and
    NumPy's numbers, which are values as texts and numbers are."""
    if isinstance(part, (bytes, str, int, float, complex, type(None), Array)):
        return False
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(part, numpy.generic):
        return False
    if numpy is not None and isinstance(part, numpy.ndarray):
        return True
    try:
        memoryview(part).release()
    except TypeError:
        return False
    return True


def is_wide(part: Any) -> bool:
    """Returns `True` for an array of float64."""
    with memoryview(part) as view:
        return view.itemsize == 8 and view.format.lstrip("@=<") == "d"
