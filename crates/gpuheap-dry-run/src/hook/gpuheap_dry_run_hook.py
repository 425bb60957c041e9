"""Hook of `gpuheap dry-run` in a Python program: reports steps, peaks, lines and reads of results.

Does nothing until the program imports `torch`. Prints nothing. Raises `SystemExit` after the steps
or the time of `--steps` and `--time-limit`, and no other exception.
"""

import atexit
import ctypes
import json
import os
import re
import signal
import sys
import threading
import time

# Most events in PyTorch's recorded history. Bounds its host memory: an event takes a few hundred
# bytes.
MOST_EVENTS = 400_000
# Most lines with reads in a report.
MOST_LINES = 200
# Most failures in a report: a program that tries smaller sizes may have many failures.
MOST_FAILURES = 20
# Number of reads at one line after which the command warns: the program may wait forever for a
# value.
MANY_READS = 10_000
# Most frames of native code that are examined at a read, from the copy outwards. Bounds the time
# that a read takes.
MOST_FRAMES = 160


# Modules whose libraries do not run on the emulated driver.
NOT_SERVED = ("jax", "cupy", "rmm", "cudf", "cuml")

# Names of the libraries that stand in for CUDA's in this process.
PRELOADED = {os.path.basename(path) for path in os.environ.get("LD_PRELOAD", "").split(":") if path}


def guarded(function):
    """Returns `function` with its errors noted in the report instead of raised.

    If a signal handler of the program raises an exception meanwhile, that exception is raised.
    """

    def call(*arguments):
        try:
            return function(*arguments)
        except Exception as error:
            if is_of_program(error):
                raise
            state.note(f"the hook failed in {function.__name__}: {type(error).__name__}: {error}")

    return call


