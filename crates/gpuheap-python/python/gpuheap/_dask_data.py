"""Stores the results of a Dask worker's tasks, and moves them from the device to host and disk."""

from __future__ import annotations

import logging
import math
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import zict
from dask.sizeof import sizeof
from dask.utils import Dispatch
from distributed.protocol.serialize import deserialize, serialize
from distributed.spill import SpillBuffer

from gpuheap import _gpuheap, _heap
from gpuheap._errors import BadInput, OutOfMemory
from gpuheap._objects import memory_of
from gpuheap._returned import memory_in

log = logging.getLogger("distributed.worker.gpuheap")


def _without_frames(record: logging.LogRecord) -> bool:
    """Replaces a log record's traceback by its text. Workers keep their last records, so the
    traceback's frames would keep device memory."""
    if record.exc_info:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
    return True


for _name in (log.name, "distributed.spill", "distributed.protocol.pickle"):
    logging.getLogger(_name).addFilter(_without_frames)

#: Returns the bytes of device memory in a value. The default finds arrays in containers and in
#: attributes of objects. For other classes, register a function.
device_bytes = Dispatch("device_bytes")


@device_bytes.register(object)
def _of_object(value: Any) -> int:
    try:
        found = [memory_of(one) for one in memory_in(value)]
    except BadInput:
        # If a structure has too many objects to search, it counts as host data.
        return 0
    return sum(memory[1] for memory in found if memory is not None)


@device_bytes.register_lazy("torch")
def _register_torch() -> None:
    import torch  # pyright: ignore[reportMissingImports]

    @device_bytes.register(torch.Tensor)  # pyright: ignore[reportAttributeAccessIssue]
    def _(value: Any) -> int:
        return value.nbytes if value.is_cuda else 0


@device_bytes.register_lazy("cudf")
def _register_cudf() -> None:
    import cudf  # pyright: ignore[reportMissingImports]

    @device_bytes.register((cudf.DataFrame, cudf.Series, cudf.BaseIndex))
    def _(value: Any) -> int:
        return sizeof(value)


@sizeof.register((_gpuheap.Array, _gpuheap.Buffer))
def _size_of_array(value: Any) -> int:
    return value.nbytes


def _clear_frames(error: BaseException) -> None:
    """Clears the frames of an error and of its causes. Serializers keep errors in reference cycles,
    so the frames would keep device memory until the collector runs."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        causes = (one.__cause__, one.__context__)
        left += [cause for cause in causes if cause is not None and id(cause) not in seen]


class Packed:
    """Serialized value in host memory. A Dask worker with a `Data` receives the value packed, and
    uploads it at its first use. Other processes unpack the value on receipt."""

    def __init__(self, header: dict[str, Any], frames: list[Any]) -> None:
        self.header, self.frames = header, frames

    @classmethod
    def of(cls, value: Any) -> Packed:
        try:
            header, frames = serialize(value, serializers=("dask", "pickle"), on_error="raise")
        except TypeError:
            # Dask's own serializer reads PyTorch tensors only if they are on the host.
            header, frames = serialize(value, serializers=("pickle",), on_error="raise")
        return cls(header, list(frames))

    def __reduce__(self) -> tuple[Any, ...]:
        return received, (self.header, list(map(pickle.PickleBuffer, self.frames)))


class Sent(Packed):
    """A packed value for a client. It is unpacked on receipt even if the process also has workers,
    because the client's program uses the value itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unpacked, super().__reduce__()[1]


def received(header: dict[str, Any], frames: list[Any]) -> Any:
    return Packed(header, frames) if _in_process else unpacked(header, frames)


def unpacked(header: dict[str, Any], frames: list[Any]) -> Any:
    return deserialize(header, frames)


