"""Records the allocations of heaps into files. `gpuheap report` and `gpuheap replay` read them."""

from __future__ import annotations

import os

from gpuheap import _heap

# `typing` is not imported: its import takes longer than importing all of gpuheap.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from gpuheap import _gpuheap


# Recordings that were not stopped. The set keeps them running if the program drops them.
_running: set[Recording] = set()


class Recording:
    """A recording that `gpuheap.record()` or `Heap.record()` started. The recording ends at the end
    of its `with` block, by `stop()`, or with the heap or the program."""

    def __init__(self, heaps: list[_heap.Heap], path: str | os.PathLike[str]) -> None:
        self._parts: list[_gpuheap._Recording] = []
        try:
            for heap in heaps:
                self._parts.append(heap._record(os.fspath(path)))
        except BaseException:
            self.stop()
            raise
        _running.add(self)

    @property
    def path(self) -> str:
        """Path of the file. If the named file existed, the path has a number: `run.2.gph`."""
        return os.fspath(self._parts[0].path)

    @property
    def paths(self) -> list[str]:
        """Paths of the recording's files. The allocations of each heap are in a separate file."""
        return list(dict.fromkeys(os.fspath(part.path) for part in self._parts))

    def stop(self) -> None:
        """Ends the recording. Warns if it had ended early, for example because the disk is full.
        A second call does nothing."""
        _running.discard(self)
        reasons = [(part.path, part.stop()) for part in self._parts]
        for path, reason in reasons:
            if reason:
                import warnings

                text = f"the recording to {path} stopped early: {reason}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def record(path: str | os.PathLike[str]) -> Recording:
    """Records allocations and frees for `gpuheap report` and `gpuheap replay`. Records the default
    heap and all heaps of `install()`, each into a separate file.

    A file has each allocation's size, thread, time and stack, with lines of Python. Memory
    allocated before the recording is not in the file. An existing file is kept; the new file is
    then `run.2.gph`.

    >>> import os, tempfile
    >>> import gpuheap
    >>> before = gpuheap.set_default_heap(gpuheap.Heap("emulated:1GiB"))
    >>> folder = tempfile.TemporaryDirectory()
    >>> with gpuheap.record(os.path.join(folder.name, "run.gph")) as recording:
    ...     gpuheap.default_heap().alloc(1000).free()
    >>> os.path.basename(recording.path)
    'run.gph'
    >>> folder.cleanup()
    >>> _ = gpuheap.set_default_heap(before)
    """
    _heap.default_heap()
    return Recording(_heap.known_heaps(), path)