def is_of_program(error):
    """Returns True if the program's code, and not the hook's, raised `error`."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return next(own_frames(trace.tb_frame), None) is trace.tb_frame


def called_by_native_code(function):
    """Returns `function` in a form that native code may call: no exception leaves it.

    Python would print an exception that leaves a callback. During the callback, Python also runs
    the program's signal handlers. If a handler raises an exception, that exception is raised again
    in the main thread after the callback has returned.
    """
    function = guarded(function)

    def call(*arguments):
        is_main = threading.get_ident() == MAIN_THREAD
        try:
            if is_main:
                state.callbacks += 1
            function(*arguments)
        except BaseException as error:
            if is_main:
                threading.Thread(target=raise_later, args=(error,), daemon=True).start()
        finally:
            if is_main:
                state.callbacks -= 1

    return call


def raise_later(error):
    """Raises `error`, from a signal handler in a callback, in the main thread after callbacks."""
    kind = type(error)
    if error.args:
        # The interpreter will create the exception without arguments, so a subclass supplies them.
        kind = type(
            kind.__name__,
            (kind,),
            {"__init__": lambda self: type(error).__init__(self, *error.args)},
        )
    while state.callbacks:
        time.sleep(0.001)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(MAIN_THREAD), ctypes.py_object(kind))


MAIN_THREAD = threading.main_thread().ident


class State:
    """Figures and settings of this process."""

    def __init__(self):
        self.folder = os.environ["GPUHEAP_EMULATED_REPORT"]
        self.most_steps = int(os.environ.get("GPUHEAP_DRY_RUN_STEPS", 0))
        self.most_seconds = float(os.environ.get("GPUHEAP_DRY_RUN_SECONDS", 0))
        self.began = time.monotonic()
        self.written = 0.0
        self.torch = None
        # Number of reads for each line; None while the hook records no lines.
        self.lines = {}
        self.callback = None
        # Number of callbacks from native code that the main thread is executing.
        self.callbacks = 0
        # The C library, if it has functions for native stacks. `places` caches the places on such
        # stacks, keyed by address.
        self.libc = None
        self.places = {}
        # Function of the emulated driver to call after each optimiser step; None if no heap watches
        # steps.
        self.heap_step_done = None
        # False if the program replaced PyTorch's allocator.
        self.has_stats = True
        self.clear()

    def clear(self):
        self.is_recording = False
        self.steps = {}
        self.ended = None
        self.peaks = {}
        self.failures = []
        self.count_of_failures = 0
        self.steps_after_failure = False
        self.reads = 0
        self.sizes = {}
        self.notes = []
        if self.lines is not None:
            self.lines = {}

    def note(self, text):
        if text not in self.notes and len(self.notes) < MOST_LINES:
            self.notes.append(text)

    def step(self):
        """Number of optimiser steps. If there are several optimisers, the highest number of one."""
        return max(self.steps.values(), default=0)


state = State()


def own_frames(frame):
    """Yields the frames of the program, innermost first, without the hook, PyTorch and Python."""
    while frame is not None:
        name = frame.f_code.co_filename
        is_library = (
            name.startswith(("<", LIBRARY))
            or name == __file__
            or f"{os.sep}site-packages{os.sep}" in name
        )
        if not is_library:
            yield frame
        frame = frame.f_back


LIBRARY = os.path.dirname(os.__file__) + os.sep


def line_of(code, line):
    return f"{code.co_filename}:{line} in {code.co_name}"


def place(frame):
    return line_of(frame.f_code, frame.f_lineno)


def lines_of(frame):
    found = []
    for own in own_frames(frame):
        found.append(place(own))
        if len(found) == 3:
            break
    return found


# ---- peaks and steps ----------------------------------------------------------------------------


def update_peaks():
    """Reads the peaks of all devices. If a peak rose, assigns it to the current step."""
    torch = state.torch
    if not (state.has_stats and torch.cuda.is_initialized()):
        return
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        if not stats:
            continue
        of = lambda key, part="peak": stats.get(key, {}).get("all", {}).get(part, 0)
        peak = {
            "requested": of("requested_bytes"),
            "allocated": of("allocated_bytes"),
            "reserved": of("reserved_bytes"),
        }
        if not any(peak.values()):
            continue
        known = state.peaks.setdefault(
            device, {"device": device, "requested": 0, "allocated": 0, "reserved": 0, "step": 1}
        )
        if peak["allocated"] > known["allocated"]:
            known["step"] = max(state.step(), 1) if state.in_hook else state.step() + 1
        for key, value in peak.items():
            known[key] = max(known[key], value)
        known["allocations"] = of("allocation", "allocated")
        known["retries"] = stats.get("num_alloc_retries", 0)


def step_ended(optimizer, arguments, keywords):
    """Called after each step of each optimiser."""
    state.steps[id(optimizer)] = state.steps.get(id(optimizer), 0) + 1
    state.steps_after_failure = True
    guarded(after_step)()
    if state.heap_step_done is not None:
        state.heap_step_done()
    if state.most_steps and state.step() >= state.most_steps:
        state.ended = "steps"
    elif state.most_seconds and time.monotonic() - state.began > state.most_seconds:
        state.ended = "time"
    if state.ended:
        guarded(write)()
        raise SystemExit(0)


def after_step():
    state.in_hook = True
    try:
        update_peaks()
    finally:
        state.in_hook = False
    # Writes at most once a second, so that a killed process leaves recent figures.
    if time.monotonic() - state.written > 1.0:
        write()


state.in_hook = False


# ---- failures -----------------------------------------------------------------------------------


def out_of_memory(device, requested, total, free):
    """Called by PyTorch before it raises `torch.OutOfMemoryError`."""
    update_peaks()
    state.count_of_failures += 1
    state.steps_after_failure = False
    if len(state.failures) < MOST_FAILURES:
        torch = state.torch
        state.failures.append(
            {
                "device": device,
                "requested": requested,
                "total": total,
                "free": free,
                "allocated": torch.cuda.memory_allocated(device),
                "reserved": torch.cuda.memory_reserved(device),
                "step": state.step() + 1,
                "lines": lines_of(sys._getframe()),
            }
        )
    write()
    write_snapshot()


# ---- reads of results ---------------------------------------------------------------------------

READ = ctypes.CFUNCTYPE(None, ctypes.c_ulonglong)


def read_from_device(bytes_read):
    """Called by the emulated driver for each copy to the host, on the thread that copies."""
    if state.lines is None:
        return
    state.reads += 1
    # On a thread of native code, this function is the only Python frame.
    frame = next(own_frames(sys._getframe()), None)
    operator = guarded(operator_that_reads)()
    if operator is not None:
        at = None if frame is None else (frame.f_code, frame.f_lineno)
        key = (at, operator)
        times = state.sizes.get(key, 0)
        if times or len(state.sizes) < MOST_LINES:
            state.sizes[key] = times + 1
    if frame is None:
        return
    key = (frame.f_code, frame.f_lineno)
    times = state.lines.get(key, 0)
    if times or len(state.lines) < MOST_LINES:
        state.lines[key] = times + 1
    if times + 1 == MANY_READS:
        guarded(many_reads)(place(frame))


def many_reads(line):
    """Warns the command at once that the program may never end."""
    path = os.path.join(state.folder, f"reads.{os.getpid()}.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{MANY_READS} {line}\n")


def watch_reads():
    libcuda = ctypes.CDLL("libcuda.so.1")
    register = getattr(libcuda, "gpuheap_emulated_on_copy_to_host", None)
    if register is None:
        return
    register.argtypes = [READ]
    register.restype = None
    guarded(prepare_native_stacks)(register)
    state.callback = READ(called_by_native_code(read_from_device))
    register(state.callback)
    state.register = register


def watch_heap():
    """Finds the driver's function to call after a step.

    A step after a refusal shows that the program caught a heap's error and continued.
    """
    state.heap_step_done = getattr(ctypes.CDLL("libcuda.so.1"), "gpuheap_emulated_step_done", None)


def stop_watching():
    """Ends callbacks before the interpreter ends. Later ones would wait forever for its lock."""
    if state.callback is not None:
        state.register(READ())


# ---- operators that read ------------------------------------------------------------------------

# Operators that return a value to their caller. For these, the caller's name decides whether a size
# depends on the value.
PASS_ON = {
    "_local_scalar_dense", "item", "is_nonzero", "copy_", "_copy_from", "_copy_from_and_resize", "_to_copy", "_to_cpu",
    "to_device", "to_dtype", "to_dtype_layout", "to_other", "clone", "contiguous",
}  # fmt: skip
# Prefixes of the names of operators that read a value but do not choose a size by it.
KEEP_SIZES = (
    "_amp_", "_assert", "_cholesky", "_ctc_loss", "_cudnn_ctc", "_functional_assert", "_is_a", "_linalg", "allclose",
    "cholesky", "ctc_loss", "det", "equal", "fill_", "full", "geqrf", "histc", "index_fill", "inverse", "isclose",
    "linalg_", "linspace", "logdet", "logspace", "lu_", "masked_fill", "matrix_exp", "multinomial", "narrow", "normal", "pinverse", "segment_reduce",
    "slogdet", "svd", "triangular_solve",
)  # fmt: skip
# Python's C functions that convert an object to an integer for a length, a bound or an index.
INDEX = {b"PyNumber_Index", b"_PyNumber_Index", b"PyNumber_AsSsize_t", b"_PyEval_SliceIndex"}
# Mangled symbol of an operator: the length of the operator's name, the name, and further
# characters.
OPERATOR = re.compile(rb"_ZN2at4_ops(\d+)(\w+)")


class Found(ctypes.Structure):
    """`Dl_info` of `dladdr`."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def prepare_native_stacks(function_of_driver):
    """Prepares `operator_that_reads`. Raises if the C library has no functions for stacks."""
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


