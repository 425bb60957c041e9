"""Objects, looked at without code of their classes: a search meets every object of the program,
also those whose attributes load a module, fail, or are made up by a metaclass."""

from __future__ import annotations

import types
from typing import Any

# As C has them. A metaclass may define each of these anew.
_MRO: Any = type.__dict__["__mro__"].__get__
_CONTENTS: Any = type.__dict__["__dict__"].__get__
_QUALNAME: Any = type.__dict__["__qualname__"].__get__
_MODULE: Any = type.__dict__["__module__"].__get__
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)

_MOST_LETTERS = 80
_MOST_TRIES = 1000


def is_a(node: Any, kind: type) -> bool:
    """Returns `True` for an object of a class or of one below it. `isinstance` also asks the
    object."""
    return issubclass(type(node), kind)


def contents(kind: type) -> Any:
    """The names that a class itself defines."""
    return _CONTENTS(kind)


def classes(kind: type) -> tuple[type, ...]:
    """A class and those that it inherits from."""
    found: tuple[type, ...] = _MRO(kind)
    return found


def has(kind: type, name: str) -> bool:
    """Returns `True` if a class or one that it inherits from defines a name."""
    return any(name in _CONTENTS(one) for one in _MRO(kind))


def variables(node: Any) -> dict[Any, Any] | None:
    """The dictionary of an object's attributes; `None` if it has none."""
    for kind in _MRO(type(node)):
        slot = _CONTENTS(kind).get("__dict__")
        if type(slot) is _SLOTS[0] or type(slot) is _SLOTS[1]:
            try:
                found = slot.__get__(node)
            except Exception:
                continue
            return found if is_a(found, dict) else None
    return None


def items(table: Any) -> list[tuple[Any, Any]]:
    """The items of a dictionary, or of what a class defines. No copy as a dictionary: keys would be
    compared."""
    for _ in range(_MOST_TRIES):
        try:
            return list(
                table.items() if type(table) is types.MappingProxyType else dict.items(table)
            )
        except RuntimeError:
            # Another thread changed it meanwhile.
            continue
    return []


def module_of(kind: type) -> str:
    """Name of the module of a class."""
    try:
        name = _MODULE(kind)
    except AttributeError:
        return "?"
    return name if type(name) is str else "?"


def name_of(kind: type, with_module: bool = False) -> str:
    """Name of a class."""
    name = _QUALNAME(kind)
    return f"{module_of(kind)}.{name}" if with_module else name


def key_of(key: Any) -> str:
    """A key, as one would type it."""
    for kind in (str, int, float, bytes, bool, type(None)):
        if type(key) is kind:
            break
    else:
        return f"<{name_of(type(key))}>"
    if type(key) is int and key.bit_length() > 256:
        return "<int>"
    text = repr(key[:_MOST_LETTERS] if type(key) is str or type(key) is bytes else key)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
