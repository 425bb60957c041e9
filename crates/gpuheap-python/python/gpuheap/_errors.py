"""Errors of gpuheap. The extension module makes them by `from_kind` and `out_of_memory`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Error(RuntimeError):
    """An error of gpuheap. `kind` is one word that stays the same between versions."""

    kind = "Error"


class OutOfMemory(Error, MemoryError):
    """A heap had no memory for a request.

    The attributes are the figures after the last attempt, in bytes: `requested`, `live`, `cached`,
    `largest_cached_block`, `largest_stitchable`, `pending`, `reserved`, `limit`, `device`,
    `device_free`, `foreign`, `other_heaps`, `short_by`, `limit_short_by`, `device_short_by`,
    `total_limit` and `total_short_by`. If the process has several devices, `device_name` is set.
    Under a total limit, `devices` has the reserved bytes of each device. `cause` is one word.
    `tried` contains the reclaim steps, with the bytes that each step freed. `figures` is a
    dictionary of all of these. The error holds no memory and no frames.

    If a request exceeds the limit of a scope, `cause` is `"scope"`. The other attributes are then
    `scope` (the scope's name), `requested`, `live`, `limit` and `short_by`.
    """

    kind = "OutOfMemory"
    if TYPE_CHECKING:
        figures: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        # `figures` must not be a class attribute: it would hide the figures of an error that Ray
        # wraps in another class.
        if name == "figures":
            return {}
        try:
            return self.figures[name]
        except KeyError:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return out_of_memory, (self.args[0], self.figures)


class Freed(Error):
    """Memory was used after it was freed."""

    kind = "Freed"


class Gone(Error):
    """The device's context ended, in a forked child or after a reset."""

    kind = "Gone"


class DriverError(Error):
    """A driver call failed, or the machine has no driver."""

    kind = "Driver"


class BadInput(Error, ValueError):
    """An argument, a setting or a stream that the call does not accept. The call changed
    nothing."""

    kind = "InvalidArgument"


class DryRunFailed(Error):
    """A dry run has no verdict, because the function raised an exception or used no GPU."""

    kind = "NoVerdict"


class Leaked(Error):
    """Memory outlived a scope whose `on_leak` is `"raise"`."""

    kind = "Leaked"


class LeakWarning(UserWarning):
    """Memory outlived a scope."""


class EmulatedDeviceWarning(UserWarning):
    """No GPU was found and no device was named, so an emulated device is used."""


class Bug(Error):
    """A bug in gpuheap."""

    kind = "Bug"


# Makes tracebacks print `gpuheap.OutOfMemory`, without the name of this private module.
for _public in (
    Error,
    OutOfMemory,
    Freed,
    Gone,
    DriverError,
    BadInput,
    Leaked,
    LeakWarning,
    EmulatedDeviceWarning,
    Bug,
):
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


_is_told = False


def warn_emulated(device: str, memory: int) -> None:
    """Warns once that an emulated device is used although no device was named."""
    global _is_told
    if _is_told:
        return
    import sys
    import warnings

    from gpuheap._heap import size

    # Finds the program's line. It is in the first frame outside this package.
    level, frame = 1, sys._getframe(0)
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] == "gpuheap"
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"no GPU was found, so the heap is on an emulated one in the memory of the host: {device!r}, with "
        f'{size(memory)}. To choose it, pass device="emulated:16GiB" or set GPUHEAP_DEVICE=emulated:16GiB. '
        'With device="cuda:0" a missing GPU is an error',
        EmulatedDeviceWarning,
        stacklevel=level,
    )
    _is_told = True


def from_kind(kind: str, text: str) -> Error:
    """Makes the error for a kind. `gpuheap::ErrorKind` defines the kinds."""
    error = _CLASSES.get(kind, BadInput)(text)
    error.kind = kind
    return error


def out_of_memory(text: str, figures: dict[str, Any]) -> OutOfMemory:
    """Makes the error for a request that ran out of memory."""
    error = OutOfMemory(text)
    error.figures = figures
    return error


def scope_shortage(scope: str, requested: int, left: int, limit: int) -> str:
    """Returns the reason why a request does not fit into a scope's limit."""
    from gpuheap._heap import size

    return (
        f"{size(requested)} do not fit: scope {scope!r} has {size(left)} left of its limit of {size(limit)}. Free "
        "what was requested inside, or raise the scope's limit"
    )


def scope_exceeded(figures: dict[str, Any]) -> OutOfMemory:
    """Makes the error for a request beyond the limit of a scope."""
    from gpuheap._heap import size

    requested, live, limit = (size(figures[name]) for name in ("requested", "live", "limit"))
    return out_of_memory(
        f"out of memory in scope {figures['scope']!r}: {requested} requested, {live} live of its limit of "
        f"{limit}; {size(figures['short_by'])} short. Free what was requested inside, or raise the scope's limit",
        figures,
    )
