"""Who holds GPU memory: from an object to the names through which the program reaches it."""

from __future__ import annotations

import gc
import sys
import threading
import types
from typing import Any, NamedTuple

from gpuheap import _frames
from gpuheap._heap import Heap, size
from gpuheap._objects import memory_objects, memory_of

# Objects and levels that a search looks at. A program of a million objects is searched in about a second.
_MOST_OBJECTS = 20_000
_MOST_LEVELS = 32
_MOST_HOLDERS = 8

_NO_KEY = object()

_GENERATORS = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}


class Holder(NamedTuple):
    """A name that keeps an object alive. Holds no object itself.

    `kind` is `"local"`, `"global"`, `"class"`, `"output"` (IPython's), `"traceback"` (an exception that is
    kept), `"thread"`, `"cycle"` (waits for the collector) or `"unknown"`.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return str(self)


class Held(NamedTuple):
    """An allocation, and who holds it. From `Heap.held`."""

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
        return f"{size(self.bytes)}, {self.file}:{self.line} ({self.function}): held by {held}"

    def __repr__(self) -> str:
        return str(self)


def holders(obj: Any) -> list[Holder]:
    """Says who holds an object: a buffer, an array or any other.

    Walks from the object to the names that reach it. Takes as long as Python's collector for each level
    between them, so it is for questions and not for loops. Nothing is changed.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB")
    >>> class Model: pass
    >>> Model.cache = {"weights": heap.alloc(1000)}
    >>> "Model.cache['weights']" in str(gpuheap.holders(Model.cache["weights"]))
    True
    """
    search = _Search([obj])
    return search.holders_of(id(obj))


def held(heap: Heap) -> list[Held]:
    """Every outstanding allocation of a heap with its holders, most bytes first: `Heap.held`."""
    records = heap._records()
    objects = memory_objects()
    places = [(memory_of(found), id(found)) for found in objects]
    search = _Search(objects)
    shown = []
    for record in records:
        start, end = record["address"], record["address"] + max(record["bytes"], 1)
        inside = [number for place, number in places if place is not None and start <= place[0] < end]
        found = _without_parts([holder for number in inside for holder in search.holders_of(number)])
        shown.append(
            Held(
                record["bytes"],
                record["file"],
                record["line"],
                record["function"],
                record["thread"],
                start,
                record["age"],
                found,
            )
        )
    return sorted(shown, key=lambda one: -one.bytes)


def holders_of_memory(address: int, nbytes: int) -> list[Holder]:
    """Who holds an object whose memory is in a range of addresses."""
    objects = []
    found = None
    for found in memory_objects():
        place = memory_of(found)
        if place is not None and address <= place[0] < address + max(nbytes, 1):
            objects.append(found)
    del found
    numbers = [id(one) for one in objects]
    search = _Search(objects)
    return _without_parts([holder for number in numbers for holder in search.holders_of(number)])


def _without_parts(found: list[Holder]) -> list[Holder]:
    """An array and the buffer inside it are held by one name: each name once."""
    unique = list(dict.fromkeys(found))
    named = [holder for holder in unique if holder.kind not in ("unknown", "cycle")]
    return (named or unique)[:_MOST_HOLDERS]


class _Search:
    """What refers to some objects, level by level up to names.

    `nodes` has the objects by number, and `above` the numbers of those that refer to each. These and the
    list of the current level are the only containers of objects here, and no result of the walk.
    """

    def __init__(self, targets: list[Any]) -> None:
        self.nodes: dict[int, Any] = {}
        self.above: dict[int, dict[int, None]] = {}
        self.is_complete = True
        self.locals: dict[int, list[tuple[str, str]]] = {}
        self.running: set[int] = set()
        # A module may have a second name: multiprocessing's __mp_main__ is __main__. The first name counts.
        self.modules: dict[int, str] = {}
        for name, module in list(sys.modules.items()):
            variables = getattr(module, "__dict__", None)
            if variables is not None:
                self.modules.setdefault(id(variables), name)
        self.handled = _handled()
        for ident, frame in _frames.running_frames():
            self.running.add(id(frame))
            if vars_of_module(frame) in self.modules:
                continue
            for name, number in _frames.local_names(frame).items():
                where = f"{_frames.place(frame)}, which runs on thread {_frames.thread_name(ident)}"
                self.locals.setdefault(number, []).append((name, where))
        del frame
        self._walk(targets)

    def _walk(self, targets: list[Any]) -> None:
        level = list(targets)
        ours = {id(targets), id(self.nodes), id(self.above), id(self.locals), id(self.__dict__), id(self)}
        for _ in range(_MOST_LEVELS):
            self.nodes.update((id(one), one) for one in level)
            if not level:
                return
            if len(self.nodes) > _MOST_OBJECTS:
                break
            # Python 3.13 shows the tuple of the call's arguments as a referrer.
            arguments = tuple(level)
            ours.update((id(level), id(arguments)))
            found = gc.get_referrers(*arguments)
            del arguments
            numbers = {id(one) for one in level}
            following: list[Any] = []
            ours.update((id(found), id(following)))
            for referrer in found:
                number = id(referrer)
                if number in ours or number in self.running or isinstance(referrer, _Search):
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
            isinstance(node, (type, types.ModuleType))
            or id(node) in self.modules
            or type(node) in _GENERATORS
            or isinstance(node, threading.Thread)
            and node.is_alive()
        )

    def holders_of(self, target: int) -> list[Holder]:
        """The shortest way from each name down to an object."""
        found: list[Holder] = []
        # Ways from a node down to the target, the shortest first.
        ways: list[tuple[int, ...]] = [(target,)]
        seen = {target: 1}
        while ways and len(found) < _MOST_HOLDERS:
            following: list[tuple[int, ...]] = []
            for way in ways:
                found += self._names(way)
                for number in self.above.get(way[0], ()):
                    # Two names may share what they go through, such as one dictionary.
                    if seen.get(number, 0) < _MOST_HOLDERS and number not in way:
                        seen[number] = seen.get(number, 0) + 1
                        following.append((number, *way))
            ways = following
        found = list(dict.fromkeys(found))
        return found[:_MOST_HOLDERS] or self._unnamed(target, set(seen))

    def _names(self, way: tuple[int, ...]) -> list[Holder]:
        """The names of the first node of a way."""
        number = way[0]
        node = self.nodes[number]
        if type(node) in _GENERATORS and len(way) > 1:
            frame = getattr(node, _GENERATORS[type(node)])
            names = _frames.local_names(frame) if frame is not None else {}
            name = next((name for name, value in names.items() if value == way[1]), None)
            if name is not None and id(frame) not in self.running:
                return [Holder("local", f"local {name}{self._path(way[1:])} of suspended {_frames.place(frame)}")]
        if number not in self.locals and number not in self.handled and not self._is_root(node):
            # Most nodes have no name of their own. Their path may lead through large containers.
            return []
        below = self._path(way)
        found = [Holder("local", f"local {name}{below} of {where}") for name, where in self.locals.get(number, ())]
        if number in self.handled:
            found.append(Holder("traceback", f"the exception that thread {self.handled[number]} handles{below}"))
        if len(way) < 2:
            return found
        if number in self.modules:
            found.append(self._global(self.modules[number], way))
        elif isinstance(node, type):
            found.append(Holder("class", f"{node.__module__}.{node.__qualname__}{below}"))
        elif isinstance(node, threading.Thread) and node.is_alive():
            found.append(Holder("thread", f"thread {node.name}{below}"))
        return found

    def _global(self, module: str, way: tuple[int, ...]) -> Holder:
        variables = self.nodes[way[0]]
        key = next((str(key) for key, value in variables.items() if id(value) == way[1]), "?")
        below = self._path(way[1:])
        if module == "sys" and key in ("last_exc", "last_value", "last_traceback"):
            return Holder("traceback", f"sys.{key}{below}")
        if key in ("_oh", "Out") or _is_output(module, key):
            return Holder("output", f"{'Out' if key == '_oh' else key}{below}")
        kind = "traceback" if ": local " in below else "global"
        return Holder(kind, f"{module}.{key}{below}")

    def _path(self, way: tuple[int, ...]) -> str:
        """The steps of a way, as one would type them."""
        text = ""
        for index in range(len(way) - 1):
            outer, node, child = self.nodes[way[index - 1]] if index else None, self.nodes[way[index]], way[index + 1]
            if not isinstance(node, types.FrameType):
                text += _step(outer, node, child)
                continue
            name = next((name for name, value in _frames.local_names(node).items() if value == child), None)
            if name is not None:
                ended = _frames.dead_thread(node)
                line = outer.tb_lineno if isinstance(outer, types.TracebackType) else None
                thread = f", thread {ended.name}, which ended" if ended else ""
                return f"{text}: local {name}{self._path(way[index + 1 :])} of {_frames.place(node, line)}{thread}"
        return text

    def _unnamed(self, target: int, seen: set[int]) -> list[Holder]:
        if not self.is_complete:
            return [Holder("unknown", f"more than {_MOST_OBJECTS} objects refer to it; the search ended")]
        cycle = self._cycle(target)
        if cycle:
            kinds = " -> ".join(type(self.nodes[number]).__qualname__ for number in cycle)
            return [Holder("cycle", f"a cycle that waits for the collector ({kinds}); gc.collect() frees it")]
        tops = [number for number in seen if number not in self.above and number != target]
        if tops:
            kind = type(self.nodes[tops[0]])
            return [Holder("unknown", f"a {kind.__module__}.{kind.__qualname__}, which code outside Python holds")]
        return []

    def _cycle(self, target: int) -> list[int]:
        """Objects above one that refer to each other in a circle."""
        way: list[int] = []
        done: set[int] = set()

        def visit(number: int) -> list[int]:
            if number in way:
                return way[way.index(number) :] + [number]
            if number in done or len(way) > 200:
                return []
            way.append(number)
            for above in self.above.get(number, ()):
                if circle := visit(above):
                    return circle
            way.pop()
            done.add(number)
            return []

        return visit(target)[::-1]


def vars_of_module(frame: types.FrameType) -> int:
    """The number of a frame's variables if they are those of a module, which are globals; else 0."""
    return id(frame.f_globals) if frame.f_code.co_name == "<module>" else 0


