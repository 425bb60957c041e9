"""Gives each Dask worker a heap of gpuheap.

    import gpuheap.dask
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=4, threads_per_worker=1, data=gpuheap.dask.Data)
    client = Client(cluster)
    client.register_plugin(gpuheap.dask.Plugin(limit="20%"))
    print(client.run(gpuheap.status))

The plugin makes the heap, and installs it in the worker's libraries. `Data` moves results to the
host before memory runs out. Arrays of gpuheap can be results and arguments of tasks.
"""

# Type checkers confuse the library `dask` with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

try:
    import distributed
    from distributed.diagnostics.plugin import WorkerPlugin
except ImportError:
    raise ImportError("gpuheap.dask needs Dask; run pip install 'gpuheap[dask]'") from None

from gpuheap import _flush, _gpuheap, _heap, _install
from gpuheap._dask_data import Data, Packed, Sent, Unsendable, device_bytes, log, sent_value
from gpuheap._errors import DriverError
from gpuheap._record import Recording

__all__ = ["Data", "Plugin", "device_bytes"]

#: Oldest supported release of Dask. Earlier workers report a task's error in another form.
_OLDEST = (2025, 1)

_INSTALLED = distributed.__version__  # pyright: ignore[reportPrivateImportUsage]
if tuple(map(int, _INSTALLED.split(".")[:2])) < _OLDEST:
    raise ImportError(
        f"gpuheap.dask needs distributed {_OLDEST[0]}.{_OLDEST[1]} or newer, and {_INSTALLED} is "
        "installed; run pip install --upgrade dask distributed"
    )


class Plugin(WorkerPlugin):
    """Serves each worker of a cluster from a heap, as `gpuheap.install` does for a process.

    `limit`, `libraries` and `settings` are passed to `gpuheap.install` in each worker. Workers that
    share a GPU need limits that fit on it together: `"20%"` for four workers.

    `device` is a device's name or UUID. Without `device`, the number in a worker's name chooses the
    GPU, modulo the number of GPUs. Under dask-cuda, or if the name has no number, the worker takes
    the first GPU. `log` is a folder in which each worker records its allocations, for
    `gpuheap report`. With `retry`, a task that runs out of memory is run once more, after results
    were moved to the host and cached memory was returned.

    Workers that are threads of one process share one heap.
    """

    name = "gpuheap"

    def __init__(
        self,
        limit: int | str | None = "80%",
        libraries: str | Iterable[str] = "auto",
        *,
        device: str | None = None,
        log: str | os.PathLike[str] | None = None,
        retry: bool = True,
        **settings: Any,
    ) -> None:
        self.limit = limit
        self.libraries = libraries if isinstance(libraries, str) else list(libraries)
        self.device = device
        self.log = None if log is None else os.fspath(log)
        self.retry = retry
        self.settings = settings

    def setup(self, worker: Any) -> None:
        """Makes the worker's heap. Called by Dask."""
        with _lock:
            self.teardown(worker)
            _served[worker] = _Served(self, worker)

    def teardown(self, worker: Any) -> None:
        """Moves the worker's results off the device, returns all memory, and restores the
        libraries' allocators. Called by Dask."""
        with _lock:
            served = _served.pop(worker, None)
            if served is not None:
                served.end(worker)


