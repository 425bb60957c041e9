"""Moves tables and columns of other libraries to the device and back."""

import datetime

import pytest

import gpuheap

pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")


@pytest.fixture
def table():
    """A table of two chunks with nulls. The validity bits of each chunk begin in the middle of a
    byte."""
    whole = pa.table(
        {
            "n": pa.array([None if i % 5 == 0 else i for i in range(50)], pa.int32()),
            "x": pa.array([i / 4 for i in range(50)]),
            "b": pa.array([None if i % 7 == 0 else i % 2 == 0 for i in range(50)]),
            "t": pa.array([None if i % 3 == 0 else "é" * (i % 4) for i in range(50)]),
            "d": pa.array([datetime.date(2026, 1, 1 + i % 9) for i in range(50)]),
            "s": pa.array(range(50), pa.timestamp("us", "UTC")),
            "c": pa.array([f"c{i % 3}" for i in range(50)]).dictionary_encode(),
            "z": pa.nulls(50),
        }
    )
    return pa.concat_tables([whole.slice(3, 10), whole.slice(13, 30)])


def test_table_comes_back_unchanged(heap, table):
    with heap.adapt(table) as up:
        assert len(up) == 40 and up.column_names == table.column_names
        assert gpuheap.host(up).combine_chunks().equals(table.combine_chunks())
        one = gpuheap.host({"batch": heap.adapt(table.to_batches()[1])})["batch"]
        assert one.equals(table.to_batches()[1])


def test_columns_have_arrows_layout(heap, table):
    up = heap.adapt(table)
    assert [column.kind for _, column in up.items()] == [
        "number", "number", "bool", "text", "time", "time", "dictionary", "null",
    ]  # fmt: skip
    rows = table["n"].to_pylist()
    assert up["n"].mask.to_list() == [row is not None for row in rows]
    assert up["n"].null_count == rows.count(None) == 40 - up["n"].count()
    assert up["n"].validity.nbytes == 5 and up["x"].mask is None
    valid = [row for row in table["b"].to_pylist() if row is not None]
    kept = zip(up["b"].values.to_list(), up["b"].mask.to_list())
    assert [value for value, is_valid in kept if is_valid] == valid
    text = up["t"].values.to_bytes()
    ends = up["t"].offsets.to_list()
    assert ends[0] == 0 and text[: ends[2]].decode() == "".join(
        one or "" for one in table["t"].to_pylist()[:2]
    )
    names = pa.array(up["c"].dictionary).to_pylist()
    assert [names[code] for code in up["c"].values.to_list()] == table["c"].to_pylist()
    assert (up["s"].type, up["c"].type) == ("timestamp[us, UTC]", "dictionary<int32, string>")
    assert up["z"].values is None and up["z"].null_count == 40


def test_sums_skip_nulls(heap, table):
    up = heap.adapt(table)
    for name in ("n", "x", "b"):
        rows = [row for row in table[name].to_pylist() if row is not None]
        assert up[name].sum() == sum(rows)
        assert up[name].mean() == pytest.approx(sum(rows) / len(rows))
    nan = heap.adapt(pa.array([1.0, None, 2.0], mask=np.array([False, True, False])))
    assert nan.sum() == 3.0
    with pytest.raises(TypeError, match="string has no sum"):
        up["t"].sum()


def test_one_chunk_is_copied_once(heap, table):
    chunk = table.to_batches()[1].slice(5, 16)
    plain = chunk.select(["x", "d"])
    assert heap.adapt(plain).copies == (2, 16 * 12, 0)
    joined = heap.adapt(table.select(["x"]))
    assert joined.copies == (1, 40 * 8, 40 * 8)
    assert "320 bytes to the device in 1 copies" in str(joined.copies)


def test_pandas_keeps_index_and_types(heap):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "x": [1.5, float("nan"), 3.0],
            "i": pd.array([1, None, 3], "Int64"),
            "t": ["a", "b", None],
            "c": pd.Categorical(["u", "v", "u"]),
            "w": pd.to_datetime(["2026-01-01", "2026-01-02", None]),
        },
        index=pd.Index([10, 20, 30], name="key"),
    )
    up = heap.adapt(frame)
    pd.testing.assert_frame_equal(gpuheap.host(up), frame)
    assert up["x"].null_count == 1 and up["x"].sum() == 4.5
    for name in frame:
        pd.testing.assert_series_equal(gpuheap.host(heap.adapt(frame[name])), frame[name])
    sums = gpuheap.Table({"total": heap.array([1, 2])}, like=up)
    pd.testing.assert_frame_equal(gpuheap.host(sums), pd.DataFrame({"total": [1, 2]}))


