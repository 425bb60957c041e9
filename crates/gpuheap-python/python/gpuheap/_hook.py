"""What the modules for other libraries share: the heap that they use, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuheap._errors import Error, from_kind

if TYPE_CHECKING:
    from gpuheap._heap import Heap


def heap_for(library: str, heap: Heap | None) -> Heap:
    """The heap that `library` shall use: `heap`, else the default one. Refuses a heap whose addresses mean
    nothing to other libraries."""
    if heap is None:
        from gpuheap._heap import default_heap

        heap = default_heap()
    if heap.device.emulated:
        raise refusal(
            "WrongDevice",
            f"{library} cannot use memory of {heap.device.name!r}, which is emulated inside gpuheap alone; pass a "
            "heap of \"cuda:0\". Without a GPU, run the program under `python -m gpuheap emulate`",
        )
    return heap


def check_device(library: str, heap: Heap, ordinal: int) -> None:
    """Refuses a device that is not the heap's."""
    if ordinal != heap.device.ordinal:
        raise refusal(
            "WrongDevice",
            f"{library} asks for memory of device {ordinal}, and its heap is one of device {heap.device.ordinal}; "
            f"make device {heap.device.ordinal} the current one, or pass a heap of \"cuda:{ordinal}\"",
        )


def refusal(kind: str, text: str) -> Error:
    """Makes the error of a hook that was not installed, or that refuses a request."""
    return from_kind(kind, text)


def twice(library: str) -> Error:
    """Makes the error of a second installation."""
    return refusal(
        "AlreadyInstalled",
        f"gpuheap is installed in {library} already; call what the first install returned before another one",
    )
