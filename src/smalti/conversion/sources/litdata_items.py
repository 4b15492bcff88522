"""Samples of LitData's chunks that are stored leaf by leaf: the values of each serializer as a column.

    an item       uint32 size of each leaf | the leaves

Pickles are refused: to read them runs code.

Also here: one chunk, with its bytes, decompressed, and where its items or its table of rows are.

a chunk       uint32 N | uint32 offset of each item, and of the end | items | perhaps a table of rows
a table       an Arrow file or stream | uint32 size of it | LDARW01 and a zero byte
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from smalti.conversion.files import PartOfFile, StoredFile, read_some
from smalti.conversion.source import check_columns
from smalti.errors import FormatError, SchemaError, SmaltiError
from smalti.format import parse_encoding
from smalti.format.json_fields import unique_keys
from smalti.format.reading.arrow import STORED_AS

ADVICE = "write the set again without it with litdata.optimize, or read it with litdata and write rows with MDSWriter"
_MAX_CHUNK = 1 << 32
_MAX_UNPACKED = 1 << 30
"""Most bytes that a compressed chunk may unpack to: a small file can claim all memory."""
_PIECE_BYTES = 1 << 24
_MAGIC = b"LDARW01\0"
_TAIL_BYTES = 4 + len(_MAGIC)


@dataclass(frozen=True)
class Chunk(PartOfFile):
    """A chunk that the index names."""

    file: StoredFile
    compression: str | None
    num_items: int | None
    """Number of samples, by the index; None if it does not say."""

    def damaged(self, reason: str) -> FormatError:
        """Return the error that the chunk cannot be read."""
        return FormatError(
            f"{self.file.url}: the chunk is damaged, or of another form than litdata writes as far as is known: "
            f"{reason}; compare it with the original, or read it with litdata and write rows with MDSWriter",
            key=self.file.key,
        )

    def read(self) -> "ChunkData":
        """Return the content.

        Raises:
            FormatError: It is damaged, too large, or has another number of samples than the index says.
        """
        data = self._content()
        count = int.from_bytes(data[:4], "little")
        begin = 4 + 4 * (count + 1)
        if len(data) < 4 or begin > len(data):
            raise self.damaged(f"{count} items do not fit its {len(data)} bytes")
        if self.num_items not in (None, count):
            raise self.damaged(f"it has {count} samples, and the index says {self.num_items}")
        offsets = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
        if int(offsets[0]) < begin or int(offsets[-1]) > len(data) or (np.diff(offsets) < 0).any():
            raise self.damaged("its offsets do not rise within it")
        return ChunkData(self, data, offsets.tolist())

    def _content(self) -> memoryview:
        """Return the content, which is in memory once."""
        file, content = self.file, bytearray()
        if file.num_bytes > _MAX_CHUNK:
            raise FormatError(f"{file.url}: a chunk of {file.num_bytes} bytes; at most {_MAX_CHUNK} are read")
        with file.open_stored() as stream:
            reader: Any = stream
            if self.compression is not None:
                reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
            try:
                while piece := read_some(reader, _PIECE_BYTES, file.url):
                    content += piece
                    if self.compression is not None and len(content) > _MAX_UNPACKED:
                        raise FormatError(
                            f"{file.url}: it unpacks to more than {_MAX_UNPACKED:,} bytes; write the set again with "
                            "smaller chunks, or without compression"
                        )
            except zstandard.ZstdError as error:
                raise self.damaged(f"it cannot be unpacked ({error})") from error
        if self.compression is None and len(content) != file.num_bytes:
            raise self.damaged(f"it has {len(content)} bytes, and had {file.num_bytes}")
        return memoryview(content)


@dataclass(frozen=True)
class ChunkData:
    """The content of a chunk."""

    chunk: Chunk
    data: memoryview
    offsets: Sequence[int]
    """Begin of each item, and the end of the last one."""

    def table(self) -> memoryview | None:
        """Return the Arrow file of the rows, if the samples are stored there and not as items.

        Raises:
            FormatError: Its size does not fit the chunk.
        """
        has_items = len(self.offsets) == 1 or self.offsets[0] != self.offsets[-1]
        if has_items or bytes(self.data[-len(_MAGIC) :]) != _MAGIC:
            return None
        end = len(self.data) - _TAIL_BYTES
        begin = end - int.from_bytes(self.data[end : end + 4], "little")
        if begin < self.offsets[-1]:
            raise self.chunk.damaged("its table of rows does not fit it")
        return self.data[begin:end]


_BATCH_BYTES = 32 << 20
_ARRAYS: dict[str, tuple[str, str, dict[int, str]]] = {
    "numpy": ("<", "an array", dict(enumerate((
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    )))),
    "tensor": (">", "a tensor", {
        0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8", 12: "int8",
        13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 20: "uint16",
    }),
}  # fmt: skip
"""By serializer of arrays: the order of the bytes of its header, a name for messages, element types by their number."""
_FILES = frozenset({"bytes", "video", "audio", "pdf", "nifti", "mesh", "tifffile", "file"})


@dataclass(frozen=True)
class LeafColumn:
    """The column of one leaf."""

    field: pa.Field
    place: int
    format: str

    def array(self, contents: Sequence[bytes]) -> pa.Array:
        """Return the values of a batch.

        Raises:
            ValueError, struct.error: A content is no such value.
        """
        read = _READERS.get(self.format.partition(":")[0])
        values = contents if read is None else [read(content, self.format) for content in contents]
        return pa.array(values, self.field.type)


@dataclass(frozen=True)
class ChunkOfItems(Chunk):
    """The samples of a chunk that are stored leaf by leaf."""

    num_leaves: int
    columns: tuple[LeafColumn, ...] = field(repr=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the samples in order; memory holds one chunk.

        Raises:
            FormatError: The chunk is damaged.
        """
        items: list[list[bytes]] = []
        num_bytes = before = 0
        for item in leaves_of(self.read(), self.num_leaves):
            items.append(item)
            num_bytes += sum(map(len, item))
            if num_bytes >= _BATCH_BYTES:
                yield self._batch(items, before)
                before += len(items)
                items, num_bytes = [], 0
        if items:
            yield self._batch(items, before)

    def _batch(self, items: Sequence[Sequence[bytes]], before: int) -> pa.RecordBatch:
        arrays = []
        for column in self.columns:
            contents = [item[column.place] for item in items]
            try:
                arrays.append(column.array(contents))
            except (ValueError, struct.error, IndexError, KeyError, RecursionError, pa.ArrowException) as error:
                reason = error.message if isinstance(error, SmaltiError) else str(error)
                raise FormatError(
                    f"{self.file.url}, items {before} to {before + len(items) - 1}: a value of column "
                    f"{column.field.name!r} is no {column.format}: {reason[:200]}",
                    column=column.field.name,
                    key=self.file.key,
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field for column in self.columns]))


