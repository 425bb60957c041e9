"""Compares operations on groups and rows of tables with the results of pandas."""

import subprocess
import sys
import textwrap

import pytest

import gpuheap

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

AGGREGATES = ("count", "sum", "mean", "min", "max", "std")


@pytest.fixture
def heap():
    return gpuheap.Heap("emulated:1GiB", limit="512MiB")


def keys_of(random, kind, rows):
    """A random column of keys of a kind. If the kind can have missing values, some are missing."""
    few = random.integers(-3, 4, rows)
    missing = random.random(rows) < 0.15
    if kind.startswith(("int", "uint")):
        return pd.Series(few % 5 if kind[0] == "u" else few).astype(kind)
    if kind.startswith("float"):
        return pd.Series(np.where(missing, np.nan, few * -0.5)).astype(kind)
    if kind == "Int64":
        return pd.Series(few).astype("Int64").mask(missing)
    if kind == "bool":
        return pd.Series(few > 0)
    words = np.array(["", "a", "ab", "b\0", "ü", "zebra", "Z"], dtype=object)[few + 3]
    words[missing] = None
    if kind == "text":
        return pd.Series(words, dtype="str")
    if kind == "category":
        return pd.Series(words, dtype="str").astype("category")
    days = pd.Series(pd.Timestamp("2024-02-28") + pd.to_timedelta(few, unit="D"))
    return days.astype("datetime64[ns]").mask(missing)


KINDS = ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "float32", "float64"]
KINDS += ["Int64", "bool", "text", "category", "date"]


def random_table(seed):
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 150))
    kinds = random.choice(KINDS, int(random.integers(1, 4)))
    made = {f"k{index}": keys_of(random, kind, rows) for index, kind in enumerate(kinds)}
    missing = random.random(rows) < 0.2
    made["f"] = np.where(missing, np.nan, random.normal(1e6, 1, rows))
    made["s"] = pd.Series(random.normal(0, 10, rows)).astype("float32")
    made["i"] = random.integers(-(2**40), 2**40, rows)
    made["u"] = random.integers(0, 200, rows).astype("uint8")
    made["n"] = pd.Series(random.integers(0, 9, rows)).astype("Int64").mask(missing)
    made["b"] = random.random(rows) < 0.5
    return pd.DataFrame(made), len(kinds), random


@pytest.mark.parametrize("seed", range(200))
def test_group_by_equals_pandas(heap, seed):
    frame, count, random = random_table(seed)
    keys, dropna = [f"k{index}" for index in range(count)], bool(random.random() < 0.5)
    named = {
        f"{column}_{how}": (column, how)
        for column in ("f", "s", "i", "u", "n", "b")
        for how in AGGREGATES
        if column != "b" or how in ("count", "sum")
    }
    cuts = sorted(random.integers(0, len(frame) + 1, int(random.integers(0, 4))))
    parts = [frame[a:b] for a, b in zip([0, *cuts], [*cuts, len(frame)]) if a < b]
    source = (heap.adapt(part.reset_index(drop=True)) for part in parts)
    limit = "1GiB" if seed % 2 else 0
    groups = gpuheap.group_by(source, keys, dropna=dropna, host_limit=limit).agg(**named)
    found = groups.to_pandas()
    expected = frame.groupby(keys, dropna=dropna, observed=True).agg(**named)
    assert len(found) == len(expected) and list(found.columns) == list(expected.columns)
    assert (groups.spilled > 0) == (limit == 0 and len(expected) > 0)
    for mine, theirs in zip(found.reset_index().items(), expected.reset_index().items()):
        compare(*mine, theirs[1])


def compare(name, mine, theirs):
    """Compares two columns by value; NaN, None and NaT are equal."""
    missing = mine.isna().to_numpy()
    assert (missing == theirs.isna().to_numpy()).all(), name
    mine, theirs = mine[~missing], theirs[~missing]
    if pd.api.types.is_float_dtype(theirs.dtype):
        # pandas adds up float32 values in float32, and gpuheap in float64.
        rtol, atol = (1e-5, 1e-3) if name.startswith("s_") else (1e-9, 1e-6)
        np.testing.assert_allclose(
            mine.astype(float), theirs.astype(float), rtol, atol, err_msg=name
        )
    else:
        assert mine.tolist() == theirs.tolist(), name


