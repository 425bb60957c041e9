"""Tests the buffers that scopes free, the reports of scopes, and the charges to scopes."""

import _thread
import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import functools
import operator
import subprocess
import sys
import threading
import types
import warnings

import pytest

import gpuheap

MIB = 1 << 20


@pytest.fixture(autouse=True)
def leaks_are_errors():
    """If a scope reports leaked memory, the test fails, unless the test expects the report."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", gpuheap.LeakWarning)
        yield


def library(name="gpuheap.cupy"):
    """Returns a module with the name of a hook. Its `empty` requests memory as a hook does for a
    library. Scopes do not free such memory, because it belongs to the library."""
    module = types.ModuleType(name)
    exec("def empty(heap, nbytes): return heap.alloc(nbytes)", module.__dict__)
    return module


def test_scope_end_frees_own_buffers(heap):
    with heap.scope("load") as scope:
        device, host = heap.alloc(1000), heap.pinned(100)
        assert (scope.live, heap.stats()["live"]) == (1000, 1000)
    assert (device.freed, host.freed, heap.stats()["live"]) == (True, True, 0)
    assert (scope.freed_bytes, scope.leaked_bytes) == (1100, 0)


def test_many_scopes_may_stay_open():
    program = """
import gpuheap
heap = gpuheap.Heap("emulated:1GiB")
for _ in range(200_000):
    heap.scope("never left").__enter__()
kept = heap.alloc(10)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_exception_still_frees_own_buffers(heap):
    kept = []
    with pytest.raises(KeyError), heap.scope("load"):
        kept.append(heap.alloc(1000))
        raise KeyError
    assert kept[0].freed


def test_earlier_buffers_stay(heap):
    with heap.alloc(10) as before, heap.scope("load"):
        heap.alloc(20)
    with heap.scope("load"):
        before = heap.alloc(10)
        with heap.scope("inner"):
            heap.alloc(20)
        assert not before.freed


def test_kept_buffer_joins_outer_scope(heap):
    with heap.scope("outer") as outer:
        with heap.scope("inner") as inner:
            kept = inner.keep(heap.alloc(1000))
            heap.alloc(500)
        assert (kept.freed, inner.leaked_bytes, outer.live) == (False, 0, 1000)
    assert kept.freed


def test_arrays_are_kept_and_freed(heap):
    with heap.scope("outer"):
        with heap.scope("inner") as inner:
            kept, other = (inner.keep(heap.zeros(1000)) for _ in range(2))
            freed = heap.zeros(1000)
            heap.zeros(10)
        assert (kept.freed, other.freed, freed.freed, inner.freed_bytes) == (
            False,
            False,
            True,
            8000,
        )
    assert kept.freed and other.freed


@pytest.mark.parametrize("tracks", ("lines", "off"))
def test_kept_part_keeps_whole_memory(tracks):
    heap = gpuheap.Heap("emulated:1GiB", track=tracks)
    for has_name in (True, False):
        with heap.scope("outer", on_leak="ignore") as outer:
            with heap.scope("inner") as inner:
                whole = heap.zeros(1000)
                part = inner.keep(whole[500:])
                inner.keep(part[1:])
                inner.keep(whole.reshape(10, 100))
                if not has_name:
                    del whole
                stays = library().empty(heap, 600)
                inner._on_leak = "ignore"
            assert (part.freed, part.sum(), inner.freed_bytes, inner.leaked_bytes) == (
                False,
                0,
                0,
                600,
            )
        assert part.freed and outer.leaked_bytes == 600
        stays.free()


def test_scope_frees_remaining_part(heap):
    with heap.scope("load") as scope:
        part = heap.zeros(1000)[500:]
        assert scope.live == 8000
    assert part.freed and (scope.freed_bytes, scope.leaked_bytes) == (8000, 0)


def test_kept_earlier_memory_hides_no_leak(heap):
    before, cupy = heap.alloc(600), library()
    with pytest.warns(gpuheap.LeakWarning), heap.scope("load") as scope:
        scope.keep(before)
        stays = cupy.empty(heap, 600)
    assert scope.leaked_bytes == 600
    stays.free(), before.free()


