"""Implements `gpuheap.batches`, which processes data larger than the device in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuheap._adapt import adapt_noting, is_host_array, is_table, is_wide, refuse_column, walk
from gpuheap._errors import OutOfMemory
from gpuheap._gpuheap import Array, _ArrowChunk
from gpuheap._sources import Ahead, chunks_of, chunks_of_files, is_file
from gpuheap._table import Column, Copies, Table, of_chunks

if TYPE_CHECKING:
    from gpuheap._heap import Heap


def batches(
    data: Any,
    narrow: bool = False,
    fraction: float = 0.5,
    heap: Heap | None = None,
    *,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
) -> Batches:
    """Uploads data in batches. Frees each batch before the next one.

    `data` may name files: a path, a file object or a list of paths. pyarrow reads CSV, Parquet, IPC
    and Feather files in parts. `data` may also be a table or a reader of pandas, Polars, pyarrow or
    DuckDB. Files and tables give batches of type `gpuheap.Table`. `columns` chooses the columns to
    read. `types` sets types of a CSV file's columns, such as `{"price": "float64"}`; pyarrow infers
    the other types from the first part of the file.

    An array (an object with the buffer protocol), or a tuple of arrays of equal length, is cut into
    ranges of rows. A batch takes at most `fraction` of the memory that the heap can still allocate.
    If memory still runs out, this batch and all later batches have half as many rows. If `data` is
    any other iterable, each item is a batch, and is uploaded as by `Heap.adapt`. With `narrow`,
    float64 becomes float32.

    Without `heap`, the default heap is used. A batch's memory is freed when the loop moves on, and
    later use raises an error. `batches.keep(batch)` keeps the memory.

    >>> import gpuheap
    >>> heap = gpuheap.Heap("emulated:1GiB", limit="16MiB")
    >>> rows = memoryview(bytes(40 << 20))
    >>> sum(batch.size for batch in gpuheap.batches(rows, heap=heap)) == 40 << 20
    True
    """
    if not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
        raise ValueError(
            f"fraction={fraction!r} is no part of the memory; pass one above 0 and at most 1"
        )
    if isinstance(columns, str):
        raise TypeError(f"columns= is a list of names: columns=[{columns!r}]")
    if heap is None:
        from gpuheap._heap import default_heap

        heap = default_heap()
    if is_host_array(data):
        return Batches(heap, _Rows(heap, (data,), False, narrow, fraction), narrow)
    if isinstance(data, tuple) and data and all(is_host_array(one) for one in data):
        return Batches(heap, _Rows(heap, data, True, narrow, fraction), narrow)
    if is_file(data) or is_table(data):
        nbytes = int(room(heap) * fraction)
        chunks = (
            chunks_of_files(data, columns, types, nbytes)
            if is_file(data)
            else chunks_of(data, columns)
        )
        return Batches(heap, _TableRows(Ahead(chunks), nbytes), narrow)
    refuse_column(data)
    if isinstance(data, (bytes, Array)) or not isinstance(data, Iterable):
        raise TypeError(
            f"no batches can be made of {type(data)}; pass an array, a tuple of arrays, a table, a "
            "path, or an iterable"
        )
    if columns is not None:
        raise TypeError("columns=... chooses columns of a file or a table; leave it out here")
    return Batches(heap, _Items(iter(data)), narrow)


class Batches(Iterator[Any]):
    """An iterator of batches, made by `gpuheap.batches`. A batch is an item of an iterable, or a
    range of rows. A batch's memory is freed when the next batch is requested, and at the end of
    the loop or of a `with` block."""

    def __init__(self, heap: Heap, source: _Items | _Rows | _TableRows, narrow: bool) -> None:
        self._heap = heap
        self._source = source
        self._narrow = narrow
        self._current: list[Array | Table | Column] = []

    @property
    def chunk(self) -> int:
        """Maximum number of rows in a batch. 0 if the source is an iterable of items, or if no
        table was read yet."""
        return self._source.chunk

    @property
    def rows(self) -> range:
        """Range of the current batch's rows; empty for items of an iterable."""
        return self._source.rows

    @property
    def copies(self) -> Copies:
        """Number and bytes of all copies that were made so far to upload batches of tables."""
        return self._source.copies

    def keep(self, batch: Any) -> Any:
        """Keeps the arrays of the current batch when the next batch is requested. If `batch`
        contains parts of arrays, keeps the whole arrays. Returns `batch`."""
        kept = {array._memory.id for array in arrays(batch)}
        self._current = [
            one
            for one in self._current
            if not any(array._memory.id in kept for array in arrays(one))
        ]
        return batch

    def _without_rows(self) -> Any:
        """Returns an empty table with the source's columns, for a source without rows. Copies the
        columns from a part without rows; `None` if the source yielded no such part."""
        empty = getattr(self._source, "empty", None)
        if empty is None:
            return None
        made, self._current = self._source.upload(self._heap, empty, self._narrow)
        return made

    def halve(self) -> None:
        """Frees the current batch. Uploads its rows again in batches of half as many rows. All
        later batches have half as many rows too. Call this if work on the batch ran out of memory.
        Raises `ValueError` for a batch of one row, and for items of an iterable."""
        self._source.halve()
        self.close()

    def close(self) -> None:
        """Frees the current batch. A loop that ends early frees its batch at the end of the `with`
        block, or when the batches are collected."""
        current, self._current = self._current, []
        for one in current:
            one.free()

    def __next__(self) -> Any:
        self.close()
        while True:
            piece = self._source.next()
            try:
                # `_current` has only the uploaded arrays. The program frees its own device arrays.
                batch, self._current = self._source.upload(self._heap, piece, self._narrow)
            except OutOfMemory as error:
                self._source.split(error)
            except BaseException:
                self._source.put_back()
                raise
            else:
                return batch

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
        self._source.end()

    def __del__(self) -> None:
        try:
            self.close()
            self._source.end()
        except Exception:
            pass  # The heap counts frees that failed.


