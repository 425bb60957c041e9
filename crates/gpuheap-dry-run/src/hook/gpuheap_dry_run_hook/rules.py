"""Applies the values that the user set for results with `--read` and `--read-range`."""

import json
import os

from .lines import line_at

# Rules of `--read`. A rule has the end of a file's path, a line, and an expression.
RULES = json.loads(os.environ.get("GPUHEAP_DRY_RUN_READS") or "[]")
# Largest number of elements that the hook lets operators such as `nonzero` find. If `LARGEST` is
# true, they find as many elements as their tensors allow.
SMALLEST = int(os.environ.get("GPUHEAP_DRY_RUN_SMALLEST_COUNT") or 0)
LARGEST = "GPUHEAP_DRY_RUN_SMALLEST_COUNT" not in os.environ
# The only line at which operators such as `nonzero` find at most `SMALLEST` elements. At other
# lines, they find as many as their tensors allow. None if `SMALLEST` applies to all lines.
SMALLEST_LINE = os.environ.get("GPUHEAP_DRY_RUN_SMALLEST_LINE")


def is_largest_at(line):
    """Returns True if operators such as `nonzero` find all elements that they can at `line`."""
    return LARGEST or SMALLEST_LINE not in (None, line_at(line))


def rule_at(line):
    """Returns the user's rule for `line` (code object and line number); None without a rule."""
    if not RULES or line is None:
        return None
    file, number = line[0].co_filename, line[1]
    for rule in RULES:
        is_file = file == rule["file"] or file.endswith(os.sep + rule["file"])
        if is_file and number == rule["line"]:
            return rule
    return None


def value_of(rule, shape, bound):
    """Evaluates the user's expression, to replace a value that the program reads from a tensor.

    The expression may use `shape` (the tensor's sizes) and `bound` (the largest number of elements
    that an operator such as `nonzero` can find).
    """
    if "code" not in rule:
        rule["code"] = compile(str(rule["value"]), f"--read {rule['file']}", "eval")
    names = {"shape": shape, "bound": bound, "min": min, "max": max, "int": int, "float": float}
    return eval(rule["code"], {"__builtins__": {}}, names)