def test_scope_forgets_dropped_arrays(heap):
    with heap.scope("load") as scope:
        for _ in range(1000):
            heap.zeros(1)
        assert scope._account.owned < 200


def test_kept_freed_memory_hides_no_leak(heap):
    cupy = library()
    with pytest.warns(gpuheap.LeakWarning), heap.scope("load") as scope:
        scope.keep(heap.alloc(1000)).free()
        stays = cupy.empty(heap, 600)
    assert scope.leaked_bytes == 600
    stays.free()


def test_decorator_warns_at_the_call(heap):
    @heap.scope("load")
    def load(stays):
        stays.append(library().empty(heap, 600))

    stays = []
    with pytest.warns(gpuheap.LeakWarning, match="600 bytes outlived") as caught:
        load(stays)
    stays.pop().free()
    assert caught[0].filename == __file__


def test_peaks_count_own_and_all(heap):
    with heap.alloc(MIB), heap.scope("load") as scope:
        heap.alloc(3 * MIB).free()
        stays = heap.alloc(2 * MIB)
        assert (scope.own_peak, scope.live) == (3 * MIB, 2 * MIB)
    assert (scope.own_peak, scope.live, stays.freed) == (3 * MIB, 0, True)


def test_limit_bounds_live_bytes(heap):
    with heap.scope("load", limit="10 MiB") as scope:
        kept = heap.alloc(8 * MIB)
        with pytest.raises(
            gpuheap.OutOfMemory, match="in scope 'load': 3 MiB requested, 8 MiB live"
        ) as caught:
            heap.alloc(3 * MIB)
        error = caught.value
        assert (error.cause, error.scope, error.requested) == ("scope", "load", 3 * MIB)
        assert (error.live, error.limit, error.short_by) == (8 * MIB, 10 * MIB, MIB)
        assert scope.live == 8 * MIB
        kept.free()
        heap.alloc(10 * MIB)
    heap.alloc(11 * MIB).free()


def test_outer_limit_holds_inside(heap):
    with heap.scope("outer", limit="10 MiB") as outer, heap.scope("inner") as inner:
        _stays = heap.alloc(8 * MIB)
        with pytest.raises(gpuheap.OutOfMemory, match="scope 'outer'"):
            heap.alloc(3 * MIB)
        assert (outer.live, inner.live) == (8 * MIB, 8 * MIB)


def test_limit_collects_garbage_first(heap):
    with heap.scope("load", limit="10 MiB"):
        cycle = [library().empty(heap, 8 * MIB)]
        cycle.append(cycle)
        del cycle
        heap.alloc(8 * MIB)


def test_failed_request_is_not_charged(heap):
    with heap.scope("load") as scope:
        with pytest.raises(gpuheap.OutOfMemory):
            heap.alloc(600 * MIB)
        assert scope.live == 0


def test_library_objects_are_reported(heap):
    cupy = library()
    with (
        pytest.warns(
            gpuheap.LeakWarning, match=r"scope 'load' on thread MainThread.*outlived"
        ) as caught,
        heap.scope("load") as scope,
    ):
        stays = cupy.empty(heap, 1000)
        cupy.empty(heap, 500)
    assert caught[0].filename == __file__
    assert not stays.freed
    assert [(leak.bytes, leak.file, leak.thread) for leak in scope.leaked] == [
        (1000, "<string>", "MainThread")
    ]
    assert str(scope.leaked[0]) in scope.report()
    stays.free()


def test_garbage_is_no_leak(heap):
    with heap.scope("load") as scope:
        cycle = [library().empty(heap, 1000)]
        cycle.append(cycle)
        del cycle
    assert scope.leaked_bytes == 0


def test_outer_scope_reports_inner_leak(heap):
    with (
        heap.scope("outer", on_leak="ignore") as outer,
        heap.scope("inner", on_leak="ignore") as inner,
    ):
        stays = library().empty(heap, 1000)
    assert [leak.bytes for leak in inner.leaked] == [leak.bytes for leak in outer.leaked] == [1000]
    stays.free()


