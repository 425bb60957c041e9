"""Makes all libraries of a process allocate from gpuheap, with one heap for each device."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gpuheap import _gpuheap, _heap
from gpuheap._errors import BadInput

Undo = Callable[[], object]


class Outcome(NamedTuple):
    """The outcome of `install` for one library. `text` names the action, or the reason why nothing
    was done."""

    done: bool
    text: str

    def __str__(self) -> str:
        return self.text if self.done else f"not installed: {self.text}"


class Installed:
    """The result of `gpuheap.install`. `heap` is the first device's heap, `heaps` has all heaps by
    device name, and `libraries` has an `Outcome` for each library."""

    def __init__(
        self, heaps: list[_heap.Heap], before: _heap.Heap | None, given: tuple[Any, ...]
    ) -> None:
        #: Heap of the first device. The same heap is the default heap.
        self.heap = heaps[0]
        #: Heaps of all devices, keyed by the device's name.
        self.heaps = {heap.device.name: heap for heap in heaps}
        self._given = given
        self.libraries: dict[str, Outcome] = {}
        self._before = before
        self._undos: list[tuple[str, Undo | None]] = []

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the heaps, without the limit."""
        return self._given[-1]

    def serve(self, libraries: str | Iterable[str]) -> None:
        """Installs the heaps in the libraries that do not use them yet."""
        asked = libraries != "auto"
        for name in _names(libraries):
            if name in self.libraries:
                continue
            outcome = self.libraries[name] = _served(self, name, asked)
            if asked and not outcome.done:
                text = f"{name} takes no memory from gpuheap's heap: {outcome.text}"
                warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _failures(self) -> dict[str, str]:
        """Returns the imported libraries that take no memory from a heap, each with the reason."""
        failed = {name: found.text for name, found in self.libraries.items() if not found.done}
        return {name: text for name, text in failed.items() if _LIBRARIES[name][0] in sys.modules}

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
        _heap.set_other_heaps(())
        _current = None
        return kept

    def __str__(self) -> str:
        return "\n".join(
            [
                *map(_described, self.heaps.values()),
                *(f"  {name}: {done}" for name, done in self.libraries.items()),
            ]
        )

    __repr__ = __str__


def _described(heap: _heap.Heap) -> str:
    hard, _ = heap.limits
    text = f"{heap!r}, {f'limit {_heap.size(hard)}' if hard is not None else 'no limit'}"
    total = heap.total_limit
    return text if total is None else f"{text}, total limit {_heap.size(total)}"


_current: Installed | None = None


def installed() -> Installed | None:
    """Returns the result of the last `install`. Returns `None` before `install` and after
    `undo`."""
    return _current


