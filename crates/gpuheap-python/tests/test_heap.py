"""Heaps, buffers, streams, host memory and reports."""

import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref

import pytest

import gpuheap
from support import in_threads


def test_buffer_counts_while_live(heap):
    buffer = heap.alloc(1000)
    assert (buffer.nbytes, len(buffer), heap.stats()["live"]) == (1000, 1000, 1000)
    del buffer
    assert heap.stats()["live"] == 0


def test_use_after_free_raises(heap):
    buffer = heap.alloc(10)
    buffer.free()
    buffer.free()
    assert buffer.freed
    for use in (lambda: buffer.ptr, buffer.to_bytes, buffer.__dlpack__, lambda: buffer.used_on(0)):
        with pytest.raises(gpuheap.Freed, match="before this use"):
            use()


def test_devices_are_equal_by_their_memory(heap):
    device = heap.device
    assert device == heap.device and hash(device) == hash(heap.device) and device in {heap.device}
    other = gpuheap.Heap("emulated:1GiB").device
    assert device != other and device != "emulated:1GiB" and gpuheap.Heap(device).device == device
    assert len({device, heap.device, other}) == 2


def test_device_line_opens_the_device():
    for line in gpuheap.devices():
        name = line.partition(": ")[0]
        assert gpuheap.Heap(line).device.name == name == gpuheap.Device(line).name
        assert gpuheap.Heap(gpuheap.Device(line)).device.name == name


def test_buffer_bytes_survive_round_trip(heap):
    with heap.alloc(100) as buffer:
        buffer.fill(7)
        buffer.copy_from(b"abc", offset=97)
        assert buffer.to_bytes() == b"\x07" * 97 + b"abc"
        assert buffer.to_bytes(98, 1) == b"b"
        for offset, count in ((98, 3), (101, 0), (2**64 - 1, 2)):
            with pytest.raises(gpuheap.BadInput, match="outside the buffer"):
                buffer.to_bytes(offset, count)
        with pytest.raises(TypeError, match="buffer protocol"):
            buffer.copy_from(3)


def test_out_of_memory_has_figures(heap):
    kept = heap.alloc(400 << 20)
    with pytest.raises(MemoryError) as caught:
        heap.alloc(200 << 20)
    error = caught.value
    assert isinstance(error, gpuheap.OutOfMemory)
    assert (error.cause, error.requested, error.live) == ("limit", 200 << 20, 400 << 20)
    assert error.limit_short_by == 88 << 20
    assert error.kind == "OutOfMemory" and error.figures["kind"] == "device"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.figures) == (str(error), error.figures)
    with pytest.raises(AttributeError):
        error.no_such_figure
    kept.free()


def test_request_collects_garbage_before_failing(heap):
    gc.disable()
    try:
        cycle = [heap.alloc(400 << 20)]
        cycle.append(cycle)
        del cycle
        assert heap.stats()["live"] == 400 << 20
        heap.alloc(400 << 20).free()
    finally:
        gc.enable()


def test_limits_can_be_changed(heap):
    assert heap.limits == (512 << 20, None)
    heap.set_limits("50%", "10%")
    assert heap.limits == (512 << 20, int((1 << 30) * 0.1))
    for wrong in ("12XB", -1, 1.5, "0", None.__class__):
        with pytest.raises(ValueError, match="size"):
            heap.set_limits(wrong)


def test_omitted_limit_stays(heap):
    heap.set_limits(soft_limit="20MiB")
    assert heap.limits == (512 << 20, 20 << 20)
    heap.set_limits("256MiB")
    assert heap.limits == (256 << 20, 20 << 20)
    heap.set_limits(None)
    assert heap.limits == (None, 20 << 20)


def test_threads_see_freed_buffer(heap):
    # Each `gpuheap.Freed` is made by Python code. Earlier, that code ran with the buffer's lock
    # held, and two threads hung.
    buffer, view = heap.alloc(10), heap.pinned(10)
    buffer.free()
    view.free()

    def work():
        for _ in range(5_000):
            with pytest.raises(gpuheap.Freed):
                buffer.fill(0)
            with pytest.raises(gpuheap.Freed):
                memoryview(view)

    in_threads(*[work] * 3)


def test_second_free_does_nothing(heap):
    buffer = heap.alloc(10)
    buffer.free(stream=0)
    buffer.free(stream=0)


def test_default_heap_can_be_set():
    with pytest.raises(TypeError, match="not int"):
        gpuheap.set_default_heap(5)


