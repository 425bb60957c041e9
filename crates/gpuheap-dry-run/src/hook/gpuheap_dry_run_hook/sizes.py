"""Numbers that a program reads and makes the size of a tensor, as its source shows."""

import ast
import linecache

from .branches import encloses, position, span
from .process import state

# Functions of PyTorch all of whose arguments are sizes.
SIZED = {"arange", "empty", "expand", "eye", "new_empty", "new_ones", "new_zeros", "ones", "rand"}
SIZED |= {"randn", "repeat", "reshape", "view", "zeros"}


def becomes_size(frame):
    """Returns True if a number that the code of `frame` reads is a size in the same function."""
    at = (frame.f_code, frame.f_lasti)
    if at not in state.sized:
        state.sized[at] = find_size(frame)
    return state.sized[at]


def find_size(frame):
    where, function = position(frame), function_of(frame)
    if where is None or function is None:
        return False
    sizes = [size for node in ast.walk(function) for size in sizes_in(node)]
    if any(encloses(span(size), where) for size in sizes):
        return True
    names = {part.id for size in sizes for part in ast.walk(size) if isinstance(part, ast.Name)}
    return any(
        isinstance(node, ast.Assign)
        and encloses(span(node.value), where)
        and any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
        for node in ast.walk(function)
    )


def sizes_in(node):
    """Returns the expressions that a call or a slice takes as sizes."""
    if isinstance(node, ast.Slice):
        return [node.upper] if node.upper is not None else []
    if not isinstance(node, ast.Call):
        return []
    name = getattr(node.func, "attr", getattr(node.func, "id", None))
    return node.args if name in SIZED else []


def function_of(frame):
    """Returns the source of the function that `frame` executes, parsed; None without one."""
    code = frame.f_code
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    if code.co_name == "<module>":
        return tree
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == code.co_name
    ]
    line = frame.f_lineno
    return next((node for node in found if node.lineno <= line <= node.end_lineno), None)
