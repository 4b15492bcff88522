"""Chunks of LitData (`litdata.optimize`), read by their own format: neither litdata nor torch is needed.

    index.json    chunks, and config: form of the samples, compression
    a chunk       uint32 N | uint32 offset of each item, and of the end | items | perhaps a table of rows
    an item       uint32 size of each leaf | the leaves
    a table       an Arrow file or stream | uint32 size of it | LDARW01 and a zero byte

A sample that is a dict gives a column for each key, `a.b` for a nested one that is stored leaf by leaf; of a list or
tuple the columns are named by number, and a single leaf is `value`. Pickles are refused: to read them runs code. Chunks
that are encrypted, of tokens (`TokensLoader`) or compressed in frames are refused with advice.

Samples in chunks that are stored as an Arrow table are flat or nested dicts of numbers, texts and bytes.

The index describes the columns of all chunks (`types`); each chunk has those that its samples have, in the types that
Arrow found for their values. Arrow trusts the offsets in a table, so each batch is validated before it is used.
"""

import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from smalti.conversion.files import StoredFile, files_named, marks_of, read_object, read_some
from smalti.conversion.source import OpenedPart, OpenedSource, SourceOptions, check_columns, image_encoding
from smalti.errors import FormatError, SchemaError, SmaltiError
from smalti.format import parse_encoding
from smalti.format.json_fields import unique_keys
from smalti.format.reading.arrow import STORED_AS
from smalti.storage import open_store
from smalti.writer.tables.values import cast_array, plain_array

_INDEX = "index.json"
_ADVICE = "write the set again without it with litdata.optimize, or read it with litdata and write rows with MDSWriter"
_MAX_CHUNK = 1 << 32
_MAX_UNPACKED = 1 << 30
"""Most bytes that a compressed chunk may unpack to: a small file can claim all memory."""
_PIECE_BYTES = 1 << 24
_BATCH_BYTES = 32 << 20
_MAGIC = b"LDARW01\0"
_FILE = b"ARROW1"
_KINDS = {
    "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "bytes": pa.binary(),
    "null": pa.null(),
}  # fmt: skip
_MAX_DEPTH = 64
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


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are chunks of LitData."""
    return _INDEX in names and any(name.startswith("chunk-") and name.endswith(".bin") for name in names)


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the samples of the chunks at a place.

    Raises:
        StoreNotFound: There is no index file, or a chunk is missing.
        FormatError: The index cannot be read, or the chunks have a form that is not.
        SchemaError: A column is pickled or cannot be stored; or there is no such column.
    """
    options.settings_of("chunks of LitData")
    store = open_store(place, options.storage_options)
    index = read_object(store, _INDEX)
    config, entries = index.get("config"), index.get("chunks")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise FormatError(f"{store.locate(_INDEX)}: expected an index of LitData with `chunks` and `config`")
    if not isinstance(config, dict):
        raise FormatError(f"{store.locate(_INDEX)}: expected an index of LitData with a `config`")
    if config.get("encryption"):
        raise FormatError(f"{store.url}: the chunks are encrypted; {_ADVICE}")
    if config.get("item_loader") not in (None, "PyTreeLoader"):
        raise FormatError(f"{store.url}: the chunks are made for {config['item_loader']}, which is not read; {_ADVICE}")
    compression = str(config["compression"]).partition(":")[0] if config.get("compression") else None
    is_framed = config.get("compression_batch_size") or config.get("compression_level") not in (None, "chunk")
    if compression not in (None, "zstd") or is_framed:
        raise FormatError(f"{store.url}: compression {config.get('compression')!r} in frames is not read; {_ADVICE}")
    files = files_named(store, _INDEX, [each.get("filename") for each in entries])
    counts = [count if type(count := each.get("chunk_size")) is int else None for each in entries]
    chunks = [Chunk(file, compression, count) for file, count in zip(files, counts, strict=True)]
    first = chunks[0].read() if chunks else None
    if first is not None and first.table is not None:
        schema = _row_columns(store.url, config.get("types"), options.columns)
        reads = [partial(_rows_of_table, chunk, schema) for chunk in chunks]
    else:
        num_leaves, columns = _item_columns(store.url, config, first, options.columns)
        schema = pa.schema([column.field for column in columns])
        reads = [partial(_rows_of_items, chunk, num_leaves, columns) for chunk in chunks]
    parts = [OpenedPart(file.key, file.num_bytes, read) for file, read in zip(files, reads, strict=True)]
    return OpenedSource(store.url, schema, parts, partial(marks_of, files))


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
        """Return the content, which is in memory once.

        Raises:
            FormatError: It is damaged, too large, or has another number of samples than the index says.
        """
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
        return self._parsed(memoryview(content))

    def _parsed(self, data: memoryview) -> "ChunkData":
        """Return the content with the places of its items and of its table, if the samples are stored there."""
        count = int.from_bytes(data[:4], "little")
        begin = 4 + 4 * (count + 1)
        if len(data) < 4 or begin > len(data):
            raise self.damaged(f"{count} items do not fit its {len(data)} bytes")
        if self.num_items not in (None, count):
            raise self.damaged(f"it has {count} samples, and the index says {self.num_items}")
        offsets = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
        if int(offsets[0]) < begin or int(offsets[-1]) > len(data) or (np.diff(offsets) < 0).any():
            raise self.damaged("its offsets do not rise within it")
        table = None
        if count and offsets[0] == offsets[-1] and bytes(data[-len(_MAGIC) :]) == _MAGIC:
            end = len(data) - len(_MAGIC) - 4
            begin = end - int.from_bytes(data[end : end + 4], "little")
            if begin < int(offsets[-1]):
                raise self.damaged("its table of rows does not fit it")
            table = data[begin:end]
        return ChunkData(self, data, offsets.tolist(), table)


