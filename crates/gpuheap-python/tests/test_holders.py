"""Finds the holders of memory, and flushes heaps so that holders release the memory."""

import concurrent.futures
import gc
import importlib.util
import subprocess
import sys
import threading
import weakref

import pytest

import gpuheap
from gpuheap import _flush
from support import in_threads


class Model:
    """A class whose instances have attributes."""


class Slotted:
    __slots__ = ("weights",)


class TheirArray:
    """An array of another library. It holds a buffer and has the CUDA array interface."""

    def __init__(self, heap, nbytes):
        self.owner = heap.alloc(nbytes)

    @property
    def __cuda_array_interface__(self):
        return {
            "data": (self.owner.ptr, False),
            "shape": (self.owner.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


CACHE = {}


@pytest.fixture(autouse=True)
def nothing_is_left(heap):
    yield
    CACHE.clear()
    for name in ("last_exc", "last_value", "last_type", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


def names(holders, kind=None):
    return [holder.name for holder in holders if kind in (None, holder.kind)]


def as_last_exception(error):
    """Stores an uncaught error as the interactive interpreter does."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error


def fail(heap, nbytes=1000):
    weights = heap.alloc(nbytes)
    raise KeyError(weights.nbytes)


def test_running_frames_local_is_holder(heap):
    weights = heap.alloc(10)
    line = sys._getframe().f_lineno + 1
    found = gpuheap.holders(weights)
    assert len(found) == 1 and found[0].kind == "local"
    assert found[0].name.startswith("local weights of test_running_frames_local_is_holder() at ")
    assert f"{__file__}:{line}, which runs on thread MainThread" in found[0].name
    batches = {"first": [weights]}
    found = gpuheap.holders(batches["first"][0])
    assert any(
        name.startswith("local batches['first'][0] of test_running") for name in names(found)
    )


def test_search_keeps_nothing_alive(heap):
    weights = heap.alloc(10)
    gpuheap.holders(weights)
    heap.held()
    del weights
    assert heap.stats()["live"] == 0


ODD = """
import gpuheap, threading

class Ran(BaseException):
    pass

def ran(self, *arguments):
    RAN.append(arguments)
    raise Ran

class Loud(type):
    # A metaclass. Nearly every use of one of its classes, such as hashing it, runs code.
    __hash__ = __eq__ = __getattribute__ = __instancecheck__ = __subclasscheck__ = ran
    __mro__ = __module__ = __dict__ = property(ran)

def attributes(heap):
    loud = type.__call__(Loud, "Odd", (), {})
    odd = object.__new__(loud)
    object.__setattr__(odd, "weights", heap.alloc(10))
    return odd

def of_class(heap):
    loud = type.__call__(Loud, "Odd", (), {"weights": heap.alloc(10)})
    return loud

def overridden(base, fill, *arguments):
    functions = ("__getattribute__", "__hash__", "__eq__", "__repr__", "__len__", "__iter__", "items", "values", "copy")
    names = {**{name: ran for name in functions}, "__class__": property(ran), "__dict__": property(ran)}
    odd = type("Odd", (base,), names)()
    fill(odd, *arguments)
    return odd

def thread(heap):
    kind = type("Odd", (threading.Thread,), {"name": property(ran), "is_alive": ran})
    odd = kind.__new__(kind)
    odd.weights = heap.alloc(10)
    return odd

def slotted(heap):
    odd = type("Odd", (), {"__slots__": ("empty", "weights"), "__class__": property(ran)})()
    odd.weights = heap.alloc(10)
    return odd

MAKE = [
    attributes,
    of_class,
    lambda heap: overridden(dict, dict.__setitem__, "weights", heap.alloc(10)),
    lambda heap: overridden(list, list.insert, 0, heap.alloc(10)),
    lambda heap: overridden(object, object.__setattr__, "weights", heap.alloc(10)),
    lambda heap: {2**100_000: heap.alloc(10)},
    lambda heap: {"long" * 1000: heap.alloc(10)},
    lambda heap: {Key(): heap.alloc(10)},
    thread,
    slotted,
]

class Key:
    __repr__ = __str__ = ran

RAN = []
heap = gpuheap.Heap("emulated:1GiB", track="lines")
CACHE = [make(heap) for make in MAKE]
del RAN[:]
for one in heap.held():
    assert "CACHE[" in str(one) or "__main__.Odd.weights" in str(one), one
    print(str(one).split("held by ")[1][:60])
for odd in CACHE:
    assert gpuheap.holders(odd)
assert RAN == [], RAN
import os
os._exit(0)
"""


def test_search_runs_no_foreign_code():
    done = subprocess.run(
        [sys.executable, "-u", "-c", ODD], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 10, done.stdout


def test_object_without_address_is_skipped(heap):
    class Odd:
        def __init__(self, answer):
            self.answer = answer

        @property
        def __cuda_array_interface__(self):
            if isinstance(self.answer, type):
                raise self.answer
            return self.answer

    whole = {"data": (0, False), "shape": (1,), "typestr": "|u1"}
    wrong = (
        {},
        None,
        "text",
        {**whole, "data": ("text", 0)},
        {**whole, "data": (1.5, 0)},
        {**whole, "shape": ("x",)},
    )
    CACHE["odd"] = [
        Odd(answer) for answer in (*wrong, KeyError, SystemExit, GeneratorExit, StopIteration)
    ]
    buffer = heap.alloc(10)
    assert len(heap.held()) == 1
    del buffer


def test_search_loads_no_lazy_module(heap, tmp_path):
    (tmp_path / "lazy_gpuheap.py").write_text("raise SystemExit('it was loaded')")
    spec = importlib.util.spec_from_file_location("lazy_gpuheap", tmp_path / "lazy_gpuheap.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules["lazy_gpuheap"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        buffer = heap.alloc(10)
        assert heap.held()[0].holders and gpuheap.holders(buffer)
        del buffer
    finally:
        del sys.modules["lazy_gpuheap"]


def test_search_keeps_no_class_alive(heap):
    class Kind:
        pass

    one, gone = Kind(), weakref.ref(Kind)
    one.weights = heap.alloc(10)
    assert heap.held()[0].holders
    del one, Kind
    gc.collect()
    assert gone() is None


def test_concurrent_searches_agree(heap):
    stop = threading.Event()

    def program(at):
        while not stop.is_set():
            CACHE[at] = {str(nth): heap.alloc(10) for nth in range(50)}
            globals()[f"of_{at}"] = CACHE.pop(at)
            del globals()[f"of_{at}"]

    CACHE["stays"] = [heap.alloc(77)]

    def look():
        for _ in range(5):
            (stays,) = [one for one in heap.held() if one.bytes == 77]
            assert names(stays.holders) == [f"{__name__}.CACHE['stays'][0]"]

    def looks():
        try:
            in_threads(look, look)
        finally:
            stop.set()

    in_threads(looks, lambda: program(0), lambda: program(1))


def test_many_buffers_share_one_list(heap):
    CACHE["many"] = [heap.alloc(1) for _ in range(3000)]
    found = heap.held()
    assert {name for one in found for name in names(one.holders)} == {
        f"{__name__}.CACHE['many'][{at}]" for at in range(3000)
    }


def test_programs_locals_dictionary_stays(heap):
    weights = heap.alloc(10)
    mine = locals()
    gpuheap.holders(weights)
    assert mine["weights"] is weights


def test_global_is_holder(heap):
    CACHE["batches"] = [None, (heap.alloc(10),)]
    found = names(gpuheap.holders(CACHE["batches"][1][0]))
    assert found == [f"{__name__}.CACHE['batches'][1][0]"]


def test_attribute_path_is_holder(heap):
    model, slotted = Model(), Slotted()
    CACHE["model"], CACHE["slotted"] = model, slotted
    model.weights = slotted.weights = heap.alloc(10)
    del model, slotted
    found = names(gpuheap.holders(CACHE["model"].weights))
    assert sorted(found) == [
        f"{__name__}.CACHE['model'].weights",
        f"{__name__}.CACHE['slotted'].weights",
    ]
    vars(CACHE["model"])
    assert f"{__name__}.CACHE['model'].weights" in names(gpuheap.holders(CACHE["model"].weights))


def test_class_attribute_is_holder(heap):
    Model.shared = heap.alloc(10)
    try:
        assert names(gpuheap.holders(Model.shared), "class") == [f"{__name__}.Model.shared"]
    finally:
        del Model.shared


def test_closure_is_holder(heap):
    def make():
        weights = heap.alloc(10)
        return lambda: weights

    CACHE["step"] = make()
    found = names(gpuheap.holders(CACHE["step"]()))
    assert found == [f"{__name__}.CACHE['step'].__closure__[0].cell_contents"]


def test_suspended_generator_is_holder(heap):
    def rows():
        weights = heap.alloc(10)
        yield weights

    generator = rows()
    found = gpuheap.holders(next(generator))
    assert (
        "local weights of suspended test_suspended_generator_is_holder.<locals>.rows() at"
        in found[0].name
    )
    generator.close()


def test_last_traceback_is_holder(heap):
    try:
        fail(heap)
    except KeyError as error:
        as_last_exception(error)
    (held,) = heap.held()
    assert held.bytes == 1000
    assert {holder.kind for holder in held.holders} == {"traceback"}
    assert any(
        name.startswith("sys.last_") and ": local weights of fail() at" in name
        for name in names(held.holders)
    )


def test_handled_exception_is_holder(heap):
    try:
        fail(heap)
    except KeyError:
        (held,) = heap.held()
        found = [
            name
            for name in names(held.holders)
            if name.startswith("the exception that thread MainThread handles")
        ]
        assert found and "local weights of fail()" in found[0]


def test_ended_threads_exception_is_holder(heap):
    def work():
        try:
            fail(heap)
        except KeyError as error:
            CACHE["error"] = error

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    thread.join()
    (held,) = heap.held()
    assert names(held.holders, "traceback") == [
        name
        for name in names(held.holders)
        if name.startswith(f"{__name__}.CACHE['error']: local weights of fail()")
    ]
    assert held.holders[0].name.endswith("thread loader, which ended")


def test_running_threads_argument_is_holder(heap):
    go = threading.Event()
    thread = threading.Thread(
        target=lambda data: go.wait(), args=([heap.alloc(10)],), name="loader"
    )
    thread.start()
    try:
        (held,) = heap.held()
        assert any("which runs on thread loader" in name for name in names(held.holders, "local"))
        assert "thread loader._args[0][0]" in names(held.holders, "thread")
        assert not names(held.holders, "global")
    finally:
        go.set()
        thread.join()


def test_uncollected_cycle_is_holder(heap):
    gc.disable()
    try:
        model = Model()
        model.itself, model.weights = [model], heap.alloc(10)
        del model
        (held,) = heap.held()
        assert [holder.kind for holder in held.holders] == ["cycle"]
        assert (
            "Model -> list -> Model" in held.holders[0].name
            or "list -> Model -> list" in held.holders[0].name
        )
        assert heap.stats()["live"] == 10
    finally:
        gc.enable()
        gc.collect()
    assert heap.held() == []


def test_unheld_memory_has_no_holder(heap):
    capsule = heap.alloc(10).__dlpack__()
    (held,) = heap.held()
    assert held.holders == [] and "no Python object" in str(held)
    del capsule


def test_library_array_has_holder(heap):
    CACHE["array"] = TheirArray(heap, 100)
    (held,) = heap.held()
    assert f"{__name__}.CACHE['array']" in names(held.holders)


def test_array_has_holder(heap):
    CACHE["array"] = heap.zeros(100)
    (held,) = heap.held()
    assert f"{__name__}.CACHE['array']" in names(held.holders)
    del CACHE["array"]


def test_scope_leaks_have_holders(heap):
    with heap.scope("load", on_leak="ignore") as scope:
        CACHE["array"] = scope.keep(TheirArray(heap, 100))
        scope._account.take_owned()
    assert scope.leaked_bytes == 0
    with heap.scope("load", on_leak="ignore") as scope:
        CACHE["other"] = TheirArray(heap, 100)
        scope._account.take_owned()
    assert f"{__name__}.CACHE['other']" in names(scope.leaked[0].holders())
    assert f"held by {__name__}.CACHE['other']" in scope.report(holders=True)


@pytest.fixture
def default(heap):
    before = gpuheap.set_default_heap(heap)
    yield heap
    gpuheap.set_default_heap(before)


def test_plain_flush_leaves_tracebacks(default):
    try:
        fail(default)
    except KeyError as error:
        as_last_exception(error)
    assert gpuheap.flush().released == []
    assert default.stats()["live"] == 1000


def test_flush_releases_last_traceback(default):
    try:
        fail(default)
    except KeyError as error:
        as_last_exception(error)
    report = gpuheap.flush(tracebacks=True)
    assert [(one.name.startswith("sys.last_"), one.bytes) for one in report.released] == [
        (True, 1000)
    ]
    assert str(report).startswith("released 1000 bytes: sys.last_")
    assert not hasattr(sys, "last_traceback") and default.stats()["live"] == 0
    assert gpuheap.flush(tracebacks=True).released == []


def test_flush_releases_ended_threads_locals(default):
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="loader") as executor:
        future = CACHE["future"] = executor.submit(fail, default)
        concurrent.futures.wait([future])
        assert gpuheap.flush(tracebacks=True).released == []
        assert default.stats()["live"] == 1000
    report = gpuheap.flush(tracebacks=True)
    assert [tuple(one) for one in report.released] == [
        ("locals of thread loader_0, which ended", 1000)
    ]
    error = future.exception()
    assert isinstance(error, KeyError) and error.__traceback__.tb_next is not None


def test_flush_leaves_kept_exception(default):
    try:
        fail(default)
    except KeyError as error:
        kept = error
    assert gpuheap.flush(tracebacks=True).released == []
    assert default.stats()["live"] == 1000
    assert kept.__traceback__ is not None
    del kept


def test_flush_leaves_suspended_generators(default):
    def rows():
        weights = default.alloc(1000)
        try:
            fail(default, 10)
        except KeyError as error:
            CACHE["error"] = error
        yield 1
        yield weights.nbytes

    def work():
        CACHE["rows"] = rows()
        next(CACHE["rows"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gpuheap.flush(tracebacks=True)
    _flush._clear([CACHE["rows"].gi_frame])
    assert next(CACHE["rows"]) == 1000
    CACHE["rows"].close()
