"""Chooses the results that a program reads from the device.

No kernel runs, so the Python hook chooses each result. With the chosen results, the program takes
at least as much memory as on a GPU. A count of elements is as large as the counted tensor allows,
and an index is in range. Truth values let the program go on. Floating-point numbers sum to 1, as
the probabilities of a row do.
"""

import ctypes
import os
import struct

from . import rules
from .branches import count_that_stays, ends_slice, number, truth
from .detectors import count_in_detector
from .generation import finds_segments, truth_in_generation
from .process import state

# Maximum number of operators whose tensors are examined, innermost first.
MOST_OPERANDS = 8
# Operators that count elements of a tensor, to allocate a result of that size.
COUNTING = {
    "_coalesce", "_unique2", "nonzero", "repeat_interleave", "unique_consecutive", "unique_dim",
}  # fmt: skip
# Operator that copies to the host the real sizes of each sequence in a padded tensor. The first
# size is the sequence's length, at most the size of the tensor's dimension 1. The other sizes are
# the sizes of the tensor's further dimensions.
UNPADDING = "_nested_tensor_from_mask"
# Prefixes of the names of operators that read a flag that is true only after an error.
TRUE_IS_ERROR = (
    "_linalg", "linalg_", "_is_any_true", "inverse", "cholesky", "istft", "lu_", "svd",
)  # fmt: skip
# Source files of PyTorch that read floating-point numbers as error flags. 0 means no error.
FLAGS = (os.path.join("torch", "amp", "grad_scaler.py"),)
# Formats of `struct`, keyed by PyTorch's number of the element type.
INTEGERS = {0: "B", 1: "b", 2: "h", 3: "i", 4: "q", 27: "H", 28: "I", 29: "Q"}
FLOATS = {5: "e", 6: "f", 7: "d"}
BOOLEAN, BFLOAT16 = 11, 15
# Value that the hook chooses for the end of a slice, such as `n` in `x[:n]`. Python reduces a value
# that exceeds the sequence's length to that length.
MOST_INDEX = 2**31 - 1
# Bytes that are written at a time.
PIECE = 1 << 20


class Copy(ctypes.Structure):
    """A copy from the device to the host, as the emulated driver reports it."""

    _fields_ = [
        ("address", ctypes.c_ulonglong),
        ("bytes", ctypes.c_ulonglong),
        ("is_written", ctypes.c_bool),
    ]


