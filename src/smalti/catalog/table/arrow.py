"""The Arrow file of a shard table: a million shards take 200 MB, where JSON takes 450 MB and 1.5 times as long.

Its layouts, and how it is read, are in `smalti.catalog.table.content`.

`pack_shards` returns a table as short text for the results of Spark tasks: a tenth of the JSON, so that a driver can
keep all of them.

`read_regular` reads large index files of other writers, as columns, by Arrow's JSON reader: the entries in files of
MosaicML's writer differ in names, sizes, hashes and counts only. Parsed to Python objects, 10^5 of them take seconds. A
file with other entries, or an invalid one, is left to `parse_index`, which explains the fault.
"""

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from smalti.catalog.table.content import (
    MAX_TABLE_BYTES,
    TABLE_VERSION,
    TEXT_TABLE_VERSION,
    checked_content,
    load_content,
    own_content,
)
from smalti.catalog.table.rows import COLUMNS, PARTIAL_COLUMNS, TEXT_COLUMNS, WORD
from smalti.catalog.table.shard_table import ShardTable, canonical
from smalti.errors import IndexFileError, SmaltiError
from smalti.format import FileInfo, Schema, ShardInfo, parse_index
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 1 << 14
_COMPRESSION_LEVEL = 6
_quoted = json.encoder.encode_basestring_ascii
_HEAD, _TAIL = b'{"shards": [', b'], "version": 2}'
_BETWEEN = b"}, {"  # around and between the entries of foreign index files


def emit_table(shards: Iterable[ShardInfo]) -> bytes:
    """Return the Arrow IPC file of the shards; the same shards give the same bytes with the same version of Arrow.

    It is not created again if it is in memory. The shards are iterated once, some thousands at a time; memory is about
    twice the size of the file.
    """
    return created_bytes(shards) or file_of(*_columns_of(shards))


def created_bytes(shards: Iterable[ShardInfo]) -> bytes | None:
    """Return the bytes of the file with exactly these shards, if this process created it; it was checked then."""
    files = shards.content.files if isinstance(shards, ShardTable) and shards.is_whole else ()
    content = files[0].loaded if len(files) == 1 else None
    return bytes(content.data) if content is not None and content.is_own else None


def emit_joined(parts: Sequence[Sequence[ShardInfo]]) -> bytes:
    """Return the file that `emit_table` returns for the shards of all parts; their columns are joined as they are.

    No shards are created if the parts are tables with the same schemas: this takes a tenth of the time.
    """
    columns = [_columns_of(part) for part in parts if len(part)]
    if any(schemas != columns[0][1] for _, schemas in columns):
        columns = [_built(chain.from_iterable(parts))]
    return file_of([piece for pieces, _ in columns for piece in pieces], columns[0][1] if columns else [])


def _columns_of(shards: Iterable[ShardInfo]) -> tuple[list["pa.Table"], Sequence[dict[str, Any]]]:
    """Return the columns of the shards, in pieces, and their schemas; not built if they are rows of files."""
    import pyarrow as pa

    spans = shards.spans() if isinstance(shards, ShardTable) else []
    if not spans or any(content.schemas != spans[0][0].schemas for content, _, _ in spans):
        return _built(shards)
    batches = [content.slice(first, last) for content, first, last in spans]
    return [pa.Table.from_batches([batch]).cast(_plain_schema()) for batch in batches], spans[0][0].schemas


def _built(shards: Iterable[ShardInfo]) -> tuple[list["pa.Table"], Sequence[dict[str, Any]]]:
    import pyarrow as pa

    schemas: dict[Schema, int] = {}
    plain = _plain_schema()
    pieces = []
    left = iter(shards)
    while part := list(islice(left, _ROWS_AT_ONCE)):
        columns = zip(*(_row(shard, schemas) for shard in part), strict=True)
        arrays = [pa.array(values, kind) for values, kind in zip(columns, plain.types, strict=True)]
        pieces.append(pa.table(arrays, schema=plain))
    return pieces, [{"names": list(s.names), "encodings": list(s.encodings), "sizes": list(s.sizes)} for s in schemas]


def _plain_schema() -> "pa.Schema":
    """Return the schema of all columns, with words as plain texts."""
    import pyarrow as pa

    return pa.schema({name: pa.type_for_alias("string" if kind == WORD else kind) for name, kind in COLUMNS.items()})


