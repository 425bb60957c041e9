"""Implements `gpuheap.group_by`, which aggregates groups of rows in tables of any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gpuheap._adapt import is_table
from gpuheap._batches import Batches, batches
from gpuheap._errors import OutOfMemory
from gpuheap._gpuheap import (
    Array,
    _factorize,
    _GroupChunk,
    _PartsMerger,
    _size,
)
from gpuheap._rows import on_host, text_column
from gpuheap._sources import free_host_memory, is_file
from gpuheap._table import Column, Table

if TYPE_CHECKING:
    import os

    from gpuheap._heap import Heap

#: Aggregates of each kind of column.
AGGREGATES = {
    "number": ("count", "sum", "mean", "min", "max", "std"),
    "bool": ("count", "sum", "mean", "min", "max", "std"),
    "time": ("count", "min", "max"),
    "text": ("count",),
    "dictionary": ("count",),
    "null": (),
}

#: Default number of groups in a table of results.
CHUNK = 1 << 20


def group_by(
    data: Any,
    keys: str | Sequence[str],
    *,
    dropna: bool = True,
    heap: Heap | None = None,
    host_limit: int | str = "50%",
    spill: str | os.PathLike[str] | None = None,
) -> GroupBy:
    """Groups the rows of a table by the values of one column or several, as pandas' `groupby` does.

    `data` is a table on the device, or an iterable of such tables. It may also be a table of
    pandas, Polars, pyarrow or DuckDB, or a path of a file. Reads only the needed columns, with one
    batch on the device at a time.

    Keys are numbers, text, dates and booleans. Floats are compared by value. Rows with a missing
    key, NaN or null, are left out; with `dropna=False` they form the last groups.

    The aggregates of the batches are merged in host memory. `host_limit` bounds this memory: bytes,
    or a share of the host's free memory. Above the limit, aggregates go to unnamed files in the
    folder `spill`. The default is the system's folder of temporary files.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB")
    >>> table = gpuheap.Table({"k": heap.array([2, 1, 2]), "v": heap.array([0.5, 1.0, 2.0])})
    >>> groups = gpuheap.group_by(table, "k").agg(total=("v", "sum"), rows=("v", "count")).table()
    >>> [groups[name].values.to_list() for name in groups]
    [[1, 2], [1.0, 2.5], [1, 2]]
    """
    names = [keys] if isinstance(keys, str) else list(keys)
    if not names:
        raise ValueError("no group keys passed; name one column or several")
    return GroupBy(data, names, dropna, heap, host_limit, spill)


class GroupBy:
    """Rows that are grouped by keys. `agg` aggregates the groups."""

    def __init__(
        self,
        data: Any,
        keys: list[str],
        dropna: bool,
        heap: Heap | None,
        host_limit: int | str,
        spill: str | os.PathLike[str] | None,
    ) -> None:
        self._data, self._keys, self._dropna = data, keys, dropna
        self._heap, self._host_limit, self._spill = heap, host_limit, spill

    def agg(
        self, columns: Mapping[str, str | Sequence[str]] | None = None, **named: tuple[str, str]
    ) -> Groups:
        """Aggregates columns: `count`, `sum`, `mean`, `min`, `max` and `std`. Missing values, NaN
        and null, are left out.

        `agg(total=("v", "sum"))` names each result. `agg({"v": "sum"})` keeps the name of the
        column, and `agg({"v": ["sum", "mean"]})` makes `v_sum` and `v_mean`.
        """
        wanted = _named(columns or {}, named, self._keys)
        import tempfile

        limit = _size(self._host_limit, free_host_memory())
        folder = tempfile.gettempdir() if self._spill is None else str(self._spill)
        work = _Work(self._keys, wanted, self._dropna, limit, folder)
        source = self._batches(work.columns)
        for batch in source:
            if not isinstance(batch, Table):
                raise TypeError(
                    f"group_by takes tables, and the data has {type(batch)}; pass a table of "
                    "pandas, Polars or pyarrow, a path, or gpuheap.Table"
                )
            try:
                work.add(batch)
            except OutOfMemory:
                if not isinstance(source, Batches) or len(source.rows) <= 1:
                    raise
                # The source yields the batch's rows again, in batches of half the size.
                source.halve()
        if work.merger is None and isinstance(source, Batches):
            with source:
                empty = source._without_rows()
                if empty is not None:
                    work.add(empty)
        return Groups(work)

    def _batches(self, columns: list[str]) -> Iterable[Any]:
        if isinstance(self._data, Table):
            return [self._data]
        if is_file(self._data) or is_table(self._data):
            every = list(dict.fromkeys([*self._keys, *columns]))
            return batches(self._data, fraction=0.25, heap=self._heap, columns=every)
        if not isinstance(self._data, Iterable):
            raise TypeError(f"no groups can be made of {type(self._data)}; pass a table or a path")
        return self._data


class Groups:
    """Aggregates of groups, in host memory. Iteration yields device tables of at most 2^20 groups
    each, in ascending order of the keys. If there are no groups, it yields one empty table."""

    def __init__(self, work: _Work) -> None:
        self._work = work
        #: Bytes of aggregates in temporary files.
        self.spilled: int = work.merger.end() if work.merger else 0

    def tables(self, rows: int = CHUNK) -> Iterator[Table]:
        """Yields the groups as tables on the device, of at most `rows` groups each."""
        if rows < 1:
            raise ValueError(f"a table of {rows} rows has no groups; pass 1 or more")
        work = self._work
        if work.merger is None:
            raise ValueError(
                "there are no groups and no types of columns: the data has no table; pass a table "
                "without rows instead"
            )
        chunks = work.merger.groups()
        # Yield a first table even if it is empty, because it has the column types.
        yield work.table(chunks.next(rows))
        while len(chunk := chunks.next(rows)):
            yield work.table(chunk)

    def table(self) -> Table:
        """Returns all groups of rows, with their aggregates, as one table on the device."""
        return next(self.tables((1 << 32) - 2))

    def to_pandas(self) -> Any:
        """Returns all groups as a pandas DataFrame, with the keys as its index. Needs pyarrow. The
        groups pass through the device, at most 2^20 groups at a time."""
        import pandas
        import pyarrow

        parts = []
        for table in self:
            with table:
                parts.append(pyarrow.table(table).to_pandas())
        return pandas.concat(parts, ignore_index=True).set_index(self._work.keys)

    def __iter__(self) -> Iterator[Table]:
        return self.tables()

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.table().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        keys, results = ", ".join(self._work.keys), ", ".join(self._work.results)
        return f"<gpuheap.Groups by {keys}: {results}>"


class _Work:
    """Aggregates batches by keys."""

    def __init__(
        self,
        keys: list[str],
        wanted: list[tuple[str, str, str]],
        dropna: bool,
        limit: int,
        folder: str,
    ) -> None:
        self.keys, self.dropna, self.limit, self.folder = keys, dropna, limit, folder
        #: Column and aggregate of each result, keyed by the result's name.
        self.wanted = {name: (column, how) for name, column, how in wanted}
        self.columns = list(dict.fromkeys(column for _, column, _ in wanted))
        self.results = list(self.wanted)
        #: Column types of the first batch, by name.
        self.types: dict[str, str] = {}
        #: Arrow type of each column. Columns of results get these types.
        self.like: dict[str, Any] = {}
        self.merger: _PartsMerger | None = None
        #: An array on the first batch's heap. Results are uploaded to that heap, on its stream.
        self.anchor: Array | None = None

    def add(self, batch: Table) -> None:
        self._check(batch)
        keys, codes = _factorize([on_host(batch[name]) for name in self.keys], not self.dropna)
        merger, parts = self._merger(batch), []
        if not len(keys) and self.anchor is not None:
            return
        numbers = next(batch[self.keys[0]]._arrays())._upload(codes, "uint32")
        if self.anchor is None:
            self.anchor = numbers[:1].copy()
        for index, name in enumerate(self.columns):
            names = merger.parts(index)
            if len(keys):
                parts += _parts(batch[name], names, numbers, len(keys))
            else:
                parts += [b""] * len(names)
        merger.add(keys, parts)

    def _check(self, batch: Table) -> None:
        """Raises an error if a batch lacks a column, or if a column's type differs from earlier
        batches."""
        for name in dict.fromkeys([*self.keys, *self.columns]):
            column = batch[name]
            before = self.types.setdefault(name, column.type)
            if before != column.type:
                raise TypeError(
                    f"the column {name!r} is {column.type} in this batch and {before} in the batches "
                    f'before; give it one type first, such as df["{name}"].astype(...), or types= of '
                    "gpuheap.batches"
                )
            if name in self.keys and column.kind == "null":
                raise TypeError(f"the key {name!r} has nulls alone; there is nothing to group by")

    def _merger(self, batch: Table) -> _PartsMerger:
        if self.merger is not None:
            return self.merger
        plan = []
        for name in self.columns:
            column, hows = batch[name], [how for of, how in self.wanted.values() if of == name]
            for how in hows:
                known = AGGREGATES[column.kind]
                if how not in known:
                    raise TypeError(
                        f"agg function failed: there is no {how} of the column {name!r}, whose type "
                        f"is {column.type}; it has {', '.join(known) or 'no aggregate'}"
                    )
            values = column._numbers
            plan.append((None if values is None else values.dtype, hows))
        for name in [*self.keys, *self.columns]:
            column = batch[name]
            if column.dictionary is not None:
                column = column.dictionary
            self.like[name] = SimpleNamespace(_field=column._field, _dtype=None)
        self.merger = _PartsMerger(plan, self.limit, self.folder)
        return self.merger

    def table(self, chunk: _GroupChunk) -> Table:
        made = {name: self._column(name, host) for name, host in zip(self.keys, chunk.keys())}
        for result, (name, how) in self.wanted.items():
            host = chunk.result(self.columns.index(name), how)
            # `min` and `max` have the type of their column, such as a date.
            made[result] = self._column(name if how in ("min", "max") else None, host)
        return Table(made)

    def _column(self, like: str | None, host: Any) -> Column:
        dtype, values, offsets, present = host
        anchor = self.anchor
        if anchor is None:
            raise RuntimeError("there is no batch yet")
        made = anchor._upload(values, dtype or "uint8")
        mask = None if present is None else anchor._upload(present, "bool")
        field = None if like is None else self.like[like]
        if offsets is not None:
            return text_column(made, mask, anchor._upload(offsets, "int64"), field)
        return Column(made, mask, like=field)


def _named(
    columns: Mapping[str, str | Sequence[str]], named: Mapping[str, Any], keys: list[str]
) -> list[tuple[str, str, str]]:
    """Returns the name, the column and the aggregate of each result."""
    wanted = []
    if not isinstance(columns, Mapping):
        raise TypeError(
            f'agg({columns!r}) names no columns; write agg({{"column": {columns!r}}}), or '
            f'agg(total=("column", {columns!r}))'
        )
    for column, hows in columns.items():
        if isinstance(hows, str):
            wanted.append((column, column, hows))
        else:
            wanted += [(f"{column}_{how}", column, how) for how in hows]
    for name, pair in named.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"{name}={pair!r} is no pair of a column and an aggregate; write "
                f'{name}=("column", "sum")'
            )
        wanted.append((name, *pair))
    if not wanted:
        raise TypeError('must provide a column and an aggregate: agg(total=("column", "sum"))')
    for name, _, how in wanted:
        if how not in AGGREGATES["number"]:
            raise ValueError(
                f"there is no aggregate {how!r}; there are {', '.join(AGGREGATES['number'])}"
            )
        if name in keys or [one for one, _, _ in wanted].count(name) > 1:
            raise ValueError(f"two columns of the result have the name {name!r}; give one another")
    return wanted


def _parts(column: Column, names: list[str], codes: Array, groups: int) -> list[bytes]:
    """Returns partial aggregates of each group as bytes, which the host merges."""
    valid = column.validity
    made: dict[str, Array] = {}
    numbers = column._numbers
    # The only aggregate of a text column is `count`. It ignores the values, so pass the codes.
    values = codes if numbers is None else numbers
    floats = values
    if values.dtype != "float64" and {"total", "squares"} & set(names):
        floats = values.astype("float64")
    for name in names:
        if name == "total":
            part = floats._fold("sum", codes, groups, valid)
        elif name == "squares":
            means = made["total"] / made["count"].astype("float64")
            part = floats._fold("squares", codes, groups, valid, means)
        elif name in ("min", "max"):
            part = values._fold(name, codes, groups, valid).astype(_wide(values.dtype))
        else:
            part = values._fold(name, codes, groups, valid)
        made[name] = part
    return [part.to_bytes() for part in made.values()]


def _wide(dtype: str) -> str:
    return {"i": "int64", "f": "float64"}.get(dtype[0], "uint64")
