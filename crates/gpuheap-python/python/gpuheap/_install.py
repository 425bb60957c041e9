"""Makes one heap serve all libraries of a process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpuheap import _heap
from gpuheap._errors import BadInput

Undo = Callable[[], object]


class Outcome(NamedTuple):
    """The outcome of `install` for one library. `text` names the action, or why it was not done."""

    done: bool
    text: str

    def __str__(self) -> str:
        return self.text if self.done else f"not installed: {self.text}"


class Installed:
    """The result of `gpuheap.install`: `heap`, and `libraries` with an `Outcome` for each
    library."""

    def __init__(self, heap: _heap.Heap, before: _heap.Heap | None, given: tuple[Any, ...]) -> None:
        self.heap = heap
        self._given = given
        self.libraries: dict[str, Outcome] = {}
        self._before = before
        self._undos: list[tuple[str, Undo | None]] = []

    def undo(self) -> dict[str, str]:
        """Restores the earlier allocators in reverse order, and the earlier default heap. Memory
        that libraries hold stays valid. Returns the libraries that keep the heap, each with the
        reason. A second call does nothing."""
        global _current
        if _current is not self:
            return {}
        kept = {}
        for name, undo in reversed(self._undos):
            try:
                if undo is None:
                    raise BadInput(f"{name} keeps its allocator until the process ends")
                undo()
            except Exception as error:
                kept[name] = str(error)
        self._undos.clear()
        _heap.set_default_heap(self._before)
        _current = None
        return kept

    def __str__(self) -> str:
        hard, _ = self.heap.limits
        limit = f"limit {_heap.size(hard)}" if hard is not None else "no limit"
        return "\n".join(
            [
                f"{self.heap!r}, {limit}",
                *(f"  {name}: {done}" for name, done in self.libraries.items()),
            ]
        )

    __repr__ = __str__


_current: Installed | None = None


def installed() -> Installed | None:
    """Returns the result of the last `install`. Returns `None` before `install` and after
    `undo`."""
    return _current


def install(
    limit: int | str | None = "80%",
    libraries: str | Iterable[str] = "auto",
    *,
    heap: _heap.Heap | None = None,
    device: Any = None,
    **settings: Any,
) -> Installed:
    """Makes one heap serve the libraries of the process, and makes it the default heap. Call it
    before anything uses the GPU.

    The heap is `heap`, or a new heap of `device` with `limit` and the `settings` of `gpuheap.Heap`.
    `libraries` is `"auto"` for all installed libraries, or some of these names: `cuda.core`,
    `cupy`, `jax`, `numba`, `pycuda`, `rmm`, `torch`. `install` imports them. If one library cannot
    be served, the others still are: print the result to see each outcome. A second call with the
    same arguments returns the first result, as does `gpuheap.installed()`.

    >>> import gpuheap
    >>> installed = gpuheap.install("512MiB", libraries=[], device="emulated:1GiB")
    >>> gpuheap.default_heap().limits
    (536870912, None)
    >>> installed.undo()
    {}
    """
    global _current
    names = _names(libraries)
    # Compares devices by name: each opening of a device makes a new object.
    given = (limit, names, libraries == "auto", heap, getattr(device, "name", device), settings)
    if _current is not None:
        if _current._given == given:
            return _current
        raise BadInput(
            "gpuheap is installed already, with other arguments; call gpuheap.installed().undo() first, or use "
            "gpuheap.installed()"
        )
    if heap is None:
        heap = _heap.Heap(device, limit=limit, **settings)
    elif device is not None or settings or limit != "80%":
        raise BadInput(
            "limit, device and settings are for a new heap; set them where you make the heap that you pass"
        )
    made = _current = Installed(heap, _heap.set_default_heap(heap), given)
    try:
        for name in names:
            made.libraries[name] = _served(made, name, asked=libraries != "auto")
    except BaseException:
        # An interrupt during an import. The caller has no object yet to call `undo` on.
        made.undo()
        raise
    return made


def _served(made: Installed, name: str, asked: bool) -> Outcome:
    module, serve = _LIBRARIES[name]
    if not asked and not _is_there(module):
        return Outcome(False, f"{module} is not there")
    try:
        text, undo = serve(made.heap)
    except Exception as error:
        # A library that is broken or too old does not stop the others.
        return Outcome(False, str(error) or type(error).__name__)
    made._undos.append((name, undo))
    return Outcome(True, text)


def _names(libraries: str | Iterable[str]) -> list[str]:
    if libraries == "auto":
        return list(_LIBRARIES)
    names = [libraries] if isinstance(libraries, str) else list(dict.fromkeys(libraries))
    for name in names:
        if name not in _LIBRARIES:
            raise BadInput(
                f'gpuheap has no hook for {name!r}; it has {", ".join(_LIBRARIES)}, or "auto" for all'
            )
    return names


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _cuda_core(heap: _heap.Heap) -> tuple[str, Undo]:
    from cuda.core import Device  # pyright: ignore[reportAttributeAccessIssue]

    from gpuheap import cuda_core

    # A device has no memory resource before it is made current.
    Device(heap.device.ordinal).set_current()
    made = cuda_core.install(heap)
    return "memory resource of the device", lambda: cuda_core.uninstall(made)


def _cupy(heap: _heap.Heap) -> tuple[str, Undo]:
    from gpuheap import cupy

    cupy.install(heap)
    return "allocator of device and pinned memory", cupy.uninstall


def _jax(heap: _heap.Heap) -> tuple[str, Undo]:
    from gpuheap import jax

    undo = jax.configure(heap=heap)
    return "counted as foreign, limited to what the heap leaves", undo


def _numba(heap: _heap.Heap) -> tuple[str, Undo | None]:
    from gpuheap import numba

    numba.install(heap)
    return "memory manager", None


def _pycuda(heap: _heap.Heap) -> tuple[str, Undo | None]:
    raise BadInput(
        "PyCUDA has no allocator for all; pass allocator=gpuheap.pycuda.allocator() to its arrays"
    )


def _rmm(heap: _heap.Heap) -> tuple[str, Undo]:
    from gpuheap import rmm

    rmm.install(heap)
    return "resource of the device, by callback", rmm.uninstall


def _torch(heap: _heap.Heap) -> tuple[str, Undo | None]:
    from gpuheap import torch

    torch.install(heap)
    return "allocator", None


#: Hooks, keyed by library. Each is the module that shows whether the library is installed, and the
#: function that installs the hook.
_LIBRARIES: dict[str, tuple[str, Callable[[_heap.Heap], tuple[str, Undo | None]]]] = {
    "torch": ("torch", _torch),
    "rmm": ("rmm", _rmm),
    "cupy": ("cupy", _cupy),
    "numba": ("numba_cuda", _numba),
    "cuda.core": ("cuda.core", _cuda_core),
    "pycuda": ("pycuda", _pycuda),
    "jax": ("jax", _jax),
}