def operator_that_reads():
    """Returns the operator that reads a result and may choose a size by it.

    Returns None if the program itself reads, or if the operator does not choose a size. The stack
    contains, from the innermost frame: hook, driver, operators of PyTorch, and interpreter.
    """
    if state.libc is None:
        return None
    addresses = (ctypes.c_void_p * MOST_FRAMES)()
    count = state.libc.backtrace(addresses, MOST_FRAMES)
    is_under_driver = is_passed_on = in_python = False
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
                return "__index__" if is_passed_on else None
            if name == b"_PyEval_EvalFrameDefault":
                return None
            in_python = True
        elif in_python:
            return None
        elif kind == "operator":
            if name not in PASS_ON:
                return None if name.startswith(KEEP_SIZES) else name
            is_passed_on = True
        elif kind == "extension" and is_passed_on:
            return name
    return None


def native_place(address):
    """Returns the kind and the name of a place on a native stack."""
    # Looks up the byte before the return address: that address may already belong to the next
    # function.
    found = symbol(state.libc, address - 1)
    name, file = found.name or b"", os.fsdecode(found.file or b"")
    if found.base == state.driver:
        return "driver", name
    if found.base == state.python:
        return "python", name
    operator = OPERATOR.match(name)
    if operator:
        return "operator", operator[2][: int(operator[1])].decode()
    # True for an extension of PyTorch, such as torchvision's, but not for PyTorch's or CUDA's
    # libraries.
    is_extension = f"{os.sep}site-packages{os.sep}" in file and not file.startswith(
        state.folder_of_torch
    )
    if is_extension and f"{os.sep}nvidia{os.sep}" not in file:
        folder, base = os.path.split(file)
        return "extension", os.path.join(os.path.basename(folder), base)
    return "other", name


