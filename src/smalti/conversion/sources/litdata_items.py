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
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from smalti.conversion.files import StoredFile, read_some
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
class Chunk:
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

    @property
    def num_items(self) -> int:
        """Number of samples."""
        return len(self.offsets) - 1

    def table(self) -> memoryview | None:
        """Return the Arrow file of the rows, if the samples are stored there and not as items.

        Raises:
            FormatError: Its size does not fit the chunk.
        """
        has_items = self.num_items == 0 or self.offsets[0] != self.offsets[-1]
        if has_items or bytes(self.data[-len(_MAGIC) :]) != _MAGIC:
            return None
        end = len(self.data) - _TAIL_BYTES
        begin = end - int.from_bytes(self.data[end : end + 4], "little")
        if begin < self.offsets[-1]:
            raise self.chunk.damaged("its table of rows does not fit it")
        return self.data[begin:end]


_BATCH_BYTES = 32 << 20
# Their tables of element types, by number.
_NUMPY = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
_TORCH = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8", 12: "int8",
    13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 20: "uint16",
}  # fmt: skip
_FILES = frozenset({"bytes", "video", "audio", "pdf", "nifti", "mesh", "tifffile", "file"})


@dataclass(frozen=True)
class Items:
    """The columns of samples that are stored leaf by leaf."""

    num_leaves: int
    columns: "tuple[LeafColumn, ...]"

    @property
    def schema(self) -> pa.Schema:
        """Columns with their encodings."""
        return pa.schema([column.field for column in self.columns])

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the samples of a chunk in order; memory holds one chunk.

        Raises:
            FormatError: The chunk is damaged.
        """
        items: list[list[bytes]] = []
        num_bytes = before = 0
        for item in leaves_of(chunk.read(), self.num_leaves):
            items.append(item)
            num_bytes += sum(map(len, item))
            if num_bytes >= _BATCH_BYTES:
                yield self._batch(chunk, items, before)
                before += len(items)
                items, num_bytes = [], 0
        if items:
            yield self._batch(chunk, items, before)

    def _batch(self, chunk: Chunk, items: Sequence[Sequence[bytes]], before: int) -> pa.RecordBatch:
        arrays = []
        for column in self.columns:
            contents = [item[column.place] for item in items]
            try:
                arrays.append(column.array(contents))
            except (ValueError, struct.error, IndexError, KeyError, RecursionError, pa.ArrowException) as error:
                reason = error.message if isinstance(error, SmaltiError) else str(error)
                raise FormatError(
                    f"{chunk.file.url}, items {before} to {before + len(items) - 1}: a value of column "
                    f"{column.field.name!r} is no {column.format}: {reason[:200]}",
                    column=column.field.name,
                    key=chunk.file.key,
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def item_columns(where: str, config: Mapping[str, Any], first: ChunkData | None, wanted: Sequence[str] | None) -> Items:
    """Return the columns of samples that are stored leaf by leaf, by the configuration in the index.

    Raises:
        FormatError: The configuration cannot be read.
        SchemaError: A leaf is pickled or cannot be stored; or there is no such column.
    """
    names, formats = _leaves(where, config)
    head = None if first is None else next(leaves_of(first, len(names)), None)
    columns = {name: _column(name, place, formats[place], head) for place, name in enumerate(names)}
    if wanted is not None:
        check_columns(where, wanted, columns)
        columns = {name: columns[name] for name in wanted}
    for column in columns.values():
        if column.fault:
            raise SchemaError(f"{where}: {column.fault}", column=column.field.name)
    return Items(len(names), tuple(columns.values()))


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


@dataclass(frozen=True)
class LeafColumn:
    """The column of one leaf."""

    field: pa.Field
    place: int
    format: str
    fault: str = ""
    """Reason why it cannot be read; empty if it can."""

    def array(self, contents: Sequence[bytes]) -> pa.Array:
        """Return the values of a batch.

        Raises:
            ValueError, struct.error: A content is no such value.
        """
        family, _, code = self.format.partition(":")
        read = _READERS.get(family)
        values = contents if read is None else [read(content, code) for content in contents]
        return pa.array(values, self.field.type)


def _column(name: str, place: int, written: str, first: Sequence[bytes] | None) -> LeafColumn:
    """Return the column of a leaf, by its serializer and its first value."""
    family, _, code = written.partition(":")
    head = None if first is None else first[place]
    kind, encoding, fault = pa.binary(), None, ""
    if family in _PLAIN:
        kind = _PLAIN[family]
    elif family in ("no_header_numpy", "no_header_tensor", "numpy", "tensor"):
        encoding, fault = _array_encoding(name, family, code, head)
    elif family in ("jpeg", "jpeg_array", "pil", "json"):
        encoding = family
    elif family == "image":
        starts = b"" if head is None else head[:4]
        encoding = "jpeg" if starts.startswith(b"\xff\xd8\xff") else "png" if starts == b"\x89PNG" else None
    elif family == "pickle":
        fault = f"column {name!r} is pickled, and to read a pickle runs code; leave it out with `columns`, or {ADVICE}"
    elif family not in _FILES:
        fault = f"column {name!r} has the serializer {family!r}, which is not read; leave it out, or {ADVICE}"
    notes = None if encoding is None else {STORED_AS: encoding.encode()}
    return LeafColumn(pa.field(name, kind, nullable=False, metadata=notes), place, written, fault)


def _array_encoding(name: str, family: str, code: str, head: bytes | None) -> tuple[str | None, str]:
    """Return the encoding of a column of arrays, and why it cannot be stored."""
    try:
        number = int(code) if code else struct.unpack_from("<I" if family == "numpy" else ">I", head or b"")[0]
        dtype = _NUMPY[number] if family.endswith("numpy") else _TORCH[number]
    except (ValueError, IndexError, KeyError, struct.error):
        return None, f"column {name!r} has arrays of a type that cannot be stored; leave it out with `columns`"
    return f"ndarray:{dtype}", ""


_PLAIN = {
    "str": pa.string(),
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}


def _flat_array(content: bytes, dtype: str) -> bytes:
    """Return the stored bytes of an array of one axis."""
    return parse_encoding(f"ndarray:{dtype}").encode(np.frombuffer(content, dtype))


def _numpy(content: bytes, _: str) -> bytes:
    number, ndim = struct.unpack_from("<II", content)
    if ndim > 32 or number >= len(_NUMPY):
        raise ValueError("an array of a type that cannot be stored")
    shape = struct.unpack_from(f"<{ndim}I", content, 8)
    return _shaped(content[8 + 4 * ndim :], _NUMPY[number], shape)


def _tensor(content: bytes, _: str) -> bytes:
    number, ndim = struct.unpack_from(">II", content)
    if ndim > 32 or number not in _TORCH:
        raise ValueError("a tensor of a type that cannot be stored")
    shape = struct.unpack_from(f">{ndim}I", content, 8)
    return _shaped(content[8 + 4 * ndim :], _TORCH[number], shape)


def _shaped(content: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
    if not shape:
        raise ValueError("an array without axes: make it a number")
    return parse_encoding(f"ndarray:{dtype}").encode(np.frombuffer(content, dtype).reshape(shape))


def _truth(content: bytes, _: str) -> bool:
    if content not in (b"\0", b"\1"):
        raise ValueError("expected one byte, 0 or 1")
    return content == b"\1"


def _json(content: bytes, _: str) -> bytes:
    """Return JSON text: as it is, or of the compact form that newer releases write."""
    if content[:1] > b"\x20":
        return content
    value, end = _Compact(content).value(0)
    if end != len(content):
        raise ValueError("something follows the end of a nested value")
    return parse_encoding("json").encode(value)


class _Compact:
    """Nested values in the compact form of LitData: a tag, a number of items, the items."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def value(self, at: int) -> tuple[Any, int]:
        """Return the value at a place, and its end."""
        tag = self._data[at]
        if tag in (7, 8, 9, 10, 11):
            return self._single(tag - 7, at + 1)
        count, at = self._count(at + 1)
        if count > len(self._data):
            raise ValueError("a number of items beyond the end")
        if tag == 0:
            return json.loads(self._data[at : at + count]), at + count
        if tag in (2, 3):
            numbers = struct.unpack_from(f"<{count}{'q' if tag == 2 else 'd'}", self._data, at)
            return list(numbers), at + 8 * count
        if tag == 4:
            return [bool(each) for each in self._data[at : at + count]], at + count
        found: list[Any] = []
        if tag == 6:
            return self._records(count, at)
        for _ in range(count):
            key, at = self._text(at)
            item: Any = key
            if tag == 5:
                inner, at = self.value(at)
                item = (key, inner)
            found.append(item)
        if tag not in (1, 5):
            raise ValueError(f"a nested value with the unknown tag {tag}")
        return (unique_keys(found) if tag == 5 else found), at

    def _single(self, kind: int, at: int) -> tuple[Any, int]:
        """Return a single value: 0 text, 1 integer, 2 float, 3 truth value, 4 nothing."""
        if kind == 0:
            return self._text(at)
        if kind == 3:
            return bool(self._data[at]), at + 1
        if kind == 4:
            return None, at
        return struct.unpack_from("<q" if kind == 1 else "<d", self._data, at)[0], at + 8

    def _records(self, count: int, at: int) -> tuple[list[dict[str, Any]], int]:
        num_keys, at = self._count(at)
        if num_keys > len(self._data):
            raise ValueError("a number of keys beyond the end")
        keys = []
        for _ in range(num_keys):
            key, at = self._text(at)
            keys.append(key)
        unique_keys([(key, None) for key in keys])
        rows: list[dict[str, Any]] = []
        for _ in range(count):
            row = {}
            for key in keys:
                kind = (self._data[at] - 0x11) % 256  # 0x10 is nothing
                row[key], at = self._single(4 if kind == 255 else kind, at + 1)
            rows.append(row)
        return rows, at

    def _count(self, at: int) -> tuple[int, int]:
        return int(struct.unpack_from("<I", self._data, at)[0]), at + 4

    def _text(self, at: int) -> tuple[str, int]:
        length, at = self._count(at)
        if at + length > len(self._data):
            raise ValueError("a text beyond the end")
        return self._data[at : at + length].decode("utf-8"), at + length


_READERS: dict[str, Callable[[bytes, str], Any]] = {
    "str": lambda content, _: content.decode("utf-8"),
    "text": lambda content, _: content.decode("utf-8"),
    "int": lambda content, _: struct.unpack("<q", content)[0],
    "float": lambda content, _: struct.unpack("<d", content)[0],
    "bool": _truth,
    "json": _json,
    "numpy": _numpy,
    "tensor": _tensor,
    "no_header_numpy": lambda content, code: _flat_array(content, _NUMPY[int(code)]),
    "no_header_tensor": lambda content, code: _flat_array(content, _TORCH[int(code)]),
}