def test_scope_ends_in_another_context(heap):
    with heap.scope("outer") as outer:
        scope = heap.scope("load")
        contextvars.copy_context().run(scope.__enter__)
        scope.__exit__(None, None, None)
        buffer = heap.alloc(10)
        assert (scope.live, outer.live) == (0, 10)
    assert buffer.freed


def test_scopes_end_in_any_order(heap):
    around, outer, inner = heap.scope("around"), heap.scope("outer"), heap.scope("inner")
    for scope in (around, outer, inner):
        scope.__enter__()
    cupy, held = library(), []
    of_inner = heap.alloc(10)
    outer.__exit__(None, None, None)
    # Memory that is still charged to the inner scope is no leak of the outer scope.
    assert (outer.leaked_bytes, of_inner.freed) == (0, False)
    later, kept = heap.alloc(20), inner.keep(heap.alloc(40))
    held.append(cupy.empty(heap, 80))
    assert (inner.live, around.live) == (150, 150)
    with pytest.warns(gpuheap.LeakWarning, match="'inner'"):
        inner.__exit__(None, None, None)
    assert (of_inner.freed, later.freed, kept.freed, inner.leaked_bytes) == (True, True, False, 80)
    of_around = heap.alloc(160)
    with heap.scope("next") as following:
        assert following._account.before is around._account
    with pytest.warns(gpuheap.LeakWarning, match="'around'"):
        around.__exit__(None, None, None)
    assert (kept.freed, of_around.freed) == (True, True)
    assert [leak.bytes for leak in around.leaked] == [80]
    assert not heap.alloc(10).freed
    held.pop().free()


def test_scope_keeps_inner_scopes_buffer(heap):
    with heap.scope("outer") as outer, heap.scope("inner") as inner:
        buffer, array = outer.keep(heap.alloc(10)), heap.zeros(10)
        outer.keep(array[1:])
    assert (buffer.freed, array.freed, inner.leaked_bytes, outer.leaked_bytes) == (
        False,
        False,
        0,
        0,
    )
    buffer.free(), array.free()


class Reader:
    """An array like the result of CuPy's `asarray`. It has an address, and holds the object that
    returned the address."""

    def __init__(self, owner):
        self.address, self.owner = owner.__cuda_array_interface__["data"][0], owner


def test_exposed_buffer_is_not_freed(driver_heap):
    with driver_heap.scope("load", on_leak="ignore") as scope:
        array = Reader(driver_heap.alloc(1000))
        read = driver_heap.alloc(500)
        Reader(read)
        del read
    assert (scope.leaked_bytes, array.owner.freed) == (1000, False)


def test_exposed_array_is_not_freed(driver_heap):
    for part in (lambda array: array, lambda array: array[1:]):
        with driver_heap.scope("load", on_leak="ignore") as scope:
            mine, other = driver_heap.array([1.0, 2.0]), driver_heap.array([3.0])
            theirs = Reader(part(mine))
        assert (mine.freed, theirs.owner.freed, other.freed, scope.leaked_bytes) == (
            False,
            False,
            True,
            16,
        )
        mine.free()
    with driver_heap.scope("load", on_leak="ignore"):
        theirs = Reader(driver_heap.array([1.0, 2.0]))
    assert theirs.owner.to_list() == [1.0, 2.0]


def test_readers_are_protected_despite_refcounts(driver_heap, monkeypatch):
    # Acts like Python 3.14, which does not count the references of local variables.
    monkeypatch.setattr(sys, "getrefcount", lambda _: 1)
    for make in (driver_heap.alloc, driver_heap.zeros):
        with driver_heap.scope("load", on_leak="ignore"):
            theirs = Reader(make(100))
        assert not theirs.owner.freed


def test_shared_memory_is_reported(heap):
    with heap.scope("load", on_leak="ignore") as scope:
        capsule = heap.alloc(1000).__dlpack__()
    assert scope.leaked_bytes == 1000
    del capsule