# ---- memory that PyTorch reports -----------------------------------------------------------------

# Functions of PyTorch that the emulated runtime replaces or calls, and the note if a PyTorch lacks
# them.
REPORTS = (
    (
        "libc10.so",
        "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
        "this PyTorch does not report its blocks: reused memory may read as an earlier upload",
    ),
    (
        "libtorch_cpu.so",
        "aoti_torch_is_contiguous",
        "this PyTorch does not report changes of tensors: one may read as it was uploaded",
    ),
)


def check_reports():
    for library, function, note in REPORTS:
        try:
            is_reported = hasattr(ctypes.CDLL(library), function)
        except OSError:
            is_reported = False
        if not is_reported:
            state.note(note)


# ---- reports ------------------------------------------------------------------------------------


def write():
    state.written = time.monotonic()
    torch = state.torch
    reads = [] if state.lines is None else list(state.lines.items())
    reads.sort(key=lambda item: -item[1])
    report = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        or os.environ.get("PYTORCH_ALLOC_CONF"),
        "rank": os.environ.get("RANK"),
        "steps": state.step(),
        "ended": state.ended,
        "devices": list(state.peaks.values()),
        "failures": state.failures,
        "failed": state.count_of_failures,
        "failures_watched": state.is_recording,
        "went_on": bool(state.count_of_failures and state.steps_after_failure),
        "reads": state.reads,
        "reads_watched": state.callback is not None,
        "lines": [
            {"line": line_of(code, line), "times": times} for (code, line), times in reads[:10]
        ],
        "sizes": [
            {
                "line": "a thread of PyTorch" if at is None else line_of(*at),
                "operator": operator,
                "times": times,
            }
            for (at, operator), times in list(state.sizes.items())
        ],
        "notes": state.notes,
    }
    replace(f"torch.{os.getpid()}.json", lambda file: file.write(json.dumps(report).encode()))


@guarded
def write_modules():
    """Writes the names of the imported modules that do not run on the emulated driver."""
    found = [name for name in NOT_SERVED if name in sys.modules]
    if found:
        replace(
            f"python.{os.getpid()}.json",
            lambda file: file.write(json.dumps({"not_served": found}).encode()),
        )


def write_snapshot():
    torch = state.torch
    if not (state.is_recording and torch.cuda.is_initialized()):
        return
    import pickle

    snapshot = torch.cuda.memory._snapshot()
    replace(f"torch.{os.getpid()}.pickle", lambda file: pickle.dump(snapshot, file))


