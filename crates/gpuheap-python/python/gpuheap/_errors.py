"""Errors of gpuheap. The extension module makes them by `from_kind` and `out_of_memory`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Error(RuntimeError):
    """An error of gpuheap. `kind` is its kind, one word, which programs may rely on."""

    kind = "Error"


class OutOfMemory(Error, MemoryError):
    """A request that a heap had no memory for, with its evidence.

    The attributes are the figures after the last attempt, in bytes: `requested`, `live`, `cached`,
    `largest_cached_block`, `largest_stitchable`, `pending`, `reserved`, `limit`, `device`,
    `device_free`, `foreign`, `other_heaps`, `short_by`, `limit_short_by`, `device_short_by`, and `cause`, one word. `tried` has
    the reclaim steps with what each gave back. `figures` has all of them. The error holds no memory
    and no frames.

    A request beyond the limit of a scope has the cause `"scope"` and the attributes `scope` (its name),
    `requested`, `live`, `limit` and `short_by`.
    """

    kind = "OutOfMemory"
    figures: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.figures[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return out_of_memory, (self.args[0], self.figures)


class Freed(Error):
    """Memory was used after it was freed."""

    kind = "Freed"


class Gone(Error):
    """The device's context ended: in a forked child, or after a reset."""

    kind = "Gone"


class DriverError(Error):
    """A call of the driver failed, or there is no driver."""

    kind = "Driver"


class BadInput(Error, ValueError):
    """An argument, a setting or a stream that the call does not accept. Nothing was changed."""

    kind = "InvalidArgument"


class Leaked(Error):
    """Memory outlived a scope whose `on_leak` is `"raise"`."""

    kind = "Leaked"


class LeakWarning(UserWarning):
    """Memory outlived a scope."""


class Bug(Error):
    """gpuheap failed in a way that is a fault of its own."""

    kind = "Bug"


# Programs know them by the package, and so do the first lines of tracebacks.
for _public in (Error, OutOfMemory, Freed, Gone, DriverError, BadInput, Leaked, LeakWarning, Bug):
    _public.__module__ = "gpuheap"

_CLASSES: dict[str, type[Error]] = {
    "OutOfMemory": OutOfMemory,
    "HostResources": OutOfMemory,
    "Freed": Freed,
    "Gone": Gone,
    "NoDevice": DriverError,
    "Driver": DriverError,
    "Unsupported": DriverError,
    "Bug": Bug,
}


def from_kind(kind: str, text: str) -> Error:
    """Makes the error of a kind that the library names."""
    error = _CLASSES.get(kind, BadInput)(text)
    error.kind = kind
    return error


def out_of_memory(text: str, figures: dict[str, Any]) -> OutOfMemory:
    """Makes the error of a request that ran out of memory."""
    error = OutOfMemory(text)
    error.figures = figures
    return error


def scope_exceeded(figures: dict[str, Any]) -> OutOfMemory:
    """Makes the error of a request beyond the limit of a scope."""
    from gpuheap._heap import size

    requested, live, limit = (size(figures[name]) for name in ("requested", "live", "limit"))
    return out_of_memory(
        f"out of memory in scope {figures['scope']!r}: {requested} requested, {live} live of its limit of "
        f"{limit}; {size(figures['short_by'])} short. Free what was requested inside, or raise the scope's limit",
        figures,
    )
