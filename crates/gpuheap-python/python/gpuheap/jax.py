"""Limits JAX to a share of the device, so that a heap of gpuheap can use the rest. JAX accepts no
foreign allocator.

    import gpuheap.jax
    gpuheap.jax.configure(fraction=0.2)     # before JAX opens the GPU
    import jax

A heap counts JAX's memory as foreign: in use by others. DLPack passes arrays between JAX and
gpuheap without a copy.
"""

from __future__ import annotations

import os
import sys

from gpuheap import _heap
from gpuheap._errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FRACTION = "XLA_CLIENT_MEM_FRACTION"
#: Earlier name of the environment variable in `FRACTION`. JAX fails if both are set.
FRACTION_BEFORE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


def configure(
    fraction: float | None = None,
    *,
    preallocate: bool = False,
    heap: _heap.Heap | list[_heap.Heap] | None = None,
) -> Callable[[], None]:
    """Sets the largest share of the device's memory that JAX takes. Sets environment variables that
    JAX reads when it opens the GPU. Without `fraction`, JAX gets the memory that the limit of
    `heap` (or of the default heap) leaves. JAX has one share for all devices. If `heap` is a list,
    the heap that leaves least decides. Returns a function that restores the variables.

    If JAX has opened the GPU already, raises `gpuheap.BadInput`.

    >>> import gpuheap, gpuheap.jax, os
    >>> undo = gpuheap.jax.configure(heap=gpuheap.Heap("emulated:1GiB", limit="75%"))
    >>> os.environ["XLA_CLIENT_MEM_FRACTION"]
    '0.2500'
    >>> undo()
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and getattr(bridge, "_backends", None):
        raise BadInput(
            "JAX has opened its devices already and keeps its share of the memory; call gpuheap.jax.configure() "
            "before the first array or jax.devices()"
        )
    share = min(map(_left, _heap.listed(heap))) if fraction is None else fraction
    if not 0 < share <= 1:
        raise BadInput(
            f"fraction={fraction!r} is no share of the device; pass a number above 0 and up to 1"
        )
    new = {FRACTION: f"{share:.4f}", FRACTION_BEFORE: None, PREALLOCATE: str(preallocate).lower()}
    before = {name: os.environ.get(name) for name in new}
    _set(new)
    return lambda: _set(before)


def _left(heap: _heap.Heap) -> float:
    limit, total = heap.limits[0], heap.device.total_memory
    if limit is None or limit >= total:
        raise BadInput(
            "the heap has no limit that leaves memory for JAX; pass fraction=, or give the heap a limit below "
            f"the device's {_heap.size(total)}"
        )
    return (total - limit) / total


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