@dataclass(frozen=True)
class ChunkData:
    """The content of a chunk."""

    chunk: Chunk
    data: memoryview
    offsets: Sequence[int]
    """Begin of each item, and the end of the last one."""
    table: memoryview | None
    """The Arrow file of the rows, if the samples are stored there and not as items."""

    def leaves(self, num_leaves: int) -> Iterator[list[bytes]]:
        """Yield the bytes of the leaves of each sample that is stored as an item.

        Raises:
            FormatError: The chunk is damaged.
        """
        if after := len(self.data) - self.offsets[-1]:
            raise self.chunk.damaged(f"{after} bytes follow its last item")
        width = 4 * num_leaves
        for number, (first, last) in enumerate(pairwise(self.offsets)):
            if last - first < width:
                raise self.chunk.damaged(f"item {number} is shorter than the sizes of its leaves")
            sizes = np.frombuffer(self.data, "<u4", num_leaves, first).astype(np.int64)
            ends = (first + width + np.concatenate([[0], np.cumsum(sizes)])).tolist()
            if ends[-1] != last:
                fault = f"item {number} has {last - first} bytes, and its leaves take {ends[-1] - first}"
                raise self.chunk.damaged(fault)
            yield [bytes(self.data[low:high]) for low, high in pairwise(ends)]