def _row(shard: ShardInfo, schemas: dict[Schema, int]) -> tuple[Any, ...]:
    """Return the values of a shard in the order of `COLUMNS`; its schema is added to `schemas` if it is new."""
    blocks = shard.blocks
    return (
        schemas.setdefault(shard.schema, len(schemas)), shard.partition, shard.samples, *_file(shard.raw),
        *_file(shard.zip), shard.compression, ",".join(shard.hash_names), shard.size_limit,
        shard.format, shard.newline, shard.separator, *_file(shard.meta), *_file(shard.zip_meta),
        *((None,) * 4 if blocks is None else (blocks.file, blocks.offset, blocks.block_bytes, _signed(blocks.digest))),
    )  # fmt: skip


def _file(file: FileInfo | None) -> tuple[str | None, int | None, str | None]:
    """Return name, size and hashes; these as JSON, formatted by hand: an encoder takes seconds for a million files."""
    if file is None:
        return None, None, None
    pairs = [f"{_quoted(name)}: {_quoted(digest)}" for name, digest in sorted(file.hashes.items())]
    return file.basename, file.num_bytes, "{" + ", ".join(pairs) + "}"


def _signed(digest: int) -> int:
    """Return the hash as a signed 64-bit number, the only number type of a table."""
    return digest if digest < 1 << 63 else digest - (1 << 64)