class _Served:
    """A worker that a plugin serves."""

    heap: _heap.Heap

    def __init__(self, plugin: Plugin, worker: Any) -> None:
        # The workers of one process share its heap, so the first worker chooses the device.
        others = [served.heap.device for served in _served.values()]
        device = others[0] if others else _gpuheap.Device(plugin.device or _device_of(worker))
        self._installed = _install.install(
            plugin.limit, plugin.libraries, device=device, **plugin.settings
        )
        self.heap = self._installed.heap
        self._recording: Recording | None = None
        self._retries = 0
        try:
            if plugin.log is not None:
                os.makedirs(plugin.log, exist_ok=True)
                name = f"{worker.name}-{os.getpid()}.gph".replace("/", "-")
                self._recording = Recording([self.heap], os.path.join(plugin.log, name))
        except BaseException:
            self._installed.undo()
            raise
        self._executor = worker.executors["default"] if plugin.retry else None
        if self._executor is not None:
            self._executor.submit = self._retrying(worker.data, self._executor.submit)
        if isinstance(worker.data, Data):
            worker.handlers["get_data"] = _packing(worker.data, worker.get_data)
        worker.metrics.update(self._metrics(worker.data))
        log.info("%s", self._installed)

    def end(self, worker: Any) -> None:
        for name in self._metrics(worker.data):
            worker.metrics.pop(name, None)
        if self._executor is not None:
            # Removes the attribute that hides the class's method.
            del self._executor.submit
        if isinstance(worker.data, Data):
            worker.handlers["get_data"] = worker.get_data
            if worker.status == distributed.Status.closing:
                worker.data.device.clear()
            else:
                worker.data.leave_device()
        if self._recording is not None:
            self._recording.stop()
        log.info("%s", _flush.flush())
        if _served:
            return
        live = self.heap.stats()["live"]
        if live:
            log.warning("%s are live after the plugin's end, of %r", _heap.size(live), self.heap)
        for library, reason in self._installed.undo().items():
            log.info("%s keeps the heap: %s", library, reason)

    def _metrics(self, data: Any) -> dict[str, Callable[[Any], float]]:
        """Returns the figures that the worker sends with each heartbeat."""

        def figure(name: str) -> Callable[[Any], int]:
            return lambda _: self.heap.stats()[name]

        figures: dict[str, Callable[[Any], float]]
        figures = {f"gpuheap_{name}": figure(name) for name in ("live", "cached", "reserved")}
        figures["gpuheap_limit"] = lambda _: self.heap.limits[0] or 0
        figures["gpuheap_moved"] = lambda _: data.moved if isinstance(data, Data) else 0
        figures["gpuheap_retries"] = lambda _: self._retries
        return figures

    def _retrying(self, data: Any, submit: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a `submit` that runs a task once more if it runs out of memory."""

        def run(work: Callable[..., Any], arguments: Any, named: Any) -> Any:
            result = work(*arguments, **named)
            error = result.get("actual_exception") if isinstance(result, dict) else None
            if error is None or not _is_out_of_memory(error):
                return result
            # Logs only the text, because an error in the log would keep the task's arrays alive.
            log.warning("a task is run once more: %s", str(error))
            requested = getattr(error, "requested", 0)
            traceback.clear_frames(error.__traceback__)
            del error, result
            if isinstance(data, Data):
                data.relieve(requested)
            _flush.flush()
            self._retries += 1
            return work(*arguments, **named)

        return lambda work, *arguments, **named: submit(run, work, arguments, named)


def _packing(data: Data, get_data: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the worker's handler that sends results. The handler sends packed results, because a
    message of many results may exceed the memory of the receiver's device.

    If `get_data` cannot read a value, Dask does not count the transfer as ended. After several such
    failures, Dask refuses all transfers.
    """

    async def handler(comm: Any, keys: Any, who: str | None = None, **named: Any) -> Any:
        def packed(key: Any) -> Any:
            try:
                # Without `who`, the receiver is a client.
                return data.packed(key, Packed if who else Sent)
            except Exception as error:
                return Unsendable(error)

        send: Callable[[Any], Any] = packed
        if comm.peer_address.startswith("inproc://"):
            # Within a process, Dask passes values on without serializing them. An `Unsendable`
            # raises its error only when it is serialized, so here the error would be lost. Read the
            # values before `get_data` begins the transfer, because a later error would leave the
            # transfer open.
            workers = [worker for worker in list(_served) if isinstance(worker.data, Data)]
            is_packed = any(worker.address == who for worker in workers)
            read = partial(data.packed, form=Packed) if is_packed else data.__getitem__
            send = {key: read(key) for key in keys if key in data}.__getitem__
        before = sent_value.set(send)
        try:
            return await get_data(comm, keys=keys, who=who, **named)
        finally:
            sent_value.reset(before)

    return handler


def _is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out. RMM's error is a `MemoryError`."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


#: Workers of this process for which a `Plugin` is set up, each with its heap.
_served: WeakKeyDictionary[Any, _Served] = WeakKeyDictionary()
_lock = threading.RLock()


def _device_of(worker: Any) -> str:
    """Returns the name of the GPU that a worker takes."""
    found = [line.partition(":")[0] for line in _gpuheap.devices()]
    count = found.count("cuda")
    if count == 0:
        raise DriverError(
            f"worker {worker.name} at {worker.address} has no GPU; stop it, or pass "
            'gpuheap.dask.Plugin(device="emulated:16GiB") to use an emulated one'
        )
    if "dask_cuda" in sys.modules:
        # dask-cuda puts each worker's own GPU first in CUDA_VISIBLE_DEVICES.
        return "cuda:0"
    # `dask worker --name gpu --nworkers 2` makes the names gpu-0 and gpu-1.
    number = re.search(r"(?:^|-)(\d+)$", str(worker.name))
    if number is None and count > 1:
        log.warning(
            "worker %s takes cuda:0 of %d GPUs, because its name has no number; start workers with "
            "--name, or pass device= to the plugin",
            worker.name,
            count,
        )
    return f"cuda:{int(number[1]) % count if number else 0}"
