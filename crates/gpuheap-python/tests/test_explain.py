"""Explains errors and replays traces in Python, by the same rules as the command."""

from pathlib import Path

import pytest

import gpuheap

CHECKOUT = Path(__file__).parents[3]
TEXTS = CHECKOUT / "crates/gpuheap-doctor/tests/machine/texts"
TRACES = CHECKOUT / "examples/traces"


@pytest.mark.parametrize(
    "text, program",
    [
        ("torch_full", "PyTorch"),
        ("cupy_full", "CuPy"),
        ("rmm_pool", "RMM"),
        ("numba", "Numba"),
        ("jax", "JAX"),
        ("pycuda_full", "PyCUDA"),
        ("gpuheap", "gpuheap"),
    ],
)
def test_texts_of_libraries_are_known(text, program):
    found = gpuheap.explain((TEXTS / f"{text}.txt").read_text())
    assert program in found.program
    assert found.cause and found.fix
    assert found.cause.split()[0] in str(found)


@pytest.mark.parametrize(
    "error, cause, fix",
    [
        (
            "_driver.LogicError: cuMemAlloc failed: invalid device context",
            "no current context",
            "context.push()",
        ),
        (
            "_driver.LogicError: cuMemFree failed: invalid device context",
            "freed on a thread",
            "before context.pop()",
        ),
        (
            "AttributeError: module 'pycuda.driver' has no attribute 'mem_free'",
            "no mem_free",
            "memory.free()",
        ),
        (
            "UserWarning: device_allocation in out-of-thread context could not be cleaned up",
            "freed on a thread",
            "before context.pop()",
        ),
        (
            "PyCUDA ERROR: The context stack was not empty upon module cleanup.",
            "without popping",
            "in a finally",
        ),
        (
            "_driver.MemoryError: cuMemAlloc failed: out of memory",
            "no memory left",
            "gpuheap status",
        ),
    ],
)
def test_each_pycuda_text_has_cause(error, cause, fix):
    found = gpuheap.explain(f"pycuda.{error}" if error.startswith("_") else error)
    assert found.program == "PyCUDA" and not found.from_documentation
    assert cause in found.cause and fix in found.fix


def test_own_error_has_evidence():
    heap = gpuheap.Heap("emulated:1GiB", limit="64MiB")
    with pytest.raises(gpuheap.OutOfMemory) as caught:
        heap.alloc(100_000_000)
    found = gpuheap.explain(caught.value)
    assert found.program == "gpuheap"
    assert all(isinstance(figure, int) for figure in found.evidence.values())
    assert found.evidence["requested"] == 100_000_000
    assert found.evidence["short by"] == caught.value.figures["short_by"]
    limit = caught.value.figures["limit"] + caught.value.figures["limit_short_by"]
    assert found.fix == f"heap.set_limits(limit={limit})"
    assert gpuheap.explain(f"{caught.value.figures}").fix == found.fix
    assert "<pre>" in found._repr_html_()


def test_exception_class_identifies_library():
    class OutOfMemoryError(MemoryError):
        """An error like CuPy's. Its text does not name CuPy, so `explain` has to read the class."""

    OutOfMemoryError.__module__ = "cupy.cuda.memory"
    text = "Out of memory allocating 1,024,000 bytes (allocated so far: 512 bytes)."
    assert gpuheap.explain(OutOfMemoryError(text)).program == "CuPy"


def test_exception_causes_are_read():
    memory = RuntimeError((TEXTS / "torch_full.txt").read_text())
    try:
        try:
            raise memory
        except RuntimeError as error:
            raise ValueError("the step failed") from error
    except ValueError as error:
        assert gpuheap.explain(error).program == "PyTorch"
        assert gpuheap.explain(ExceptionGroup("two", [KeyError(), error])).program == "PyTorch"


def test_scope_limit_is_explained(heap):
    with heap.scope("load", limit="1 MiB"), pytest.raises(MemoryError) as caught:
        heap.alloc(3 << 20)
    found = gpuheap.explain(caught.value)
    assert found.program == "gpuheap" and found.cause == "the limit of scope 'load' is reached"
    assert found.evidence == {"requested": 3 << 20, "live": 0, "limit": 1 << 20}
    assert found.fix.startswith("raise the scope's limit by 2 MiB") and found.fix in str(found)


def test_other_errors_are_not_explained(monkeypatch):
    assert gpuheap.explain("all is well") is None
    assert gpuheap.explain(KeyError("weights")) is None
    with pytest.raises(TypeError, match="no error"):
        gpuheap.explain(3)
    for name in ("last_exc", "last_value"):
        monkeypatch.setattr(f"sys.{name}", None, raising=False)
    assert gpuheap.explain() is None
    monkeypatch.setattr(
        "sys.last_value", RuntimeError((TEXTS / "numba.txt").read_text()), raising=False
    )
    assert gpuheap.explain().program == "Numba"


def test_replay_has_the_verdict():
    trace = TRACES / "gpt_train_short.csv.gz"
    found = gpuheap.replay(trace, pools=["stitched"], device_memory="1GiB")
    assert found.gets_through
    assert [result["pool"] for result in found.traces[0]["results"]] == ["stitched"]
    assert "It gets through" in str(found)
    assert not gpuheap.replay(trace, pools=["stitched"], device_memory="512MiB").gets_through


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"pools": ["nosuch"]}, "'nosuch' is not a pool"),
        ({"card": "nosuch"}, "nosuch"),
        ({"device_memory": "50%"}, "share"),
        ({"device_memory": "12XB"}, "12XB"),
        ({"card": "T4 16GB", "device_memory": "1GiB"}, "exclude each other"),
        ({"limit": "12XB"}, "12XB"),
    ],
)
def test_wrong_replay_arguments_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        gpuheap.replay(TRACES / "gpt_train_short.csv.gz", **arguments)


def test_file_without_trace_is_refused(tmp_path):
    with pytest.raises(OSError, match="nosuch"):
        gpuheap.replay(tmp_path / "nosuch.csv")
    (tmp_path / "empty.csv").write_text("Thread,Time\n")
    with pytest.raises(ValueError, match="empty.csv"):
        gpuheap.replay(tmp_path / "empty.csv")


def test_odd_exceptions_are_read():
    class Odd(RuntimeError):
        exceptions = ["timeout"]

        def __getattr__(self, name):
            raise ValueError(name)

    class Mute(RuntimeError):
        def __str__(self):
            raise ValueError("no text")

    for odd in (Odd("x"), Mute(), RuntimeError("bad file \udc80")):
        assert gpuheap.explain(odd) is None
    assert gpuheap.explain("bad file \udc80") is None


def test_long_cause_chain_is_read_once():
    import traceback

    last = error = RuntimeError("first")
    for at in range(3_000):
        following = RuntimeError(str(at))
        following.__cause__, error = error, following
    calls = []
    real, traceback.TracebackException = (
        traceback.TracebackException,
        lambda *_, **__: calls.append(1),
    )
    try:
        assert gpuheap.explain(error) is None
    finally:
        traceback.TracebackException = real
    assert not calls
    last.args = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10.00 GiB",
    )
    assert gpuheap.explain(error).program == "PyTorch"
