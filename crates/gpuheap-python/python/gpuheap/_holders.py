"""Finds the holders of GPU memory: the names through which the program reaches an object."""

from __future__ import annotations

import bisect
import contextlib
import gc
import itertools
import json
import os
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpuheap import _frames, _plain
from gpuheap._heap import Heap, size
from gpuheap._objects import memory_objects, memory_of

# A search examines at most this many objects and levels, and returns at most this many holders.
# With these limits, a search in a program of a million objects takes about a second.
_MOST_OBJECTS = 20_000
_MOST_LEVELS = 32
_MOST_HOLDERS = 8

# Maximum number of objects whose referrers the collector looks up. The collector compares each
# reference with each of these objects. For more objects, one pass over all objects is faster.
_FEW = 16
_CHUNK = 200

# Only one search runs at a time. Otherwise, a search would report another search as a holder. A
# thread waits at most `_MOST_SECONDS` for `_turn`, because the running search may hang in the
# program's code.
_turn = threading.RLock()
_MOST_SECONDS = 30


def _after_fork() -> None:
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def _in_turn() -> Iterator[None]:
    turn = _turn
    has_turn = turn.acquire(timeout=_MOST_SECONDS)
    try:
        yield
    finally:
        if has_turn:
            turn.release()


class Holder(NamedTuple):
    """A name that keeps an object alive. The `Holder` itself refers to no object.

    `kind` is `"local"`, `"global"`, `"class"`, `"output"` (of IPython), `"traceback"` (of an
    exception that is kept), `"thread"`, `"cycle"` (waits for the collector), `"library"` (a
    function that RMM's tracking adaptor recorded) or `"unknown"`.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return str(self)


class Held(NamedTuple):
    """An allocation with its holders, returned by `Heap.held`."""

    bytes: int
    file: str
    line: int
    function: str
    thread: str
    address: int
    age: float
    holders: list[Holder]

    def __str__(self) -> str:
        held = "; ".join(map(str, self.holders)) or "no Python object"
        where = f"{self.file}:{self.line} ({self.function}), thread {self.thread}"
        return f"{size(self.bytes)}, {where}: held by {held}"

    def __repr__(self) -> str:
        return str(self)


def holders(obj: Any) -> list[Holder]:
    """Returns the holders of a buffer, an array or any other object.

    Walks from the object up to the names that reach it. Do not call this in loops: each level of
    the walk takes as long as a run of Python's collector. Changes nothing.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB")
    >>> class Model: pass
    >>> Model.cache = {"weights": heap.alloc(1000)}
    >>> "Model.cache['weights']" in str(gpuheap.holders(Model.cache["weights"]))
    True
    """
    with _in_turn():
        search = _Search([obj])
        return search.holders_of(id(obj))


def held(heap: Heap) -> list[Held]:
    """Returns every outstanding allocation of a heap with its holders, most bytes first. Implements
    `Heap.held`."""
    records = heap._records()
    holders = _holders_of_ranges([(record["address"], record["bytes"]) for record in records])
    functions: dict[int, str] = {}
    if "rmm" in sys.modules:
        from gpuheap._rmm_adaptors import callers

        functions = callers(heap.device)
    for record, found in zip(records, holders):
        if not found and record["address"] in functions:
            found.append(Holder("library", functions[record["address"]]))
    shown = [
        Held(
            record["bytes"],
            record["file"],
            record["line"],
            record["function"],
            record["thread"],
            record["address"],
            record["age"],
            found,
        )
        for record, found in zip(records, holders)
    ]
    return sorted(shown, key=lambda one: -one.bytes)


def held_of(records: list[dict[str, Any]], device: str, most: int) -> str:
    """Returns the largest records, at most `most`, with the names of their holders. The result is
    JSON for other processes."""
    largest = sorted(records, key=lambda record: -record["bytes"])[:most]
    holders = _holders_of_ranges([(record["address"], record["bytes"]) for record in largest])
    held = [
        {
            "line": f"{record['file']}:{record['line']}",
            "device": device,
            "bytes": record["bytes"],
            "age_seconds": record["age"],
            "holders": [str(one) for one in found],
        }
        for record, found in zip(largest, holders)
    ]
    return json.dumps(held)


def holders_of_memory(address: int, nbytes: int) -> list[Holder]:
    """Returns the holders of the objects whose memory is in a range of addresses."""
    return _holders_of_ranges([(address, nbytes)])[0]


def _holders_of_ranges(ranges: list[tuple[int, int]]) -> list[list[Holder]]:
    """Returns one list for each range of addresses. The list has the holders of all objects whose
    memory is in the range. A range is an address and a number of bytes. Ranges do not overlap."""
    starts = sorted(ranges)
    with _in_turn():
        inside: dict[int, list[int]] = {}
        objects = []
        for found in memory_objects():
            place = memory_of(found)
            if place is None:
                continue
            index = bisect.bisect_right(starts, (place[0], sys.maxsize)) - 1
            if index >= 0 and place[0] < starts[index][0] + max(starts[index][1], 1):
                inside.setdefault(starts[index][0], []).append(id(found))
                objects.append(found)
        found = None
        search = _Search(objects)
        return [
            _without_parts(
                [
                    holder
                    for number in inside.get(address, ())
                    for holder in search.holders_of(number)
                ]
            )
            for address, _ in ranges
        ]


def _without_parts(found: list[Holder]) -> list[Holder]:
    """Lists each name once. A name occurs twice if it holds an array and the buffer inside the
    array."""
    unique = list(dict.fromkeys(found))
    named = [holder for holder in unique if holder.kind not in ("unknown", "cycle")]
    return (named or unique)[:_MOST_HOLDERS]


class _Search:
    """A search from objects up to the names that keep them alive, level by level.

    `nodes` contains the found objects, keyed by `id`. `above` contains for each object the `id`s of
    the objects that refer to it. The search's own containers also refer to objects: `nodes`,
    `above` and the list of the current level. The search leaves these containers out.
    """

    def __init__(self, targets: list[Any]) -> None:
        self.nodes: dict[int, Any] = {}
        self.above: dict[int, dict[int, None]] = {}
        self.is_complete = True
        #: Names of the parts of large containers. The first key is the container's `id`, and the
        #: second key is the part's `id`.
        self.steps: dict[int, dict[int, str]] = {}
        # A module may have two names: multiprocessing's __mp_main__ is also __main__. Use the first
        # name.
        self.modules: dict[int, str] = {}
        for name, module in _plain.items(sys.modules):
            variables = _plain.variables(module)
            if variables is not None and type(name) is str:
                self.modules.setdefault(id(variables), name)
        self.threads = {id(thread): _frames.name_of(thread) for thread in threading.enumerate()}
        self.running = {id(frame) for _, frame in _frames.running_frames()}
        self._walk(targets)
        # The code below finds objects by `id`. It runs only now that `nodes` keeps all objects
        # alive, because the `id` of an ended object may be reused.
        names = _frames.thread_names()
        self.handled = _handled(names)
        self.locals: dict[int, list[tuple[str, str]]] = {}
        for ident, frame in _frames.running_frames():
            if vars_of_module(frame) in self.modules:
                continue
            where = f"{_frames.place(frame)}, which runs on thread {names.get(ident, str(ident))}"
            for name, number in _frames.local_names(frame).items():
                if number in self.nodes:
                    self.locals.setdefault(number, []).append((name, where))

    def _walk(self, targets: list[Any]) -> None:
        level = list(targets)
        ours = {
            id(targets),
            id(self.nodes),
            id(self.above),
            id(self.steps),
            id(self.__dict__),
            id(self),
        }
        for _ in range(_MOST_LEVELS):
            self.nodes.update((id(one), one) for one in level)
            if not level:
                return
            if len(self.nodes) - len(targets) > _MOST_OBJECTS:
                break
            numbers = {id(one) for one in level}
            ours.add(id(level))
            following: list[Any] = []
            found = _referrers(level, numbers, ours)
            ours.update((id(found), id(following)))
            for referrer in found:
                number = id(referrer)
                if number in ours or number in self.running or type(referrer) is _Search:
                    continue
                for referent in gc.get_referents(referrer):
                    if id(referent) in numbers:
                        self.above.setdefault(id(referent), {})[number] = None
                if number not in self.nodes:
                    self.nodes[number] = referrer
                    if not self._is_root(referrer):
                        following.append(referrer)
            referrer = referent = None
            level = following
        self.is_complete = False

    def _is_root(self, node: Any) -> bool:
        return (
            _plain.is_a(node, type)
            or _plain.is_a(node, types.ModuleType)
            or id(node) in self.modules
            or _frames.is_generator(node)
            or id(node) in self.threads
        )

    def holders_of(self, target: int) -> list[Holder]:
        """Returns the names that reach an object, each with the shortest path to the object."""
        found: list[Holder] = []
        # Paths from a node to the target, the shortest first.
        ways: list[tuple[int, ...]] = [(target,)]
        seen = {target: 1}
        while ways and len(found) < _MOST_HOLDERS:
            following: list[tuple[int, ...]] = []
            for way in ways:
                found += self._names(way)
                for number in self.above.get(way[0], ()):
                    # Paths may share objects, such as one dictionary, so follow an object several
                    # times. An object that is in its own path closes a cycle: skip it.
                    if seen.get(number, 0) < _MOST_HOLDERS and number not in way:
                        seen[number] = seen.get(number, 0) + 1
                        following.append((number, *way))
            ways = following
        found = list(dict.fromkeys(found))
        return found[:_MOST_HOLDERS] or self._unnamed(target, set(seen))

    def _names(self, way: tuple[int, ...]) -> list[Holder]:
        """Returns the program's names for the first object of the path `way`."""
        number = way[0]
        node = self.nodes[number]
        held = way[1] if len(way) > 1 else None
        frame = _frames.frame_of(node) if held is not None else None
        if frame is not None and id(frame) not in self.running:
            names = _frames.local_names(frame).items()
            name = next((name for name, value in names if value == held), None)
            if name is not None:
                return [
                    Holder(
                        "local",
                        f"local {name}{self._path(way[1:])} of suspended {_frames.place(frame)}",
                    )
                ]
        if number not in self.locals and number not in self.handled and not self._is_root(node):
            # Most objects have no name. Return before `_path` is called, because `_path` is slow if
            # the path contains large containers.
            return []
        below = self._path(way)
        found = [
            Holder("local", f"local {name}{below} of {where}")
            for name, where in self.locals.get(number, ())
        ]
        if number in self.handled:
            found.append(
                Holder(
                    "traceback", f"the exception that thread {self.handled[number]} handles{below}"
                )
            )
        if len(way) < 2:
            return found
        if number in self.modules:
            found.append(self._global(self.modules[number], way))
        elif _plain.is_a(node, type):
            found.append(Holder("class", f"{_plain.name_of(node, with_module=True)}{below}"))
        elif number in self.threads:
            found.append(Holder("thread", f"thread {self.threads[number]}{below}"))
        return found

    def _global(self, module: str, way: tuple[int, ...]) -> Holder:
        variables = _plain.items(self.nodes[way[0]])
        key = next(
            (key for key, value in variables if id(value) == way[1] and type(key) is str), "?"
        )
        below = self._path(way[1:])
        if module == "sys" and key in ("last_exc", "last_value", "last_traceback"):
            return Holder("traceback", f"sys.{key}{below}")
        if key in ("_oh", "Out") or _is_output(module, key):
            return Holder("output", f"{'Out' if key == '_oh' else key}{below}")
        kind = "traceback" if ": local " in below else "global"
        return Holder(kind, f"{module}.{key}{below}")

    def _path(self, way: tuple[int, ...]) -> str:
        """Returns the path from the first object of `way` to the last as Python code: `.a[0]`."""
        text = ""
        for index in range(len(way) - 1):
            outer, node, child = (
                self.nodes[way[index - 1]] if index else None,
                self.nodes[way[index]],
                way[index + 1],
            )
            if type(node) is not types.FrameType:
                text += self._step(outer, node, child)
                continue
            name = next(
                (name for name, value in _frames.local_names(node).items() if value == child), None
            )
            if name is not None:
                ended = _frames.dead_thread(node)
                line = outer.tb_lineno if type(outer) is types.TracebackType else None
                thread = (
                    f", thread {_frames.name_of(ended)}, which ended" if ended is not None else ""
                )
                return f"{text}: local {name}{self._path(way[index + 1 :])} of {_frames.place(node, line)}{thread}"
        return text

    def _unnamed(self, target: int, seen: set[int]) -> list[Holder]:
        if not self.is_complete:
            return [
                Holder(
                    "unknown", f"more than {_MOST_OBJECTS} objects refer to it; the search ended"
                )
            ]
        cycle = self._cycle(target)
        if cycle:
            kinds = " -> ".join(_plain.name_of(type(self.nodes[number])) for number in cycle)
            return [
                Holder(
                    "cycle",
                    f"a cycle that waits for the collector ({kinds}); gc.collect() frees it",
                )
            ]
        tops = [number for number in seen if number not in self.above and number != target]
        if tops:
            name = _plain.name_of(type(self.nodes[tops[0]]), with_module=True)
            return [Holder("unknown", f"a {name}, which code outside Python holds")]
        return []

    def _cycle(self, target: int) -> list[int]:
        """Returns a reference cycle that keeps an object alive, as `id`s. Returns an empty list if
        no cycle does."""
        # Uses a loop, because a nested recursive function would refer to itself, and keep this
        # object alive until the collector runs.
        way, left = [target], [iter(self.above.get(target, ()))]
        done: set[int] = set()
        while way:
            above = next(left[-1], None)
            if above is None:
                done.add(way.pop())
                left.pop()
            elif above in way:
                return [*way[way.index(above) :], above][::-1]
            elif above not in done and len(way) <= 200:
                way.append(above)
                left.append(iter(self.above.get(above, ())))
        return []

    def _step(self, outer: Any, node: Any, child: int) -> str:
        """Returns how `node` refers to `child`, as code. `outer` is the object that refers to
        `node`."""
        kind = type(node)
        if kind is types.TracebackType:
            return ""
        if _plain.is_a(node, dict):
            key = self._part(node, child)
            if key is None:
                return " (as a key)"
            if outer is not None and (_plain.is_a(outer, type) or _plain.variables(outer) is node):
                return f".{key[1:-1]}" if key[:1] in "'\"" else f"[{key}]"
            return f"[{key}]"
        if _plain.is_a(node, list) or _plain.is_a(node, tuple):
            return f"[{self._part(node, child) or '?'}]"
        if kind is types.CellType:
            return ".cell_contents"
        if _plain.is_a(node, BaseException) and id(_TRACEBACK(node)) == child:
            return ""
        return _attribute(node, child)

    def _part(self, node: Any, child: int) -> str | None:
        """Returns the key or the index of `child` in the container `node`."""
        parts: Any = None
        if _plain.is_a(node, dict):
            parts = ((value, key) for key, value in _plain.items(node))
        elif _plain.is_a(node, list):
            parts = zip(list.copy(node), itertools.count())
        else:
            parts = zip(tuple.__iter__(node), itertools.count())
        if len_of(node) <= _FEW:
            return next((_plain.key_of(key) for part, key in parts if id(part) == child), None)
        steps = self.steps.get(id(node))
        if steps is None:
            steps = self.steps[id(node)] = {}
            for part, key in parts:
                if id(part) in self.nodes:
                    steps.setdefault(id(part), _plain.key_of(key))
        return steps.get(child)


