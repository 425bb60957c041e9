"""Reads how large the compressed record batches of an IPC file are after decoding.

Each buffer of a compressed batch begins with its decoded size. Arrow's flatbuffers `Footer` (for a
file) and `Message` (for a batch) have the buffers' offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import unpack_from
from typing import Any


def of_file(pyarrow: Any, source: Any, columns: Sequence[str] | None) -> Iterator[int]:
    """Yields the decoded size of each record batch of a mapped file. Counts only the chosen
    columns. Yields 0 for a batch that is not compressed, because nothing is decoded."""
    schema = pyarrow.ipc.open_file(source).schema
    source.seek(0)
    whole = source.read_buffer()
    (length,) = unpack_from("<i", whole, len(whole) - 10)
    footer = memoryview(whole)[len(whole) - 10 - length : len(whole) - 10]
    blocks = _follow(footer, _field(footer, _follow(footer, 0), 3))
    for nth in range(unpack_from("<I", footer, blocks)[0]):
        start, metadata, body = unpack_from("<qi4xq", footer, blocks + 4 + 24 * nth)
        message = pyarrow.ipc.read_message(whole[start : start + metadata + body])
        yield _of_message(pyarrow, message, schema, columns)


def of_stream(pyarrow: Any, source: Any, columns: Sequence[str] | None) -> Iterator[int]:
    """Yields the decoded size of each record batch of a mapped stream. Counts only the chosen
    columns. Yields 0 for a batch that is not compressed, because nothing is decoded."""
    reader = pyarrow.ipc.MessageReader.open_stream(source)
    schema = pyarrow.ipc.read_schema(reader.read_next_message())
    for message in reader:
        if message.type == "record batch":
            yield _of_message(pyarrow, message, schema, columns)


def _of_message(pyarrow: Any, message: Any, schema: Any, columns: Sequence[str] | None) -> int:
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    batch = _follow(metadata, _field(metadata, _follow(metadata, 0), 2))
    if not _field(metadata, batch, 3):
        return 0
    buffers = _follow(metadata, _field(metadata, batch, 2))
    sizes = []
    for nth in range(unpack_from("<I", metadata, buffers)[0]):
        start, length = unpack_from("<qq", metadata, buffers + 4 + 16 * nth)
        size = unpack_from("<q", body, start)[0] if length else 0
        # -1 marks a buffer that is not compressed.
        sizes.append(length if size < 0 else size)
    chosen: list[bool] = []
    for field in schema:
        is_null = pyarrow.types.is_null(field.type)
        count = 0 if is_null else len(pyarrow.nulls(0, field.type).buffers())
        chosen += [columns is None or field.name in columns] * count
    if len(chosen) != len(sizes):
        # Arrays of some types have more buffers than `pyarrow.nulls` makes. It is then unknown to
        # which column each buffer belongs, so return the size of all columns.
        return sum(sizes)
    return sum(size for size, is_chosen in zip(sizes, chosen) if is_chosen)


def _follow(data: memoryview, at: int) -> int:
    """Returns the target of the relative offset stored at `at`."""
    return at + unpack_from("<I", data, at)[0]


def _field(data: memoryview, table: int, nth: int) -> int:
    """Returns the position of a table's field; 0 if the table does not have the field."""
    offsets = table - unpack_from("<i", data, table)[0]
    place = 4 + 2 * nth
    if place >= unpack_from("<H", data, offsets)[0]:
        return 0
    offset = unpack_from("<H", data, offsets + place)[0]
    return table + offset if offset else 0