def test_large_integers_stay_exact(heap):
    pd = pytest.importorskip("pandas")
    large = pd.Series([2**53 + 1, None, 2**53 + 3], dtype="Int64", name="n")
    pd.testing.assert_series_equal(gpuheap.host(heap.adapt(large)), large)
    frame = large.to_frame().set_index(pd.Index([5, 9, 6]))
    up = heap.adapt(frame)
    pd.testing.assert_frame_equal(gpuheap.host(up), frame)
    kept = up.filter(heap.array([True, True, False]))
    pd.testing.assert_frame_equal(gpuheap.host(kept), frame[:2])
    pd.testing.assert_frame_equal(gpuheap.host(up.sort("n")), frame.sort_values("n"))
    keys = heap.adapt(pd.DataFrame({"k": [1, 2, 3]}))
    right = heap.adapt(frame.reset_index(drop=True).assign(k=[1, 2, 3]))
    assert gpuheap.host(keys.join(right, "k"))["n"].tolist() == large.tolist()


def test_pandas_index_is_no_key(heap):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"k": [1, 1, 2], "v": [3, 3, 5]}, index=pd.Index([7, 8, 9]))
    up = heap.adapt(frame)
    pd.testing.assert_frame_equal(gpuheap.host(up.unique()), frame.drop_duplicates())
    joined = gpuheap.host(up.join(up, "k"))
    pd.testing.assert_frame_equal(joined, frame.merge(frame, on="k"))


def test_joined_names_are_distinct(heap):
    columns = {name: heap.array([1]) for name in ("k", "a", "a_x")}
    left = gpuheap.Table(columns)
    with pytest.raises(ValueError, match="two columns of the result have the name 'a_x'"):
        left.join(gpuheap.Table({name: columns[name] for name in "ka"}), "k")


def test_dictionary_ends_with_its_last_column(heap):
    made = pa.table({"c": pa.array(["u", "v", "u"]).dictionary_encode()})
    with heap.adapt(made) as table:
        with table.filter(heap.array([True, True, False])) as few:
            assert gpuheap.host(few)["c"].to_pylist() == ["u", "v"]
        assert gpuheap.host(table)["c"].to_pylist() == ["u", "v", "u"]
        few = table.sort("c")
        other = gpuheap.Table({"d": few["c"]})
    assert list(gpuheap.host(other)["d"]) == ["u", "u", "v"]
    few.free()
    other.free()
    assert heap.stats()["live"] == 0


def test_comparisons_keep_nulls(heap):
    up = heap.adapt(pa.table({"n": [1, None, 3], "m": [3, 0, None], "t": ["a", "b", "c"]}))
    assert pa.array(up["n"] < 2).to_pylist() == [True, None, False]
    assert pa.array(up["n"] <= up["m"]).to_pylist() == [True, None, None]
    assert pa.array(up["n"] != 1).to_pylist() == [False, None, True]
    assert len(up.filter(up["n"] > -1)) == 2 and len(up.filter(up["m"] == 0)) == 1
    right = gpuheap.Table({"n": heap.array([1]), "v": heap.array([7])})
    assert len(up.join(right, "n", how="left").filter(up["n"] < 9)) == 2
    joined = up.join(right, "n", how="left")
    assert len(joined.filter(joined["v"] < 5)) == 0
    with pytest.raises(TypeError, match="string have no comparison"):
        up["t"] == "a"
    day = heap.adapt(pa.array([1, 2], pa.date32()))
    assert pa.array(day == day).to_pylist() == [True, True]
    with pytest.raises(TypeError, match="compare the numbers"):
        day > 1


