"""Gives each Ray worker process a heap of gpuheap, limited to the GPU share that Ray assigned.

    import ray, gpuheap.ray

    ray.init(runtime_env={"worker_process_setup_hook": gpuheap.ray.setup})

    @ray.remote(num_gpus=0.25)
    def total(numbers):
        heap = gpuheap.default_heap()           # limited to a quarter of the GPU's memory
        return heap.array(numbers).sum()

Ray assigns GPUs, and enforces no limit of memory. Arrays of gpuheap can be arguments and results,
and `ray.put` stores them: their elements go through Ray's shared memory on the host.
"""

# Type checkers confuse the library `ray` with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuheap import _gpuheap, _heap, _install
from gpuheap._errors import BadInput

#: Assumed bytes of device memory that CUDA takes for each process, outside of the heap. Measured
#: were 527 MiB on an H200, and 256 to 426 MiB on smaller cards.
CONTEXT = 512 << 20


def setup(**settings: Any) -> None:
    """Prepares the process's default heap. At the heap's first use, calls `install` with
    `settings`. Pass `setup`, or a function that calls `setup`, as `worker_process_setup_hook`.
    `setup` opens no device, because Ray assigns a GPU only later."""
    _heap.make_default_by(lambda: install(libraries=[], **settings).heap)


def install(libraries: str | Iterable[str] = "auto", **settings: Any) -> _install.Installed:
    """Makes a heap of the GPU that Ray assigned to this task or actor, limited to the assigned
    share, and installs it in the libraries. Call this at the start of a task or an actor that uses
    CuPy, PyTorch or RAPIDS.

    With `num_gpus=0.25`, the share is a quarter of the device's memory. The limit is the share
    minus 0.5 GiB, because CUDA itself takes that much in the process. If the share is below 1 GiB,
    the limit is half of the share. `settings` are passed to `gpuheap.Heap`.

    If an earlier task or `setup` made a heap in the process, only its limit changes. Raises
    `BadInput` if the other settings differ from the settings of that heap.
    """
    share = _share()
    current = _install.installed()
    if current is None:
        names = _install._chosen("all") if share > 1 else None
        devices = [_gpuheap.Device(name) for name in names or ["cuda:0"]]
        limits = {device.name: _limit(device, share) for device in devices}
        return _install.install(limits, libraries, devices=devices, **settings)
    if settings and settings != current.settings:
        raise BadInput(
            f"this process has a heap already, with the settings {current.settings}, and install() got "
            f"{settings}; pass them to gpuheap.ray.setup() in the worker_process_setup_hook"
        )
    for heap in current.heaps.values():
        heap.set_limits(limit=_limit(heap.device, share))
    # The heap may exist already: `setup` makes one if the task's arguments need it.
    current.serve(libraries)
    return current


def _limit(device: _gpuheap.Device, share: float) -> int:
    of = int(device.total_memory * min(share, 1))
    return of - min(CONTEXT, of // 2)


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
