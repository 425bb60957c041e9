"""GPU memory that can be accounted for, and that comes back.

>>> import gpuheap
>>> heap = gpuheap.Heap("emulated:1GiB", limit="512MiB", track="lines")
>>> buffer = heap.alloc(1_000_000)
>>> heap.stats()["live"]
1000000
>>> buffer.free()
>>> heap.flush().given_back > 0
True

Importing this package opens no device and imports no GPU library. It loads the extension module at
the first use of a name that needs it. The modules for PyTorch, CuPy, Numba, RMM, cuda.core, PyCUDA,
Dask and Ray are `gpuheap.torch`, `gpuheap.cupy` and so on, imported at their first use.
`gpuheap.install()` makes each installed library allocate from gpuheap's heap.
"""

from __future__ import annotations

# `typing` is not imported: its import takes longer than importing all of gpuheap.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuheap._adapt import host
    from gpuheap._batches import batches
    from gpuheap._errors import (
        BadInput,
        Bug,
        DriverError,
        DryRunFailed,
        EmulatedDeviceWarning,
        Error,
        Freed,
        Gone,
        Leaked,
        LeakWarning,
        OutOfMemory,
    )
    from gpuheap._gpuheap import (
        Array,
        Buffer,
        Device,
        HostBuffer,
        Stream,
        __version__,
        devices,
        from_dlpack,
    )
    from gpuheap._dry_run import CardFit, DryRun, dry_run
    from gpuheap._explain import Explanation, explain, replay
    from gpuheap._flush import flush
    from gpuheap._groups import GroupBy, Groups, group_by
    from gpuheap._heap import (
        FlushReport,
        Heap,
        Leaks,
        Line,
        Released,
        Status,
        default_heap,
        set_default_heap,
        status,
    )
    from gpuheap._holders import Held, Holder, holders
    from gpuheap._install import Installed, Outcome, install, installed
    from gpuheap._meter import Meter, Reading, meter
    from gpuheap._record import Recording, record
    from gpuheap._table import Column, Copies, Table
    from gpuheap._scopes import Leak, Scope, current_scope, scope, thread_scope
    from gpuheap._watch import Watch, watch
    from gpuheap import (
        cuda_core,
        cupy,
        dask,
        emulate,
        ipython,
        jax,
        numba,
        pycuda,
        pytest_plugin,
        ray,
        rmm,
        torch,
    )

# Public names, keyed by module. A module is imported at its first use, because every run of pytest
# loads this package for its plugin.
_MODULES = {
    "_adapt": ("host",),
    "_batches": ("batches",),
    "_errors": (
        "BadInput",
        "Bug",
        "DriverError",
        "DryRunFailed",
        "EmulatedDeviceWarning",
        "Error",
        "Freed",
        "Gone",
        "Leaked",
        "LeakWarning",
        "OutOfMemory",
    ),
    "_gpuheap": (
        "Array",
        "Buffer",
        "Device",
        "HostBuffer",
        "Stream",
        "__version__",
        "devices",
        "from_dlpack",
    ),
    "_dry_run": ("CardFit", "DryRun", "dry_run"),
    "_explain": ("Explanation", "explain", "replay"),
    "_flush": ("flush",),
    "_groups": ("GroupBy", "Groups", "group_by"),
    "_heap": (
        "FlushReport",
        "Heap",
        "Leaks",
        "Line",
        "Released",
        "Status",
        "default_heap",
        "set_default_heap",
        "status",
    ),
    "_holders": ("Held", "Holder", "holders"),
    "_install": ("Installed", "Outcome", "install", "installed"),
    "_meter": ("Meter", "Reading", "meter"),
    "_record": ("Recording", "record"),
    "_table": ("Column", "Copies", "Table"),
    "_scopes": ("Leak", "Scope", "current_scope", "scope", "thread_scope"),
    "_watch": ("Watch", "watch"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Array",
    "BadInput",
    "Buffer",
    "Bug",
    "CardFit",
    "Column",
    "Copies",
    "Device",
    "DriverError",
    "DryRun",
    "DryRunFailed",
    "EmulatedDeviceWarning",
    "Error",
    "Explanation",
    "FlushReport",
    "Freed",
    "Gone",
    "GroupBy",
    "Groups",
    "Heap",
    "Held",
    "Holder",
    "HostBuffer",
    "Installed",
    "Leak",
    "LeakWarning",
    "Leaked",
    "Leaks",
    "Line",
    "Meter",
    "OutOfMemory",
    "Outcome",
    "Reading",
    "Recording",
    "Released",
    "Scope",
    "Status",
    "Stream",
    "Table",
    "Watch",
    "__version__",
    "batches",
    "current_scope",
    "default_heap",
    "devices",
    "dry_run",
    "explain",
    "flush",
    "from_dlpack",
    "group_by",
    "holders",
    "host",
    "install",
    "installed",
    "meter",
    "record",
    "replay",
    "scope",
    "set_default_heap",
    "status",
    "thread_scope",
    "watch",
]


# Modules of the package that a program may use without importing them, such as `gpuheap.torch`.
# Each module except `numba` imports its library at the first use.
_SUBMODULES = (
    "cuda_core",
    "cupy",
    "dask",
    "emulate",
    "ipython",
    "jax",
    "numba",
    "pycuda",
    "pytest_plugin",
    "ray",
    "rmm",
    "torch",
)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None and name not in _SUBMODULES:
        raise AttributeError(f"module 'gpuheap' has no attribute {name!r}")
    import importlib

    if module is None:
        return importlib.import_module(f"gpuheap.{name}")
    value = getattr(importlib.import_module(f"gpuheap.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__) | set(_SUBMODULES))


def load_ipython_extension(shell: Any) -> None:
    """Registers the magics `%%gpumem`, `%%gpurecord`, `%%gpuwatch` and `%gpuflush`. IPython calls
    this function for `%load_ext gpuheap`."""
    from gpuheap.ipython import load

    load(shell)
