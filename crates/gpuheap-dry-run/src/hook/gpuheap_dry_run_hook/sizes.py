"""Finds the numbers that a program reads from the device and uses as the size of a tensor.

Searches the program's source for these uses.
"""

import ast

from .branches import parsed, position, span
from .process import state

# Functions of PyTorch all of whose arguments are sizes.
SIZED = {"arange", "empty", "expand", "eye", "narrow", "new_empty", "new_ones", "new_zeros", "ones"}
SIZED |= {"one_hot", "rand", "randn", "repeat", "reshape", "split", "topk", "view", "zeros"}
# Functions whose first arguments are sizes, with the number of these arguments.
PARTLY_SIZED = {"full": 1, "new_full": 1, "Embedding": 2, "Linear": 2}
# Functions of Python that compute a number from numbers.
ARITHMETIC = {"int", "max", "min", "round"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Maximum number of functions to search for a use as a size: the function that reads the number from
# the device, and its callers.
CALLERS = 4


def becomes_size(frame):
    """Returns True if the source uses the number that `frame` is reading as a size.

    Searches the callers too if the function of `frame` returns the number.
    """
    for _ in range(CALLERS):
        at = (frame.f_code, frame.f_lasti)
        if at not in state.sized:
            state.sized[at] = find_size(frame)
        is_size, is_returned = state.sized[at]
        if is_size or not is_returned or frame.f_back is None:
            return is_size
        frame = frame.f_back
    return False


def find_size(frame):
    """Returns whether `frame` uses the number it reads as a size, and whether it is returned."""
    where, tree = position(frame), parsed(frame.f_code.co_filename)
    function = function_of(frame, tree)
    if where is None or function is None:
        return False, False
    own = {node.name: node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)}
    nodes = list(nodes_of(function))
    sizes = [size for node in nodes for size in sizes_in(node, own)]
    # If the function stores the number in `self`, another method may use the number as a size. So
    # searches the whole file.
    kept = names_in_numbers(size for node in ast.walk(tree) for size in sizes_in(node, {}))
    names = names_in_numbers(sizes) | {name for name in kept if "." in name}
    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    for node in reversed(assignments):
        if names_in_numbers(node.targets) & names:
            names |= names_in_numbers([node.value])
    sizes += [node.value for node in assignments if names_in_numbers(node.targets) & names]
    returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value]
    return is_number_in(sizes, where), is_number_in(returned, where)


def is_number_in(expressions, where):
    """Returns True if one of the expressions is computed from the result of the call at `where`."""
    parts = (part for expression in expressions for part in parts_of_number(expression))
    return any(isinstance(part, ast.Call) and span(part) == where for part in parts)


def names_in_numbers(expressions):
    """Returns the names from which numbers are computed, as `n` and `self.n` in `n + self.n`."""
    parts = [part for expression in expressions for part in parts_of_number(expression)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    kept = [part for part in parts if isinstance(part, ast.Attribute)]
    return names | {f"self.{part.attr}" for part in kept if getattr(part.value, "id", "") == "self"}


def parts_of_number(node):
    """Yields an expression, and recursively each operand and argument that its value depends on."""
    yield node
    parts = []
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, (ast.Tuple, ast.List)):
        parts = node.elts
    elif isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in ARITHMETIC:
        parts = node.args
    for part in parts:
        yield from parts_of_number(part)


def sizes_in(node, own):
    """Returns the expressions that a call or a slice takes as sizes.

    `own` has the program's functions, keyed by name. An argument of such a function is a size if
    the function uses it as a size.
    """
    if isinstance(node, ast.Slice):
        return [node.upper] if node.upper is not None else []
    if not isinstance(node, ast.Call):
        return []
    name = getattr(node.func, "attr", getattr(node.func, "id", None))
    if name in own:
        names = names_in_numbers(
            size for part in ast.walk(own[name]) for size in sizes_in(part, {})
        )
        parameters = [one.arg for one in own[name].args.args if one.arg != "self"]
        given = [*zip(parameters, node.args), *((one.arg, one.value) for one in node.keywords)]
        return [value for parameter, value in given if parameter in names]
    if name in SIZED or name in PARTLY_SIZED:
        return node.args[: PARTLY_SIZED.get(name)]
    return []


def function_of(frame, tree):
    """Returns the function that `frame` executes; None if it is not in the source."""
    name, line = frame.f_code.co_name, frame.f_lineno
    if name == "<module>":
        return tree
    found = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node.name == name]
    return next((node for node in found if node.lineno <= line <= node.end_lineno), None)


def nodes_of(function):
    """Yields the nodes of a function or module, but not of functions within it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, FUNCTIONS):
            yield node
            yield from nodes_of(node)
