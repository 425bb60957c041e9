"""Finds PyTorch's operators on the native stack of a thread that copies a result to the host."""

import ctypes
import os
import re

from .lines import is_package
from .process import state

# Maximum number of native frames that are examined at a copy to the host, innermost first. Bounds
# the time that the hook adds to a copy.
MOST_FRAMES = 160
# Operators that only pass a value on to the function that called them. The name of that function
# decides whether a size depends on the value.
PASS_ON = {
    "_local_scalar_dense", "item", "is_nonzero", "copy_", "_copy_from", "_copy_from_and_resize", "_to_copy", "_to_cpu",
    "to_device", "to_dtype", "to_dtype_layout", "to_other", "clone", "contiguous",
}  # fmt: skip
# Operators that pass on whether tensors are equal. Operators that call them check arguments, and
# allocate no size by the result.
COMPARE = {"equal", "allclose"}
# Prefixes of the names of operators that copy a value to the host, but whose results have sizes
# that do not depend on the value.
KEEP_SIZES = (
    "_amp_", "_assert", "_cholesky", "_ctc_loss", "_cudnn_ctc", "_functional_assert", "_grouped_mm", "_is_a", "_linalg",
    "cholesky", "ctc_loss", "det", "fill_", "full", "geqrf", "gru_", "histc", "index_fill", "inverse", "isclose",
    "linalg_", "linspace", "logdet", "logspace", "lstm_", "lu_", "masked_fill", "matrix_exp", "multinomial", "narrow", "normal", "pinverse", "rnn_", "segment_reduce",
    "slogdet", "svd", "triangular_solve",
)  # fmt: skip
# Python's C functions that convert an object to an integer for a length, a bound or an index.
INDEX = {b"PyNumber_Index", b"_PyNumber_Index", b"PyNumber_AsSsize_t", b"_PyEval_SliceIndex"}
# Mangled symbol of an operator: the length of the operator's name, the name, and further
# characters.
OPERATOR = re.compile(rb"_ZN2at4_ops(\d+)(\w+)")


def operator_that_reads():
    """Returns the operator that copies a result to the host, and whether a size may depend on it.

    Called during the copy. The operator is None if the program itself makes the copy. The stack
    contains, from the innermost frame: hook, driver, operators of PyTorch, and interpreter.
    """
    if state.libc is None:
        return None, False
    addresses = (ctypes.c_void_p * MOST_FRAMES)()
    count = state.libc.backtrace(addresses, MOST_FRAMES)
    is_under_driver = is_passed_on = is_check = in_python = False
    for address in addresses[:count]:
        place = state.places.get(address)
        if place is None:
            place = state.places[address] = native_place(address)
        kind, name = place
        if kind == "driver":
            is_under_driver = True
        elif not is_under_driver:
            continue
        elif kind == "python":
            if name in INDEX:
                return ("__index__", True) if is_passed_on else (None, False)
            if name == b"_PyEval_EvalFrameDefault":
                return None, False
            in_python = True
        elif in_python:
            return None, False
        elif kind == "operator":
            if name not in PASS_ON and name not in COMPARE:
                return name, not is_check and not name.startswith(KEEP_SIZES)
            is_passed_on = True
            is_check |= name in COMPARE
        elif kind == "extension" and is_passed_on:
            return name, not is_check
    return None, False


def native_place(address):
    """Returns the kind and the name of the native function that contains a return address."""
    # Looks up the byte before the return address, because the return address may already belong to
    # the next function.
    found = symbol(state.libc, address - 1)
    name, file = found.name or b"", os.fsdecode(found.file or b"")
    if found.base == state.driver:
        return "driver", name
    if found.base == state.python:
        return "python", name
    operator = OPERATOR.match(name)
    if operator:
        return "operator", operator[2][: int(operator[1])].decode()
    # True for an extension of PyTorch, such as torchvision, but not for the libraries of PyTorch or
    # CUDA.
    is_extension = is_package(file) and not file.startswith(state.folder_of_torch)
    if is_extension and f"{os.sep}nvidia{os.sep}" not in file:
        folder, base = os.path.split(file)
        return "extension", os.path.join(os.path.basename(folder), base)
    return "other", name


def prepare_native_stacks(function_of_driver):
    """Loads stack functions for `operator_that_reads`. Raises if the C library lacks them."""
    libc = ctypes.CDLL(None)
    libc.backtrace.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
    libc.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Found)]
    base_of = lambda function: symbol(libc, ctypes.cast(function, ctypes.c_void_p).value).base
    state.driver = base_of(function_of_driver)
    state.python = base_of(ctypes.pythonapi.Py_IsInitialized)
    state.folder_of_torch = os.path.dirname(state.torch.__file__) + os.sep
    state.libc = libc


def symbol(libc, address):
    found = Found()
    libc.dladdr(address, ctypes.byref(found))
    return found


class Found(ctypes.Structure):
    """`Dl_info` of `dladdr`."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]