def test_on_leak_chooses_the_reaction(heap):
    cupy, seen = library(), []
    with (
        pytest.raises(gpuheap.Leaked, match="300 bytes outlived"),
        heap.scope("load", on_leak="raise"),
    ):
        first = cupy.empty(heap, 300)
    with heap.scope("load", on_leak=lambda scope: seen.append(scope.leaked_bytes)):
        second = cupy.empty(heap, 400)
    assert seen == [400]
    with pytest.raises(gpuheap.BadInput, match="on_leak='loud'"):
        heap.scope("load", on_leak="loud")
    first.free(), second.free()


def test_exception_gets_leak_note(heap):
    with pytest.raises(KeyError) as caught, heap.scope("load", on_leak="raise"):
        stays = library().empty(heap, 300)
        raise KeyError
    assert "300 bytes outlived" in caught.value.__notes__[0]
    stays.free()


def test_untracked_leak_reports_bytes():
    heap = gpuheap.Heap("emulated:1GiB")
    with heap.scope("load", on_leak="ignore") as scope:
        stays = library().empty(heap, 300)
    assert (scope.leaked, scope.leaked_bytes) == ([], 300)
    assert 'track="lines"' in scope.report()
    stays.free()


def test_heaps_have_separate_scopes(heap):
    other = gpuheap.Heap("emulated:1GiB")
    with heap.scope("one") as one, other.scope("two") as two:
        mine, theirs = heap.alloc(10), other.alloc(20)
        assert (one.live, two.live) == (10, 20)
    assert mine.freed and theirs.freed


def test_threads_have_separate_scopes(heap):
    inside, go = threading.Event(), threading.Event()

    @gpuheap.thread_scope(heap=heap)
    def worker():
        mine.append(heap.alloc(1000))
        inside.set()
        go.wait()

    mine = []
    with heap.scope("main") as main:
        thread = threading.Thread(target=worker, name="loader")
        thread.start()
        inside.wait()
        buffer = heap.alloc(50)
        assert main.live == 50
        go.set()
        thread.join()
        assert mine[0].freed and not buffer.freed


def test_thread_scope_has_thread_name(heap):
    reports = []

    @gpuheap.thread_scope(
        heap=heap, on_leak=lambda scope: reports.append((scope.name, scope.report()))
    )
    def worker():
        stays.append(library().empty(heap, 70))

    stays = []
    thread = threading.Thread(target=worker, name="loader")
    thread.start()
    thread.join()
    assert reports[0][0] == "loader"
    assert "on thread loader: 70 bytes" in reports[0][1]
    stays.pop().free()


def test_each_decorated_call_opens_scope(heap):
    made = []

    @heap.scope("step", limit="1 MiB")
    def step(depth):
        made.append(heap.alloc(1000))
        if depth:
            step(depth - 1)
        assert not made[-1 - depth].freed or depth
        return depth

    assert step(2) == 2
    assert step.__name__ == "step"
    assert [buffer.freed for buffer in made] == [True] * 3


def test_tasks_have_separate_scopes(heap):
    async def main():
        made = []

        @heap.scope("task", limit="10 MiB")
        async def task(go):
            buffer = heap.alloc(8 * MIB)
            made.append(buffer)
            await go.wait()
            assert not buffer.freed

        one, two = asyncio.Event(), asyncio.Event()
        first, second = asyncio.create_task(task(one)), asyncio.create_task(task(two))
        await asyncio.sleep(0)
        assert heap.stats()["live"] == 16 * MIB
        one.set()
        await first
        assert [buffer.freed for buffer in made] == [True, False]
        assert heap.stats()["live"] == 8 * MIB
        two.set()
        await second

    asyncio.run(main())


def test_outliving_context_is_not_counted(heap):
    with heap.scope("load") as scope:
        context = contextvars.copy_context()
    buffer = context.run(heap.alloc, 1000)
    assert (scope.live, buffer.freed) == (0, False)


def test_generator_scope_spares_its_caller(heap):
    def rows():
        with heap.scope("rows") as scope:
            for _ in range(2):
                inside.append(heap.alloc(10))
                yield scope

    inside, outside = [], []
    for scope in rows():
        outside.append(heap.alloc(1000))
        with heap.scope("step") as step:
            assert gpuheap.current_scope() is step
            ended = heap.zeros(10)
        assert (scope.live, step.live, ended.freed) == (10 * len(inside), 0, True)
        with pytest.raises(gpuheap.BadInput, match="no scope"):
            gpuheap.current_scope()
    assert [buffer.freed for buffer in inside + outside] == [True, True, False, False]
    outside[0].free(), outside[1].free()


