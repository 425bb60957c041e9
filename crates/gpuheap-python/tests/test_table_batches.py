"""Processes files and tables that are larger than the device in batches."""

import io

import pytest

import gpuheap
from gpuheap import _sources

pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")

ROWS = 400_000


@pytest.fixture
def small():
    """A heap with a limit of 4 MiB."""
    heap = gpuheap.Heap("emulated:1GiB", limit="4MiB", track="lines")
    yield heap
    assert not heap.leaks(), heap.leaks()


@pytest.fixture(scope="module")
def table():
    """A table of 9.2 MiB."""
    return pa.table(
        {
            "key": pa.array(np.arange(ROWS) % 7, pa.int64()),
            "value": pa.array(np.arange(ROWS) / 2),
            "name": pa.array([f"{row % 100}" for row in range(ROWS)]),
        }
    )


@pytest.fixture(scope="module")
def files(table, tmp_path_factory):
    """Paths of files that contain the table, one for each format."""
    from pyarrow import csv, feather, ipc, parquet

    folder = tmp_path_factory.mktemp("tables")
    names = ("csv", "tsv", "parquet", "arrow", "arrows", "feather")
    paths = {name: folder / f"t.{name}" for name in names}
    csv.write_csv(table, paths["csv"])
    csv.write_csv(table, paths["tsv"], csv.WriteOptions(delimiter="\t"))
    parquet.write_table(table, paths["parquet"], row_group_size=70_000)
    feather.write_feather(table, paths["feather"], chunksize=50_000)
    with ipc.new_file(paths["arrow"], table.schema) as file:
        file.write_table(table, 60_000)
    with ipc.new_stream(paths["arrows"], table.schema) as stream:
        stream.write_table(table, 60_000)
    return paths


def sums(batches):
    """Returns the sum of `value`. Checks that each row comes once, and in order."""
    total, rows = 0.0, []
    for batch in batches:
        total += batch["value"].sum()
        rows.append(batches.rows)
    assert [row for part in rows for row in (part.start, part.stop)][1:-1:2] == [
        part.start for part in rows[1:]
    ]
    assert (rows[0].start, rows[-1].stop, len(rows) > 1) == (0, ROWS, True)
    return total


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "arrow", "arrows", "feather"])
def test_file_is_summed_in_batches(small, files, form):
    wanted = sum(row / 2 for row in range(ROWS))
    assert sums(gpuheap.batches(files[form], heap=small)) == pytest.approx(wanted)
    chosen = gpuheap.batches(str(files[form]), columns=["value"], heap=small)
    assert sums(chosen) == pytest.approx(wanted)
    assert chosen.copies.nbytes == ROWS * 8
    with open(files[form], "rb") as file:
        assert sums(gpuheap.batches(file, heap=small)) == pytest.approx(wanted)
    assert small.stats()["reserved_peak"] <= 4 << 20