def test_tables_outlive_scopes_that_keep_them(heap, table):
    with heap.scope("outer"):
        with heap.scope("load") as scope:
            kept, column = scope.keep(heap.adapt(table)), scope.keep(heap.adapt(table["t"]))
            freed = heap.adapt(table)
        assert freed["x"].values.freed and len(column.values) > 0

        @heap.scope("step")
        def load():
            return {"table": heap.adapt(table)}

        up = load()["table"]
        assert gpuheap.host(up)["t"].equals(gpuheap.host(kept)["t"])
    assert heap.stats()["live"] == 0


def test_scope_leaves_columns_usable(heap, table):
    up = heap.adapt(table)
    with heap.scope("look"):
        inside = up["b"].values.to_list(), up["n"].mask.to_list(), up["n"].sum()
    assert inside == (up["b"].values.to_list(), up["n"].mask.to_list(), up["n"].sum())
    made = gpuheap.Table({"b": heap.array([True, False]), "x": heap.array([1.0, 2.0])})
    with heap.scope("export"):
        pa.table(made)
    assert pa.table(made.sort("b"))["b"].to_pylist() == [False, True]


def test_polars_comes_back_unchanged(heap):
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "x": [1, None, 3],
            "t": ["a", None, "a longer text than a view has room for"],
            "c": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
        }
    )
    assert gpuheap.host(heap.adapt(frame)).equals(frame)
    assert gpuheap.host(heap.adapt(frame["t"])).equals(frame["t"])
    assert pl.DataFrame(heap.adapt(frame)).columns == frame.columns


def test_duckdb_relation_comes_as_table(heap):
    duckdb = pytest.importorskip("duckdb")
    up = heap.adapt(duckdb.sql("select range as n, 'row ' || range as t from range(5000)"))
    assert up["n"].sum() == sum(range(5000)) and gpuheap.host(up)["t"][4999].as_py() == "row 4999"


def test_narrow_table_has_float32(heap):
    up = heap.adapt(pa.table({"x": [0.5, 0.25], "n": [1, 2]}), narrow=True)
    assert [column.type for _, column in up.items()] == ["float32", "int64"]
    assert gpuheap.host(up)["x"].to_pylist() == [0.5, 0.25]


def test_columns_are_made_of_arrays(heap):
    mask = heap.array([True, False, True] * 3)
    values = heap.array(list(range(9)))
    table = gpuheap.Table({"v": gpuheap.Column(values, mask), "b": mask})
    assert gpuheap.host(table)["v"].tolist()[:2] == [0.0, pytest.approx(float("nan"), nan_ok=True)]
    assert pa.table(table)["b"].to_pylist() == [True, False, True] * 3
    day = heap.adapt(pa.array([1, 2], pa.date32()))
    later = gpuheap.Column(day.values + 1, like=day)
    assert pa.array(later).to_pylist()[1] == datetime.date(1970, 1, 4)
    with pytest.raises(ValueError, match="different numbers of rows"):
        gpuheap.Table({"a": values, "b": heap.array([1])})
    with pytest.raises(ValueError, match="the mask of a column of 9 rows"):
        gpuheap.Column(values, heap.array([1]))
    with pytest.raises(TypeError, match="cannot be an array of float64"):
        pa.array(gpuheap.Column(heap.array([1.0]), like=day))


def test_text_that_is_wrong_is_refused(heap):
    text = heap.adapt(pa.array(["ab", "c"]))
    wrong = gpuheap.Column(text.values, offsets=heap.array([0, 9, 3], "int32"), like=text)
    with pytest.raises(ValueError):
        pa.array(wrong)


def test_tables_without_rows_come_back(heap, table):
    empty = table.slice(0, 0)
    assert gpuheap.host(heap.adapt(empty)).equals(empty)
    reader = pa.RecordBatchReader.from_batches(table.schema, [])
    assert len(heap.adapt(reader)) == 0


def test_unknown_types_are_refused(heap):
    for kind, value in [(pa.list_(pa.int8()), [1]), (pa.decimal128(9, 2), 1)]:
        with pytest.raises(TypeError, match="the column .odd. has the type"):
            heap.adapt(pa.table({"fine": [1], "odd": pa.array([value], kind)}))
    with pytest.raises(ValueError, match="two columns have the name 'a'"):
        heap.adapt(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))


def test_text_above_its_type_is_refused(heap):
    chunk = pa.array(["x" * (1 << 26)])
    many = pa.chunked_array([chunk] * 32)
    with pytest.raises(ValueError, match=f"the column .t. has {1 << 31} bytes .* large_string"):
        heap.adapt(pa.table({"t": many}))