def test_inner_generator_has_own_scope(heap):
    def rows():
        with heap.scope("rows") as scope:
            yield scope
            inner.append(heap.alloc(10))
            yield
            inner.append(heap.alloc(10))

    inner = []
    found = rows()
    of_rows = next(found)
    with heap.scope("step") as step:
        next(found)
        own = heap.alloc(100)
        assert (of_rows.live, step.live) == (10, 100)
    assert (own.freed, inner[0].freed) == (True, False)
    assert list(found) == [] and [buffer.freed for buffer in inner] == [True, True]


def test_abandoned_generator_ends_its_scope(heap):
    def rows():
        with heap.scope("rows"):
            made.append(heap.zeros(10))
            yield

    made = []
    for _ in rows():
        break
    assert made[0].freed
    assert not heap.alloc(1).freed


def test_async_generator_scope_spares_its_caller(heap):
    async def rows():
        with heap.scope("rows"):
            for _ in range(2):
                inside.append(heap.alloc(10))
                await asyncio.sleep(0)
                inside.append(heap.alloc(10))
                yield

    async def main():
        async for _ in rows():
            outside.append(heap.alloc(100))

    inside, outside = [], []
    asyncio.run(main())
    assert [buffer.freed for buffer in inside + outside] == [True] * 4 + [False] * 2
    outside[0].free(), outside[1].free()


def test_task_outlives_the_scope_around(heap):
    async def work(go):
        made.append(heap.alloc(10))
        with heap.scope("own"):
            own.append(heap.alloc(10))
            await go.wait()
            own.append(heap.alloc(10))
            assert not any(buffer.freed for buffer in own)

    async def main():
        go = asyncio.Event()
        with heap.scope("parent", limit=100) as parent:
            task = asyncio.create_task(work(go))
            await asyncio.sleep(0)
            made.append(heap.alloc(50))
            assert (parent.live, parent.own_peak) == (50, 50)
        assert [buffer.freed for buffer in made] == [False, True]
        go.set()
        await task

    made, own = [], []
    asyncio.run(main())
    assert [buffer.freed for buffer in own] == [True, True]
    made[0].free()


def test_thread_with_copied_context_is_outside(heap):
    async def main():
        with heap.scope("parent") as parent:
            buffer = await asyncio.to_thread(heap.alloc, 10)
            assert parent.live == 0
        return buffer

    buffer = asyncio.run(main())
    assert not buffer.freed
    buffer.free()


def test_code_below_the_scope_is_inside(heap):
    async def deeper(depth):
        if depth:
            return await deeper(depth - 1)
        await asyncio.sleep(0)
        return [heap.alloc(10) for _ in range(2)] + list(map(heap.alloc, (10,)))

    async def main():
        with heap.scope("parent") as parent:
            made = await deeper(5)
            assert parent.live == 30
        return made

    assert all(buffer.freed for buffer in asyncio.run(main()))
    with heap.scope("around"):
        made = asyncio.run(deeper(2))
    assert all(buffer.freed for buffer in made)


def test_context_manager_scope_reaches_block(heap):
    @contextlib.contextmanager
    def step():
        with heap.scope("step") as scope:
            yield scope

    @contextlib.asynccontextmanager
    async def async_step():
        with step() as scope:
            await asyncio.sleep(0)
            yield scope

    class Step:
        async def __aenter__(self):
            self.scope = heap.scope("step")
            return self.scope.__enter__()

        async def __aexit__(self, *exception):
            await asyncio.sleep(0)
            self.scope.__exit__(*exception)

    async def main():
        for manager in (async_step(), Step()):
            async with manager as scope:
                await asyncio.sleep(0)
                made.append(heap.alloc(10))
                assert scope.live == 10
                await asyncio.create_task(other())

    async def other():
        outside.append(heap.alloc(10))

    made, outside = [], []
    with step() as scope, contextlib.ExitStack() as stack:
        second = stack.enter_context(step())
        made.append(heap.alloc(10))
        assert (scope.live, second.live) == (10, 10)
    asyncio.run(main())
    assert [buffer.freed for buffer in made + outside] == [True] * 3 + [False] * 2
    outside[0].free(), outside[1].free()