class Unsendable:
    """Stands for a value that could not be read. Serializing it raises the error: Dask counts a
    transfer as ended if serializing fails, but not if reading fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


#: While a worker sends results: function that returns a result by its key. Otherwise `None`.
sent_value: ContextVar[Callable[[Any], Any] | None] = ContextVar("sent_value", default=None)

#: Results of this process's workers.
_in_process: WeakSet[Data] = WeakSet()


@sizeof.register(Packed)
def _size_of_packed(value: Packed) -> int:
    return sum(memoryview(frame).nbytes for frame in value.frames)


class Data(MutableMapping[Any, Any]):
    """Results of a worker's tasks, for the argument `data=` of a cluster or a worker.

    If the heap's live memory exceeds `device_limit`, results move to the host, the least recently
    used first. Temporary memory of running tasks counts too. `device_limit` is bytes, or a share of
    the heap's limit. If results on the host exceed `host_limit` bytes, or the worker's process
    nears its memory limit, results move to files. If a file cannot be written, the result stays on
    the host, and the worker logs the reason.
    """

    def __init__(
        self,
        worker_local_directory: str,
        *,
        device_limit: int | str = "80%",
        host_limit: int | str | None = None,
    ) -> None:
        # Reject an invalid limit here, because an error at its first use would fail a task.
        _gpuheap._size(device_limit, 1 << 30)
        most = sys.maxsize if host_limit is None else _gpuheap._size(host_limit)
        self.host = SpillBuffer(os.path.join(worker_local_directory, "storage"), target=most)
        self.device: zict.LRU[Any, Any] = zict.LRU(
            math.inf,
            {},
            on_evict=self._pack,
            on_cancel_evict=lambda key, _: self.host.__delitem__(key),
            weight=lambda _, value: device_bytes(value),
        )
        self._device_limit = device_limit
        self._spare = 0
        #: Bytes that were moved from the device to the host.
        self.moved = 0
        # Keys of results that could not be packed. These results stay on the device.
        self._failed: set[Any] = set()
        _in_process.add(self)

    def __hash__(self) -> int:
        return id(self)

    def relieve(self, nbytes: int) -> bool:
        """Moves the least recently used results from the device to the host, until `nbytes` bytes
        were moved or no result is left. Returns `False` if no result was moved. Keeps `nbytes` free
        from now on, so that the next tasks succeed at once."""
        self._spare = max(self._spare, nbytes)
        before = self.moved
        self._evict(max(self.device.total_weight - nbytes, 0))
        return self.moved > before

    def leave_device(self) -> None:
        """Moves all results to the host."""
        self._failed.clear()
        self._evict(-1)

    def __getitem__(self, key: Any) -> Any:
        send = sent_value.get()
        if send is not None:
            return send(key)
        try:
            return self.device[key]
        except KeyError:
            value = self.host[key]
        if not isinstance(value, Packed):
            return value
        self._make_room(sizeof(value))
        while True:
            try:
                made = unpacked(value.header, value.frames)
                break
            except OutOfMemory as error:
                if not self.relieve(getattr(error, "requested", 0)):
                    raise
        del self.host[key]
        self._hold(key, made)
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        self._failed.discard(key)
        if device_bytes(value) == 0:
            self.device.discard(key)
            self.host[key] = value
            return
        if key in self.host:
            del self.host[key]
        self._hold(key, value)

    def __delitem__(self, key: Any) -> None:
        self._failed.discard(key)
        if key in self.device:
            del self.device[key]
        else:
            del self.host[key]

    def __contains__(self, key: object) -> bool:
        return key in self.device or key in self.host

    def __iter__(self) -> Iterator[Any]:
        yield from list(self.device)
        yield from list(self.host)

    def __len__(self) -> int:
        return len(self.device) + len(self.host)

    def _hold(self, key: Any, value: Any) -> None:
        self.device.set_noevict(key, value)
        self._make_room(0)

    def _make_room(self, nbytes: int) -> None:
        """Moves results to the host until another `nbytes` fit into the device's limit."""
        heap = _heap.peek_default_heap()
        if heap is None:
            return
        most = _gpuheap._size(self._device_limit, heap.limits[0] or heap.device.total_memory)
        # `relieve` sets `_spare`, the bytes to keep free. At most half of the limit is kept free,
        # so that one large request does not move all results to the host.
        spare = min(self._spare, most // 2)
        excess = heap.stats()["live"] + nbytes + spare - most
        if excess > 0:
            self._evict(max(self.device.total_weight - excess, 0))

    def packed(self, key: Any, form: type[Packed]) -> Any:
        """Returns the value of a key, packed if the value is on the device. If packing fails,
        returns the unpacked value, which a receiver in this process can use."""
        value = self.device.get(key)
        try:
            packed = self.host[key] if value is None else Packed.of(value)
        except Exception:
            if value is None:
                raise
            return value
        return form(packed.header, packed.frames) if isinstance(packed, Packed) else packed

    def _evict(self, left: float) -> None:
        for key in list(self.device.order):
            if self.device.total_weight <= left:
                return
            if key in self._failed:
                continue
            try:
                self.device.evict(key)
            except Exception as error:
                # Another thread may have moved or deleted the value. Otherwise it stays on the
                # device.
                if key in self.device:
                    self._failed.add(key)
                    log.exception("a result cannot be moved from the device to the host")
                _clear_frames(error)

    def _pack(self, key: Any, value: Any) -> None:
        self.host[key] = Packed.of(value)
        self.moved += device_bytes(value)

    # The worker's memory manager and metrics use these methods.

    @property
    def fast(self) -> Any:
        return self.host.fast

    def evict(self) -> int:
        return self.host.evict()

    @property
    def spilled_total(self) -> Any:
        return self.host.spilled_total

    @property
    def cumulative_metrics(self) -> Any:
        return self.host.cumulative_metrics
