"""Explanations of out-of-memory errors, and replays of recorded traces, as Python objects."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from typing import Any

from gpuheap import _gpuheap
from gpuheap._errors import OutOfMemory
from gpuheap._heap import size

#: The values of an `Explanation`: `program`, `cause`, `evidence`, `fix`, `from_documentation` and
#: the text.
Explained = tuple[str, str, list[tuple[str, int]], str, bool, str]


class Explanation:
    """The explanation of an out-of-memory error. It has the cause, figures and the first remedy.
    `str()` returns the whole explanation."""

    def __init__(self, explained: Explained) -> None:
        #: Program that raised the error, such as `"PyTorch"`.
        self.program: str
        #: Cause, in a sentence.
        self.cause: str
        #: First remedy. It is a command, a setting or a line of code.
        self.fix: str
        #: `True` if the form of the error is known only from documentation and reports.
        self.from_documentation: bool
        self.program, self.cause, figures, self.fix, self.from_documentation, self._text = explained
        #: Figures of the error from which the cause follows, in bytes, keyed by name.
        self.evidence: dict[str, int] = dict(figures)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>"


def explain(error: BaseException | str | None = None) -> Explanation | None:
    """Explains an out-of-memory error of PyTorch, CuPy, RMM, cuDF, Numba, JAX, PyCUDA or gpuheap.

    Takes the exception, or a text that contains the error, such as a log. Without an argument,
    explains the last uncaught error. Also reads the causes of an exception. Returns `None` if it
    finds no known out-of-memory error. Uses the same rules as the command `gpuheap explain`.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB", limit="64MiB")
    >>> try:
    ...     heap.alloc(100_000_000)
    ... except MemoryError as error:
    ...     explanation = gpuheap.explain(error)
    >>> explanation.program
    'gpuheap'
    """
    if error is None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is None:
            return None
    if isinstance(error, str):
        given: Iterator[BaseException | str] = iter([error])
    elif isinstance(error, BaseException):
        given = _chain(error)
    else:
        raise TypeError(f"{type(error)} is no error; pass an exception or a text")
    for one in given:
        if isinstance(one, OutOfMemory) and one.figures.get("cause") == "scope":
            return Explanation(_of_scope(one.figures))
        text = one if isinstance(one, str) else _text(one)
        if isinstance(one, OutOfMemory):
            # The error's text rounds its sizes. The figures are exact.
            text = f"{json.dumps(one.figures)}\n{text}"
        # A text may contain half of a surrogate pair, which has no UTF-8 form.
        explained = _gpuheap._explain(text.encode("utf-8", "replace").decode())
        if explained is not None:
            return Explanation(explained)
    return None


def _of_scope(figures: dict[str, Any]) -> Explained:
    """Explains the error for a request beyond a scope's limit."""
    cause = f"the limit of scope {figures['scope']!r} is reached"
    fix = f"raise the scope's limit by {size(figures['short_by'])}, or free what was requested inside it"
    evidence = [(name, figures[name]) for name in ("requested", "live", "limit")]
    lines = [
        f"gpuheap: {cause}",
        *(f"  {name:<22}{size(value):>18}" for name, value in evidence),
        f"  fix: {fix}",
    ]
    return "gpuheap", cause, evidence, fix, False, "\n".join(lines) + "\n"


def _text(error: BaseException) -> str:
    """Returns the last lines of an exception's traceback, without its causes. The caller reads each
    cause itself."""
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        lines = [f"{name}: {error}", *map(str, getattr(error, "__notes__", ()))]
    except Exception:
        # The exception's own code failed, so only the class name is known.
        return name
    return "\n".join(lines)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception and its causes."""
    seen: set[int] = set()
    following: list[BaseException | None] = [error]
    while following:
        one = following.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        following += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            following += one.exceptions


class Replay:
    """The verdict on the traces of a file. `str()` returns the command's output."""

    def __init__(self, figures: str, text: str) -> None:
        #: One dictionary for each trace, with the fields that `gpuheap replay --json` prints
        #: (docs/replay.schema.json).
        self.traces: list[dict[str, Any]] = json.loads(figures)
        self._text = text

    @property
    def gets_through(self) -> bool:
        """`True` if every trace completes on its device."""
        return all(trace["verdict"]["gets_through"] for trace in self.traces)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>"


def replay(
    path: str | PathLike[str],
    *,
    pools: Sequence[str] = (),
    check: str | None = None,
    card: str | None = None,
    device_memory: str | None = None,
    limit: str | None = None,
    find_minimum: bool = False,
    recorded_only: bool = False,
) -> Replay:
    """Replays a PyTorch snapshot or an RMM log through models of allocators, without a GPU. The
    verdict names settings and cards on which the program would complete. Takes the arguments of
    `gpuheap replay`.

    Blocks until the replay ends, about a second per million events. Raises `OSError` for a missing
    file, and `ValueError` for a wrong argument or a file that is not a trace.
    """
    figures, text = _gpuheap._replay(
        fspath(path),
        pools=list(pools),
        check=check,
        card=card,
        device_memory=device_memory,
        limit=limit,
        find_minimum=find_minimum,
        recorded_only=recorded_only,
    )
    return Replay(figures, text)