@pytest.fixture
def fixture_scope(heap):
    with heap.scope("fixture") as scope:
        yield scope


def test_fixture_scope_reaches_test(heap, fixture_scope):
    _buffer = heap.alloc(10)
    assert fixture_scope.live == 10


def test_code_without_a_frame_is_inside(heap):
    scope, done, made = heap.scope("load"), threading.Event(), []
    partial = functools.partial
    works = [
        scope.__enter__, partial(heap.alloc, 10), partial(heap.zeros, 10),
        partial(scope.__exit__, None, None, None), done.set,
    ]  # fmt: skip
    # `map` calls the functions on a thread that has no Python frame.
    _thread.start_new_thread(made.extend, (map(operator.call, works),))
    assert done.wait(10)
    assert (made[1].freed, made[2].freed) == (True, True)


@dataclasses.dataclass
class Model:
    weights: object
    layers: list


class Slots:
    __slots__ = ("array", "empty")

    def __init__(self, array):
        self.array = array


def test_returned_arrays_are_kept(heap):
    made = []

    def array():
        made.append(heap.zeros(10))
        return made[-1]

    shapes = (
        lambda: array(),
        lambda: (array(), [array(), {"a": array(), 1: (array(),)}]),
        lambda: Model(array(), [Model(array()[2:], [heap.alloc(10)])]),
        lambda: Slots(types.SimpleNamespace(inner=collections.deque([array()]))),
    )

    @heap.scope("load")
    def load(shape):
        made.append(heap.zeros(5))
        return shape()

    async def load_async(shape):
        return shape()

    for shape in shapes:
        for run in (load, lambda shape: asyncio.run(heap.scope("load")(load_async)(shape))):
            made.clear()
            result = run(shape)
            assert [one.freed for one in made if one.size == 5] == [True] * (run is load)
            assert not any(one.freed for one in made if one.size == 10)
            del result
    made.clear()


def test_returned_library_array_is_no_leak(heap):
    @heap.scope("load", on_leak="raise")
    def load():
        return [library().empty(heap, 100)]

    load()[0].free()


def test_returned_array_joins_scope_around(heap):
    before = heap.zeros(10)

    @heap.scope("inner")
    def inner():
        return before, heap.zeros(10)

    with heap.scope("outer") as outer:
        _, kept = inner()
        assert outer.live == 80
    assert (before.freed, kept.freed) == (False, True)


def test_returned_cycle_is_kept(heap):
    @heap.scope("load")
    def load():
        found = [heap.zeros(10)]
        found.append(found)
        return found

    found = load()
    assert not found[0].freed
    found.clear()


def test_current_scope_keeps_in_decorated_function(heap):
    @heap.scope("load")
    def load():
        scope = gpuheap.current_scope()
        assert isinstance(scope, gpuheap.Scope) and scope.name == "load"
        cache.append(scope.keep(heap.zeros(10)))

    cache = []
    load()
    assert not cache[0].freed
    cache.clear()


def test_limit_refuses_arrays_in_time(heap):
    operations = (
        lambda: heap.zeros(13 * MIB),
        lambda: heap.full((MIB,), 1.0),
        lambda: heap.array(bytes(9 * MIB)),
        lambda: small.astype("float64"),
        lambda: small.broadcast_to((16, MIB)),
        lambda: small + small.broadcast_to((8, MIB)),
    )
    small = heap.full((MIB,), 1, "uint8")
    for use in operations:
        meter = heap.meter()
        with heap.scope("load", limit="7 MiB"):
            reserved = heap.stats()["reserved"]
            with pytest.raises(gpuheap.OutOfMemory, match="in scope 'load'") as caught:
                use()
            assert caught.value.cause == "scope"
            assert heap.stats()["reserved"] - reserved <= 8 * MIB
        assert meter.read().peak <= 7 * MIB
    small.free()


