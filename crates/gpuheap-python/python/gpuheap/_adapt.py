"""Moves structures of arrays to a device and back. Implements `Heap.adapt` and `gpuheap.host`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuheap._gpuheap import Array
from gpuheap._table import Column, Table, restored, uploaded

if TYPE_CHECKING:
    from gpuheap._heap import Heap


def adapt(heap: Heap, structure: Any, narrow: bool = False) -> Any:
    """Returns a structure with its host arrays replaced by device arrays."""
    return adapt_noting(heap, structure, narrow)[0]


def adapt_noting(heap: Heap, structure: Any, narrow: bool) -> tuple[Any, list[Any]]:
    """Returns the adapted structure, and the arrays and tables that were uploaded. Leaves out
    device arrays that the caller's structure already contained."""
    made: list[Any] = []

    def adapted(leaf: Any) -> Any:
        if is_host_array(leaf):
            array = heap.array(leaf, "float32" if narrow and is_wide(leaf) else None)
            made.append(array)
            return array
        if is_table(leaf):
            table = uploaded(heap, leaf, narrow)
            made.append(table)
            return table
        refuse_column(leaf)
        return leaf

    try:
        return walk(structure, adapted), made
    except BaseException:
        # Free the arrays now, because the traceback keeps frames alive, and the frames keep the
        # arrays.
        for one in made:
            one.free()
        raise


