"""Ray: a heap of gpuheap in each worker process, with the share of the GPU that Ray assigned.

    import ray, gpuheap.ray

    ray.init(runtime_env={"worker_process_setup_hook": gpuheap.ray.setup})

    @ray.remote(num_gpus=0.25)
    def total(numbers):
        heap = gpuheap.default_heap()           # a quarter of the GPU's memory
        return heap.array(numbers).sum()

Ray assigns GPUs, and enforces no limit of memory. Arrays of gpuheap can be arguments and results,
and `ray.put` stores them: their elements go through Ray's shared memory on the host.
"""

# Type checkers confuse the library with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuheap import _heap, _install
from gpuheap._errors import BadInput


def setup() -> None:
    """Makes the process's default heap by `install` at the heap's first use. Pass this function as
    `worker_process_setup_hook`. It opens no device, because Ray calls it before it assigns a
    GPU."""
    _heap.make_default_by(lambda: install(libraries=[]).heap)


def install(libraries: str | Iterable[str] = "auto", **settings: Any) -> _install.Installed:
    """Makes a heap of the GPU that Ray assigned to this task or actor, limited to the assigned
    share, and installs it in the libraries. Call it at the start of a task or an actor that uses
    CuPy, PyTorch or RAPIDS.

    `num_gpus=0.25` is a limit of a quarter of the device's memory. `settings` are passed to
    `gpuheap.Heap`. In a process that Ray uses again for another share, the limit changes.
    """
    share = _share()
    devices: dict[str, Any] = {"devices": "all"} if share > 1 else {"device": "cuda:0"}
    current = _install.installed()
    if current is None:
        return _install.install(f"{min(share, 1):%}", libraries, **devices, **settings)
    for heap in current.heaps.values():
        heap.set_limits(limit=int(heap.device.total_memory * min(share, 1)))
    # With `setup`, the task's arguments may have made the heap before this call.
    current.serve(libraries)
    return current


def _share() -> float:
    """Returns the number of GPUs that Ray assigned to the running task or actor."""
    import ray

    if not ray.is_initialized():
        raise BadInput(
            "gpuheap.ray.install() works inside a task or an actor of Ray; call ray.init() first"
        )
    share = ray.get_runtime_context().get_assigned_resources().get("GPU", 0)
    if not share:
        raise BadInput(
            "Ray assigned no GPU to this task or actor; declare one, such as @ray.remote(num_gpus=0.5)"
        )
    return share