def _rows_of_table(chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the samples of a chunk that are the rows of an Arrow table; memory holds one chunk.

    Raises:
        FormatError: The chunk is damaged, or has samples of another form.
    """
    content = chunk.read()
    if content.table is None:
        raise chunk.damaged("its samples are stored as items, and those of the first chunk as an Arrow table")
    count = 0
    for batch in _stored_batches(chunk, content.table):
        count += batch.num_rows
        arrays = [_column(chunk, batch, wanted) for wanted in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    expected = len(content.offsets) - 1
    if count != expected:
        raise chunk.damaged(f"its table has {count} rows, and {expected} samples are declared")


def _stored_batches(chunk: Chunk, table: memoryview) -> Iterator[pa.RecordBatch]:
    source = pa.py_buffer(table)
    try:
        if bytes(table[: len(_FILE)]) == _FILE:
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(source))
        for batch in batches:
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError, ValueError) as error:
        raise chunk.damaged(f"its Arrow table: {str(error)[:200]}") from error


def _column(chunk: Chunk, batch: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
    place = batch.schema.get_field_index(wanted.name)
    if place < 0:
        return pa.nulls(batch.num_rows, wanted.type)
    try:
        return cast_array(plain_array(batch.column(place)), wanted.type)
    except pa.ArrowException as error:
        raise FormatError(
            f"{chunk.file.url}: column {wanted.name!r} is {batch.column(place).type} there, and the index describes "
            f"it as {wanted.type}: {str(error)[:200]}; leave it out with `columns`, or {_ADVICE}",
            column=wanted.name,
            key=chunk.file.key,
        ) from error


def _row_columns(where: str, types: Any, names: Sequence[str] | None) -> pa.Schema:
    """Return the columns of a set of rows, by the `types` of its index.

    Raises:
        FormatError: They cannot be read.
        SchemaError: There is no such column, or one has values of several types.
    """
    if not isinstance(types, dict) or not types:
        raise FormatError(
            f"{where}: the chunks hold Arrow tables, and `types` of the index names no columns; {_ADVICE}"
        )
    check_columns(where, names, types)
    fields = []
    for name in types if names is None else dict.fromkeys(names):
        kind = _arrow_type(types[name], 0)
        if kind is None:
            raise SchemaError(
                f"{where}: column {name!r} has values of several types ({str(types[name])[:100]}), which are not read; "
                f"leave it out with `columns`, or {_ADVICE}",
                column=name,
            )
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _arrow_type(described: Any, depth: int) -> pa.DataType | None:
    """Return the type that LitData describes; None if it is no type of a column."""
    if isinstance(described, str):
        return _KINDS.get(described)
    kind = described.get("type") if isinstance(described, Mapping) else None
    if kind == "list" and depth < _MAX_DEPTH:
        # The type of lists that were all empty is "json".
        value = pa.null() if described.get("value") == "json" else _arrow_type(described.get("value"), depth + 1)
        return None if value is None else pa.list_(value)
    if kind == "struct" and depth < _MAX_DEPTH and isinstance(described.get("fields"), Mapping):
        fields = {name: _arrow_type(field, depth + 1) for name, field in described["fields"].items()}
        return None if None in fields.values() else pa.struct(list(fields.items()))
    return _KINDS.get(kind) if isinstance(kind, str) else None


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


def _rows_of_items(chunk: Chunk, num_leaves: int, columns: Sequence[LeafColumn]) -> Iterator[pa.RecordBatch]:
    """Yield the samples of a chunk that are stored leaf by leaf; memory holds one chunk.

    Raises:
        FormatError: The chunk is damaged.
    """
    items: list[list[bytes]] = []
    num_bytes = before = 0
    for item in chunk.read().leaves(num_leaves):
        items.append(item)
        num_bytes += sum(map(len, item))
        if num_bytes >= _BATCH_BYTES:
            yield _batch(chunk, columns, items, before)
            before += len(items)
            items, num_bytes = [], 0
    if items:
        yield _batch(chunk, columns, items, before)


def _batch(
    chunk: Chunk, columns: Sequence[LeafColumn], items: Sequence[Sequence[bytes]], before: int
) -> pa.RecordBatch:
    arrays = []
    for column in columns:
        try:
            arrays.append(column.array([item[column.place] for item in items]))
        except (ValueError, struct.error, KeyError, RecursionError, pa.ArrowException) as error:  # noqa: PERF203
            reason = error.message if isinstance(error, SmaltiError) else str(error)
            raise FormatError(
                f"{chunk.file.url}, items {before} to {before + len(items) - 1}: a value of column "
                f"{column.field.name!r} is no {column.format}: {reason[:200]}",
                column=column.field.name,
                key=chunk.file.key,
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field for column in columns]))


def _item_columns(
    where: str, config: Mapping[str, Any], first: ChunkData | None, wanted: Sequence[str] | None
) -> tuple[int, tuple[LeafColumn, ...]]:
    """Return the number of leaves of a sample, and the columns of those that are read, by the index.

    Raises:
        FormatError: The configuration cannot be read.
        SchemaError: A leaf is pickled or cannot be stored; or there is no such column.
    """
    formats = config.get("data_format")
    try:
        _, spec = json.loads(str(config.get("data_spec")))
        names = list(_leaf_names(spec, ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f"{where}: `data_spec` of the index cannot be read: {str(error)[:200]}") from error
    if not isinstance(formats, list) or len(formats) != len(names) or len(set(names)) < len(names):
        raise FormatError(f"{where}: `data_format` and `data_spec` of the index do not fit each other")
    check_columns(where, wanted or (), names)
    head = None if first is None else next(first.leaves(len(names)), None)
    places = [names.index(name) for name in dict.fromkeys(names if wanted is None else wanted)]
    return len(names), tuple(_leaf_column(where, names[at], at, str(formats[at]), head) for at in places)


def _leaf_names(spec: Mapping[str, Any], path: str) -> Iterator[str]:
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
        yield from _leaf_names(child, f"{path}.{key}" if path else str(key))


def _leaf_column(where: str, name: str, place: int, written: str, first: Sequence[bytes] | None) -> LeafColumn:
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
        encoding = image_encoding(head)
    elif family == "pickle":
        fault = f"column {name!r} is pickled, and to read a pickle runs code; leave it out with `columns`, or {_ADVICE}"
    elif family not in _FILES and family not in _PLAIN:
        fault = f"column {name!r} has the serializer {family!r}, which is not read; leave it out, or {_ADVICE}"
    if fault:
        raise SchemaError(f"{where}: {fault}", column=name)
    notes = None if encoding is None else {STORED_AS: encoding.encode()}
    return LeafColumn(pa.field(name, kind, nullable=False, metadata=notes), place, written)


_PLAIN = {"text": pa.string(), **{name: _KINDS[name] for name in ("str", "int", "float", "bool")}}


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
    if reader.tell() != len(content):
        raise ValueError("something follows the end of a nested value")
    return parse_encoding("json").encode(value)


class _Compact(io.BytesIO):
    """Nested values in the compact form of LitData: a tag, a number of items, the items."""

    def value(self) -> Any:
        """Return the next value."""
        tag = self._number("<B")
        if tag in (7, 8, 9, 10, 11):
            return self._single(tag - 7)
        count = self._count()
        if tag == 0:
            return json.loads(self._take(count))
        if tag in (2, 3):
            return list(struct.unpack(f"<{count}{'q' if tag == 2 else 'd'}", self._take(8 * count)))
        if tag == 4:
            return [bool(each) for each in self._take(count)]
        if tag == 6:
            keys = [self._text() for _ in range(self._count())]
            unique_keys([(key, None) for key in keys])
            return [{key: self._single(self._number("<B") - 0x11) for key in keys} for _ in range(count)]
        if tag == 1:
            return [self._text() for _ in range(count)]
        if tag != 5:
            raise ValueError(f"a nested value with the unknown tag {tag}")
        return unique_keys([(self._text(), self.value()) for _ in range(count)])

    def _single(self, kind: int) -> Any:
        """Return a single value: 0 text, 1 integer, 2 float, 3 truth value, 4 and -1 nothing."""
        if kind == 0:
            return self._text()
        if kind == 3:
            return bool(self._number("<B"))
        return None if kind in (-1, 4) else self._number("<q" if kind == 1 else "<d")

    def _text(self) -> str:
        return self._take(self._number("<I")).decode("utf-8")

    def _count(self) -> int:
        count: int = self._number("<I")
        if count > len(self.getbuffer()):
            raise ValueError("a number of items or keys beyond the end")
        return count

    def _take(self, num_bytes: int) -> bytes:
        data = self.read(num_bytes)
        if len(data) < num_bytes:
            raise ValueError("a nested value beyond the end")
        return data

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]


_READERS: dict[str, Callable[[bytes, str], Any]] = {
    **dict.fromkeys(("str", "text"), lambda content, _: content.decode("utf-8")),
    "int": lambda content, _: struct.unpack("<q", content)[0],
    "float": lambda content, _: struct.unpack("<d", content)[0],
    "bool": _truth,
    "json": _json,
    **dict.fromkeys(("numpy", "tensor", "no_header_numpy", "no_header_tensor"), _array),
}