def test_forked_child_makes_default_heap():
    # In the program, another thread holds the lock of the default heap while the process forks.
    program = """
import os, threading, time
import gpuheap
from gpuheap import _heap
threading.Thread(target=lambda: (_heap._default_lock.acquire(), time.sleep(5)), daemon=True).start()
time.sleep(0.2)
child = os.fork()
if not child:
    os._exit(0 if gpuheap.Heap("emulated:1GiB") and gpuheap.set_default_heap(None) is None else 1)
print(os.waitpid(child, 0)[1])
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"device": "gpu0"}, "gpu0"),
        ({"device": "emulated:nosuch"}, "nosuch"),
        ({"device": 1.5}, "no device"),
        ({"device": "emulated", "pool": "nosuch"}, "nosuch"),
        ({"device": "emulated", "track": "nosuch"}, "track"),
        ({"device": "emulated", "limit": "1MiB"}, "limit"),
    ],
)
def test_wrong_settings_are_refused(arguments, text):
    with pytest.raises((ValueError, TypeError, gpuheap.Error), match=text):
        gpuheap.Heap(**arguments)


def test_leaks_name_the_line(heap):
    buffers = [heap.alloc(10), heap.alloc(20)]
    line = heap.leaks()[0]
    assert (line.function, line.allocations, line.bytes) == (
        "test_leaks_name_the_line",
        len(buffers),
        30,
    )
    assert line.file == __file__


def test_threads_are_named():
    heap = gpuheap.Heap("emulated:1GiB", track="lines")
    kept = []
    thread = threading.Thread(target=lambda: kept.append(heap.alloc(10)), name="loader")
    thread.start()
    thread.join()
    assert [record["thread"] for record in heap._records()] == ["loader"]


def test_program_below_folder_gpuheap_is_named(tmp_path):
    program = tmp_path / "gpuheap" / "program.py"
    heap = gpuheap.Heap("emulated:1GiB", track="lines")
    names = {"heap": heap}
    exec(compile("kept = heap.alloc(10)", str(program), "exec"), names)
    assert [line.file for line in heap.leaks()] == [str(program)]


@pytest.mark.parametrize("keeps", [False, True])
def test_reused_thread_number_gets_new_name(keeps):
    heap = gpuheap.Heap("emulated:1GiB", track="lines")
    kept, idents, seen = [], set(), []

    def work():
        idents.add(threading.get_ident())
        buffer = heap.alloc(1000)
        seen.append([record["thread"] for record in heap._records()])
        if keeps:
            kept.append(buffer)

    names = [f"worker {nth}" for nth in range(20)]
    for name in names:
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join()
    assert len(idents) < len(names), "no number was used again"
    assert seen == [names[: nth + 1] if keeps else [name] for nth, name in enumerate(names)]


def test_untracked_heap_refuses_leaks():
    with pytest.raises(gpuheap.BadInput, match='track="lines"'):
        gpuheap.Heap("emulated:1GiB").leaks()


def test_exported_buffer_outlives_free(heap):
    buffer = heap.alloc(100)
    capsule = buffer.__dlpack__(max_version=(1, 0))
    buffer.free()
    assert heap.stats()["live"] == 100
    del capsule
    assert heap.stats()["live"] == 0


def test_emulated_memory_hides_its_interface(heap):
    buffer = heap.alloc(100)
    assert not hasattr(buffer, "__cuda_array_interface__")
    assert buffer.__dlpack_device__()[0] == 12
    with pytest.raises(BufferError, match="without a copy"):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"not on \(2, 0\);"):
        buffer.__dlpack__(dl_device=(2, 0))
    buffer.free()


def test_streams(heap):
    class Theirs:
        def __init__(self, stream, version=0):
            self.stream, self.version = stream, version

        def __cuda_stream__(self):
            return (self.version, self.stream.handle)

    own = heap.stream()
    assert own.__cuda_stream__() == (0, own.handle)
    for stream in (None, 0, 1, own, Theirs(own), own.handle):
        buffer = heap.alloc(100, stream)
        buffer.used_on(own)
        buffer.free(0)
    own.synchronize()
    assert own.is_done()
    for wrong, text in (
        (Theirs(own, 3), "version 3"),
        ("s", "no stream"),
        (-1, "no handle"),
        (2**70, "no handle"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            heap.alloc(1, wrong)


def test_stream_objects_are_released(heap):
    import weakref

    class Theirs:
        def __init__(self):
            self.stream = heap.stream()

        def __cuda_stream__(self):
            return (0, self.stream.handle)

    theirs = Theirs()
    gone = weakref.ref(theirs)
    heap.alloc(10, theirs).free()
    del theirs
    assert gone() is not None
    heap.flush()
    assert gone() is None


def test_host_memory_is_a_buffer(heap):
    for make in (heap.pinned, heap.managed):
        memory = make(16)
        view = memoryview(memory)
        assert bytes(view) == bytes(16)
        view[3] = 7
        assert memoryview(memory)[3] == 7
        with pytest.raises(BufferError, match="open views"):
            memory.free()
        view.release()
        memory.free()
        with pytest.raises(gpuheap.Freed):
            memoryview(memory)
    assert bytes(memoryview(heap.pinned(0))) == b""


def test_reports_have_figures_and_text(heap):
    buffer = heap.alloc(1000)
    status = heap.status()
    assert status.device == "emulated:1GiB"
    assert status.to_dict()["allocated"] == status.allocated > 0
    assert "StitchedPool" in str(status) and "<pre>" in status._repr_html_()
    report = heap.flush()
    assert report.to_dict()["kinds"][0]["live"] > 0
    buffer.free()
    assert heap.flush().given_back == 2 << 20
    assert heap.would_fit(1 << 20)[0] == "yes"
    assert heap.would_fit(1 << 40)[0] == "no"
    assert heap.reclaim() == 0
    with pytest.raises(AttributeError):
        report.no_such_figure


def test_flush_reports_held_pieces():
    heap = gpuheap.Heap("emulated:64GiB")
    blocks = [heap.alloc(10 << 20) for _ in range(40)]
    live = blocks[20]
    for block in blocks[:20] + blocks[21:]:
        block.free()
    stats = heap.stats()
    assert stats["largest_stitchable"] >= stats["largest_cached_block"] > 0
    report = heap.flush()
    [device] = report.to_dict()["kinds"]
    assert device["held"] - device["held_free"] == live.nbytes
    assert device["held"] <= 32 << 20 and device["held_pieces"] <= 2
    assert "held by live blocks in" in str(report)


@pytest.mark.parametrize(
    "work, error, text",
    [
        (lambda heap: heap.alloc(-1), ValueError, "-1 is no number of bytes"),
        (lambda heap: heap.would_fit(2**80), ValueError, "pass one from 0 to"),
        (lambda heap: heap.pinned("5"), TypeError, "as an int"),
        (
            lambda heap: heap.alloc(600 << 20),
            gpuheap.OutOfMemory,
            r"\(Heap\(limit=\), Heap.set_limits\(limit=\) or",
        ),
        (
            lambda heap: heap.zeros(2).reshape(*[1] * 70),
            gpuheap.BadInput,
            "the shape has more than 64 axes",
        ),
        (lambda heap: heap.zeros(2).reshape([[1]]), TypeError, r"\[1\] is no length of an axis"),
        (lambda heap: heap.zeros(2).reshape(2.5), TypeError, "'float'> is no shape"),
        (lambda heap: heap.zeros((1,) * 70), gpuheap.BadInput, "the shape has more than 64 axes"),
        (lambda heap: heap.zeros(2.5), TypeError, "'float'> is no shape"),
        (lambda heap: heap.array([1]).count_by_key(-1), ValueError, "number of bytes or groups"),
        (
            lambda heap: heap.array([1.0]) + gpuheap.Heap("emulated:1GiB").array([1.0]),
            gpuheap.BadInput,
            r"heap.array\(a\), with a heap of the other's device",
        ),
    ],
)
def test_errors_use_python_names(heap, work, error, text):
    with pytest.raises(error, match=text) as caught:
        work(heap)
    assert "::" not in str(caught.value) and "copy_to" not in str(caught.value)


def test_freed_array_names_no_rust(heap):
    # `free` may run in the middle of `sum`, after `sum` checked that the array is not freed. The
    # Rust crate then makes the error, and the error must not name Rust files.
    seen = set()
    for _ in range(200):
        array = heap.zeros(1000)

        def use():
            try:
                array.sum()
            except gpuheap.Freed as error:
                seen.add(str(error))

        in_threads(use, array.free)
    assert not [text for text in seen if ".rs" in text]


def test_library_modules_load_lazily():
    program = """
