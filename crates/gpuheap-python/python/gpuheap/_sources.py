"""Reads tables of files and of other libraries in chunks, for `gpuheap.batches`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

from gpuheap import _ipc_sizes
from gpuheap._gpuheap import _ArrowChunk, _ArrowReader
from gpuheap._table import refuse_twice

#: Largest part of a file that is read at once, in bytes. Host memory holds up to two parts.
MOST = 32 << 20
#: Smallest part of a file that is read at once, in bytes. A row with many columns has to fit.
LEAST = 1 << 20
#: Number of rows that are decoded at once from a Parquet file with columns of text.
TEXT_ROWS = 1 << 13
#: Maximum number of a file's columns that an error names.
MOST_NAMES = 20
#: Unsupported formats of files. A key is a file's first bytes. A value is the format and a remedy.
OTHERS: dict[bytes | tuple[bytes, ...], tuple[str, str]] = {
    b"FEA1": ("Feather, version 1", "write it again: pyarrow.feather.write_feather(frame, path)"),
    b"\x1f\x8b": ("gzip", "pass gzip.open(path), or name it .csv.gz"),
    b"PK\x03\x04": ("zip, as .xlsx is", "pass pandas.read_excel(path), or a file of the archive"),
    b"ORC": ("ORC", "pass pyarrow.orc.read_table(path)"),
    (b"\xff\xfe", b"\xfe\xff"): (
        "UTF-16 text",
        "pass pyarrow.csv.open_csv(path, pyarrow.csv.ReadOptions(encoding='utf-16'))",
    ),
}


def is_file(source: Any) -> bool:
    """Returns `True` for a path, a file object, or a list of paths."""
    if isinstance(source, (list, tuple)):
        return bool(source) and all(isinstance(one, (str, os.PathLike)) for one in source)
    return isinstance(source, (str, os.PathLike)) or (
        callable(getattr(source, "read", None)) and callable(getattr(source, "seekable", None))
    )


def chunks_of_files(
    source: Any, columns: Sequence[str] | None, types: Mapping[str, Any] | None, nbytes: int
) -> Iterator[_ArrowChunk]:
    """Reads CSV, Parquet, IPC and Feather files, one after the other. Reads only the chosen
    columns, in parts of about `nbytes` bytes. If the files have no rows, yields one chunk without
    rows. Raises `ValueError` if a file's columns differ from the columns of the first file."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("pyarrow reads the files of batches: pip install pyarrow") from error
    nbytes = max(LEAST, min(nbytes, MOST))
    files = source if isinstance(source, (list, tuple)) else [source]
    types = {name: _type(pyarrow, kind) for name, kind in (types or {}).items()}
    first, names, empty = None, None, None
    for file in files:
        name = _name(file)
        try:
            for batch in _batches_of(pyarrow, file, columns, types, nbytes):
                if not len(batch):
                    empty = batch if empty is None else empty
                    continue
                if first is None:
                    first, names = batch.schema.remove_metadata(), batch.schema.names
                    types = types | dict(zip(first.names, first.types))
                elif batch.schema.remove_metadata() != first:
                    if sorted(batch.schema.names) == sorted(first.names):
                        batch = batch.select(names)
                    _check_schema(batch.schema, first, _name(files[0]))
                yield from chunks_of(batch, None)
        except Exception as error:
            if not getattr(error, "__notes__", None):
                error.add_note(f"in {name}")
            raise
    if first is None and empty is not None:
        yield from chunks_of(empty, None)


def chunks_of(source: Any, columns: Sequence[str] | None) -> Iterator[_ArrowChunk]:
    """Reads the chunks of another library's table or column. If there are no rows, yields one empty
    chunk."""
    if columns is not None and type(source).__module__.partition(".")[0] in ("pandas", "polars"):
        # These libraries convert columns for Arrow.
        source, columns = source[list(columns)], None
    reader = _ArrowReader(source)
    chunk: _ArrowChunk | None = reader.next() or reader.empty()
    while chunk is not None:
        yield chunk if columns is None else chunk.select(list(columns))
        chunk = reader.next()


class Ahead:
    """Reads one chunk ahead, on a separate thread."""

    def __init__(self, chunks: Iterator[_ArrowChunk]) -> None:
        self._chunks = chunks
        self._thread = ThreadPoolExecutor(1, "gpuheap-read")
        self._next: Future[_ArrowChunk | None] | None = self._begun()

    def next(self) -> _ArrowChunk | None:
        """Returns the next chunk; `None` after the last chunk. If the wait is interrupted, the next
        call returns the same chunk."""
        if self._next is None:
            return None
        try:
            chunk = self._next.result()
        except Exception:
            self.close()
            raise
        if chunk is None:
            self.close()
        else:
            self._next = self._begun()
        return chunk

    def close(self) -> None:
        """Ends the thread, and closes the file."""
        following, self._next = self._next, None
        if following is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            close = getattr(self._chunks, "close", None)
            if close is not None:
                close()

    def _begun(self) -> Future[_ArrowChunk | None]:
        return self._thread.submit(next, self._chunks, None)