_TRACEBACK: Any = vars(BaseException)["__traceback__"].__get__


def len_of(node: Any) -> int:
    """Returns the length of a dictionary, a list or a tuple. Runs no code of its class."""
    for kind in (dict, list, tuple):
        if _plain.is_a(node, kind):
            return kind.__len__(node)
    return 0


def _referrers(level: list[Any], numbers: set[int], ours: set[int]) -> list[Any]:
    """Returns the objects that refer to at least one object of the list `level`. Adds to `ours` the
    `id`s of containers that this function makes, because the search would find them too."""
    if len(level) <= _FEW:
        # From Python 3.13 on, the tuple of the call's arguments is a referrer too. Skip the tuple.
        arguments = tuple(level)
        ours.add(id(arguments))
        return gc.get_referrers(*arguments)
    found: list[Any] = []
    ours.add(id(found))
    everything = gc.get_objects()
    for start in range(0, len(everything), _CHUNK):
        chunk = everything[start : start + _CHUNK]
        if not numbers.isdisjoint(map(id, gc.get_referents(*chunk))):
            found += [
                one for one in chunk if not numbers.isdisjoint(map(id, gc.get_referents(one)))
            ]
    return found


def vars_of_module(frame: types.FrameType) -> int:
    """Returns the `id` of the globals of a module's frame. Returns 0 for other frames."""
    return id(frame.f_globals) if frame.f_code.co_name == "<module>" else 0


def _handled(names: dict[int | None, str]) -> dict[int, str]:
    """Returns the names of threads that handle an exception now, keyed by the exception's `id`."""
    return {
        id(error[1] if type(error) is tuple else error): names.get(ident, str(ident))
        for ident, error in sys._current_exceptions().items()
        if error is not None
    }


def _is_output(module: str, key: str) -> bool:
    return module == "__main__" and (
        key in ("_", "__", "___") or (key[:1] == "_" and key[1:].isdecimal())
    )


def _attribute(node: Any, child: int) -> str:
    """Returns `.name` for the attribute of `node` that contains `child`."""
    variables = _plain.variables(node)
    if variables is not None:
        for name, value in _plain.items(variables):
            if id(value) == child:
                return f".{name}" if type(name) is str else f".{_plain.key_of(name)}"
        if id(variables) == child:
            return ""
    for kind in _plain.classes(type(node)):
        for name, slot in _plain.items(_plain.contents(kind)):
            if type(slot) is types.MemberDescriptorType:
                try:
                    if id(slot.__get__(node)) == child:
                        return f".{name}"
                except Exception:
                    # The slot is empty.
                    continue
    return ""