class _Source:
    """A source that yields host data in pieces. Each piece becomes a batch."""

    chunk = 0
    rows = range(0)

    @property
    def copies(self) -> Copies:
        raise AttributeError("copies are counted for tables; these batches are of arrays")

    def upload(self, heap: Heap, piece: Any, narrow: bool) -> tuple[Any, list[Any]]:
        """Returns the batch, and the uploaded arrays and tables."""
        return adapt_noting(heap, piece, narrow)

    def end(self) -> None:
        """Closes the source."""


class _Items(_Source):
    """A source that yields the items of an iterable. Each item is a batch."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def next(self) -> Any:
        return next(self._items)

    def split(self, error: OutOfMemory) -> None:
        raise error

    def put_back(self) -> None:
        """Does nothing, because an item that the iterator returned cannot be put back."""

    def halve(self) -> None:
        raise ValueError("an item cannot be halved; pass smaller items")


class _Ranges(_Source, ABC):
    """Ranges of rows."""

    #: First row not yet uploaded, counted from row `_before`.
    _begun = 0
    _before = 0

    def split(self, error: OutOfMemory) -> None:
        """Halves the rows of this batch and of all later batches. If the batch has a single row,
        raises `error`."""
        if len(self.rows) == 1:
            self.skip_rest()
            error.add_note(f"row {self.rows.start} does not fit by itself")
            raise error
        self.halve()

    @abstractmethod
    def skip_rest(self) -> None:
        """Leaves out the remaining rows."""

    def put_back(self) -> None:
        """Goes back to the first row of an interrupted upload."""
        self._begun = self.rows.start - self._before

    def halve(self) -> None:
        if len(self.rows) <= 1:
            raise ValueError(
                f"a batch of {len(self.rows)} rows cannot be halved; free other memory first"
            )
        self.put_back()
        self.chunk = len(self.rows) // 2


class _Rows(_Ranges):
    """A source that divides one array, or several arrays in parallel, into ranges of rows."""

    def __init__(
        self, heap: Heap, data: tuple[Any, ...], is_tuple: bool, narrow: bool, fraction: float
    ) -> None:
        views = [memoryview(one) for one in data]
        self._data = data
        self._is_tuple = is_tuple
        if any(not view.ndim for view in views):
            raise ValueError(
                "an array without axes has no rows to make batches of; upload it with heap.array"
            )
        lengths = {len(view) for view in views}
        if len(lengths) > 1:
            raise ValueError(f"the arrays have different numbers of rows: {sorted(lengths)}")
        self._total = lengths.pop()
        row = sum(
            view.nbytes // max(self._total, 1) // (2 if narrow and is_wide(view) else 1)
            for view in views
        )
        most = int(room(heap) * fraction) // max(row, 1)
        self.chunk = max(1, min(self._total, most))

    def next(self) -> Any:
        self.rows = range(self._begun, min(self._begun + self.chunk, self._total))
        if not self.rows:
            raise StopIteration
        self._begun = self.rows.stop
        piece = tuple(one[self.rows.start : self.rows.stop] for one in self._data)
        return piece if self._is_tuple else piece[0]

    def skip_rest(self) -> None:
        self._begun = self._total


class _TableRows(_Ranges):
    """A source that divides a table into ranges of rows. The table is read in chunks."""

    def __init__(self, chunks: Ahead, nbytes: int) -> None:
        self._chunks = chunks
        #: Bytes of a batch.
        self._nbytes = nbytes
        self._most: int | None = None
        #: The current part. Its first row is row `_before`.
        self._part: _ArrowChunk | None = None
        #: A part without rows, if the source yielded one.
        self.empty: _ArrowChunk | None = None
        self._copies = Copies(0, 0, 0)

    @property
    def copies(self) -> Copies:
        return self._copies

    def next(self) -> _ArrowChunk:
        while self._part is None or self._begun >= len(self._part):
            part = self._chunks.next()
            if part is None:
                self.rows = range(0)
                raise StopIteration
            self._before += 0 if self._part is None else len(self._part)
            self._part, self._begun = part, 0
            if not len(part):
                self.empty = part
            row = part.nbytes // max(len(part), 1)
            fits = max(1, self._nbytes // max(row, 1))
            self.chunk = fits if self._most is None else min(fits, self._most)
        stop = min(self._begun + self.chunk, len(self._part))
        self.rows = range(self._before + self._begun, self._before + stop)
        piece = self._part.rows(self._begun, stop)
        self._begun = stop
        return piece

    def upload(self, heap: Heap, piece: _ArrowChunk, narrow: bool) -> tuple[Any, list[Any]]:
        made = of_chunks(heap, piece.field, [piece], narrow)
        if isinstance(made, Table):
            self._copies = self._copies.plus(made.copies)
        return made, [made]

    def skip_rest(self) -> None:
        self.end()

    def halve(self) -> None:
        super().halve()
        self._most = self.chunk

    def end(self) -> None:
        self._part = None
        self._chunks.close()


def arrays(structure: Any) -> list[Array]:
    """Returns the device arrays in a structure."""
    found: list[Array] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Array):
            found.append(leaf)
        elif isinstance(leaf, (Column, Table)):
            found.extend(leaf._arrays())
        return leaf

    walk(structure, note)
    return found


def room(heap: Heap) -> int:
    """Returns the number of bytes that the heap can still allocate, with a precision of 1 MiB."""
    low, high = 0, heap.device.total_memory
    while high - low > 1 << 20:
        middle = (low + high) // 2
        if heap.would_fit(middle)[0] == "no":
            high = middle
        else:
            low = middle
    return low
