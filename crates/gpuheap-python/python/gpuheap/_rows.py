"""Chooses, sorts and joins rows of tables, and rolls windows over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuheap._gpuheap import (
    Array,
    _HostColumn,
    _join_rows,
    _sort_rows,
    _take_text,
    _true_rows,
    _unique_rows,
)

if TYPE_CHECKING:
    from gpuheap._table import Column, Table


#: Maximum number of bytes of text with 32-bit offsets.
MOST_TEXT = 2**31 - 1


class TableRows:
    """Table methods that select, order or join rows."""

    __slots__ = ()

    def filter(self: Any, mask: Array | Column) -> Table:
        """The rows at which `mask` is true. `mask` is a column of booleans, such as
        `table["price"] > 10`, or a `gpuheap.Array` of bool. A null counts as false.

        >>> import gpuheap
        >>> heap = gpuheap.Heap("emulated:1GiB")
        >>> table = gpuheap.Table({"a": heap.array([1, 2, 3]), "b": heap.array([0.5, 2.5, 1.5])})
        >>> table.filter(table["b"] > 1)["a"].values.to_list()
        [2, 3]
        """
        values: Any = mask if isinstance(mask, Array) else mask.values
        if not isinstance(values, Array) or values.dtype != "bool":
            raise TypeError(
                "a mask is an array or a column of bool; compare a column: table['a'] > 0"
            )
        if len(values) != len(self):
            raise ValueError(
                f"the mask has {len(values)} rows and the table {len(self)}; make it of this table"
            )
        if not isinstance(mask, Array) and mask.mask is not None:
            values = both(values, mask.mask)
        return take(self, values._upload(_true_rows(values.to_bytes()), "uint32"))

    def sort(
        self: Any, by: str | Sequence[str], descending: bool | Sequence[bool] = False
    ) -> Table:
        """The rows, sorted by one column or several. Equal rows stay in their order. Rows with NaN
        or a null are last."""
        names = [by] if isinstance(by, str) else list(by)
        down = [descending] * len(names) if isinstance(descending, bool) else list(descending)
        return _taken(self, names, _sort_rows(_keys(self, names), down))

    def unique(self: Any, columns: str | Sequence[str] | None = None) -> Table:
        """The first row of each distinct key, like pandas' `drop_duplicates`. The key is `columns`,
        or all columns except the index."""
        every = [name for name in self if name not in self._index]
        names = every if columns is None else columns
        names = [names] if isinstance(names, str) else list(names)
        return _taken(self, names, _unique_rows(_keys(self, names)))

    def join(self: Any, other: Table, on: str | Sequence[str], how: str = "inner") -> Table:
        """The rows of both tables with equal keys, like pandas' `merge`. Both tables are on the
        device. `how` is `"inner"` or `"left"`. With `"left"`, rows of this table without a match
        get nulls. Columns of the same name get `_x` and `_y`. An index that is no key is left
        out."""
        if how not in ("inner", "left"):
            raise ValueError(f'how={how!r} is no kind of join here; pass "inner" or "left"')
        names = [on] if isinstance(on, str) else list(on)
        for name in names:
            if _key_type(self[name]) != _key_type(other[name]):
                raise TypeError(
                    f"the key {name!r} is {self[name].type} on the left and {other[name].type} on "
                    "the right; give both one type first"
                )
        left, right = _join_rows(_keys(self, names), _keys(other, names), how == "left")
        mine, others = _taken(self, names, left), _taken(other, names, right)
        lefts = [name for name in self if name in names or name not in self._index]
        rights = [name for name in other if name not in (*names, *other._index)]
        pairs = [(f"{name}_x" if name in rights else name, mine[name]) for name in lefts] + [
            (f"{name}_y" if name in lefts else name, others[name]) for name in rights
        ]
        columns = dict(pairs)
        if len(columns) < len(pairs):
            found = [name for name, _ in pairs]
            twice = next(name for name in found if found.count(name) > 1)
            raise ValueError(f"two columns of the result have the name {twice!r}; rename one")
        from gpuheap._table import Table

        made = Table(columns, like=self)
        made._index = [name for name in self._index if name in names]
        return made


class ColumnRows:
    """Methods of a column of numbers."""

    __slots__ = ()

    def rolling(self: Any, window: int) -> Rolling:
        """Windows of `window` rows. The window of a row ends at that row.

        >>> import gpuheap
        >>> heap = gpuheap.Heap("emulated:1GiB")
        >>> column = gpuheap.Column(heap.array([1.0, 2.0, 4.0, 8.0]))
        >>> column.rolling(2).sum().values.to_list()[1:]
        [3.0, 6.0, 12.0]
        """
        if self.kind not in ("number", "bool"):
            raise TypeError(f"a column of {self.type} has no rolling sums; choose one of numbers")
        if not isinstance(window, int) or window < 1:
            raise ValueError(f"window={window!r} is no number of rows; pass 1 or more")
        return Rolling(self, window)


class Rolling:
    """Windows that roll over the rows of a column. A window is null if it has fewer rows than
    requested, or a row with NaN or a null."""

    def __init__(self, column: Column, window: int) -> None:
        self._column, self._window = column, window

    def sum(self) -> Column:
        """The sum of each window, as float64."""
        from gpuheap._table import Column

        values = self._column.values
        assert values is not None
        if not len(values):
            return Column(values.astype("float64"))
        values = values.astype("float64")
        present = values == values
        if self._column.mask is not None:
            present = both(present, self._column.mask)
        # A missing value gets an index beyond the rows, for which `_take` returns 0.
        missing = (~present).astype("uint32") * 0x8000_0000
        values = values._take(_count_up(present) + missing)
        full = _windows(present.astype("uint32"), self._window) == min(self._window, 2**32 - 1)
        return Column(_windows(values, self._window), full)

    def mean(self) -> Column:
        """The mean of each window, as float64."""
        from gpuheap._table import Column

        sums = self.sum()
        assert sums.values is not None
        return Column(sums.values / float(self._window), sums.mask)


def take(table: Table, indices: Array) -> Table:
    """Returns the rows of a table at `indices`, an array of `uint32`. An index beyond the rows
    makes a row of nulls."""
    from gpuheap._table import Table

    picked = indices.to_bytes()
    made = {name: _take_column(column, indices, picked) for name, column in table.items()}
    return Table(made, like=table)


def _take_column(column: Column, indices: Array, picked: bytes) -> Column:
    from gpuheap._table import Column

    if column.values is None:
        raise TypeError("a column of nulls alone has no values; leave it out of the table")
    known = indices < len(column) if len(column) < 2**32 else None
    mask = column.mask
    if mask is not None:
        mask = mask._take(indices)
    elif known is not None and len(indices) and not known.all():
        mask = known
    if column.offsets is None:
        values = column.values._take(indices)
        return Column(values, mask, dictionary=column.dictionary, like=column)
    offsets, text = _take_text(on_host(column), picked)
    ends = indices._upload(offsets, "int64")
    return text_column(indices._upload(text, "uint8"), mask, ends, column)


def text_column(values: Array, mask: Array | None, ends: Array, like: Any) -> Column:
    """Returns a column of text with the same type as `like`. The offsets have 64 bits if the text
    is too long for 32 bits."""
    from gpuheap._table import Column

    is_short = like._field.type in ("string", "binary")
    if is_short and len(values) <= MOST_TEXT:
        return Column(values, mask, ends.astype("int32"), like=like)
    made = Column(values, mask, ends, like=like)
    if is_short:
        made._field = like._field.large()
    return made


def on_host(column: Column) -> _HostColumn:
    """Copies a column to the host."""
    if column.values is None:
        raise TypeError("a column of nulls has no keys")
    dictionary = None if column.dictionary is None else on_host(column.dictionary)
    return _HostColumn(column.values, column.validity, column.offsets, dictionary)


def both(one: Array, other: Array) -> Array:
    """Returns the elementwise `and` of two arrays of bool."""
    return (one.astype("uint8") + other.astype("uint8")) == 2


def _taken(table: Table, keys: list[str], indices: bytes) -> Table:
    anchor = next(table[keys[0]]._arrays())
    return take(table, anchor._upload(indices, "uint32"))


def _keys(table: Table, names: list[str]) -> list[Any]:
    if not names:
        raise ValueError("no columns passed; name one or several")
    return [on_host(table[name]) for name in names]


def _key_type(column: Column) -> str:
    """Returns the type of a key's values. Text has the same type with and without a dictionary."""
    column = column if column.dictionary is None else column.dictionary
    return "text" if column.kind == "text" else column.type


def _count_up(like: Array) -> Array:
    """Returns the row numbers of `like` as an array on the device."""
    rows = len(like)
    numbers = like[:1].astype("uint32") * 0
    while len(numbers) < rows:
        pairs = numbers.reshape(1, -1).broadcast_to((2, len(numbers)))
        pairs[1] = pairs[1] + len(numbers)
        numbers = pairs.reshape(-1)
    return numbers[:rows]


def _windows(values: Array, window: int) -> Array:
    """Returns the sum of each value and the `window - 1` values before it. Adds up sums of 1, 2, 4
    and more values. Subtracting running sums would lose precision."""
    total, begun, length = None, 0, 1
    while begun < window:
        if window & length:
            shifted = _shifted(values, begun)
            total = shifted if total is None else total + shifted
            begun += length
        values = values + _shifted(values, length)
        length *= 2
    assert total is not None
    return total


def _shifted(values: Array, rows: int) -> Array:
    """Returns the values moved down by `rows` rows. The first rows are 0."""
    if not rows:
        return values
    made = values.copy()
    made.fill(0)
    if rows < len(values):
        made[rows:] = values[: len(values) - rows]
    return made
