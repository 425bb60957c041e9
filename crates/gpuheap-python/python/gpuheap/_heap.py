"""Defines the class `Heap`, and the reports of its status, flushes and leaks."""

# By default, pyright rejects named tuples that declare the types of their fields in the class.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import os
import sys
from _thread import RLock
from collections import namedtuple

from gpuheap import _gpuheap

# `typing`, `json` and `html` are not imported: they take longer than importing all of gpuheap.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gpuheap._holders import Held
    from gpuheap._meter import Meter
    from gpuheap._record import Recording
    from gpuheap._scopes import Scope


class Line(namedtuple("Line", ("file", "line", "function", "allocations", "bytes", "threads"))):
    """A line of the program, with its outstanding memory. `threads` has the names of the threads
    that allocated the memory."""

    __slots__ = ()
    if TYPE_CHECKING:
        file: str
        line: int
        function: str
        allocations: int
        bytes: int
        threads: tuple[str, ...]

    def __str__(self) -> str:
        count = "1 allocation" if self.allocations == 1 else f"{self.allocations} allocations"
        names = f"{', '.join(self.threads[:3])}{' and others' if len(self.threads) > 3 else ''}"
        thread = f", thread{'s' if len(self.threads) > 1 else ''} {names}" if names else ""
        return f"{size(self.bytes)} in {count}, {self.file}:{self.line} ({self.function}){thread}"


class Report:
    """Figures of a heap. `str()` returns them for people, `to_dict()` for programs, and a notebook
    shows a table. Each figure is an attribute too."""

    def __init__(self, figures: dict[str, Any], text: str) -> None:
        self._figures = figures
        self._text = text

    def to_dict(self) -> dict[str, Any]:
        return self._figures

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._figures[name]
        except KeyError:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            ) from None

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        import html

        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{html.escape(show(value))}</td></tr>"
            for name, value in self._figures.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        )
        return f"<pre>{html.escape(str(self))}</pre><details><summary>Figures</summary><table>{rows}</table></details>"


class Status(Report):
    """Memory of a heap and its device at one moment, returned by `Heap.status()`."""


class Released(namedtuple("Released", ("name", "bytes"))):
    """Objects that a flush released, and the bytes that they freed."""

    __slots__ = ()
    if TYPE_CHECKING:
        name: str
        bytes: int

    def __str__(self) -> str:
        return f"released {size(self.bytes)}: {self.name}"


class FlushReport(Report):
    """Report of the memory that a flush returned, and of the remaining memory. `Heap.flush()` and
    `gpuheap.flush()` return it."""

    #: Objects that `gpuheap.flush(tracebacks=True)` released.
    released: list[Released] = []

    def __str__(self) -> str:
        return "\n".join([*map(str, self.released), self._text])

    __repr__ = __str__

    @property
    def given_back(self) -> int:
        """Bytes returned to the driver."""
        reports = self._figures.get("devices", {"": self._figures}).values()
        return sum(kind["given_back"] for report in reports for kind in report["kinds"])


class Leaks(tuple[Line, ...]):
    """Lines that hold memory, most bytes first, returned by `Heap.leaks()`."""

    @property
    def bytes(self) -> int:
        return sum(line.bytes for line in self)

    def __str__(self) -> str:
        if not self:
            return "no memory is outstanding"
        return "\n".join(str(line) for line in self)


class Heap(_gpuheap.Heap):
    __doc__ = _gpuheap.Heap.__doc__

    def status(self) -> Status:
        """Returns figures of the heap and its device. If the program uses RMM, adds the figures of
        RMM's adaptors. Does not wait for the GPU."""
        import json

        figures, text = self._status()
        known = json.loads(figures)
        if "rmm" in sys.modules:
            from gpuheap._rmm_adaptors import adaptors, sentence

            known["rmm"] = adaptors(self.device)
            text = "\n".join([text, *map(sentence, known["rmm"])])
        return Status(known, text)

    def flush(self) -> FlushReport:
        """Returns all cached memory to the driver. The result reports the returned and the
        remaining memory. Waits for frees in flight."""
        import json

        figures, text = self._flush()
        return FlushReport(json.loads(figures), text)

    def adapt(self, structure: Any, narrow: bool = False) -> Any:
        """Returns a copy of a structure in which host arrays are replaced by device arrays.
        Rebuilds dicts, lists, tuples, named tuples and dataclasses. Host arrays are objects with
        the buffer protocol (NumPy's arrays, `array.array`, `memoryview`). Numbers, strings and
        `bytes` stay. With `narrow`, float64 becomes float32. `gpuheap.host` moves a structure
        back."""
        from gpuheap._adapt import adapt

        return adapt(self, structure, narrow)

    def leaks(self) -> Leaks:
        """Returns the lines that hold memory, most bytes first. Needs `track="lines"`."""
        return Leaks(Line(*line) for line in self._outstanding())

    def held(self) -> list[Held]:
        """Returns every outstanding allocation with its holders, most bytes first. Needs
        `track="lines"`. Do not call this in loops: it examines every object of the program.

        >>> import gpuheap
        >>> heap = gpuheap.Heap("emulated:1GiB", track="lines")
        >>> buffers = [heap.alloc(1000)]
        >>> "buffers[0]" in str(heap.held()[0])
        True
        """
        from gpuheap._holders import held

        return held(self)

    def meter(self) -> Meter:
        """Begins to measure the peak of this heap's live memory, and the memory that each line
        keeps.

        >>> import gpuheap
        >>> heap = gpuheap.Heap("emulated:1GiB", track="lines")
        >>> meter = heap.meter()
        >>> kept = heap.alloc(1000)
        >>> heap.alloc(500).free()
        >>> reading = meter.read()
        >>> reading.peak, reading.kept, reading.lines[0].bytes
        (1500, 1000, 1000)
        """
        from gpuheap._meter import Meter

        return Meter(self)

    def record(self, path: str | os.PathLike[str]) -> Recording:
        """Records this heap's allocations and frees into a file, as `gpuheap.record` does."""
        from gpuheap._record import Recording

        return Recording([self], path)

    def scope(
        self,
        name: str,
        limit: int | str | None = None,
        on_leak: str | Callable[[Scope], object] = "warn",
    ) -> Scope:
        """Opens a scope, as in `with heap.scope("load", limit="6 GiB"):`. The result is also a
        decorator.

        At its end, the scope frees the buffers that the code inside requested. Each free is ordered
        after the work of the buffer's stream. An exception ends the scope too. A buffer that was
        passed to `Scope.keep` or returned from a decorated function is not freed. Objects of other
        libraries are not freed, but reported. The code inside is all code that the block calls.
        Threads and asyncio tasks that the block starts are outside. If a generator opened the
        scope, code that runs while the generator is suspended is outside too.

        `limit` is a budget of device memory: bytes, or a text as for a heap. A request beyond the
        limit raises `gpuheap.OutOfMemory` with the scope's name. The limit counts requests of
        Python code, made directly or through CuPy, Numba, cuda.core and PyCUDA. Requests of RMM and
        PyTorch count only against the heap's limit, because their allocators must not call Python.

        `on_leak` is the reaction if memory outlives the scope: `"warn"` (a `gpuheap.LeakWarning`),
        `"raise"` (`gpuheap.Leaked`), `"ignore"`, or a function that is called with the scope. If an
        exception ends the scope, the exception gets a note instead. If the heap has
        `track="lines"`, the report names the lines.

        A scope of a heap that `install(devices=...)` made counts the heaps of all its devices.

        >>> import gpuheap
        >>> heap = gpuheap.Heap("emulated:1GiB")
        >>> with heap.scope("load", limit="1 MiB") as scope:
        ...     buffer = heap.alloc(1000)
        >>> scope.own_peak, scope.leaked_bytes, buffer.freed
        (1000, 0, True)
        """
        from gpuheap._scopes import Scope

        return Scope(self, name, limit, on_leak)

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()