def replace(name, put):
    """Replaces a file atomically: a reader finds either the old content or the new content."""
    path = os.path.join(state.folder, name)
    with open(path + ".part", "wb") as file:
        put(file)
    os.replace(path + ".part", path)


def end():
    if state.torch.version.cuda is not None:
        guarded(stop_watching)()
        guarded(update_peaks)()
        # Writes the report before the snapshot: a process may be killed while it writes a long
        # history.
        guarded(write)()
        # If the last request failed, the snapshot from that moment stays: the verdict explains it.
        if not state.count_of_failures or state.steps_after_failure:
            guarded(write_snapshot)()
    guarded(write)()


def end_without_atexit(code):
    """Replaces `os._exit`, with which some trainers end: first writes the process's reports."""
    if state.is_recording:
        guarded(end)()
    write_modules()
    exit_at_once(code)


exit_at_once = os._exit


# ---- start --------------------------------------------------------------------------------------


@guarded
def torch_imported(torch):
    state.torch = torch
    if torch.version.cuda is None:
        state.note("this PyTorch has no CUDA (a CPU-only build): it takes no memory of a GPU")
        atexit.register(end)
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(step_ended)
    reset = torch._C._cuda_resetPeakMemoryStats

    def keep_peaks(*arguments):
        guarded(update_peaks)()
        return reset(*arguments)

    torch._C._cuda_resetPeakMemoryStats = keep_peaks
    torch.cuda._lazy_call(guarded(device_opened))
    atexit.register(end)
    # Forked workers of `multiprocessing` end without `atexit`.
    from multiprocessing import util

    util.register_after_fork(state, lambda _: util.Finalize(None, end, exitpriority=0))


def device_opened():
    torch = state.torch
    guarded(end_by_signal)()
    guarded(watch_reads)()
    backend = torch.cuda.get_allocator_backend()
    state.has_stats = backend in ("native", "cudaMallocAsync")
    if not state.has_stats:
        guarded(watch_heap)()
        state.note(
            f"the program replaced PyTorch's own allocator (by {backend}): PyTorch's peaks are not "
            "known, and no trace is recorded"
        )
    if backend == "cudaMallocAsync":
        state.note("PyTorch uses the driver's pool (cudaMallocAsync), which records no trace")
    if backend != "native":
        return
    guarded(check_reports)()
    torch._C._cuda_attach_out_of_memory_observer(guarded(out_of_memory))
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=MOST_EVENTS
    )
    state.is_recording = True


class TorchWaiter:
    """Finder that calls the hook after `torch` is imported. Other finders locate the module."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            torch_imported(module)

        spec.loader.exec_module = exec_module
        return spec


def end_program(number, frame):
    """Handles SIGTERM, sent by the command at its time limit or by a user.

    Ends the program as `sys.exit` does, so that reports are written. Ignores further signals.
    """
    signal.signal(number, signal.SIG_IGN)
    if state.most_seconds and time.monotonic() - state.began >= state.most_seconds:
        state.ended = "time"
    raise SystemExit(128 + number)


def end_by_signal():
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_program)


def load_stand_ins_by_name():
    """Makes `ctypes` load each library that has a stand-in by name, even if given a path.

    PyTorch loads CUDA's libraries from its wheel by their paths before its own libraries. The
    loader would then load both the vendor's files and the stand-ins.
    """
    load = ctypes.CDLL.__init__

    def by_name(self, name, *arguments, **options):
        if isinstance(name, str) and os.path.basename(name) in PRELOADED:
            name = os.path.basename(name)
        load(self, name, *arguments, **options)

    ctypes.CDLL.__init__ = by_name


def forked():
    if state.torch is not None:
        state.clear()


sys.meta_path.insert(0, TorchWaiter())
atexit.register(write_modules)
load_stand_ins_by_name()
os._exit = end_without_atexit
os.register_at_fork(after_in_child=forked)
if state.most_seconds:
    end_by_signal()
