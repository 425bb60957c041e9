"""Implements scopes. A scope limits the GPU memory of a section of a program, and frees the memory
at the end."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, cast, overload

from gpuheap import _frames, _gpuheap
from gpuheap._errors import BadInput, Leaked, LeakWarning
from gpuheap._heap import Heap, default_heap, heaps_with, size

P = ParamSpec("P")
R = TypeVar("R")

# The latest open scope of a context. The extension module starts here to find the scope that
# governs the caller.
current: ContextVar[_gpuheap._Account | None] = ContextVar("gpuheap_scope", default=None)

_ON_LEAK = ("warn", "raise", "ignore")


class Leak(NamedTuple):
    """Memory that was requested in a scope and outlived it."""

    bytes: int
    file: str
    line: int
    function: str
    thread: str
    address: int
    #: Name of the device.
    device: str

    def holders(self) -> list[Any]:
        """Returns the holders, as `Holder` objects. Walks Python's objects, which takes about a
        second per million objects."""
        from gpuheap._holders import holders_of_memory

        return holders_of_memory(self.address, self.bytes)

    def __str__(self) -> str:
        return (
            f"{size(self.bytes)}, {self.file}:{self.line} ({self.function}), thread {self.thread}"
        )

    def __repr__(self) -> str:
        return str(self)


def _place_of(buffer: Any) -> tuple[int, int] | None:
    """Returns address and bytes of a buffer, an array or a library's object. Returns `None` for
    host memory."""
    if isinstance(buffer, _gpuheap.HostBuffer):
        return None
    if isinstance(buffer, _gpuheap.Array):
        memory = buffer._memory
        return memory.ptr, memory.nbytes
    if isinstance(buffer, _gpuheap.Buffer):
        return buffer.ptr, buffer.nbytes
    from gpuheap._objects import memory_of

    found = memory_of(buffer)
    if found is None:
        raise BadInput(
            f"{type(buffer)} has no device memory that the scope could keep; pass a buffer or an array"
        )
    return found


class _Failures:
    """Collects the exceptions of the steps at a scope's end. After all steps, `tell` raises the
    first exception."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._kept: list[BaseException] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if error is not None:
            self._kept.append(error)
        return True

    def tell(self, body: BaseException | None) -> None:
        """Raises the first failure, with notes about the others. If the scope's body raised an
        exception, adds the notes to that exception and raises nothing. Interrupts among the
        failures are always raised."""
        if not self._kept:
            return
        # Sort interrupts to the front. Empty `_kept`, because an exception's traceback keeps frames
        # alive, and with them their locals.
        kept, self._kept = sorted(self._kept, key=lambda error: isinstance(error, Exception)), []
        raised = body if body is not None and isinstance(kept[0], Exception) else kept.pop(0)
        where = f"the end of scope {self._scope.name!r} also failed"
        notes = [f"{where}: {type(other).__name__}: {other}" for other in kept]
        try:
            for note in notes:
                raised.add_note(note)
            if raised is not body:
                raise raised
        finally:
            del raised, kept, body