def test_results_have_pandas_types(heap):
    frame = pd.DataFrame(
        {
            "k": ["x", "y", "x"],
            "i": np.array([1, 2, 3], "int8"),
            "u": np.array([1, 2, 3], "uint16"),
            "s": np.array([1, 2, 4], "float32"),
            "b": [True, False, True],
            "d": pd.to_datetime(["2024-01-01", "2024-01-03", "2024-01-02"]),
        }
    )
    named = {f"{c}_{how}": (c, how) for c in "ius" for how in AGGREGATES}
    named |= {f"b_{how}": ("b", how) for how in ("count", "sum", "mean", "min", "max")}
    named |= {"first": ("d", "min"), "last": ("d", "max"), "days": ("d", "count")}
    found = gpuheap.group_by(heap.adapt(frame), "k").agg(**named).to_pandas()
    expected = frame.groupby("k").agg(**named)
    # In pandas 3, a sum has the column's narrow type, and may wrap.
    types = {"i_sum": "int64", "u_sum": "uint64"}
    for name in expected:
        assert str(found[name].dtype) == types.get(name, str(expected[name].dtype)), name
    assert found.index.equals(expected.index)
    assert found["last"].tolist() == expected["last"].tolist()


def test_batches_halve_until_they_fit():
    rows = 300_000
    frame = pd.DataFrame({"k": np.arange(rows) % 7, "v": np.arange(rows, dtype=float)})
    heap = gpuheap.Heap("emulated:1GiB", limit="6MiB")
    found = gpuheap.group_by(frame, "k", heap=heap).agg({"v": ["sum", "std"]}).to_pandas()
    expected = frame.groupby("k")["v"].agg(["sum", "std"])
    np.testing.assert_allclose(found["v_sum"], expected["sum"])
    np.testing.assert_allclose(found["v_std"], expected["std"])
    assert heap.stats()["reserved_peak"] <= 6 << 20


def test_distinct_keys_are_spilled(heap, tmp_path):
    rows = 40_000
    frame = pd.DataFrame({"k": np.random.default_rng(1).permutation(rows) * 3, "v": 1})
    parts = (
        heap.adapt(frame[at : at + 4000].reset_index(drop=True)) for at in range(0, rows, 4000)
    )
    groups = gpuheap.group_by(parts, "k", host_limit="512KiB", spill=tmp_path).agg({"v": "sum"})
    assert groups.spilled > 512 << 10
    # The files are unnamed, so no file remains after the process ends.
    assert list(tmp_path.iterdir()) == []
    tables = list(groups.tables(rows=9000))
    assert [len(table) for table in tables] == [9000, 9000, 9000, 9000, 4000]
    assert groups.to_pandas().index.tolist() == list(range(0, 3 * rows, 3))


