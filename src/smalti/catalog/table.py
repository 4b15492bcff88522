"""The table of shards as an Arrow file: a million shards are 200 MB, where JSON takes 450 and half as long again.

Sets of MDS shards have layout 1. Layout 2 has further columns for the meta files, line ends and separators of text
shards; only sets that have such shards are written so.
"""

import hashlib
import io
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from smalti.catalog.arrow_file import read_arrow_file, to_values
from smalti.catalog.manifest import check_shards
from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import (
    FileInfo,
    Schema,
    ShardInfo,
    check_hash_names,
    load_strict,
    parse_compression,
    parse_size_limit,
)
from smalti.format.collecting import uncollected
from smalti.format.fields import Fields
from smalti.format.info import MAX_STORED_BYTES, parse_schema
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.text_layout import TEXT_FORMATS, parse_layout

TABLE_VERSION = 1
TEXT_TABLE_VERSION = 2
_COLUMNS = (
    "schema", "partition", "samples", "raw_name", "raw_bytes", "raw_hashes", "zip_name", "zip_bytes",
    "zip_hashes", "compression", "hash_names", "size_limit",
)  # fmt: skip
_TEXT_COLUMNS = (
    "format", "newline", "separator", "meta_name", "meta_bytes", "meta_hashes", "zip_meta_name", "zip_meta_bytes",
    "zip_meta_hashes",
)  # fmt: skip

_ONE_HASH = re.compile(r'\{"(\w+)": "([0-9a-f]+)"\}', re.ASCII)  # as nearly every file has it; faster than JSON