def test_repeated_text_bounds_its_parts(tmp_path):
    """In the file, repeated text takes a hundredth of its decoded size."""
    from pyarrow import parquet

    words = [f"{number:0100}" for number in range(9)] * 20_000
    parquet.write_table(pa.table({"t": words, "n": range(len(words))}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 2 << 20
    read = _sources._batches_of(pa, tmp_path / "a.parquet", None, {}, 4 << 20)
    parts = [part for part in read if len(part)]
    assert max(part.nbytes for part in parts) <= 4 << 20 and len(parts) < 8
    assert [word for part in parts for word in part["t"].to_pylist()] == words


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow", "arrows", "feather"])
def test_file_without_rows_has_columns(small, tmp_path, files, form):
    from pyarrow import csv, feather, ipc, parquet

    path, empty = tmp_path / f"e.{form}", pa.table({"k": pa.array([], "int64"), "v": [0.5][:0]})
    writers = {"csv": csv.write_csv, "parquet": parquet.write_table}
    writers["feather"] = feather.write_feather
    if form in writers:
        writers[form](empty, path)
    else:
        make = ipc.new_file if form == "arrow" else ipc.new_stream
        make(path, empty.schema).close()
    assert list(gpuheap.batches(path, heap=small)) == []
    groups = gpuheap.group_by(path, "k", heap=small).agg({"v": ["sum", "count"]})
    assert pa.table(groups).schema.names == ["k", "v_sum", "v_count"]
    with pytest.raises(KeyError, match="nothing"):
        gpuheap.group_by(path, "nothing", heap=small).agg({"v": "sum"})


def test_libraries_tables_come_in_batches(small, table):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    wanted = sum(row / 2 for row in range(ROWS))
    sources = [table, table.to_reader(), table.to_pandas(), pl.from_arrow(table)]
    for source in [*sources, duckdb.from_arrow(table)]:
        batches = gpuheap.batches(source, columns=["value", "name"], heap=small)
        assert sums(batches) == pytest.approx(wanted), type(source)
    column = gpuheap.batches(table["value"], heap=small)
    assert sum(batch.sum() for batch in column) == pytest.approx(wanted)
    assert isinstance(gpuheap.host(next(gpuheap.batches(pd.DataFrame({"a": [1]})))), pa.Table)


def test_memory_map_comes_in_batches(small, tmp_path):
    np.arange(1 << 20).astype("f8").tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", "f8", "r")
    assert sum(batch.sum() for batch in gpuheap.batches(mapped, heap=small)) == mapped.sum()


def test_batch_halves_with_same_rows(small, files):
    batches = gpuheap.batches(files["parquet"], fraction=0.25, heap=small)
    rows = len(next(batches))
    batches.halve()
    assert small.stats()["live"] == 0
    assert len(next(batches)) == rows // 2 and batches.rows == range(rows // 2)
    assert rows // 2 + sum(len(batch) for batch in batches) == ROWS
    batches = gpuheap.batches(files["arrow"], fraction=1, heap=small)
    with small.alloc(7 << 19):
        assert sums(batches) == pytest.approx(ROWS * (ROWS - 1) / 4)
    assert batches.chunk * 24 < 1 << 19


def test_kept_batch_stays(small, files):
    with gpuheap.batches(files["csv"], heap=small, fraction=0.1) as batches:
        first = next(batches)
        kept = batches.keep(first)
        second = next(batches)
        next(batches)
        assert kept["value"].values[0].item() == 0.0
        with pytest.raises(gpuheap.Freed):
            second["value"].sum()
    kept.free()
    assert small.stats()["live"] == 0
    assert next(batches, None) is None


def test_file_objects_are_read(small, table):
    from pyarrow import csv

    file = io.BytesIO()
    csv.write_csv(table, file)
    file.seek(0)
    assert sums(gpuheap.batches(file, heap=small)) == pytest.approx(ROWS * (ROWS - 1) / 4)
    with pytest.raises(TypeError, match="'rb'"):
        next(gpuheap.batches(io.StringIO("a\n1\n"), heap=small))


def test_truncated_files_are_refused(small, files, tmp_path):
    for form in ("parquet", "arrow", "arrows", "feather"):
        whole = files[form].read_bytes()
        cut = tmp_path / f"cut.{form}"
        cut.write_bytes(whole[: len(whole) // 2])
        with pytest.raises((ValueError, OSError)) as caught:
            for _ in gpuheap.batches(cut, heap=small):
                pass
        assert f"in {cut}" in caught.value.__notes__, form
    cut = tmp_path / "cut.csv"
    cut.write_bytes(files["csv"].read_bytes()[:-8] + b"\n1,2\n")
    with pytest.raises(ValueError, match="Expected 3 columns"):
        for _ in gpuheap.batches(cut, heap=small):
            pass
    assert small.stats()["live"] == 0
    with pytest.raises(FileNotFoundError):
        next(gpuheap.batches(tmp_path / "missing.csv", heap=small))


def test_changed_schema_is_refused(small, tmp_path):
    from pyarrow import parquet

    one, two, three = (tmp_path / f"{name}.parquet" for name in ("one", "two", "three"))
    parquet.write_table(pa.table({"a": [1], "b": [2]}), one)
    parquet.write_table(pa.table({"b": [2], "a": [1]}), two)
    parquet.write_table(pa.table({"a": [1.5], "b": [2]}), three)
    assert sum(batch["a"].sum() for batch in gpuheap.batches([one, two], heap=small)) == 2
    with pytest.raises(ValueError) as caught:
        list(gpuheap.batches([one, three], heap=small))
    assert f"(a double, b int64), and those of {one} are (a int64" in str(caught.value)
    assert caught.value.__notes__ == [f"in {three}"]


def test_wrong_values_name_the_remedy(small, tmp_path):
    path = tmp_path / "late.csv"
    path.write_text("a\n" + "1\n" * (1 << 20) + "1.5\n")
    with pytest.raises(ValueError) as caught:
        for _ in gpuheap.batches(path, heap=small):
            pass
    assert "column 'a'" in caught.value.__notes__[0]
    assert 'types={"a": "float64"}' in caught.value.__notes__[0]
    batches = gpuheap.batches(path, types={"a": "float64"}, heap=small)
    assert sum(batch["a"].sum() for batch in batches) == (1 << 20) + 1.5
    with pytest.raises(KeyError, match="nothing.* the file has 'a'"):
        next(gpuheap.batches(path, columns=["nothing"], heap=small))
    with pytest.raises(ValueError, match="'real', which"):
        next(gpuheap.batches(path, types={"a": "real"}, heap=small))


@pytest.mark.parametrize(
    "begin, text",
    [
        (b"FEA1", "Feather, version 1"),
        (b"\x1f\x8b\x08", r"gzip\.open"),
        (b"PK\x03\x04", "read_excel"),
        (b"ORC", "read_table"),
        ("a,b\n1,2\n".encode("utf-16"), "encoding='utf-16'"),
        (b"a;b\n1,5;2\n", "Expected 1 columns"),
        (b"a,a\n1,2\n", "two columns have the name 'a'"),
    ],
)
def test_other_files_name_the_remedy(small, tmp_path, begin, text):
    path = tmp_path / "other.csv"
    path.write_bytes(begin)
    with pytest.raises(ValueError, match=text) as caught:
        next(gpuheap.batches(path, heap=small))
    assert str(path) in caught.value.__notes__[0]


def test_wide_file_names_few_columns(small, tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{nth}" for nth in range(1000)) + "\n")
    with pytest.raises(KeyError, match="'c19' and 980 more"):
        next(gpuheap.batches(path, columns=["nothing"], heap=small))


def test_folder_counts_its_files(small, tmp_path):
    (tmp_path / "a.csv").touch()
    with pytest.raises(IsADirectoryError, match="folder of 1 file; pass a list"):
        next(gpuheap.batches(tmp_path, heap=small))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("form", ["arrow", "arrows"])
def test_large_compressed_batch_is_refused(small, tmp_path, monkeypatch, form, compression):
    # Each row has one of two texts, so the compressed batches are small.
    table = pa.table({"n": pa.array(range(20_000)), "t": ["x" * 500, "y" * 500] * 10_000})
    path = tmp_path / f"a.{form}"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table.slice(0, 1000))
        writer.write_table(table)
    rows = sum(len(batch) for batch in gpuheap.batches(path, heap=small))
    monkeypatch.setattr("gpuheap._sources.free_host_memory", lambda: 16 << 20)
    read = gpuheap.batches(path, heap=small)
    assert rows == 21_000 and len(next(read)) == 1000
    with pytest.raises(MemoryError, match=r"batch 1 has 9\.\d+ MiB when .* host has 16 MiB free"):
        next(read)
    if form == "arrow":
        numbers = gpuheap.batches(path, columns=["n"], heap=small)
        assert sum(len(batch) for batch in numbers) == rows


def test_polars_compressed_batch_is_refused(small, tmp_path, monkeypatch):
    polars = pytest.importorskip("polars")
    path = tmp_path / "a.arrow"
    polars.DataFrame({"t": ["x" * 500, "y" * 500] * 1000}).write_ipc(path, compression="zstd")
    monkeypatch.setattr("gpuheap._sources.free_host_memory", lambda: 1 << 10)
    with pytest.raises(MemoryError, match="batch 0 has"):
        next(gpuheap.batches(path, heap=small))


def test_row_beyond_limit_is_named(small):
    wide = pa.table({"t": ["short", "x" * (8 << 20), "short"]})
    batches = gpuheap.batches(wide, heap=small)
    with pytest.raises(gpuheap.OutOfMemory) as caught:
        for _ in batches:
            pass
    assert caught.value.__notes__ == ["row 1 does not fit by itself"]
    assert small.stats()["live"] == 0 and next(batches, None) is None


def test_missing_pyarrow_is_named(small, tmp_path, monkeypatch):
    import sys

    (tmp_path / "a.csv").write_text("a\n1\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        next(gpuheap.batches(tmp_path / "a.csv", heap=small))
