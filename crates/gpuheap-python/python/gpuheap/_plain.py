"""Reads objects without running code of their classes. A search meets every object of the program.
Reading an attribute may load a module, fail, or run code of a metaclass."""

from __future__ import annotations

import types
from typing import Any

# Descriptors by which `type` itself reads the attributes of a class. A metaclass may override the
# attributes, and a plain read would run the metaclass's code.
_MRO: Any = type.__dict__["__mro__"].__get__
_CONTENTS: Any = type.__dict__["__dict__"].__get__
_QUALNAME: Any = type.__dict__["__qualname__"].__get__
_MODULE: Any = type.__dict__["__module__"].__get__
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)

_MOST_LETTERS = 80
_MOST_TRIES = 1000


def is_a(node: Any, kind: type) -> bool:
    """Returns `True` if the object's class is `kind` or a subclass. `isinstance` would also run the
    object's own code."""
    return issubclass(type(node), kind)


def contents(kind: type) -> Any:
    """Returns the namespace of a class, without the names of its bases."""
    return _CONTENTS(kind)


def classes(kind: type) -> tuple[type, ...]:
    """Returns a class and its bases, in method resolution order."""
    found: tuple[type, ...] = _MRO(kind)
    return found


def has(kind: type, name: str) -> bool:
    """Returns `True` if a class or one of its bases defines a name."""
    return any(name in _CONTENTS(one) for one in _MRO(kind))


def variables(node: Any) -> dict[Any, Any] | None:
    """Returns the dictionary of an object's attributes. Returns `None` if the object has no
    dictionary."""
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
    """Returns the items of a dictionary or of a class's namespace as a list. A copy to a dictionary
    would compare keys, and could thereby run the program's code."""
    for _ in range(_MOST_TRIES):
        try:
            return list(
                table.items() if type(table) is types.MappingProxyType else dict.items(table)
            )
        except RuntimeError:
            # Another thread changed the dictionary during the read.
            continue
    return []


def module_of(kind: type) -> str:
    """Returns the name of a class's module."""
    try:
        name = _MODULE(kind)
    except AttributeError:
        return "?"
    return name if type(name) is str else "?"


def name_of(kind: type, with_module: bool = False) -> str:
    """Returns the name of a class."""
    name = _QUALNAME(kind)
    return f"{module_of(kind)}.{name}" if with_module else name


def key_of(key: Any) -> str:
    """Returns a key as Python code."""
    for kind in (str, int, float, bytes, bool, type(None)):
        if type(key) is kind:
            break
    else:
        return f"<{name_of(type(key))}>"
    if type(key) is int and key.bit_length() > 256:
        return "<int>"
    text = repr(key[:_MOST_LETTERS] if type(key) is str or type(key) is bytes else key)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