def file_of(pieces: Sequence["pa.Table"], schemas: Sequence[dict[str, Any]]) -> bytes:
    """Return the Arrow file of these rows, as a single batch, so that readers map each column in one piece.

    Columns that a piece lacks are null there; words are plain texts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.concat_tables([_plain_schema().empty_table(), *pieces], promote_options="default")
    formats = whole.column("format").fill_null("mds")
    has_text = bool(pc.any(pc.not_equal(formats, "mds")).as_py())
    arrays = {}
    for name, kind in COLUMNS.items():
        column = formats if name == "format" else whole.column(name)
        is_empty = name in PARTIAL_COLUMNS and column.null_count == len(column)
        if not is_empty and (has_text or name not in TEXT_COLUMNS):
            array = column.combine_chunks()
            arrays[name] = array.cast(pa.dictionary(pa.int32(), pa.string())) if kind == WORD else array
    about = {"version": TEXT_TABLE_VERSION if has_text else TABLE_VERSION, "schemas": list(schemas)}
    table = pa.table(arrays).replace_schema_metadata({"smalti": json.dumps(about, sort_keys=True)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_of(shards: Iterable[ShardInfo]) -> ShardTable:
    """Return the shards as a table, which takes a tenth of the memory of the objects.

    Raises:
        IndexFileError: two shards have a file name in common, or one is invalid.
    """
    return ShardTable.of(own_content(emit_table(shards)))


def parse_table(data: bytes, *, sha256: str, where: str) -> ShardTable:
    """Parse an Arrow file of shards; its bytes are checked against the digest, its content like an index file.

    Raises:
        IndexFileError: the bytes are not those that were published, or their content is invalid.
    """
    return ShardTable.of(checked_content(data, where, sha256))


def load_table(store: Store, key: str, *, sha256: str) -> ShardTable:
    """Load a shard table from a store: a local file is mapped, so that only the accessed parts are in memory.

    Raises:
        StoreNotFound: there is no such object.
        IndexFileError: it is larger than `MAX_TABLE_BYTES`; or as for `parse_table`.
    """
    is_far = store.local_path(key) is None
    return ShardTable.of(load_content(store, key, sha256=sha256, num_bytes=store.size(key), in_memory=is_far))


def pack_shards(shards: Sequence[ShardInfo]) -> str:
    """Return the shards as ASCII text."""
    return base64.b64encode(zlib.compress(emit_table(shards), _COMPRESSION_LEVEL)).decode("ascii")


def unpack_shards(text: str, *, where: str) -> ShardTable:
    """Return the shards of a text from `pack_shards`, checked like an index file.

    Raises:
        IndexFileError: the text is not of this form, or its content is invalid.
    """
    try:
        inflating = zlib.decompressobj()
        data = inflating.decompress(base64.b64decode(text, validate=True), MAX_TABLE_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise IndexFileError(f"{where} is not a packed list of shards: {str(error)[:200]}", where=where) from error
    if not inflating.eof:
        raise IndexFileError(
            f"{where}: a packed list of shards is cut short, or larger than {MAX_TABLE_BYTES} bytes", where=where
        )
    return parse_table(data, sha256=hashlib.sha256(data).hexdigest(), where=where)


def read_regular(data: bytes, *, where: str) -> tuple[ShardTable, str] | None:
    """Return the shards of an index file, checked as by `parse_index`, and their digest, which is `digest_of` them.

    None if its entries are not alike, or it has further top-level keys.
    """
    text = data.rstrip(b" \t\r\n")
    end = text.find(_BETWEEN, len(_HEAD)) + 1
    if not (end and text.startswith(_HEAD) and text.endswith(_TAIL)):
        return None
    try:
        (shard,), _ = parse_index(text[:end] + _TAIL, where=where)
        entries = _entries(text[len(_HEAD) : -len(_TAIL)], shard)
        return None if entries is None or shard.meta is not None else _index(entries, shard)
    except (SmaltiError, ValueError, KeyError):
        return None


def _entries(text: bytes, shard: ShardInfo) -> "pa.Table | None":
    """Return the entries, separated by commas, as rows; None if they differ in more than files and samples.

    Raises:
        ValueError: one is not JSON, or has other keys than that of `shard`.
    """
    import pyarrow as pa
    from pyarrow import json as arrow_json

    texts, number = pa.list_(pa.string()), pa.int64()
    alike = {
        "column_encodings": texts, "column_names": texts, "column_sizes": pa.list_(number), "compression": pa.string(),
        "format": pa.string(), "hashes": texts, "size_limit": number, "version": number,
    }  # fmt: skip
    files = {"raw_data": _file_type(shard.raw), "zip_data": _file_type(shard.zip or shard.raw)}
    # A separator within an entry would split it, so that neither part is an object.
    table = arrow_json.read_json(
        pa.BufferReader(text.replace(_BETWEEN, b"}\n{")),
        parse_options=arrow_json.ParseOptions(
            pa.schema({**alike, **files, "samples": number}), unexpected_field_behavior="error"
        ),
    )
    is_whole = table.num_rows == text.count(_BETWEEN) + 1  # the reader accepts entries without a comma, too
    columns = (table.column(name).combine_chunks() for name in alike)
    return table if is_whole and all(each.slice(1).equals(each.slice(0, len(each) - 1)) for each in columns) else None


def _file_type(file: FileInfo) -> "pa.DataType":
    import pyarrow as pa

    hashes = pa.struct({name: pa.string() for name in file.hashes})
    return pa.struct({"basename": pa.string(), "bytes": pa.int64(), "hashes": hashes})


def _index(entries: "pa.Table", shard: ShardInfo) -> tuple[ShardTable, str]:
    """Return the shards of entries that differ from that of `shard` in files and samples only, and their digest.

    Raises:
        ValueError: there are compressed files, and the first entry has none.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    samples = entries.column("samples").combine_chunks()
    schema = {name: list(getattr(shard.schema, name)) for name in ("names", "encodings", "sizes")}
    alike = {"compression": shard.compression, "hash_names": ",".join(shard.hash_names), "size_limit": shard.size_limit}
    columns = {name: pa.repeat(pa.scalar(value), len(samples)) for name, value in alike.items()}
    columns |= {"schema": pa.repeat(pa.scalar(0, pa.int32()), len(samples)), "samples": samples}
    line = [f"{canonical(list(schema.values()))}[null,", samples.cast(pa.string())]
    for part, file in {"raw": shard.raw, "zip": shard.zip}.items():
        files = entries.column(f"{part}_data").combine_chunks()
        if file is None:
            if files.null_count < len(files):
                raise ValueError(f"entries with and without {part}_data")
            line.append(",null")
            continue
        names, sizes, hashes = files.flatten()
        digests = sorted(zip(file.hashes, hashes.flatten(), strict=True), key=lambda pair: pair[0])
        pieces = [piece for name, digest in digests for piece in (f', "{name}": "', digest, '"')]
        text = _joined(pa.repeat("{", len(names)), *(pieces and [pieces[0][2:], *pieces[1:]]), "}")
        columns |= {f"{part}_name": names, f"{part}_bytes": sizes, f"{part}_hashes": text}
        dense = pc.replace_substring(pc.replace_substring(text, '": "', '":"'), '", "', '","')
        line += [',["', names, '",', sizes.cast(pa.string()), ",", dense, "]"]
    shards = ShardTable.of(own_content(file_of([pa.table(columns)], [schema])))
    lines = _joined(*line, f",{canonical((shard.compression, shard.hash_names, shard.size_limit))[1:-1]}]\n")
    digest = hashlib.sha256(b"smalti-manifest-1\n" + "".join(lines.to_pylist()).encode("ascii"))
    return shards, digest.hexdigest()


def _joined(*parts: Any) -> Any:
    """Return the concatenation of texts and columns of texts."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, "")