def host(structure: Any) -> Any:
    """Moves a structure to the host. This is the inverse of `Heap.adapt`.

    Each `gpuheap.Array` becomes a NumPy array, or nested lists if NumPy is not installed. An
    adapted table or column becomes its original type again, such as a DataFrame, a Series or a
    RecordBatch. Everything else stays unchanged. Waits for the work on the arrays.

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
            return restored(leaf) if isinstance(leaf, (Column, Table)) else leaf
        try:
            return leaf.to_numpy()
        except ImportError:
            return leaf.to_list()

    return walk(structure, download)


def unpickled(elements: Any) -> Array:
    """Restores a pickled array by an upload of its elements to the default heap."""
    from gpuheap._heap import default_heap

    return default_heap().array(elements)


def walk(structure: Any, leaf: Callable[[Any], Any]) -> Any:
    """Rebuilds dicts, lists, tuples, named tuples and dataclasses with their leaves replaced. An
    object that occurs twice is replaced once. Uses no recursion, so the nesting depth is not
    limited."""
    return Walk(leaf).rebuilt(structure)


class Open:
    """A container whose parts are being replaced."""

    __slots__ = ("container", "made", "parts", "step")

    def __init__(self, container: Any, step: Step | None, parts: list[tuple[Step, Any]]) -> None:
        self.container = container
        #: Key, index or field of this container in its parent.
        self.step = step
        self.parts = parts
        self.made: list[Any] = []


class Step(NamedTuple):
    """Name of a part in its container."""

    name: Any
    is_field: bool = False

    def __str__(self) -> str:
        if self.is_field:
            return f".{self.name}"
        try:
            return f"[{self.name!r}]"
        except Exception:
            return f"[<{type(self.name).__qualname__}>]"


class Walk:
    """State of a walk. This is a class, because nested functions would refer to each other, and so
    keep arrays alive until the collector runs."""

    def __init__(self, leaf: Callable[[Any], Any]) -> None:
        self.leaf = leaf
        # Replaced objects and their replacements, keyed by the original's `id`.
        self.done: dict[int, tuple[Any, Any]] = {}
        # Containers whose parts are being replaced, the outermost first, and their `id`s.
        self.open: list[Open] = []
        self.open_numbers: set[int] = set()
        # Key, index or field of the current part in the innermost open container.
        self.step: Step | None = None

    def rebuilt(self, structure: Any) -> Any:
        """Returns the structure with its leaves replaced."""
        try:
            is_made, made = self.begin(structure)
            while self.open:
                inner = self.open[-1]
                if is_made:
                    inner.made.append(made)
                if len(inner.made) < len(inner.parts):
                    self.step, part = inner.parts[len(inner.made)]
                    is_made, made = self.begin(part)
                else:
                    is_made, made = True, self.end()
            return made
        except (TypeError, ValueError) as error:
            path = self.path()
            if path and not getattr(error, "__notes__", None):
                error.add_note(f"in the structure: {path}")
            raise

    def begin(self, part: Any) -> tuple[bool, Any]:
        """Replaces a part of the structure, and returns `True` and the replacement. Only opens a
        container, and returns `False` and `None`, because its parts are replaced first."""
        key = id(part)
        if key in self.done:
            return True, self.done[key][1]
        if key in self.open_numbers:
            raise ValueError(
                f"the structure contains itself at {self.path() or 'its root'}; cut the circle first"
            )
        parts = parts_of(part)
        if parts is not None:
            self.open.append(Open(part, self.step, parts))
            self.open_numbers.add(key)
            return False, None
        made = self.leaf(part)
        self.done[key] = part, made
        return True, made

    def end(self) -> Any:
        """Closes the innermost open container. Returns a container of the same type with the
        replaced parts."""
        inner = self.open.pop()
        self.step = inner.step
        key = id(inner.container)
        self.open_numbers.discard(key)
        made = of_parts(inner.container, inner.parts, inner.made)
        self.done[key] = inner.container, made
        return made

    def path(self) -> str:
        """Returns the path from the adapted object to the current part, such as `['a'][0]`."""
        steps = [*(one.step for one in self.open), self.step]
        named = [step for step in steps if step is not None]
        if len(named) > MOST_STEPS:
            return f"{''.join(map(str, named[: MOST_STEPS // 2]))}...{''.join(map(str, named[-MOST_STEPS // 2 :]))}"
        return "".join(map(str, named))


#: Maximum number of steps of a path that an error shows.
MOST_STEPS = 40


def parts_of(part: Any) -> list[tuple[Step, Any]] | None:
    """Returns the parts of a container. Returns `None` for other objects."""
    if isinstance(part, dict):
        return [(Step(name), value) for name, value in part.items()]
    if isinstance(part, (list, tuple)):
        return [(Step(nth), value) for nth, value in enumerate(part)]
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return [
            (Step(field.name, True), getattr(part, field.name))
            for field in dataclasses.fields(part)
        ]
    return None


def of_parts(part: Any, parts: list[tuple[Step, Any]], made: list[Any]) -> Any:
    """Makes a container of the same type as `part`, with `made` in place of `parts`."""
    kind = type(part)
    if isinstance(part, (list, tuple)):
        return kind(*made) if hasattr(part, "_fields") else kind(made)
    named = {step.name: value for (step, _), value in zip(parts, made)}
    if not isinstance(part, dict):
        return with_fields(part, named)
    if kind is dict:
        return named
    # Copy a subclass of dict (OrderedDict, defaultdict, Counter), so that the result keeps settings
    # such as the default factory. Set the items by dict's own method, because a subclass may
    # override it.
    import copy

    same = copy.copy(part)
    for name, value in named.items():
        dict.__setitem__(same, name, value)
    return same


def with_fields(part: Any, fields: dict[str, Any]) -> Any:
    """Copies a dataclass with other field values. Does not run `__init__`, which may reject device
    arrays."""
    import copy

    same = copy.copy(part)
    for name, value in fields.items():
        object.__setattr__(same, name, value)
    return same


def is_host_array(part: Any) -> bool:
    """Returns `True` for an object that becomes a device array. Such an object has the buffer
    protocol, and is neither `bytes` nor a NumPy scalar."""
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


def is_table(part: Any) -> bool:
    """Returns `True` for a table or a column of another library, such as a DataFrame, a Series or a
    RecordBatch."""
    kind = type(part)
    if kind.__module__.startswith("gpuheap."):
        return False
    if hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__"):
        return True
    # pandas 2 has an Arrow interface for DataFrames, and none for Series.
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "Series"


def refuse_column(part: Any) -> None:
    """Raises `TypeError` for a table or a column that has neither the buffer protocol nor Arrow's
    interface for host memory."""
    kind = type(part)
    library = kind.__module__.partition(".")[0]
    if library == "pandas" and hasattr(kind, "__array__"):
        raise TypeError(
            f"pandas.{kind.__qualname__} has no buffer and no Arrow interface (DataFrames have it from "
            "pandas 2.2 on); pass x.to_numpy(), or pandas.Series(x)"
        )
    if library == "polars" and hasattr(kind, "collect"):
        raise TypeError(
            f"polars.{kind.__qualname__} is a query without rows; pass x.collect(), or for batches "
            "x.collect_batches()"
        )
    if hasattr(kind, "__arrow_c_device_array__"):
        raise TypeError(
            f"{library}.{kind.__qualname__} is a table in the memory of a device, which is not "
            "uploaded; make a table of its columns: gpuheap.Table({name: gpuheap.from_dlpack(column)})"
        )


def is_wide(part: Any) -> bool:
    """Returns `True` for an array of float64."""
    with memoryview(part) as view:
        return view.itemsize == 8 and view.format.lstrip("@=<") == "d"