def test_full_disk_is_named_and_clean(tmp_path):
    program = f"""
        import resource, numpy, gpuheap
        heap = gpuheap.Heap("emulated:1GiB")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        keys = heap.array(numpy.arange(20_000))
        table = gpuheap.Table({{"k": keys, "v": keys}})
        before = heap.stats()["live"]
        try:
            gpuheap.group_by(table, "k", host_limit=0, spill={str(tmp_path)!r}).agg({{"v": "sum"}})
        except OSError as error:
            print(error.errno != 0, error)
        print(heap.stats()["live"] - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    first, last = done.stdout.splitlines()
    assert first.startswith("True") and f"a file of {tmp_path}" in first, done.stdout + done.stderr
    # The groups keep an array of one `uint32`, `anchor`, until Python's collector frees the groups.
    # So 4 bytes may still be live.
    assert int(last) <= 4 and list(tmp_path.iterdir()) == []


def test_interruption_frees_the_batch(heap):
    table = gpuheap.Table({"k": heap.array([1, 2]), "v": heap.array([1.0, 2.0])})

    def tables():
        yield table
        raise KeyboardInterrupt

    before = heap.stats()["live"]
    with pytest.raises(KeyboardInterrupt):
        gpuheap.group_by(tables(), "k").agg({"v": "sum"})
    assert heap.stats()["live"] == before


@pytest.mark.parametrize(
    "keys, columns, error, text",
    [
        ("q", {"v": "sum"}, KeyError, "'q' is none of the columns"),
        ("k", {"w": "sum"}, KeyError, "'w' is none of the columns"),
        ("k", {"v": "median"}, ValueError, "there is no aggregate 'median'; there are count, sum"),
        ("k", {"t": "mean"}, TypeError, "there is no mean of the column 't', whose type is"),
        ("k", {"k": "sum"}, ValueError, "two columns of the result have the name 'k'"),
        ("k", {}, TypeError, "must provide a column and an aggregate"),
        ("k", "sum", TypeError, "names no columns; write agg"),
        ([], {"v": "sum"}, ValueError, "no group keys passed"),
    ],
)
def test_wrong_names_are_refused(heap, keys, columns, error, text):
    table = heap.adapt(pd.DataFrame({"k": [1, 2], "v": [0.5, 1.5], "t": ["a", "b"]}))
    with pytest.raises(error, match=text):
        gpuheap.group_by(table, keys).agg(columns)


def test_data_without_rows_has_no_groups(heap):
    frame = pd.DataFrame(
        {
            "k": ["a", None],
            "day": pd.to_datetime(["2024-01-01", None]).astype("datetime64[ns]"),
            "c": pd.Categorical(["x", None]),
            "v": [1, 2],
            "f": [0.5, 1.5],
        }
    )
    wanted = {"v": ["sum", "mean", "min"], "f": ["sum", "std"], "day": "max", "k": "count"}
    nulls, rows = frame[frame["k"].isna()], frame[:1]
    for key in ("v", "day", "c", "f"):
        columns = {name: hows for name, hows in wanted.items() if name != key}
        model = gpuheap.group_by(rows, key, heap=heap).agg(columns).to_pandas().reset_index()
        for data in (frame[:0], heap.adapt(frame[:0]), gpuheap.batches(frame[:0], heap=heap)):
            groups = gpuheap.group_by(data, key, heap=heap).agg(columns)
            found = groups.to_pandas().reset_index()
            assert (len(found), len(groups.table()), pa.table(groups).num_rows) == (0, 0, 0)
            assert found.dtypes.to_dict() == model.dtypes.to_dict(), key
    groups = gpuheap.group_by(nulls, "k", heap=heap).agg({"v": "sum"})
    assert len(groups.to_pandas()) == 0
    with pytest.raises(TypeError, match="there is no mean of the column 'k'"):
        gpuheap.group_by(frame[:0], "v", heap=heap).agg({"k": "mean"})
    with pytest.raises(ValueError, match="the data has no table"):
        gpuheap.group_by([], "v", heap=heap).agg({"k": "count"}).table()


def test_keys_that_change_type_are_refused(heap):
    one = heap.adapt(pd.DataFrame({"k": [1], "v": [1.0]}))
    other = heap.adapt(pd.DataFrame({"k": ["a"], "v": [1.0]}))
    with pytest.raises(
        TypeError, match="the column 'k' is .*string in this batch and int64 in the"
    ):
        gpuheap.group_by([one, other], "k").agg({"v": "sum"})
    with pytest.raises(
        TypeError, match="the key 'k' is int64 on the left and .*string on the right"
    ):
        one.join(other, "k")
    with pytest.raises(TypeError, match="group_by takes tables"):
        gpuheap.group_by([heap.array([1])], "k").agg({"v": "sum"})


@pytest.mark.parametrize("seed", range(40))
def test_rows_equal_pandas(heap, seed):
    frame, count, random = random_table(1000 + seed)
    keys, table = [f"k{index}" for index in range(count)], heap.adapt(frame)

    def same(found, expected):
        found = pa.table(found).to_pandas()
        assert len(found) == len(expected)
        for name in expected:
            compare(name, found[name], expected[name].reset_index(drop=True))

    mask = heap.array(frame["i"].to_numpy() > 0)
    same(table.filter(mask), frame[frame["i"] > 0])
    assert len(table.filter(table["b"])) == frame["b"].sum()
    same(table.filter(table["f"] > 0), frame[frame["f"] > 0])
    same(table.sort("f"), frame.sort_values("f", kind="stable"))
    down = [bool(one) for one in random.integers(0, 2, count)]
    up = [not one for one in down]
    if "category" not in {str(frame[key].dtype) for key in keys}:
        same(table.sort(keys, down), frame.sort_values(keys, ascending=up, kind="stable"))
    same(table.unique(keys), frame.drop_duplicates(keys))
    other = frame[[*keys, "u", "s"]][: len(frame) // 3 + 1].reset_index(drop=True)
    for how in ("inner", "left"):
        found = table.join(heap.adapt(other), keys, how)
        expected = frame.merge(other, on=keys, how=how)
        assert found.num_rows == len(expected)
        for name in ("f", "u_x", "u_y", "s_y"):
            compare(name, pa.table(found).to_pandas()[name], expected[name])
    window = int(random.integers(1, 12))
    for name in ("f", "i", "n", "s"):
        column, rolling = table[name].rolling(window), frame[name].rolling(window)
        for mine, theirs in ((column.sum(), rolling.sum()), (column.mean(), rolling.mean())):
            mine = pa.table(gpuheap.Table({name: mine})).to_pandas()[name]
            compare("s_" if name == "s" else name, mine, theirs.astype(float))


def test_wrong_rows_are_refused(heap):
    table = heap.adapt(pd.DataFrame({"a": [1, 2], "t": ["x", "y"]}))
    with pytest.raises(TypeError, match="a mask is an array or a column of bool"):
        table.filter(table["a"])
    with pytest.raises(ValueError, match="the mask has 1 rows and the table 2"):
        table.filter(heap.array([True]))
    with pytest.raises(KeyError, match="'z' is none of the columns"):
        table.sort("z")
    with pytest.raises(TypeError, match="no rolling sums"):
        table["t"].rolling(2)
    with pytest.raises(ValueError, match="window=0 is no number of rows"):
        table["a"].rolling(0)
    with pytest.raises(ValueError, match="how='outer' is no kind of join"):
        table.join(table, "a", how="outer")