import sys, gpuheap
assert gpuheap.torch.__name__ == "gpuheap.torch" and gpuheap.cupy.install and gpuheap.jax
assert not {"torch", "cupy", "jax"} & set(sys.modules)
assert "torch" in dir(gpuheap) and not hasattr(gpuheap, "nothing")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_single_allocation_is_singular(heap):
    first = heap.alloc(10)
    assert "10 bytes in 1 allocation, " in str(heap.leaks())
    buffers = [first, *(heap.alloc(10) for _ in range(2))]
    assert "20 bytes in 2 allocations, " in str(heap.leaks())
    del first, buffers


def test_replaced_cells_keep_their_lines(heap):
    # A notebook compiles a cell anew for each run. The heap keeps the line of an allocation while
    # it is live, and has to release the code of all other cells.
    kept, gone = [], []
    for number in range(2000):
        text = f"\nkept.append(heap.alloc({number + 1}))" if number % 500 == 0 else "heap.alloc(1)"
        code = compile(text, f"<cell {number}>", "exec")
        exec(code, {"heap": heap, "kept": kept})
        gone.append(weakref.ref(code))
        del code
    assert sum(code() is not None for code in gone) < 600
    lines = [(line.file, line.line, line.function, line.bytes) for line in heap.leaks()]
    assert lines == [
        (f"<cell {number}>", 2, "<module>", number + 1) for number in (1500, 1000, 500, 0)
    ]
    assert [record["file"] for record in heap._records()] == [line[0] for line in lines[::-1]]
    kept.clear()
    exec(compile("\nkept.append(heap.alloc(7))", "<cell 0>", "exec"), {"heap": heap, "kept": kept})
    assert [(line.file, line.bytes) for line in heap.leaks()] == [("<cell 0>", 7)]
    kept.clear()