def free_host_memory() -> int:
    """Returns the free memory of the host, in bytes. If this process's control group has less,
    returns the free memory of the group."""
    free = 2 << 30
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvail"))
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            most = file.read().strip()
        if most != "max":
            with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
                free = min(free, max(int(most) - int(file.read()), 0))
    except (OSError, StopIteration, ValueError):
        pass
    return free


def _batches_of(
    pyarrow: Any, file: Any, columns: Sequence[str] | None, types: dict[str, Any], nbytes: int
) -> Iterator[Any]:
    """Yields a table without rows, and then the record batches of a file. The first bytes of a file
    show its format."""
    begin = _begin(file)
    if begin.startswith(b"PAR1"):
        yield from _parquet(pyarrow, file, columns, nbytes)
    elif begin.startswith(b"ARROW1"):
        yield from _ipc(pyarrow, file, columns)
    elif begin.startswith(b"\xff\xff\xff\xff"):
        yield from _ipc_stream(pyarrow, file, columns)
    else:
        for first, (format, remedy) in OTHERS.items():
            if begin.startswith(first) and not str(_name(file)).endswith(".gz"):
                raise ValueError(f"the file is {format}; {remedy}")
        yield from _csv(file, columns, types, nbytes)


def _parquet(pyarrow: Any, file: Any, columns: Sequence[str] | None, nbytes: int) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(_path(file), pre_buffer=False) as opened:
        _check_columns(columns, opened.schema_arrow.names)
        empty = _without_rows(opened.schema_arrow, columns)
        yield empty
        # The file states only the encoded size of its pages. Repeated text may be a hundred times
        # larger after decoding, so decode text in small batches.
        row = _row_size(pyarrow, empty.schema)
        rows = TEXT_ROWS if row is None else max(1, nbytes // max(row, 1))
        read = (
            batch
            for group in range(opened.num_row_groups)
            for batch in opened.iter_batches(rows, row_groups=[group], columns=columns)
        )
        yield from _joined(pyarrow, read, nbytes)


def _row_size(pyarrow: Any, schema: Any) -> int | None:
    """Returns the size of a row in bytes; `None` if the rows have different sizes."""
    types = [field.type for field in schema]
    if all(map(pyarrow.types.is_primitive, types)):
        return sum(one.bit_width for one in types) // 8
    return None


def _joined(pyarrow: Any, batches: Iterator[Any], nbytes: int) -> Iterator[Any]:
    """Joins successive batches into batches of at most `nbytes` bytes."""
    part: list[Any] = []
    left = nbytes
    for batch in batches:
        if part and batch.nbytes > left:
            yield _whole(pyarrow, part)
            part, left = [], nbytes
        part.append(batch)
        left -= batch.nbytes
    if part:
        yield _whole(pyarrow, part)


def _whole(pyarrow: Any, part: list[Any]) -> Any:
    return part[0] if len(part) == 1 else pyarrow.Table.from_batches(part).combine_chunks()


def _ipc(pyarrow: Any, file: Any, columns: Sequence[str] | None) -> Iterator[Any]:
    # A file that is given by its path is mapped. Columns are uploaded from the mapping without a
    # copy.
    source, sizes = _mapped(pyarrow, file, columns, _ipc_sizes.of_file)
    with pyarrow.ipc.open_file(source) as opened:
        names = opened.schema.names
    options = _included(pyarrow, columns, names)
    with pyarrow.ipc.open_file(source, options=options) as opened:
        yield _without_rows(opened.schema, columns)
        for number in range(opened.num_record_batches):
            _check_room(number, next(sizes, 0))
            yield opened.get_batch(number)


def _ipc_stream(pyarrow: Any, file: Any, columns: Sequence[str] | None) -> Iterator[Any]:
    source, sizes = _mapped(pyarrow, file, None, _ipc_sizes.of_stream)
    with pyarrow.ipc.open_stream(source) as opened:
        _check_columns(columns, opened.schema.names)
        yield _without_rows(opened.schema, columns)
        for number in count():
            _check_room(number, next(sizes, 0))
            try:
                batch = opened.read_next_batch()
            except StopIteration:
                return
            yield batch if columns is None else batch.select(list(columns))


def _mapped(
    pyarrow: Any, file: Any, columns: Sequence[str] | None, sizes: Callable[..., Iterator[int]]
) -> tuple[Any, Iterator[int]]:
    """Returns the source that pyarrow reads, and the decoded sizes of its record batches. The sizes
    in a file object are unknown, because reading the sizes would move the object's position."""
    if hasattr(file, "read"):
        return file, iter(())
    path = os.fspath(file)
    return pyarrow.memory_map(path), sizes(pyarrow, pyarrow.memory_map(path), columns)


def _check_room(number: int, size: int) -> None:
    """Raises `MemoryError` if decoding a record batch would take more than half of the host's free
    memory."""
    if size > (free := free_host_memory()) // 2:
        from gpuheap._heap import size as text

        raise MemoryError(
            f"record batch {number} has {text(size)} when it is decoded, and the host has {text(free)} "
            "free; a compressed batch is decoded whole. Choose fewer columns, or write the file with "
            "smaller batches: pyarrow.feather.write_feather(table, path, chunksize=65536)"
        )


def _csv(
    file: Any, columns: Sequence[str] | None, types: dict[str, Any], nbytes: int
) -> Iterator[Any]:
    from pyarrow import csv

    is_tab = str(_name(file)).endswith((".tsv", ".tab"))
    parse = csv.ParseOptions(delimiter="\t" if is_tab else ",")

    def names() -> list[str]:
        """Returns the names of all columns. Returns no names for a file object, because it cannot
        be read twice."""
        if hasattr(file, "read"):
            return []
        with csv.open_csv(_path(file), parse_options=parse) as again:
            return again.schema.names

    try:
        opened = csv.open_csv(
            _path(file),
            # pyarrow reads and converts several blocks ahead, so a block has a quarter of
            # `nbytes`.
            read_options=csv.ReadOptions(block_size=max(LEAST, min(nbytes // 4, MOST // 4))),
            parse_options=parse,
            convert_options=csv.ConvertOptions(include_columns=columns, column_types=types),
        )
        with opened:
            yield _without_rows(opened.schema, columns)
            yield from opened
    except KeyError:
        _check_columns(columns, names())
        raise
    except ValueError as error:
        text, place = str(error), f"in {_name(file)}"
        if found := re.search(r"column #(\d+):.*CSV conversion error", text):
            name = dict(enumerate(names())).get(int(found[1]), "name")
            error.add_note(
                f"{place}, column {name!r}: its type comes from the first part of the file; pass one "
                f'that fits all rows: gpuheap.batches(..., types={{"{name}": "float64"}}), or "string"'
            )
        elif "CSV parse error" in text:
            error.add_note(
                f"{place}: the values are separated by {parse.delimiter!r}; for another character, or "
                "a file without a header, open it yourself: gpuheap.batches(pyarrow.csv.open_csv(path, "
                "parse_options=pyarrow.csv.ParseOptions(delimiter=';')))"
            )
        raise


def _without_rows(schema: Any, columns: Sequence[str] | None) -> Any:
    """Returns a table without rows. In a CSV file without rows, all columns have type null. Such a
    column becomes a column of numbers, because a column of type null has no sum."""
    import pyarrow

    fields = list(schema) if columns is None else [schema.field(name) for name in columns]
    refuse_twice([field.name for field in fields])
    fields = [
        field.with_type(pyarrow.float64()) if pyarrow.types.is_null(field.type) else field
        for field in fields
    ]
    # `Schema.empty_table` imports pandas, which takes some 50 MiB.
    arrays = [pyarrow.nulls(0, field.type) for field in fields]
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def _included(pyarrow: Any, columns: Sequence[str] | None, names: list[str]) -> Any:
    _check_columns(columns, names)
    included = None if columns is None else [names.index(name) for name in columns]
    return pyarrow.ipc.IpcReadOptions(included_fields=included)


def _check_columns(columns: Sequence[str] | None, names: list[str]) -> None:
    missing = [name for name in columns or () if name not in names]
    if missing and names:
        some = ", ".join(map(repr, names[:MOST_NAMES]))
        more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        raise KeyError(f"the columns {missing} are not there; the file has {some}{more}")


def _check_schema(schema: Any, first: Any, of: str) -> None:
    if schema.remove_metadata() != first:
        this, that = (
            ", ".join(f"{field.name} {field.type}" for field in one) for one in (schema, first)
        )
        raise ValueError(
            f"the columns are ({this}), and those of {of} are ({that}); choose the common ones with "
            "columns=[...], or convert one of the files"
        )


def _type(pyarrow: Any, kind: Any) -> Any:
    try:
        return pyarrow.type_for_alias(kind) if isinstance(kind, str) else kind
    except ValueError:
        raise ValueError(
            f"types= has {kind!r}, which pyarrow does not know; pass one such as 'float64', 'int32', "
            "'string', 'date32' or 'timestamp[s]'"
        ) from None


def _path(file: Any) -> Any:
    return file if hasattr(file, "read") else os.fspath(file)


def _name(file: Any) -> str:
    return str(getattr(file, "name", file)) if hasattr(file, "read") else os.fspath(file)


def _begin(file: Any) -> bytes:
    """Returns the first bytes of a file. Returns no bytes for a pipe, because a pipe cannot be read
    twice. A pipe has to contain CSV."""
    if not hasattr(file, "read"):
        if os.path.isdir(file):
            files = len(os.listdir(file))
            raise IsADirectoryError(
                f"this is a folder of {files} file{'s' * (files != 1)}; pass a list of files: "
                'sorted(pathlib.Path(folder).glob("*.parquet"))'
            )
        with open(file, "rb") as opened:
            return opened.read(8)
    if not file.seekable():
        return b""
    at = file.tell()
    begin = file.read(8)
    file.seek(at)
    if isinstance(begin, str):
        raise TypeError("the file is open as text; open it as bytes: open(path, 'rb')")
    return begin