def item_columns(
    where: str, config: Mapping[str, Any], first: ChunkData | None, wanted: Sequence[str] | None
) -> tuple[int, tuple[LeafColumn, ...]]:
    """Return the number of leaves of a sample, and the columns of those that are read, by the index.

    Raises:
        FormatError: The configuration cannot be read.
        SchemaError: A leaf is pickled or cannot be stored; or there is no such column.
    """
    names, formats = _leaves(where, config)
    check_columns(where, wanted or (), names)
    head = None if first is None else next(leaves_of(first, len(names)), None)
    chosen = dict.fromkeys(names if wanted is None else wanted)
    places = [names.index(name) for name in chosen]
    return len(names), tuple(_column(where, names[at], at, formats[at], head) for at in places)


def _leaves(where: str, config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return name and serializer of each leaf of a sample."""
    formats = config.get("data_format")
    try:
        _, spec = json.loads(str(config.get("data_spec")))
        names = list(_names(spec, ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f"{where}: `data_spec` of the index cannot be read: {str(error)[:200]}") from error
    if not isinstance(formats, list) or len(formats) != len(names) or len(set(names)) < len(names):
        raise FormatError(f"{where}: `data_format` and `data_spec` of the index do not fit each other")
    return names, [str(each) for each in formats]


def _names(spec: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the names of the leaves of a tree of torch.utils._pytree, as it is written to JSON."""
    children, kind = spec["children_spec"], spec["type"]
    if kind is None:
        yield path or "value"
        return
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(spec["context"])
    elif kind in ("builtins.list", "builtins.tuple"):
        keys = list(range(len(children)))
    else:
        raise ValueError(f"a sample of type {kind}")
    for key, child in zip(keys, children, strict=True):
        yield from _names(child, f"{path}.{key}" if path else str(key))


def leaves_of(content: ChunkData, num_leaves: int) -> Iterator[list[bytes]]:
    """Yield the bytes of the leaves of each sample of a chunk.

    Raises:
        FormatError: The chunk is damaged.
    """
    after = len(content.data) - content.offsets[-1]
    if after:
        raise content.chunk.damaged(f"{after} bytes follow its last item")
    width = 4 * num_leaves
    for number, (first, last) in enumerate(pairwise(content.offsets)):
        if last - first < width:
            raise content.chunk.damaged(f"item {number} is shorter than the sizes of its leaves")
        sizes = np.frombuffer(content.data, "<u4", num_leaves, first).astype(np.int64)
        ends = (first + width + np.concatenate([[0], np.cumsum(sizes)])).tolist()
        if ends[-1] != last:
            raise content.chunk.damaged(
                f"item {number} has {last - first} bytes, and its leaves take {ends[-1] - first}"
            )
        yield [bytes(content.data[low:high]) for low, high in pairwise(ends)]


def _column(where: str, name: str, place: int, written: str, first: Sequence[bytes] | None) -> LeafColumn:
    """Return the column of a leaf, by its serializer and its first value.

    Raises:
        SchemaError: It is pickled, or cannot be stored.
    """
    family, _, code = written.partition(":")
    head = b"" if first is None else first[place]
    kind, encoding, fault = _PLAIN.get(family, pa.binary()), None, ""
    if family.removeprefix("no_header_") in _ARRAYS:
        order, _, dtypes = _ARRAYS[family.removeprefix("no_header_")]
        try:
            number = int(code) if code else struct.unpack_from(f"{order}I", head)[0]
            encoding = f"ndarray:{dtypes[number]}"
        except (ValueError, KeyError, struct.error):
            fault = f"column {name!r} has arrays of a type that cannot be stored; leave it out with `columns`"
    elif family in ("jpeg", "jpeg_array", "pil", "json"):
        encoding = family
    elif family == "image":
        encoding = "jpeg" if head.startswith(b"\xff\xd8\xff") else "png" if head.startswith(b"\x89PNG") else None
    elif family == "pickle":
        fault = f"column {name!r} is pickled, and to read a pickle runs code; leave it out with `columns`, or {ADVICE}"
    elif family not in _FILES and family not in _PLAIN:
        fault = f"column {name!r} has the serializer {family!r}, which is not read; leave it out, or {ADVICE}"
    if fault:
        raise SchemaError(f"{where}: {fault}", column=name)
    notes = None if encoding is None else {STORED_AS: encoding.encode()}
    return LeafColumn(pa.field(name, kind, nullable=False, metadata=notes), place, written)


_PLAIN = {
    "str": pa.string(),
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}


def _array(content: bytes, written: str) -> bytes:
    """Return the stored bytes of an array; type and shape are before it, or it has one axis and the type is `code`."""
    family, _, code = written.partition(":")
    order, noun, dtypes = _ARRAYS[family.removeprefix("no_header_")]
    shape: tuple[int, ...] = (-1,)
    if family.startswith("no_header_"):
        number = int(code)
    else:
        number, ndim = struct.unpack_from(f"{order}II", content)
        if ndim > 32 or number not in dtypes:
            raise ValueError(f"{noun} of a type that cannot be stored")
        shape = struct.unpack_from(f"{order}{ndim}I", content, 8)
        if not shape:
            raise ValueError("an array without axes: make it a number")
        content = content[8 + 4 * ndim :]
    dtype = dtypes[number]
    return parse_encoding(f"ndarray:{dtype}").encode(np.frombuffer(content, dtype).reshape(shape))


def _truth(content: bytes, _: str) -> bool:
    if content not in (b"\0", b"\1"):
        raise ValueError("expected one byte, 0 or 1")
    return content == b"\1"


def _json(content: bytes, _: str) -> bytes:
    """Return JSON text: as it is, or of the compact form that newer releases write."""
    if content[:1] > b"\x20":
        return content
    reader = _Compact(content)
    value = reader.value()
    if reader.at != len(content):
        raise ValueError("something follows the end of a nested value")
    return parse_encoding("json").encode(value)


_LENGTH, _INTEGER, _DOUBLE = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")


class _Compact:
    """Reads nested values in the compact form of LitData: a tag, a number of items, the items."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        """Place of the next byte."""

    def value(self) -> Any:
        """Return the next value."""
        tag = self._byte()
        if tag in (7, 8, 9, 10, 11):
            return self._single(tag - 7)
        count = self._count("items")
        if tag == 0:
            return json.loads(self._bytes(count))
        if tag in (2, 3):
            numbers = struct.unpack_from(f"<{count}{'q' if tag == 2 else 'd'}", self._data, self.at)
            self.at += 8 * count
            return list(numbers)
        if tag == 4:
            return [bool(each) for each in self._bytes(count)]
        if tag == 6:
            return self._records(count)
        found: list[Any] = []
        for _ in range(count):
            key = self._text()
            found.append((key, self.value()) if tag == 5 else key)
        if tag not in (1, 5):
            raise ValueError(f"a nested value with the unknown tag {tag}")
        return unique_keys(found) if tag == 5 else found

    def _records(self, count: int) -> list[dict[str, Any]]:
        keys = [self._text() for _ in range(self._count("keys"))]
        unique_keys([(key, None) for key in keys])
        return [{key: self._single(self._byte() - 0x11) for key in keys} for _ in range(count)]

    def _single(self, kind: int) -> Any:
        """Return a single value: 0 text, 1 integer, 2 float, 3 truth value, 4 and -1 nothing."""
        if kind == 0:
            return self._text()
        if kind == 3:
            return bool(self._byte())
        return None if kind in (-1, 4) else self._number(_INTEGER if kind == 1 else _DOUBLE)

    def _text(self) -> str:
        length = self._number(_LENGTH)
        if self.at + length > len(self._data):
            raise ValueError("a text beyond the end")
        return self._bytes(length).decode("utf-8")

    def _count(self, what: str) -> int:
        count: int = self._number(_LENGTH)
        if count > len(self._data):
            raise ValueError(f"a number of {what} beyond the end")
        return count

    def _bytes(self, count: int) -> bytes:
        self.at += count
        return self._data[self.at - count : self.at]

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _number(self, layout: struct.Struct) -> Any:
        (found,) = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return found


_READERS: dict[str, Callable[[bytes, str], Any]] = {
    "str": lambda content, _: content.decode("utf-8"),
    "text": lambda content, _: content.decode("utf-8"),
    "int": lambda content, _: struct.unpack("<q", content)[0],
    "float": lambda content, _: struct.unpack("<d", content)[0],
    "bool": _truth,
    "json": _json,
    "numpy": _array,
    "tensor": _array,
    "no_header_numpy": _array,
    "no_header_tensor": _array,
}