def test_lines_follow_calls_and_threads(heap):
    def allocate():
        return heap.alloc(10)

    def generate():
        while True:
            yield allocate()

    class Made:
        def __init__(self):
            self.buffer = allocate()

    numbers = generate()
    kept = []

    def work():
        for _ in range(3):
            kept.extend([allocate(), next(numbers), Made()])
            kept.append(heap.alloc(1))
            kept.append(heap.alloc(2))

    work()
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    found = {(line.function.rpartition(".")[2], line.bytes) for line in heap.leaks()}
    assert found == {("allocate", 270), ("work", 9), ("work", 18)}
    kept.clear()


def test_environment_enables_line_tracking():
    for value, tracks in (("counts", True), ("backtraces", True), ("off", False)):
        printed = run(
            """
heap = gpuheap.Heap("emulated:1GiB")
kept = heap.alloc(1000)
print(heap.tracks, heap.leaks() if heap.tracks else "")
print(heap.status())
try:
    heap.alloc(2 << 30)
except gpuheap.OutOfMemory as error:
    print(error)
""",
            GPUHEAP_TRACK=value,
        )
        assert printed.startswith(str(tracks)) and ("<string>:4" in printed) == tracks, printed
        assert ".rs" not in printed and "build" not in printed, printed


def test_fork_error_speaks_python():
    printed = run("""
heap = gpuheap.Heap("emulated:1GiB")
import os
if os.fork() == 0:
    try:
        heap.alloc(10)
    except gpuheap.Gone as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
""")
    assert "multiprocessing" in printed and "::" not in printed, printed


NO_DRIVER = {"LD_LIBRARY_PATH": "", "GPUHEAP_DEVICE": None}


def test_missing_gpu_warns_once():
    try:
        run("gpuheap.Device('cuda:0')", **NO_DRIVER)
    except AssertionError as error:
        assert "DriverError" in str(error)
    else:
        pytest.skip("there is a GPU")
    printed = run(
        """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    gpuheap.Heap("emulated:1GiB"), gpuheap.devices()
    assert not caught, caught
    made = gpuheap.install(libraries=[])
    gpuheap.Heap(), gpuheap.Device(), gpuheap.default_heap()
print([(one.category is gpuheap.EmulatedDeviceWarning, one.filename, one.lineno) for one in caught])
print(caught[0].message)
""",
        **NO_DRIVER,
    )
    assert printed.startswith("[(True, '<string>', 8)]") and 'device="emulated:16GiB"' in printed, (
        printed
    )
    assert (
        run("gpuheap.Heap(); print('quiet')", **{**NO_DRIVER, "GPUHEAP_DEVICE": "emulated:1GiB"})
        == "quiet\n"
    )


def run(program, **settings):
    """Runs a program in a new process with these environment variables. Returns its output."""
    environment = {**os.environ, **settings}
    environment = {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", "import gpuheap\n" + program],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    return done.stdout
