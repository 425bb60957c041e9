"""Scopes: sections of a program whose GPU memory is limited, and free at the end."""

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
from gpuheap._heap import Heap, default_heap, size

P = ParamSpec("P")
R = TypeVar("R")

# The latest open scope of a context. The extension module reads it to find the scope that governs
# the calling code.
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

    def holders(self) -> list[Any]:
        """Returns the holders: `Holder` objects. Walks Python's objects: about a second for a
        million."""
        from gpuheap._holders import holders_of_memory

        return holders_of_memory(self.address, self.bytes)

    def __str__(self) -> str:
        return (
            f"{size(self.bytes)}, {self.file}:{self.line} ({self.function}), thread {self.thread}"
        )

    def __repr__(self) -> str:
        return str(self)


def _place_of(buffer: Any) -> tuple[int, int] | None:
    """Returns address and bytes of a buffer, an array or a library's object; `None` for memory of
    the host."""
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
    """Failures at the end of a scope, raised after all other steps of the end. A context manager
    that keeps the exception of each step."""

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
        """Raises the first failure, with notes of the others. If the body of the scope raised an
        exception, the body's exception gets the notes instead, unless the end was interrupted."""
        if not self._kept:
            return
        # An interrupt comes first. Empties the list: exceptions hold the frames that they passed.
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
    """A section of a program. From `Heap.scope`, `gpuheap.scope` and `gpuheap.thread_scope`.

    A context manager, and a decorator of functions and async functions; a decorated function opens
    a scope of its own for each call.
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
        #: Bytes that outlived the scope, without kept memory.
        self.leaked_bytes = 0
        #: Bytes of own buffers that the end of the scope freed.
        self.freed_bytes = 0
        #: Name of the thread that opened the scope.
        self.thread = ""

    @property
    def name(self) -> str:
        return self._name or self.thread

    @property
    def live(self) -> int:
        """Live bytes that were requested inside. Memory of other threads and tasks is not
        counted."""
        return self._opened().live

    @property
    def own_peak(self) -> int:
        """Most bytes that were requested inside and live at once. The limit bounds them."""
        return self._opened().peak

    def keep(self, buffer: Any) -> Any:
        """Keeps a buffer beyond the scope, and returns it. The scope around, if any, frees the
        buffer at its own end. Keeps the whole memory of an array, even if a part of it is passed. A
        kept object of a library is not reported.

        >>> import gpuheap
        >>> heap = gpuheap.Heap("emulated:1GiB")
        >>> with heap.scope("load") as scope:
        ...     weights = scope.keep(heap.alloc(1000))
        ...     workspace = heap.alloc(500)
        >>> weights.freed, workspace.freed
        (False, True)
        """
        account = self._opened()
        _gpuheap._scope_keep(account, buffer, _place_of(buffer))
        return buffer

    def _keep_inside(self, result: Any) -> Any:
        """Keeps all memory in the result of a function."""
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
        account = heap._open_scope(self.name, self._limit, _frames.resumable_on_stack())
        self._account = account
        _open[account.number] = self
        current.set(account)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        account = self._opened()
        account.close()
        _open.pop(account.number, None)
        # A framework may enter the scope in one context and leave it in another, and a program may
        # leave it before a scope inside it. In both cases the current scope stays, and skips this
        # one.
        if current.get() is account:
            current.set(account.before)
        failures = _Failures(self)
        viewed = self._free_own(account, failures)
        with failures:
            if _gpuheap._scope_stayed(self._used(), account):
                gc.collect()
            self._note_leaks(account)
        for text in viewed:
            with failures:
                warnings.warn(text, LeakWarning, stacklevel=self._level - 1)
        with failures:
            if self.leaked_bytes:
                self._tell(error)
        failures.tell(error)

    #: Frames from a warning to the code of the program.
    _level = 3

    def _opened(self) -> _gpuheap._Account:
        if self._account is None:
            raise BadInput(
                f"scope {self._name!r} was not entered; use it by `with`, or as a decorator"
            )
        return self._account

    def _used(self) -> Heap:
        """Returns the heap: given, or the default heap at the first use."""
        return self._heap or default_heap()

    def _free_own(self, account: _gpuheap._Account, failures: _Failures) -> list[str]:
        """Frees the scope's own buffers. Returns the texts of warnings."""
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
        heap = self._used()
        self.leaked_bytes = _gpuheap._scope_stayed(heap, account)
        if not self.leaked_bytes or not heap.tracks:
            return
        leaked = [
            Leak(
                record["bytes"],
                record["file"],
                record["line"],
                record["function"],
                record["thread"],
                record["address"],
            )
            for record in _gpuheap._scope_leaked(heap, account)
        ]
        self.leaked = sorted(leaked, key=lambda leak: -leak.bytes)

    def _tell(self, error: BaseException | None) -> None:
        text = self.report()
        if error is not None:
            # The traceback in flight holds the objects of its frames: they are no leak yet.
            error.add_note(text)
        elif callable(self._on_leak):
            self._on_leak(self)
        elif self._on_leak == "raise":
            raise Leaked(text)
        elif self._on_leak == "warn":
            warnings.warn(text, LeakWarning, stacklevel=self._level)

    def report(self, holders: bool = False) -> str:
        """Returns the memory that outlived the scope as a text; with `holders`, with its
        holders."""
        if not self.leaked_bytes:
            return f"scope {self.name!r}: nothing outlived it"
        lines = [
            f"scope {self.name!r} on thread {self.thread}: {size(self.leaked_bytes)} outlived it"
        ]
        for leak in self.leaked:
            lines.append(f"  {leak}")
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


# Open scopes by number.
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
    """Returns the innermost open scope that governs the calling code. A decorated function gets its
    own scope by this call. Outside of all scopes it raises `gpuheap.BadInput`.

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
    """Returns a scope for the function of a thread. The default name is the thread's.

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
    """Returns whether an array made by the CUDA array interface may refer to the buffer. Such an
    array holds the object, and ignores `free`. An exposed live object counts as held: the interface
    has no end, and counts of references differ between versions."""
    return getattr(buffer, "_exposed", False)
