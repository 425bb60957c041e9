"""Applies the values that the user set for results with `--read` and `--read-range`."""

import json
import os

from .lines import line_at

# Rules of `--read`. A rule has the end of a file's path, a line, and an expression.
RULES = json.loads(os.environ.get("GPUHEAP_DRY_RUN_READS") or "[]")
# A count with a bound is as large as the bound if `LARGEST`, else at most `SMALLEST`.
SMALLEST = int(os.environ.get("GPUHEAP_DRY_RUN_SMALLEST_COUNT") or 0)
LARGEST = "GPUHEAP_DRY_RUN_SMALLEST_COUNT" not in os.environ
# The only line with small counts; None if all lines have small counts.
SMALLEST_LINE = os.environ.get("GPUHEAP_DRY_RUN_SMALLEST_LINE")


def is_largest_at(line):
    """Returns True if a count that is read at a line is as large as its bound."""
    return LARGEST or SMALLEST_LINE not in (None, line_at(line))


def rule_at(line):
    """Returns the rule for a line, given as code and number; None if the line has no rule."""
    if not RULES or line is None:
        return None
    file, number = line[0].co_filename, line[1]
    for rule in RULES:
        is_file = file == rule["file"] or file.endswith(os.sep + rule["file"])
        if is_file and number == rule["line"]:
            return rule
    return None


def value_of(rule, shape, bound):
    """Returns the value of a rule for a tensor of this shape.

    The expression may use `shape` (the tensor's sizes) and `bound` (the largest possible count).
    """
    if "code" not in rule:
        rule["code"] = compile(str(rule["value"]), f"--read {rule['file']}", "eval")
    names = {"shape": shape, "bound": bound, "min": min, "max": max, "int": int, "float": float}
    return eval(rule["code"], {"__builtins__": {}}, names)
