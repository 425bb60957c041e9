"""Data larger than the device, in batches."""

import array

import pytest

import gpuheap
from gpuheap import _batches


@pytest.fixture
def small():
    """A heap with a limit of 16 MiB."""
    heap = gpuheap.Heap("emulated:1GiB", limit="16MiB", track="lines")
    yield heap
    assert not heap.leaks(), heap.leaks()


def test_rows_are_cut_by_the_limit(small):
    np = pytest.importorskip("numpy")
    data = np.arange(10 << 20, dtype="f8").reshape(-1, 16)
    seen, total, batches = [], 0.0, gpuheap.batches(data, heap=small)
    for batch in batches:
        assert batch.shape[1:] == (16,) and batch.nbytes <= 8 << 20
        assert np.array_equal(batch[0].to_numpy(), data[batches.rows.start])
        seen.append(batches.rows)
        total += batch.sum()
    assert total == data.sum() and [row for rows in seen for row in rows] == list(range(len(data)))
    assert 10 <= len(seen) <= 12 and small.stats()["live"] == 0
    narrow = gpuheap.batches(data, narrow=True, heap=small)
    assert next(narrow).dtype == "float32" and narrow.chunk == pytest.approx(
        2 * len(seen[0]), rel=0.2
    )
    narrow.close()


def test_batch_is_freed_before_next(small):
    batches = gpuheap.batches([array.array("b", [1]), {"x": array.array("b", [2])}], heap=small)
    first = next(batches)
    second = next(batches)
    assert first.freed and not second["x"].freed
    assert batches.keep(second) is second
    assert next(batches, None) is None and not second["x"].freed
    second["x"].free()


def test_kept_part_keeps_its_batch(small):
    rows = memoryview(bytes(range(4))).cast("B", (2, 2))
    batches = gpuheap.batches((rows, rows), heap=small)
    first, second = next(batches)
    part = batches.keep(first[1])
    del first
    assert next(batches, None) is None
    assert (part.to_list(), second.freed) == ([2, 3], True)
    part.free()


def test_only_uploaded_arrays_are_freed(small):
    weights = small.full(4, 7.0)
    for _ in gpuheap.batches([{"x": array.array("b", [1]), "w": weights}] * 2, heap=small):
        assert weights.to_list() == [7.0] * 4
    assert not weights.freed
    weights.free()


def test_columns_are_cut_in_parallel(small):
    np = pytest.importorskip("numpy")
    values, keys = np.arange(3 << 20, dtype="f8"), (np.arange(3 << 20) % 5).astype("u1")
    sums = small.zeros(5)
    for value, key in gpuheap.batches((values, keys), heap=small, fraction=0.25):
        sums += value.sum_by_key(key, 5)
    assert sums.to_list() == [values[keys == group].sum() for group in range(5)]
    with pytest.raises(ValueError, match="numbers of rows"):
        gpuheap.batches((values, keys[1:]), heap=small)


def test_batches_halve_when_memory_runs_out(small):
    data = memoryview(bytes(12 << 20)).cast("B", (12, 1 << 20))
    batches = gpuheap.batches(data, fraction=1, heap=small)
    assert batches.chunk == 12
    blocker = small.alloc(12 << 20)
    assert [len(batch) for batch in batches] == [3, 3, 3, 3]
    blocker.free()
    batches = gpuheap.batches(data, fraction=1, heap=small)
    next(batches)
    batches.halve()
    assert small.stats()["live"] == 0
    assert [batches.rows for _ in batches] == [range(6), range(6, 12)]


def test_too_large_row_raises(small):
    data = memoryview(bytes(40 << 20)).cast("B", (2, 20 << 20))
    batches = gpuheap.batches(data, heap=small)
    with pytest.raises(gpuheap.OutOfMemory) as caught:
        next(batches)
    assert "row 0" in caught.value.__notes__[0]
    assert next(batches, None) is None
    with pytest.raises(ValueError, match="halved"):
        batches.halve()


def test_wrong_batches_are_refused(small):
    for wrong in (3, b"bytes", None, small.zeros(3)):
        with pytest.raises(TypeError, match="no batches"):
            gpuheap.batches(wrong, heap=small)
    for fraction in (0, -1, 1.5, float("nan"), "50%"):
        with pytest.raises(ValueError, match="fraction"):
            gpuheap.batches([], fraction=fraction, heap=small)
    with pytest.raises(TypeError, match="of a file or a table"):
        gpuheap.batches([], columns=["a"], heap=small)
    np = pytest.importorskip("numpy")
    with pytest.raises(ValueError, match="axes"):
        gpuheap.batches(np.array(1.0), heap=small)
    assert list(gpuheap.batches(np.zeros((0, 3)), heap=small)) == []


def test_left_loop_frees_its_batch(small):
    with gpuheap.batches([array.array("b", [1])], heap=small) as batches:
        next(batches)
        assert small.stats()["live"] > 0
    assert small.stats()["live"] == 0
    for _ in gpuheap.batches([array.array("b", [1])], heap=small):
        break
    assert small.stats()["live"] == 0


def test_interrupted_rows_come_again(small, monkeypatch):
    batches = gpuheap.batches(bytearray(8), heap=small)
    batches._source.chunk = 2
    next(batches)
    upload = _batches.adapt_noting

    def interrupted(*_):
        monkeypatch.setattr(_batches, "adapt_noting", upload)
        raise KeyboardInterrupt

    monkeypatch.setattr(_batches, "adapt_noting", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    next(batches)
    assert batches.rows == range(2, 4)