def test_garbage_refuses_no_arrays(heap):
    with heap.scope("load", limit="10 MiB"):
        cycle = [heap.zeros(MIB)]
        cycle.append(cycle)
        del cycle
        heap.zeros(MIB)


def test_would_fit_knows_the_scope(heap):
    assert heap.would_fit(2 * MIB)[0] == "yes"
    with heap.scope("load", limit="3 MiB"):
        kept = heap.alloc(2 * MIB)
        verdict, text = heap.would_fit(2 * MIB)
        assert verdict == "no" and "scope 'load' has 1 MiB left of its limit of 3 MiB" in text, text
        assert heap.would_fit(MIB)[0] == "yes"
        kept.free()


def test_generators_are_refused(heap):
    with pytest.raises(gpuheap.BadInput, match="generator"):

        @heap.scope("load")
        def rows():
            yield 1


def test_scopes_are_entered_once(heap):
    scope = heap.scope("load")
    for use in (lambda: scope.live, lambda: scope.keep(None)):
        with pytest.raises(gpuheap.BadInput, match="not entered"):
            use()
    with scope, pytest.raises(gpuheap.BadInput, match="no device memory"):
        scope.keep("text")
    with pytest.raises(gpuheap.BadInput, match="before"):
        scope.__enter__()
    with pytest.raises(ValueError, match="size"):
        heap.scope("load", limit="12XB").__enter__()
    assert heap.alloc(10).freed is False


def test_open_views_are_warned_about(heap):
    with pytest.warns(gpuheap.LeakWarning, match="open views") as caught, heap.scope("load"):
        host = heap.pinned(10)
        view = memoryview(host)
    assert caught[0].filename == __file__
    view.release()
    host.free()


class Broken:
    """A buffer whose `free` fails."""

    freed, nbytes = False, 1

    def free(self):
        raise self.error("not this one")


def test_failed_end_step_spares_others(heap):
    broken = Broken()
    for error in (gpuheap.DriverError, RuntimeError):
        broken.error = error
        with heap.scope("outer", on_leak="ignore") as outer:
            with pytest.raises(error, match="not this one") as caught:
                with heap.scope("load", on_leak="raise") as scope:
                    gpuheap._gpuheap._scope_adopt(scope._account, broken)
                    host = heap.pinned(10)
                    view = memoryview(host)
                    own, stays = heap.alloc(1000), library().empty(heap, 300)
            assert (
                own.freed
                and [leak.bytes for leak in scope.leaked] == [300]
                and scope.freed_bytes == 1000
            )
            warned, leaked = caught.value.__notes__
            assert "LeakWarning: scope 'load' could not free" in warned and "open views" in warned
            assert "Leaked: scope 'load'" in leaked and "300 bytes outlived" in leaked
        assert [leak.bytes for leak in outer.leaked] == [300]
        view.release()
        host.free(), stays.free()


def test_failed_end_hides_no_exception(heap):
    broken = Broken()
    broken.error = gpuheap.DriverError
    with pytest.raises(KeyError) as caught, heap.scope("load") as scope:
        gpuheap._gpuheap._scope_adopt(scope._account, broken)
        view = memoryview(heap.pinned(10))
        own = heap.alloc(1000)
        raise KeyError
    assert own.freed and scope.freed_bytes == 1000
    assert [note.split(": ")[1] for note in caught.value.__notes__] == [
        "DriverError",
        "LeakWarning",
    ]
    view.release()
    broken.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), heap.scope("load") as scope:
        gpuheap._gpuheap._scope_adopt(scope._account, broken)
        raise KeyError


def test_default_heap_has_scopes(heap):
    before = gpuheap.set_default_heap(heap)
    try:
        with gpuheap.scope("load"):
            buffer = heap.alloc(10)
    finally:
        gpuheap.set_default_heap(before)
    assert buffer.freed


def test_import_loads_no_extension():
    loaded = "import gpuheap, sys; print('gpuheap._gpuheap' in sys.modules, 'gpuheap._heap' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).split() == [
        "False",
        "False",
    ]