class Scope:
    """A section of a program whose GPU memory is limited, and freed at the end. Made by
    `Heap.scope`, `gpuheap.scope` and `gpuheap.thread_scope`.

    A scope is a context manager, and a decorator for functions and async functions. A decorated
    function opens a separate scope for each call.
    """

    def __init__(
        self,
        heap: Heap | None,
        name: str | None,
        limit: int | str | None,
        on_leak: str | Callable[[Scope], object],
    ) -> None:
        if on_leak not in _ON_LEAK and not callable(on_leak):
            raise BadInput(
                f"on_leak={on_leak!r} is unknown; pass {', '.join(map(repr, _ON_LEAK))} or a function"
            )
        self._heap = heap
        self._name = name
        self._limit = limit
        self._on_leak = on_leak
        self._account: _gpuheap._Account | None = None
        #: Memory that outlived the scope, most bytes first. Needs a heap with `track="lines"`.
        self.leaked: list[Leak] = []
        #: Bytes that outlived the scope and were not passed to `keep`.
        self.leaked_bytes = 0
        #: Bytes of the buffers that the scope freed at its end.
        self.freed_bytes = 0
        #: Name of the thread that opened the scope.
        self.thread = ""

    @property
    def name(self) -> str:
        return self._name or self.thread

    @property
    def live(self) -> int:
        """Live bytes that were requested inside the scope. Does not count memory that other threads
        and tasks requested."""
        return self._opened().live

    @property
    def own_peak(self) -> int:
        """Peak of the live bytes that were requested inside the scope. The scope's limit bounds
        this peak."""
        return self._opened().peak

    def keep(self, buffer: Any) -> Any:
        """Keeps a buffer or a table beyond the scope, and returns it. If there is an outer scope,
        that scope frees the buffer at its own end. If a part of an array is passed, keeps the whole
        memory of the array. A kept object of another library is not reported as a leak.

        >>> import gpuheap
        >>> heap = gpuheap.Heap("emulated:1GiB")
        >>> with heap.scope("load") as scope:
        ...     weights = scope.keep(heap.alloc(1000))
        ...     workspace = heap.alloc(500)
        >>> weights.freed, workspace.freed
        (False, True)
        """
        account = self._opened()
        from gpuheap._table import Column, Table

        parts = buffer._arrays() if isinstance(buffer, (Column, Table)) else [buffer]
        for part in parts:
            _gpuheap._scope_keep(account, part, _place_of(part))
        return buffer

    def _keep_inside(self, result: Any) -> Any:
        """Keeps all memory in a decorated function's result live after the end of the scope."""
        account = self._opened()
        if account.live or account.owned:
            from gpuheap._returned import memory_in

            for found in memory_in(result):
                self.keep(found)
        return result

    def __enter__(self) -> Self:
        if self._account is not None:
            raise BadInput(
                f"scope {self.name!r} was entered before; make another, or use it as a decorator"
            )
        heap = self._heap = self._used()
        self.thread = threading.current_thread().name
        total = sum(each.device.total_memory for each in heaps_with(heap))
        account = heap._open_scope(self.name, self._limit, _frames.resumable_on_stack(), total)
        self._account = account
        _open[account.number] = self
        current.set(account)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        account = self._opened()
        account.close()
        _open.pop(account.number, None)
        # A framework may enter a scope in one context and leave it in another. A program may leave
        # a scope while an inner scope is open. In both cases `current` contains another scope. Do
        # not change `current` then: later look-ups skip the closed scope.
        if current.get() is account:
            current.set(account.before)
        failures = _Failures(self)
        viewed = self._free_own(account, failures)
        with failures:
            if _gpuheap._scope_stayed(heaps_with(self._used()), account):
                gc.collect()
            self._note_leaks(account)
        for text in viewed:
            with failures:
                warnings.warn(text, LeakWarning, stacklevel=self._level - 1)
        with failures:
            if self.leaked_bytes:
                self._tell(error)
        failures.tell(error)

    #: Number of stack frames between a warning and the program's code, for `stacklevel`.
    _level = 3

    def _opened(self) -> _gpuheap._Account:
        if self._account is None:
            raise BadInput(
                f"scope {self._name!r} was not entered; use it by `with`, or as a decorator"
            )
        return self._account

    def _used(self) -> Heap:
        """Returns the heap that was passed. If no heap was passed, returns the default heap."""
        return self._heap or default_heap()

    def _free_own(self, account: _gpuheap._Account, failures: _Failures) -> list[str]:
        """Frees the scope's own buffers. Returns the texts of warnings about buffers that could not
        be freed."""
        viewed = []
        for buffer in account.take_owned():
            with failures:
                if buffer.freed or _is_read(buffer):
                    continue
                try:
                    buffer.free()
                except BufferError as error:
                    viewed.append(f"scope {self.name!r} could not free {buffer!r}: {error}")
                else:
                    self.freed_bytes += buffer.nbytes
        return viewed

    def _note_leaks(self, account: _gpuheap._Account) -> None:
        heaps = heaps_with(self._used())
        self.leaked_bytes = _gpuheap._scope_stayed(heaps, account)
        if not self.leaked_bytes:
            return
        leaked = [
            Leak(
                record["bytes"],
                record["file"],
                record["line"],
                record["function"],
                record["thread"],
                record["address"],
                heap.device.name,
            )
            for heap in heaps
            if heap.tracks
            for record in _gpuheap._scope_leaked(heap, account)
        ]
        self.leaked = sorted(leaked, key=lambda leak: -leak.bytes)

    def _tell(self, error: BaseException | None) -> None:
        text = self.report()
        if error is not None:
            # Only add a note, because the traceback of `error` may hold objects that are no leak.
            error.add_note(text)
        elif callable(self._on_leak):
            self._on_leak(self)
        elif self._on_leak == "raise":
            raise Leaked(text)
        elif self._on_leak == "warn":
            warnings.warn(text, LeakWarning, stacklevel=self._level)

    def report(self, holders: bool = False) -> str:
        """Returns a text about the memory that outlived the scope. With `holders`, the text names
        the holders too."""
        if not self.leaked_bytes:
            return f"scope {self.name!r}: nothing outlived it"
        lines = [
            f"scope {self.name!r} on thread {self.thread}: {size(self.leaked_bytes)} outlived it"
        ]
        several = len({leak.device for leak in self.leaked}) > 1
        for leak in self.leaked:
            lines.append(f"  {leak}, on {leak.device}" if several else f"  {leak}")
            if holders:
                lines += [f"    held by {holder}" for holder in leak.holders()] or [
                    "    held by no Python object"
                ]
        if not self.leaked:
            lines.append('  a heap with track="lines" names the lines')
        return "\n".join(lines)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BadInput(
                f"{function.__qualname__} is a generator, and its scope would be open for the code that runs "
                "between two items; open the scope inside it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def scoped_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self._again() as scope:
                    return scope._keep_inside(await function(*args, **kwargs))

            return cast("Callable[P, R]", scoped_async)

        @functools.wraps(function)
        def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._again() as scope:
                result: R = scope._keep_inside(function(*args, **kwargs))
                return result

        return scoped

    def _again(self) -> Scope:
        made = type(self)(self._heap, self._name, self._limit, self._on_leak)
        made._level = 4
        return made

    def __repr__(self) -> str:
        return f"<gpuheap.Scope {self.name!r}>"


# Open scopes, keyed by number.
_open: weakref.WeakValueDictionary[int, Scope] = weakref.WeakValueDictionary()


def scope(
    name: str,
    limit: int | str | None = None,
    on_leak: str | Callable[[Scope], object] = "warn",
    *,
    heap: Heap | None = None,
) -> Scope:
    """Opens a scope of the default heap, or of `heap`. See `Heap.scope`."""
    return Scope(heap, name, limit, on_leak)


def current_scope() -> Scope:
    """Returns the innermost open scope that governs the caller. In a decorated function, this is
    the scope of the current call. Outside of all scopes, raises `gpuheap.BadInput`.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB")
    >>> @heap.scope("load")
    ... def load(cache):
    ...     cache.append(gpuheap.current_scope().keep(heap.zeros(10)))
    >>> cache = []
    >>> load(cache)
    >>> cache[0].freed
    False
    """
    account = _gpuheap._innermost_scope()
    found = _open.get(account.number) if account is not None else None
    if found is None:
        raise BadInput(
            "no scope governs this code; open one with `with gpuheap.scope(...)`, or as a decorator"
        )
    return found


@overload
def thread_scope(function: Callable[P, R]) -> Callable[P, R]: ...


@overload
def thread_scope(
    *,
    name: str | None = None,
    limit: int | str | None = None,
    on_leak: str | Callable[[Scope], object] = "warn",
    heap: Heap | None = None,
) -> Scope: ...


def thread_scope(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    limit: int | str | None = None,
    on_leak: str | Callable[[Scope], object] = "warn",
    heap: Heap | None = None,
) -> Any:
    """Returns a scope that decorates a thread's function. By default, the scope has the thread's
    name.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB")
    >>> @gpuheap.thread_scope(heap=heap, limit="100 MiB")
    ... def worker():
    ...     heap.alloc(1000)
    >>> thread = threading.Thread(target=worker, name="loader")
    >>> thread.start(); thread.join()
    >>> heap.stats()["live"]
    0
    """
    made = Scope(heap, name, limit, on_leak)
    return made if function is None else made(function)


def _is_read(buffer: Any) -> bool:
    """Returns whether an array of another library may refer to the buffer, through the CUDA array
    interface. Such an array does not notice `free`. Every exposed buffer counts, because the
    interface does not report the end of a use, and reference counts differ between Python
    versions."""
    return getattr(buffer, "_exposed", False)