_default: Heap | None = None
_make_default: Callable[[], Heap] = Heap
#: Heaps of the other devices that `install(devices=...)` serves.
_others: tuple[Heap, ...] = ()
# Reentrant, because a signal handler may request the default heap while this thread makes it.
_default_lock = RLock()


def _after_fork() -> None:
    global _default_lock
    _default_lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


def default_heap() -> Heap:
    """Returns the heap that `gpuheap.status()`, `gpuheap.flush()` and the modules for libraries
    use. `set_default_heap` or `install` sets it. If neither was called, makes a heap for the
    default device with the settings of the environment."""
    global _default
    with _default_lock:
        if _default is None:
            made = _make_default()
            # A signal handler may have made the default heap meanwhile. Keep that heap.
            _default = made if _default is None else _default
        return _default


def make_default_by(make: Callable[[], Heap]) -> None:
    """Sets the function by which `default_heap` makes the heap at its first use."""
    global _make_default
    _make_default = make


def peek_default_heap() -> Heap | None:
    """Returns the default heap, or `None` if there is no default heap yet."""
    return _default


def set_default_heap(heap: Heap | None) -> Heap | None:
    """Sets the heap that `default_heap` returns. Returns the previous heap."""
    if heap is not None and not isinstance(heap, Heap):
        raise TypeError(f"the default heap is a gpuheap.Heap or None, not {type(heap).__name__}")
    global _default
    with _default_lock:
        before, _default = _default, heap
        return before


def listed(heap: Heap | list[Heap] | None) -> list[Heap]:
    """Returns the heaps that a hook serves: the passed heaps, or the default heap."""
    if isinstance(heap, list) and heap:
        return heap
    return [heap if isinstance(heap, Heap) else default_heap()]


def set_other_heaps(heaps: tuple[Heap, ...]) -> None:
    """Sets the heaps that `known_heaps` returns in addition to the default heap."""
    global _others
    _others = heaps


def known_heaps() -> list[Heap]:
    """Returns the default heap and the heaps of the other devices that `install` serves. Makes no
    heap."""
    heap = _default
    return [] if heap is None else [heap, *(other for other in _others if other is not heap)]


def heaps_with(heap: Heap) -> list[Heap]:
    """Returns the heaps that share the scopes of `heap`."""
    known = known_heaps()
    return known if heap in known else [heap]


def by_device(reports: Sequence[tuple[Heap, Report]]) -> tuple[dict[str, Any], str]:
    """Merges the reports of several devices. Returns the figures and the text."""
    names = [heap.device.name for heap, _ in reports]
    texts = [f"{name}\n{report}" for name, (_, report) in zip(names, reports)]
    figures = {name: report.to_dict() for name, (_, report) in zip(names, reports)}
    return {"devices": figures}, "\n\n".join(texts)


def status() -> Status:
    """Returns figures of the default heap and its device. If `install(devices=...)` serves several
    devices, returns the figures of each device, keyed by its name, in `status().devices`."""
    default_heap()
    reports = [(heap, heap.status()) for heap in known_heaps()]
    return reports[0][1] if len(reports) == 1 else Status(*by_device(reports))


def size(nbytes: int) -> str:
    """Returns a size as text for people, such as `512 MiB`."""
    return f"-{_gpuheap._size_text(-nbytes)}" if nbytes < 0 else _gpuheap._size_text(nbytes)


def show(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
