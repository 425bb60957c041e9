"""Tables on a device: `gpuheap.Table` and `gpuheap.Column`."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from gpuheap._gpuheap import (
    Array,
    _arrow_export,
    _arrow_upload,
    _ArrowChunk,
    _ArrowColumn,
    _ArrowField,
    _ArrowReader,
)
from gpuheap._rows import ColumnRows, TableRows, both

if TYPE_CHECKING:
    from gpuheap._heap import Heap


#: Equivalents in gpuheap, keyed by the name of a pandas DataFrame's attribute.
PANDAS = {
    "columns": "table.column_names",
    "drop_duplicates": "table.unique(key)",
    "groupby": "gpuheap.group_by(table, key).agg(...)",
    "merge": "table.join(other, key)",
    "shape": "table.num_rows, len(table.column_names)",
    "sort_values": "table.sort(key)",
    "to_numpy": "table[name].to_numpy()",
    "to_pandas": "gpuheap.host(table), or pyarrow.table(table).to_pandas()",
}


class Copies(NamedTuple):
    """Copies of an upload."""

    #: Number of arrays that were copied to the device.
    uploads: int
    #: Bytes that were copied to the device.
    nbytes: int
    #: Bytes copied on the host before the upload, to join chunks and to convert text. 0 if there
    #: was nothing to join or convert.
    host_nbytes: int

    def plus(self, other: Copies) -> Copies:
        return Copies(*(one + two for one, two in zip(self, other)))

    def __str__(self) -> str:
        from gpuheap._heap import size

        return (
            f"{size(self.nbytes)} to the device in {self.uploads} copies; "
            f"{size(self.host_nbytes)} copied on the host before"
        )


class Column(ColumnRows):
    """A column on the device, in Arrow's layout.

    `values` has the numbers of the rows. Dates and times are counts of units since 1970. Text has
    its bytes in `values`, and `offsets` says where each row begins. A dictionary column has its
    codes in `values` and the texts in `dictionary`. The value of a null row is arbitrary.

    Comparisons of numbers give a column of bool, in which a null stays null.

    `mask` says which rows have a value. To make a column from arrays on the device, pass `values`.
    With `like`, the column gets the type of `like`.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB")
    >>> values, mask = heap.array([1.0, 2.0, 4.0]), heap.array([True, False, True])
    >>> gpuheap.Column(values, mask).sum()
    5.0
    """

    __slots__ = (
        "__weakref__",
        "_bits",
        "_dtype",
        "_field",
        "_mask",
        "_restore",
        "_rows",
        "_users",
        "_validity",
        "_values",
        "dictionary",
        "null_count",
        "offsets",
    )

    _field: _ArrowField
    #: The column's pandas extension type before the upload.
    _dtype: Any
    _rows: int
    #: Columns whose codes refer to this dictionary, keyed by `id`. The last of these columns frees
    #: the dictionary.
    _users: WeakValueDictionary[int, Column]
    #: Bits of booleans.
    _bits: Array | None
    _values: Array | None
    _mask: Array | None
    _validity: Array | None
    _restore: Callable[[Any], Any] | None
    #: Offsets of the rows in text. The array has one more offset than there are rows.
    offsets: Array | None
    #: Values that the codes of a dictionary column stand for.
    dictionary: Column | None
    null_count: int

    def __init__(
        self,
        values: Array,
        mask: Array | None = None,
        offsets: Array | None = None,
        dictionary: Column | None = None,
        like: Column | None = None,
    ) -> None:
        if not isinstance(values, Array) or values.ndim != 1:
            raise ValueError(
                "the values of a column are a gpuheap.Array with one axis; heap.adapt uploads other "
                "tables and columns"
            )
        rows = len(values) if offsets is None else len(offsets) - 1
        if mask is not None and (mask.dtype != "bool" or mask.shape != (rows,)):
            raise ValueError(
                f"the mask of a column of {rows} rows is an array of {rows} bool, and not of "
                f"{mask.dtype} {list(mask.shape)}"
            )
        self._field = _ArrowField("", values.dtype) if like is None else like._field
        self._dtype = None if like is None else like._dtype
        self._rows, self._values, self._restore = rows, values, None
        self.null_count = 0 if mask is None else rows - int(mask.sum())
        self._mask = mask if self.null_count else None
        self._bits = self._validity = None
        self.offsets = offsets
        self._use(dictionary)

    @classmethod
    def _uploaded(cls, made: _ArrowColumn) -> Column:
        column = cls.__new__(cls)
        column._field, column._rows, column._restore = made.field, made.rows, None
        column._dtype = None
        is_bool = made.field.type == "bool"
        column._bits, column._values = (made.values, None) if is_bool else (None, made.values)
        column._validity, column._mask = made.validity, None
        column.offsets, column.null_count = made.offsets, made.null_count
        column._use(None if made.dictionary is None else cls._uploaded(made.dictionary))
        return column

    def _use(self, dictionary: Column | None) -> None:
        self._users = WeakValueDictionary()
        self.dictionary = dictionary
        if dictionary is not None:
            dictionary._users[id(self)] = self

    @property
    def type(self) -> str:
        """Name of the Arrow type, such as `int64`, `string` or `timestamp[ns]`."""
        return self._field.type

    @property
    def kind(self) -> str:
        """`"number"`, `"bool"`, `"time"`, `"text"`, `"dictionary"` or `"null"`."""
        name = self.type
        if name in ("bool", "null"):
            return name
        if name.startswith("dictionary"):
            return "dictionary"
        if self.offsets is not None:
            return "text"
        return "time" if name.startswith(("date", "time", "duration")) else "number"

    @property
    def values(self) -> Array | None:
        """The values of the rows. `None` if the type is `null`."""
        if _is_freed(self._values) and self._bits is not None:
            self._values = _unpacked(self._bits, self._rows)
        return self._values

    @property
    def _numbers(self) -> Array | None:
        """The values if they are numbers, booleans or times, otherwise `None`."""
        return self.values if self.kind in ("number", "bool", "time") else None

    @property
    def mask(self) -> Array | None:
        """`True` for each row that has a value. `None` if no row is null."""
        if _is_freed(self._mask) and self._validity is not None:
            self._mask = _unpacked(self._validity, self._rows)
        return self._mask

    @property
    def validity(self) -> Array | None:
        """The mask as Arrow's bits: 1 for a value, 0 for a null. `None` if no row is null."""
        if _is_freed(self._validity) and self._mask is not None:
            self._validity = _packed(self._mask)
        return self._validity

    @property
    def _stored(self) -> Array | None:
        """The values as Arrow stores them. Arrow stores booleans as bits."""
        if self.kind != "bool" or self._values is None:
            return self._values if self._bits is None else self._bits
        if _is_freed(self._bits):
            self._bits = _packed(self._values)
        return self._bits

    def sum(self) -> Any:
        """The sum of the values that are not null, as a number. Waits for the GPU."""
        if self.kind not in ("number", "bool") or self.values is None:
            raise TypeError(f"a column of {self.type} has no sum")
        values = self.values.astype("int64") if self.kind == "bool" else self.values
        if self.mask is None:
            return values.sum()
        return values.sum_by_key(self.mask.astype("uint8"), 2)[1].item()

    def count(self) -> int:
        """The number of rows that are not null."""
        return self._rows - self.null_count

    def mean(self) -> float:
        """The mean of the values that are not null. Raises an error if all values are null. Waits
        for the GPU."""
        if not self.count():
            raise ValueError("a column without values has no mean")
        return self.sum() / self.count()

    def to_numpy(self) -> Any:
        """The rows as a NumPy array, copied to the host. Needs pyarrow, unless the column has
        numbers and no nulls."""
        if self.kind == "number" and not self.null_count and self.values is not None:
            return self.values.to_numpy()
        return _pyarrow().array(self).to_numpy(zero_copy_only=False)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(array.nbytes for array in self._arrays())

    def free(self) -> None:
        """Frees the memory, after the work enqueued on it. Keeps a dictionary that other columns
        use."""
        for array in self._own_arrays():
            array.free()
        if self.dictionary is not None:
            self.dictionary._users.pop(id(self), None)
            if not self.dictionary._users:
                self.dictionary.free()

    def _arrays(self) -> Iterator[Array]:
        yield from self._own_arrays()
        if self.dictionary is not None:
            yield from self.dictionary._arrays()

    def _own_arrays(self) -> Iterator[Array]:
        seen: set[int] = set()
        parts = (self._bits, self._values, self._validity, self._mask, self.offsets)
        for array in parts:
            if array is not None and not array.freed and array._memory.id not in seen:
                seen.add(array._memory.id)
                yield array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        numbers = self._numbers
        if numbers is None:
            raise AttributeError(f"a column of {self.type} is no array of numbers")
        interface = dict(numbers.__cuda_array_interface__)
        if self.mask is not None:
            interface["mask"] = self.mask
        return interface

    def __dlpack__(self, **options: Any) -> Any:
        if self.null_count or (numbers := self._numbers) is None:
            raise BufferError(
                f"a column of {self.type} with {self.null_count} nulls is more than an array; pass its "
                "parts: column.values, column.mask, column.offsets"
            )
        return numbers.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.values is None:
            raise BufferError("a column of nulls has no memory")
        return self.values.__dlpack_device__()

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return _arrow_export(None, [self], self._rows, "array")

    def _compared(self, other: Any, compare: Callable[[Any, Any], Array]) -> Column:
        is_column = isinstance(other, Column)
        if self.kind == "time":
            if not is_column or other.type != self.type:
                raise TypeError(
                    f"a column of {self.type} is compared with another one; for a single time, "
                    "compare the numbers: column.values"
                )
        elif self.kind not in ("number", "bool") or (
            is_column and other.kind not in ("number", "bool")
        ):
            found = f" and {other.type}" if is_column else ""
            raise TypeError(f"columns of {self.type}{found} have no comparison; choose numbers")
        mask = self.mask
        if is_column and other.mask is not None:
            mask = other.mask if mask is None else both(mask, other.mask)
        return Column(compare(self.values, other.values if is_column else other), mask)

    def __eq__(self, other: Any) -> Column:  # type: ignore[override]
        return self._compared(other, operator.eq)

    def __ne__(self, other: Any) -> Column:  # type: ignore[override]
        return self._compared(other, operator.ne)

    def __lt__(self, other: Any) -> Column:
        return self._compared(other, operator.lt)

    def __le__(self, other: Any) -> Column:
        return self._compared(other, operator.le)

    def __gt__(self, other: Any) -> Column:
        return self._compared(other, operator.gt)

    def __ge__(self, other: Any) -> Column:
        return self._compared(other, operator.ge)

    __hash__ = object.__hash__

    def _refuse_arithmetic(self, _other: Any) -> Any:
        raise TypeError(
            "columns have comparisons and no arithmetic; compute with their arrays: "
            "gpuheap.Column(a.values * b.values, a.mask)"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = _refuse_arithmetic
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse_arithmetic

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(Array, name):
                raise AttributeError(f"a column has no {name}", name=name, obj=self)
            raise AttributeError(
                f"a column has no {name}; its array has: column.values.{name}. The values of null rows "
                "are arbitrary: column.mask",
                name=name,
                obj=self,
            )

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        nulls = f", {self.null_count:,} null" if self.null_count else ""
        return f"<gpuheap.Column {self.type}, {self._rows:,} rows{nulls}>"


class Table(TableRows):
    """Named columns on the device, with the same number of rows.

    `Heap.adapt` and `Table.from_arrow` upload a table of pandas, Polars, pyarrow or DuckDB, and
    `gpuheap.host` makes a table of that library again. Other libraries read a `Table` through
    Arrow's interface: `pyarrow.table(table)`, `polars.DataFrame(table)`. `len` is the number of
    rows, and iteration gives the names, as in pandas.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB")
    >>> table = gpuheap.Table({"a": heap.array([1, 2]), "b": heap.array([0.5, 0.25])})
    >>> table
    <gpuheap.Table 2 rows: a int64, b float64>
    >>> table["b"].sum()
    0.75
    """

    __slots__ = (
        "__weakref__",
        "_columns",
        "_field",
        "_index",
        "_library",
        "_restore",
        "_rows",
        "copies",
    )

    _columns: dict[str, Column]
    #: Columns that are the index in pandas.
    _index: list[str]
    #: Arrow field for the table as a whole. pandas stores the table's index in its metadata.
    _field: _ArrowField
    #: Library and class that the table came from.
    _library: tuple[str, str]
    _restore: Callable[[Any], Any] | None
    _rows: int
    #: Copies that the upload made.
    copies: Copies

    def __init__(self, columns: Mapping[str, Column | Array], like: Table | None = None) -> None:
        made = {
            str(name): column if isinstance(column, Column) else Column(column)
            for name, column in columns.items()
        }
        rows = {name: len(column) for name, column in made.items()}
        if len(set(rows.values())) > 1:
            raise ValueError(f"the columns have different numbers of rows: {rows}")
        self._columns = made
        self._rows = next(iter(rows.values()), 0)
        for name, column in made.items():
            if column._field.name != name:
                made[name] = renamed(column, name)
        self._field = _ArrowField("", "int8")
        self._index = [] if like is None else [name for name in like._index if name in made]
        self._library = ("", "") if like is None else like._library
        self._restore = None if like is None else _maker(*like._library)
        self.copies = Copies(0, 0, 0)

    @classmethod
    def from_arrow(cls, source: Any, heap: Heap | None = None, narrow: bool = False) -> Table:
        """Uploads a table of another library: an object with `__arrow_c_stream__` or
        `__arrow_c_array__`. Each column is uploaded once. With `narrow`, float64 becomes
        float32."""
        if isinstance(source, (str, os.PathLike)):
            raise TypeError(f"{source!r} is a path; gpuheap.batches(path) reads files")
        if heap is None:
            from gpuheap._heap import default_heap

            heap = default_heap()
        made = uploaded(heap, source, narrow)
        if isinstance(made, Column):
            raise TypeError(f"{type(source)} is a column; upload it with heap.adapt(x)")
        return made

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    @property
    def num_rows(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(column.nbytes for column in self._columns.values())

    def items(self) -> Iterable[tuple[str, Column]]:
        return self._columns.items()

    def keys(self) -> Iterable[str]:
        return self._columns.keys()

    def free(self) -> None:
        """Frees all columns, after the work enqueued on them."""
        for column in self._columns.values():
            column.free()

    def _arrays(self) -> Iterator[Array]:
        for column in self._columns.values():
            yield from column._arrays()

    def __getitem__(self, name: str) -> Column:
        if isinstance(name, (Column, Array, list)):
            raise TypeError(
                "a table is indexed by a column's name; rows: table.filter(mask); columns: "
                "gpuheap.Table({name: table[name] for name in names})"
            )
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"{name!r} is none of the columns {self.column_names}") from None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            instead = PANDAS.get(name)
            if instead is None and not name.startswith("_") and name in self._columns:
                instead = f"table[{name!r}]"
            remedy = "" if instead is None else f"; write {instead}"
            raise AttributeError(f"a table has no {name}{remedy}", name=name, obj=self)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return self._rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._exported("stream")

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._exported("array")

    def _exported(self, form: str) -> Any:
        return _arrow_export(self._field, list(self._columns.values()), self._rows, form)

    def on_device(self) -> OnDevice:
        """Returns an object with Arrow's device interface. A library that supports this interface
        reads the table's device memory in place."""
        return OnDevice(self)

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.free()

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {column.type}" for name, column in self._columns.items())
        return f"<gpuheap.Table {self._rows:,} rows: {columns}>"


class OnDevice:
    """A table's device memory, through Arrow's interface for device memory. `Table` itself has only
    the interface for host memory. If it had both, pyarrow would choose the device interface, and
    pyarrow cannot read GPU memory."""

    __slots__ = ("_table",)

    def __init__(self, table: Table) -> None:
        self._table = table

    def __arrow_c_device_array__(self, requested_schema: object = None, **options: Any) -> Any:
        # Later versions of Arrow may add keywords. Arrow requires that None is ignored, and that
        # other values are refused.
        wanted = [name for name, value in options.items() if value is not None]
        if wanted:
            raise NotImplementedError(f"the options {wanted} of Arrow's interface are not known")
        return self._table._exported("device")


def uploaded(heap: Heap, source: Any, narrow: bool = False) -> Table | Column:
    """Uploads a table or a column of another library."""
    opened, restore = _opened(source)
    reader = _ArrowReader(opened)
    chunks = []
    while (chunk := reader.next()) is not None:
        chunks.append(chunk)
    made = of_chunks(heap, reader.field, chunks, narrow)
    if isinstance(made, Table):
        if opened is not source:
            made = next(iter(made._columns.values()))
            made._dtype = _extension(source.dtype)
        else:
            made._library = _library(source)
            if made._library[0] == "pandas":
                made._index = made.column_names[len(source.columns) :]
                levels = getattr(source.index, "levels", [source.index])
                dtypes = [*source.dtypes, *(level.dtype for level in levels)]
                for column, dtype in zip(made._columns.values(), dtypes):
                    column._dtype = _extension(dtype)
    made._restore = restore
    return made


def of_chunks(
    heap: Heap, field: _ArrowField, chunks: list[_ArrowChunk], narrow: bool
) -> Table | Column:
    """Joins the chunks of a table or a column, and uploads them."""
    made = _arrow_upload(heap, field, chunks, narrow)
    columns = [Column._uploaded(column) for column in made]
    if field.columns is None:
        return columns[0]
    names = [column._field.name for column in columns]
    refuse_twice(names)
    table = Table.__new__(Table)
    table._columns = dict(zip(names, columns))
    table._field, table._rows = field, sum(map(len, chunks))
    table._index, table._library = [], ("pyarrow", "Table")
    table._restore = _maker("pyarrow", "Table")
    uploads = [array for column in columns for array in column._arrays()]
    table.copies = Copies(
        len(uploads), sum(array.nbytes for array in uploads), sum(map(_host_copied, made))
    )
    return table


def refuse_twice(names: list[str]) -> None:
    """Raises `ValueError` if a name occurs twice."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two columns have the name {twice!r}; rename one of them")


def restored(part: Table | Column) -> Any:
    """Moves a table or a column to the host. If it was uploaded, restores its original type. A
    table that was made on the device becomes a dictionary of NumPy arrays."""
    if part._restore is not None:
        return part._restore(part)
    if isinstance(part, Column):
        return part.to_numpy()
    return {name: column.to_numpy() for name, column in part.items()}


def renamed(column: Column, name: str) -> Column:
    """Returns the column under another name. Both columns share the memory."""
    same = Column.__new__(Column)
    for slot in Column.__slots__:
        if slot != "__weakref__":
            setattr(same, slot, getattr(column, slot))
    same._field = column._field.renamed(name)
    if same.dictionary is not None:
        same.dictionary._users[id(same)] = same
    return same


def _opened(source: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns an object with Arrow's interface for the source, and a function that turns a device
    table back into the source's type."""
    library, name = _library(source)
    if library == "pandas" and name != "DataFrame":
        index, dtype, title = source.index, source.dtype, source.name

        def series(column: Column) -> Any:
            made = _series(column).astype(dtype)
            if len(made) == len(index):
                made.index = index
            made.name = title
            return made

        return source.reset_index(drop=True).to_frame("values"), series
    if library == "polars":
        import polars

        if name == "DataFrame":
            types = source.schema
            return source, lambda table: polars.DataFrame(table).cast(types)
        title, dtype = source.name, source.dtype
        return source, lambda column: polars.Series(title, column).cast(dtype)
    return source, _maker(library, name)


def _library(source: Any) -> tuple[str, str]:
    return type(source).__module__.partition(".")[0], type(source).__name__


def _maker(library: str, name: str) -> Callable[[Any], Any]:
    """Returns the function that turns a table or a column on the device into the library's type."""
    if library == "pandas":
        return _to_pandas
    if library == "polars":
        return _to_polars

    def arrow(part: Table | Column) -> Any:
        pyarrow = _pyarrow()
        if isinstance(part, Column):
            array = pyarrow.array(part)
            return pyarrow.chunked_array([array]) if name == "ChunkedArray" else array
        return pyarrow.record_batch(part) if name == "RecordBatch" else pyarrow.table(part)

    return arrow


def _to_pandas(table: Table) -> Any:
    if table._field.columns is not None:
        # The metadata of an upload names pandas' index and types, so pyarrow restores them.
        return _pyarrow().table(table).to_pandas()
    import pandas

    made = pandas.DataFrame({name: _series(column) for name, column in table.items()})
    if table._index:
        made = made.set_index(table._index)
        # pyarrow gives this kind of name to an unnamed index.
        unnamed = [name.startswith("__index_level_") for name in table._index]
        made.index.names = [None if is_so else name for is_so, name in zip(unnamed, table._index)]
    return made


def _extension(dtype: Any) -> Any:
    """Returns `dtype` if it is a pandas type that reads Arrow's arrays, otherwise `None`."""
    return dtype if hasattr(dtype, "__from_arrow__") else None


def _series(column: Column) -> Any:
    """Returns the rows as a Series. Restores a pandas extension type. Without an extension type,
    pandas converts integers to floats if there are nulls."""
    array = _pyarrow().array(column)
    if column._dtype is None:
        return array.to_pandas()
    import pandas

    return pandas.Series(column._dtype.__from_arrow__(array), dtype=column._dtype)


def _to_polars(table: Table) -> Any:
    import polars

    return polars.DataFrame(table)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("tables need pyarrow on the host: pip install pyarrow") from error
    return pyarrow


def _host_copied(column: _ArrowColumn) -> int:
    inner = 0 if column.dictionary is None else _host_copied(column.dictionary)
    return column.host_copied + inner


def _is_freed(array: Array | None) -> bool:
    """Returns whether an array was not made yet, or was freed by a scope."""
    return array is None or array.freed


def _powers(like: Array) -> Array:
    """Returns the powers of two from 1 to 128, as a row on the device of `like`."""
    powers = like[:1].reshape(1, 1).broadcast_to((1, 8))
    powers[0] = [1 << bit for bit in range(8)]
    return powers


def _unpacked(bits: Array, rows: int) -> Array:
    """Converts Arrow's bits to an array of bool. The lowest bit of a byte is first."""
    if not rows:
        return bits.astype("bool")
    shifted = bits.reshape(-1, 1).broadcast_to((len(bits), 8)).trunc_div(_powers(bits))
    odd = shifted != shifted.trunc_div(2) * 2
    return odd.reshape(-1)[:rows]


def _packed(mask: Array) -> Array:
    """Converts an array of bool to Arrow's bits. The lowest bit of a byte is first."""
    rows = len(mask)
    ones = mask.astype("uint8")
    if not rows:
        return ones
    if rows % 8:
        padded = ones[:1].broadcast_to((rows + 7) // 8 * 8)
        padded.fill(0)
        padded[:rows] = ones
        ones = padded
    return (ones.reshape(-1, 8) * _powers(ones)).sum(1).astype("uint8")