def emit_table(shards: Sequence[ShardInfo]) -> bytes:
    """The Arrow IPC file of the shards; the same shards give the same bytes on one version of Arrow."""
    import pyarrow as pa

    schemas: dict[Schema, int] = {}
    for shard in shards:
        schemas.setdefault(shard.schema, len(schemas))
    arrays = [
        pa.array([schemas[shard.schema] for shard in shards], pa.int32()),
        _words(pa, [shard.partition for shard in shards]),
        pa.array([shard.samples for shard in shards], pa.int64()),
        *_file_arrays(pa, [shard.raw for shard in shards]),
        *_file_arrays(pa, [shard.zip for shard in shards]),
        _words(pa, [shard.compression for shard in shards]),
        _words(pa, [",".join(shard.hash_names) for shard in shards]),
        pa.array([shard.size_limit for shard in shards], pa.int64()),
    ]
    has_text = any(shard.meta is not None for shard in shards)
    if has_text:
        arrays += [
            *(_words(pa, [getattr(shard, name) for shard in shards]) for name in ("format", "newline", "separator")),
            *_file_arrays(pa, [shard.meta for shard in shards]),
            *_file_arrays(pa, [shard.zip_meta for shard in shards]),
        ]
    about = {
        "version": TEXT_TABLE_VERSION if has_text else TABLE_VERSION,
        "schemas": [{"names": s.names, "encodings": s.encodings, "sizes": s.sizes} for s in schemas],
    }
    names = (*_COLUMNS, *_TEXT_COLUMNS) if has_text else _COLUMNS
    table = pa.table(dict(zip(names, arrays, strict=True))).replace_schema_metadata(
        {"smalti": json.dumps(about, sort_keys=True)}
    )
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@uncollected()
def parse_table(data: bytes, *, sha256: str, where: str) -> tuple[ShardInfo, ...]:
    """The shards of an Arrow file, checked against the digest that its header declares, and as an index file is.

    Raises:
        IndexFileError: the bytes are not those that were published, or their content cannot be trusted.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise IndexFileError(
            f"shard table {where}: expected sha256 {sha256}, found {found}; the object was changed or cut", key=where
        )
    try:
        table = read_arrow_file(data)
        about = load_strict((table.schema.metadata or {})[b"smalti"], where=f"shard table {where}")
        if about["version"] not in (TABLE_VERSION, TEXT_TABLE_VERSION):
            raise IndexFileError(
                f"shard table {where} has layout {about['version']!r:.40}, this reader knows {TEXT_TABLE_VERSION}: "
                "update smalti"
            )
        names = (*_COLUMNS, *_TEXT_COLUMNS) if about["version"] == TEXT_TABLE_VERSION else _COLUMNS
        columns = [to_values(table.column(name)) for name in names]
        rows = _Rows(about["schemas"], f"shard table {where}")
        shards = tuple(rows.shard(row) for row in zip(*columns, strict=True))
        if shards:
            check_shards(shards, shards[0].schema)
        return shards
    except FormatError:
        raise
    except (SchemaError, CatalogError) as error:
        raise IndexFileError(f"shard table {where}: {error.message[:500]}", key=where) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IndexFileError(f"shard table {where} cannot be read: {str(error)[:200]}", key=where) from error


class _Rows:
    """Makes shards of rows; what many rows have in common is checked once and kept once."""

    def __init__(self, schemas: list[dict[str, Any]], where: str) -> None:
        self._schemas = schemas
        self._where = where
        self._columns: dict[tuple[Any, ...], Schema] = {}
        self._common: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def shard(self, row: tuple[Any, ...]) -> ShardInfo:
        """The shard of one row: the values of all columns, in their order."""
        schema, partition, samples, *files = row[:9]
        compression, hash_names, size_limit = row[9:12]
        kind, newline, separator = texts = row[12:15] or ("mds", None, None)
        columns = self._columns.get((schema, *texts)) or self._read_columns(schema, texts)
        names = self._common.get((compression, hash_names, size_limit))
        if names is None:
            names = self._read_common(compression, hash_names, size_limit)
        raw = self._file(*files[:3])
        meta, zip_meta = (
            (self._file(*row[15:18]), self._file(*row[18:21], limit=MAX_STORED_BYTES))
            if len(row) > 15
            else (None, None)
        )
        if raw is None or (kind == "mds") != (meta is None):
            raise IndexFileError(f"{self._where}: a {kind!r:.60} shard has a file too few or too many")
        info = ShardInfo(
            schema=columns,
            samples=samples,
            raw=raw,
            zip=self._file(*files[3:6], limit=MAX_STORED_BYTES),
            compression=compression,
            hash_names=names,
            size_limit=size_limit,
            partition=partition,
            format=kind,
            meta=meta,
            zip_meta=zip_meta,
            newline=newline,
            separator=separator,
        )
        info.check(self._where)
        return info

    def _file(
        self, name: str | None, num_bytes: int | None, hashes: str | None, *, limit: int = MAX_FILE_BYTES
    ) -> FileInfo | None:
        if name is None:
            return None
        match = _ONE_HASH.fullmatch(hashes or "")
        found = {match[1]: match[2]} if match else json.loads(hashes or "null")
        digests = {sys.intern(algorithm): digest for algorithm, digest in found.items()}
        file = FileInfo(name, -1 if num_bytes is None else num_bytes, digests)
        file.check(self._where, limit=limit)
        return file

    def _read_columns(self, number: int, texts: tuple[str, str | None, str | None]) -> Schema:
        if number < 0:
            raise IndexFileError(f"{self._where}: there is no schema {number}")
        entry, (kind, newline, separator) = self._schemas[number], texts
        obj = {"column_names": entry["names"], "column_encodings": entry["encodings"], "column_sizes": entry["sizes"]}
        fields = Fields(obj, self._where)
        if kind == "mds":
            found = parse_schema(fields)
        elif kind in TEXT_FORMATS:
            obj["columns"] = dict(zip(entry["names"], entry["encodings"], strict=True))
            layout = parse_layout(Fields({**obj, "newline": newline, "separator": separator}, self._where), kind)
            found = layout.schema
            if layout.separator != separator or any(size is not None for size in entry["sizes"]):
                raise IndexFileError(
                    f"{self._where}: separator {separator!r:.60} or column sizes do not belong to {kind}"
                )
        else:
            raise IndexFileError(f"{self._where}: unknown shard format {kind!r:.60}")
        self._columns[(number, *texts)] = found
        return found

    def _read_common(self, compression: str | None, hash_names: str, size_limit: int | None) -> tuple[str, ...]:
        """The hash names, after checking everything that shards of one writer have in common."""
        names = tuple(hash_names.split(",")) if hash_names else ()
        check_hash_names(names)
        if compression is not None and parse_compression(compression) is None:
            raise IndexFileError(f"{self._where}: an empty name for a compression")
        parse_size_limit(size_limit)
        self._common[compression, hash_names, size_limit] = names
        return names


def _words(pa: Any, values: Sequence[str | None]) -> Any:
    return pa.array(values, pa.string()).cast(pa.dictionary(pa.int32(), pa.string()))


def _file_arrays(pa: Any, files: Sequence[FileInfo | None]) -> tuple[Any, Any, Any]:
    return (
        pa.array([None if file is None else file.basename for file in files], pa.string()),
        pa.array([None if file is None else file.num_bytes for file in files], pa.int64()),
        pa.array(
            [None if file is None else json.dumps(dict(file.hashes), sort_keys=True) for file in files], pa.string()
        ),
    )