class Operand(ctypes.Structure):
    """Tensor that an operator of PyTorch reads, as the emulated runtime reports it."""

    _fields_ = [
        ("operator", ctypes.c_char_p),
        ("element_type", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("sizes", ctypes.c_longlong * 8),
        ("one_of", ctypes.c_longlong),
        ("most", ctypes.c_longlong),
        ("sum", ctypes.c_longlong),
    ]

    def shape(self):
        return tuple(self.sizes[: self.dimensions])

    def elements(self):
        count = 1
        for size in self.shape():
            count *= size
        return count


class Result:
    """Value that the hook chose for a copy to the host, and whether it is an upper bound."""

    def __init__(self, value, is_bound=False):
        self.value = value
        self.is_bound = is_bound


# Result if the hook chose no value. The copied bytes then stay as they are.
NOT_CHOSEN = Result(None)


def put_result(copy, operator, frame, line):
    """Overwrites copied bytes with a chosen result, and returns it; None if the bytes stay.

    `operator` is the operator of PyTorch that reads. `frame` is the Python code that called the
    operator. `line` is the code and the number of the line that reads.
    """
    rule = rules.rule_at(line)
    is_largest = rules.is_largest_at(line)
    if not copy.address or (copy.is_written and rule is None):
        return None
    operands = operands_of_thread()
    if not operands:
        return None
    read = operands[0]
    counting = [operand for operand in operands if operand.operator.decode() in COUNTING]
    padded = [operand for operand in operands if operand.operator.decode() == UNPADDING]
    if counting and counting[-1] is read:
        # The operator divides its tensor into parts, and copies a 32-bit count for each part to the
        # host. Writes counts that sum to the chosen count.
        most = count_in_library(frame, read.elements() // read.one_of)
        result = count(most, read, rule, is_largest)
        put_counts(copy, result.value, "i")
        return result
    if read.sum and read.element_type in INTEGERS and rule is None:
        return Result(put_counts(copy, read.sum, INTEGERS[read.element_type]))
    if counting and read.element_type in INTEGERS:
        most = count_in_library(frame, counting[-1].elements())
        result = count(most, counting[-1], rule, is_largest)
    elif padded and read.element_type in INTEGERS:
        _, most, *others = padded[-1].shape()
        result = count(most, padded[-1], rule, is_largest)
        fill(copy, b"".join(encoded(read.element_type, size) for size in (result.value, *others)))
        return result
    elif read.most and read.element_type in INTEGERS:
        most = count_that_stays(read.most, frame)
        result = count(most, read, rule, is_largest) if most else Result(0)
    elif rule is not None:
        result = Result(rules.value_of(rule, read.shape(), None))
    else:
        result = Result(chosen(read, operator, frame))
    pattern = encoded(read.element_type, result.value)
    if pattern is None:
        return None
    fill(copy, pattern)
    return result


def count(bound, operand, rule, is_largest):
    """Chooses how many elements a counting operator finds in its tensor."""
    result = bounded_count(bound, operand.shape(), rule, is_largest)
    # For `repeat_interleave`, `bound` assumes that each element is repeated once. The program may
    # repeat elements any number of times, so `bound` is no upper bound.
    result.is_bound &= operand.operator != b"repeat_interleave"
    return result


def count_in_library(frame, bound):
    """Returns the largest count that code of a library may find, at most `bound`."""
    return 0 if finds_segments(frame) else count_in_detector(frame, bound)


def bounded_count(bound, shape, rule, is_largest):
    """Returns the count that the user's `rule` sets; without a rule, `bound` or a small count."""
    if rule is not None:
        return Result(max(0, int(rules.value_of(rule, shape, bound))))
    return Result(bound if is_largest else min(bound, rules.SMALLEST), is_largest)


def put_counts(copy, value, form):
    """Writes nearly equal integers that sum to `value`. Returns the largest."""
    width = struct.calcsize(form)
    parts = max(copy.bytes // width, 1)
    share, more = divmod(value, parts)
    largest = 2 ** (8 * width - 1) - 1
    for part in range(parts):
        pattern = struct.pack("<" + form, min(share + (part < more), largest))
        ctypes.memmove(copy.address + width * part, pattern, width)
    return share + (more > 0)


def chosen(read, operator, frame):
    """Chooses a value for a result that is not a count, so that most programs continue."""
    if read.element_type == BOOLEAN:
        return chosen_truth(read, operator, frame)
    if read.element_type in INTEGERS:
        is_index = operator == "__index__" and frame is not None
        return MOST_INDEX if is_index and ends_slice(frame) else number(frame)
    if frame is not None and frame.f_code.co_filename.endswith(FLAGS):
        return 0.0
    # Chooses equal numbers that sum to 1 in each row of the tensor: they may be probabilities.
    return 1.0 / max(read.shape()[-1] if read.dimensions else 1, 1)


def chosen_truth(read, operator, frame):
    if operator == "multinomial":
        # `multinomial` reads two flags in turn. The first means that the probabilities are valid,
        # and the hook chooses True. The second means that all are 0, and the hook chooses False.
        state.multinomial = not state.multinomial
        return state.multinomial
    if operator not in (None, "__index__"):
        return not operator.startswith(TRUE_IS_ERROR)
    if frame is None or read.elements() != 1:
        return True
    in_generation = truth_in_generation(frame)
    return truth(frame) if in_generation is None else in_generation


def encoded(element_type, value):
    """Returns the bytes of an element; None for a type that is not handled."""
    if element_type == BOOLEAN:
        return struct.pack("?", bool(value))
    if element_type in INTEGERS:
        form = INTEGERS[element_type]
        bits = 8 * struct.calcsize(form)
        least, most = (
            (0, 2**bits - 1) if form.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        return struct.pack("<" + form, min(max(int(value), least), most))
    if element_type in FLOATS:
        return struct.pack("<" + FLOATS[element_type], float(value))
    if element_type == BFLOAT16:
        return struct.pack("<f", float(value))[2:]
    return None


def fill(copy, pattern):
    piece = pattern * (min(copy.bytes, PIECE) // len(pattern))
    done = 0
    while piece and done < copy.bytes:
        now = min(len(piece), copy.bytes - done)
        ctypes.memmove(copy.address + done, piece, now)
        done += now


def operands_of_thread():
    """Returns the tensors that the operators of this thread read, innermost first."""
    if state.operands is None:
        return []
    found = (Operand * MOST_OPERANDS)()
    return found[: state.operands(found, MOST_OPERANDS)]