def install(
    limit: int | str | Mapping[Any, int | str | None] | None = "80%",
    libraries: str | Iterable[str] = "auto",
    *,
    heap: _heap.Heap | None = None,
    device: Any = None,
    devices: str | Iterable[Any] | None = None,
    total_limit: int | str | None = None,
    **settings: Any,
) -> Installed:
    """Makes one heap serve the libraries of the process, and makes it the default heap. Call it
    before anything uses the GPU.

    The heap is `heap`, or a new heap of `device` with `limit` and the `settings` of `gpuheap.Heap`.
    With `devices`, each device gets a heap: `"all"` GPUs, or a list of devices, by number, by name
    or as `gpuheap.Device`. The first heap is the default heap. `limit` then applies to each device,
    or is a dict with the limit of each device. `total_limit` bounds the memory of all devices
    together: bytes, a text such as `"20GiB"`, or `"80%"` of their memory. `gpuheap.status()`,
    `flush()`, `meter()` and `scope()` count all of these heaps. `install` opens a CUDA context on
    each device.

    With `publish=True`, other processes of this user can read the figures and lines of the heaps:
    `gpuheap status` shows them. With `publish="control"`, `gpuheap free --yes` can also flush them.

    `libraries` is `"auto"` for all installed libraries, or some of these names: `cuda.core`,
    `cupy`, `jax`, `numba`, `pycuda`, `rmm`, `torch`. `install` imports these libraries. If one
    library cannot be served, `install` still serves the others: print the result to see each
    outcome. If that library was named, a `RuntimeWarning` gives the reason. A second call with the
    same arguments returns the first result, as does `gpuheap.installed()`.

    >>> import gpuheap
    >>> installed = gpuheap.install("512MiB", libraries=[], device="emulated:1GiB")
    >>> gpuheap.default_heap().limits
    (536870912, None)
    >>> installed.undo()
    {}
    """
    global _current
    if not isinstance(libraries, str):
        # The names are read twice, and an iterator yields them only once.
        libraries = list(libraries)
    names = _names(libraries)
    chosen = _chosen(devices)
    # Compare devices by name, because opening a device again makes another object.
    names_of = [getattr(one, "name", one) for one in (device, *(chosen or ()))]
    given = (limit, total_limit, names, libraries == "auto", heap, names_of, settings)
    if _current is not None:
        if _current._given == given:
            return _current
        raise BadInput(
            "gpuheap is installed already, with other arguments; call gpuheap.installed().undo() first, or use "
            "gpuheap.installed()"
        )
    others = (device, chosen, total_limit, settings or None)
    if heap is not None and (limit != "80%" or any(each is not None for each in others)):
        raise BadInput(
            "limit, device and settings are for a new heap; set them where you make the heap that you pass"
        )
    if chosen is not None and device is not None:
        raise BadInput("pass device= for one device, or devices= for several")
    heaps = [heap] if heap is not None else _made(chosen or [device], limit, total_limit, settings)
    made = _current = Installed(heaps, _heap.set_default_heap(heaps[0]), given)
    _heap.set_other_heaps(tuple(heaps[1:]))
    try:
        made.serve(libraries)
    except BaseException:
        # Undo here, for example after Ctrl-C: the caller has no object to call `undo` on.
        made.undo()
        raise
    return made


def _chosen(devices: str | Iterable[Any] | None) -> list[Any] | None:
    """Returns the devices to serve; `None` without `devices`."""
    if devices is None:
        return None
    if devices != "all":
        chosen = [devices] if isinstance(devices, str) else list(devices)
        if not chosen:
            raise BadInput('devices= names no device; pass "all", or devices such as [0, 1]')
        return chosen
    listed = (line.partition(": ")[0] for line in _gpuheap.devices())
    # Without a GPU, the default device is emulated.
    return [name for name in listed if name.startswith("cuda:")] or [None]


def _made(
    devices: list[Any], limit: Any, total_limit: Any, settings: dict[str, Any]
) -> list[_heap.Heap]:
    """Makes a heap for each device. The heaps share their scopes."""
    opened = [_device(each) for each in devices]
    names = [device.name for device in opened]
    real = [device.ordinal for device in opened if not device.emulated]
    if len(set(real)) < len(real):
        raise BadInput(f"devices= names a device twice: {', '.join(names)}")
    # Libraries copy between devices whatever allocator the memory has, so each device gets access
    # to the other devices' memory. Between devices without such access, `cuMemcpy` copies only
    # memory that `cuMemAlloc` allocated. The pool `split` has such memory.
    pairs = [(one, other) for one in opened for other in opened if other is not one]
    reached = [one._can_reach(other) for one, other in pairs]
    if not all(reached) and not os.environ.get("GPUHEAP_POOL"):
        settings = {"pool": "split", **settings}
    heaps: list[_heap.Heap] = []
    if total_limit is not None:
        total_limit = _gpuheap._size(total_limit, sum(device.total_memory for device in opened))
    for device, given in zip(opened, _limits(opened, limit)):
        first = heaps[0] if heaps else None
        total = total_limit if first is None or total_limit is None else first
        heaps.append(_heap.Heap(device, limit=given, total_limit=total, _beside=first, **settings))
    return heaps