def _handled() -> dict[int, str]:
    """Exceptions that threads handle now, by number."""
    return {
        id(error[1] if isinstance(error, tuple) else error): _frames.thread_name(ident)
        for ident, error in sys._current_exceptions().items()
        if error is not None
    }


def _is_output(module: str, key: str) -> bool:
    return module == "__main__" and (key in ("_", "__", "___") or key[:1] == "_" and key[1:].isdecimal())


def _step(outer: Any, node: Any, child: int) -> str:
    """How `node` names `child`, inside `outer`."""
    if isinstance(node, types.TracebackType):
        return ""
    if isinstance(node, dict):
        key = next((key for key, value in node.items() if id(value) == child), _NO_KEY)
        if key is _NO_KEY:
            return " (as a key)"
        if isinstance(outer, type) or outer is not None and _plain_variables(outer) is node:
            return f".{key}"
        return f"[{key!r}]" if isinstance(key, (str, int, float, bytes)) else f"[<{type(key).__qualname__}>]"
    if isinstance(node, (list, tuple)):
        return f"[{next((index for index, value in enumerate(node) if id(value) == child), '?')}]"
    if isinstance(node, types.CellType):
        return ".cell_contents"
    if isinstance(node, BaseException) and id(node.__traceback__) == child:
        return ""
    return _attribute(node, child)


def _attribute(node: Any, child: int) -> str:
    """`.name` of an attribute, without code of the object's class."""
    variables = _plain_variables(node)
    if variables is not None:
        for name, value in variables.items():
            if id(value) == child:
                return f".{name}"
        if id(variables) == child:
            return ""
    for kind in type(node).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    if id(slot.__get__(node)) == child:
                        return f".{name}"
                except AttributeError:
                    continue
    return ""


def _plain_variables(node: Any) -> dict[str, Any] | None:
    try:
        variables = object.__getattribute__(node, "__dict__")
    except AttributeError:
        return None
    return variables if isinstance(variables, dict) else None