def test_taken_text_gets_wide_offsets(heap, monkeypatch):
    monkeypatch.setattr("gpuheap._rows.MOST_TEXT", 3)
    up = heap.adapt(pa.table({"t": ["ab", "c", "d"], "n": [1, 2, 3]}))
    few = up.filter(up["n"] < 3)
    assert (few["t"].type, few["t"].offsets.dtype) == ("string", "int32")
    every = up.sort("n", descending=True)
    assert (every["t"].type, every["t"].offsets.dtype) == ("large_string", "int64")
    assert gpuheap.host(every)["t"].to_pylist() == ["d", "c", "ab"]
    groups = gpuheap.group_by(up, "t").agg(n=("n", "sum"))
    assert pa.table(groups)["t"].type == pa.large_string()


def test_upload_without_room_frees_columns(heap):
    small = gpuheap.Heap("emulated:1GiB", limit="4MiB", track="lines")
    wide = pa.table({name: pa.array(np.zeros(1 << 18)) for name in "abc"})
    with pytest.raises(gpuheap.OutOfMemory):
        small.adapt({"table": wide})
    assert small.stats()["live"] == 0 and not small.leaks()


def test_device_capsule_has_device_addresses(driver_heap):
    import ctypes

    up = driver_heap.adapt(pa.table({"x": [1.0, None], "t": ["a", "b"]}))
    schema, capsule = up.on_device().__arrow_c_device_array__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    words = (ctypes.c_int64 * 16).from_address(get(capsule, b"arrow_device_array"))
    length, nulls, _, buffers, children = words[:5]
    assert (length, nulls, buffers, children, words[11] & 0xFFFFFFFF) == (2, 0, 1, 2, 2)
    column = ctypes.c_int64.from_address(words[6]).value
    column_words = (ctypes.c_int64 * 6).from_address(column)
    addresses = (ctypes.c_int64 * 2).from_address(column_words[5])
    assert list(addresses) == [up["x"].validity.ptr, up["x"].values.ptr]
    table = up["x"].values
    up.free()
    assert driver_heap.stats()["live"] > 0 and table.freed
    del capsule, schema
    assert driver_heap.stats()["live"] == 0


def test_array_interface_has_mask(driver_heap):
    up = driver_heap.adapt(pa.table({"x": [1.0, None], "y": [1, 2], "t": ["a", "b"]}))
    interface = up["x"].__cuda_array_interface__
    assert interface["mask"].__cuda_array_interface__["shape"] == (2,)
    assert "mask" not in up["y"].__cuda_array_interface__
    assert not hasattr(up["t"], "__cuda_array_interface__")
    assert gpuheap.from_dlpack(up["y"], driver_heap).to_list() == [1, 2]
    with pytest.raises(BufferError, match="1 nulls"):
        up["x"].__dlpack__()


@pytest.mark.parametrize(
    "use, error, remedy",
    [
        ("table.groupby('n')", AttributeError, r"gpuheap\.group_by"),
        ("table.to_pandas()", AttributeError, r"gpuheap\.host"),
        ("table.n", AttributeError, r"table\['n'\]"),
        ("table.nothing", AttributeError, "has no nothing$"),
        ("table[table['n'] > 1]", TypeError, r"table\.filter"),
        ("table[['n']]", TypeError, r"gpuheap\.Table\("),
        ("table['n'] * table['n']", TypeError, r"a\.values \* b\.values"),
        ("1 - table['n']", TypeError, r"a\.values"),
        ("table['n'].max()", AttributeError, r"column\.values\.max"),
        ("table['n'].isin([1])", AttributeError, "has no isin$"),
        ("gpuheap.Table.from_arrow('a.csv')", TypeError, r"gpuheap\.batches"),
        ("gpuheap.batches('a.csv', columns='n')", TypeError, r"columns=\['n'\]"),
    ],
)
def test_pandas_habits_name_the_remedy(heap, use, error, remedy):
    table = heap.adapt(pa.table({"n": [1, 2]}))
    with pytest.raises(error, match=remedy):
        eval(use, {"table": table, "gpuheap": gpuheap})