def _device(given: Any) -> _gpuheap.Device:
    if isinstance(given, _gpuheap.Device):
        return given
    return _gpuheap.Device(f"cuda:{given}" if isinstance(given, int) else given)


def _limits(devices: list[_gpuheap.Device], limit: Any) -> list[int | str | None]:
    """Returns the limit of each device."""
    if not isinstance(limit, Mapping):
        return [limit] * len(devices)
    by_name = {
        f"cuda:{key}" if isinstance(key, int) else key: value for key, value in limit.items()
    }
    names = [device.name for device in devices]
    for name in names:
        if name not in by_name:
            raise BadInput(f"limit= has no limit for {name}; add one, or None for no limit")
    for name in by_name:
        if name not in names:
            raise BadInput(f"limit= names {name!r}, which is none of {', '.join(names)}")
    return [by_name[name] for name in names]


def _served(made: Installed, name: str, asked: bool) -> Outcome:
    module, serve = _LIBRARIES[name]
    if not asked and not _is_there(module):
        return Outcome(False, f"{module} is not there")
    try:
        text, undo = serve(list(made.heaps.values()))
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


def _cuda_core(heaps: list[_heap.Heap]) -> tuple[str, Undo]:
    from cuda.core import Device  # pyright: ignore[reportAttributeAccessIssue]

    from gpuheap import cuda_core

    made: list[Any] = []

    def undo() -> None:
        while made:
            cuda_core.uninstall(made.pop())

    try:
        # The first device is current afterwards.
        for heap in reversed(heaps):
            # A device has no memory resource before it is made current.
            Device(heap.device.ordinal).set_current()
            made.append(cuda_core.install(heap))
    except BaseException:
        undo()
        raise
    return f"memory resource of {_of_devices(heaps)}", undo


def _cupy(heaps: list[_heap.Heap]) -> tuple[str, Undo]:
    from gpuheap import cupy

    cupy.install(heaps)
    return "allocator of device and pinned memory", cupy.uninstall


def _jax(heaps: list[_heap.Heap]) -> tuple[str, Undo]:
    from gpuheap import jax

    undo = jax.configure(heap=heaps)
    return "counted as foreign, limited to what the heap leaves", undo


def _numba(heaps: list[_heap.Heap]) -> tuple[str, Undo | None]:
    from gpuheap import numba

    numba.install(heaps[0])
    return "memory manager", None


def _pycuda(heaps: list[_heap.Heap]) -> tuple[str, Undo | None]:
    raise BadInput(
        "PyCUDA has no allocator for all; pass allocator=gpuheap.pycuda.allocator() to its arrays"
    )


def _rmm(heaps: list[_heap.Heap]) -> tuple[str, Undo]:
    from gpuheap import rmm

    rmm.install(heaps)
    how = "by callback" if rmm.native() is None else "native"
    return f"resource of {_of_devices(heaps)}, {how}", rmm.uninstall


def _torch(heaps: list[_heap.Heap]) -> tuple[str, Undo | None]:
    from gpuheap import torch

    torch.install(heaps)
    return "allocator", None


def _of_devices(heaps: list[_heap.Heap]) -> str:
    return "the device" if len(heaps) == 1 else f"{len(heaps)} devices"


#: Hooks, keyed by library. An entry has the name of the library's module, and the function that
#: installs the hook.
_LIBRARIES: dict[str, tuple[str, Callable[[list[_heap.Heap]], tuple[str, Undo | None]]]] = {
    "torch": ("torch", _torch),
    "rmm": ("rmm", _rmm),
    "cupy": ("cupy", _cupy),
    "numba": ("numba_cuda", _numba),
    "cuda.core": ("cuda.core", _cuda_core),
    "pycuda": ("pycuda", _pycuda),
    "jax": ("jax", _jax),
}
