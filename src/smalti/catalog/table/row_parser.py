"""Creation of shards from the rows of a shard table, each checked as strictly as an entry of an index file."""

import json
import re
import sys
from typing import Any

from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import FileInfo, Schema, ShardInfo, check_hash_names, parse_compression, parse_size_limit
from smalti.format.index import MAX_STORED_BYTES, parse_schema
from smalti.format.json_fields import Fields
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.text import TEXT_FORMATS, parse_layout

_ONE_HASH = re.compile(
    r'\{"(\w+)": "([0-9a-f]+)"\}', re.ASCII
)  # nearly every file has hashes of this form; faster than a JSON parser


class RowParser:
    """The parser of rows to shards. Properties that many rows have in common are checked and kept once."""

    def __init__(self, schemas: list[dict[str, Any]], where: str) -> None:
        self.where = where
        """Name of the table, for messages."""
        self._schemas = schemas
        self._columns: dict[tuple[Any, ...], Schema] = {}
        self._common: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._texts: dict[int, str] = {}

    def parse(self, row: tuple[Any, ...], number: int, first_hash: int | None = None) -> ShardInfo:
        """Return the shard of one row, given as the values of all columns in order, and the hash of its first bytes.

        Raises:
            IndexFileError: the row is invalid; the message contains its number.
        """
        where = f"{self.where}, row {number}"
        try:
            return self._shard(row, where, first_hash)
        except FormatError:
            raise
        except (SchemaError, CatalogError) as error:
            raise IndexFileError(f"{where}: {error.message[:500]}") from error
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise IndexFileError(f"{where} cannot be read: {str(error)[:200]}") from error

    def text(self, row: tuple[Any, ...]) -> str:
        """Return all values of a row as text, equal for equal shards of different tables; the row is not checked."""
        schema = self._texts.get(row[0])
        if schema is None:
            schema = self._texts[row[0]] = json.dumps(self._schemas[row[0]], sort_keys=True)
        values = row[1:] if row[12:13] != ("mds",) else row[1:12]  # the columns of text shards are empty in MDS rows
        return repr((schema, *values))

    def _shard(self, row: tuple[Any, ...], where: str, first_hash: int | None) -> ShardInfo:
        schema, partition, samples, *files = row[:9]
        compression, hash_names, size_limit = row[9:12]
        kind, newline, separator = texts = row[12:15] or ("mds", None, None)
        columns = self._columns.get((schema, *texts)) or self._read_columns(schema, texts, where)
        names = self._common.get((compression, hash_names, size_limit))
        if names is None:
            names = self._read_common(compression, hash_names, size_limit, where)
        raw = _file(*files[:3], where=where, first_hash=first_hash)
        meta, zip_meta = (
            (_file(*row[15:18], where=where), _file(*row[18:21], where=where, limit=MAX_STORED_BYTES))
            if len(row) > 15
            else (None, None)
        )
        if raw is None or (kind == "mds") != (meta is None):
            raise IndexFileError(f"{where}: a {kind!r:.60} shard has a file too few or too many")
        info = ShardInfo(
            schema=columns,
            samples=samples,
            raw=raw,
            zip=_file(*files[3:6], where=where, limit=MAX_STORED_BYTES),
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
        info.check(where)
        return info

    def _read_columns(self, number: int, texts: tuple[str, str | None, str | None], where: str) -> Schema:
        if number < 0:
            raise IndexFileError(f"{where}: there is no schema {number}")
        entry, (kind, newline, separator) = self._schemas[number], texts
        obj = {"column_names": entry["names"], "column_encodings": entry["encodings"], "column_sizes": entry["sizes"]}
        fields = Fields(obj, where)
        if kind == "mds":
            found = parse_schema(fields)
        elif kind in TEXT_FORMATS:
            obj["columns"] = dict(zip(entry["names"], entry["encodings"], strict=True))
            layout = parse_layout(Fields({**obj, "newline": newline, "separator": separator}, where), kind)
            found = layout.schema
            if layout.separator != separator or any(size is not None for size in entry["sizes"]):
                raise IndexFileError(f"{where}: separator {separator!r:.60} or column sizes do not belong to {kind}")
        else:
            raise IndexFileError(f"{where}: unknown shard format {kind!r:.60}")
        self._columns[(number, *texts)] = found
        return found

    def _read_common(
        self, compression: str | None, hash_names: str | None, size_limit: int | None, where: str
    ) -> tuple[str, ...]:
        """Check the properties that shards of one writer have in common, and return the names of the hashes."""
        names = tuple(hash_names.split(",")) if hash_names else ()
        check_hash_names(names)
        if compression is not None and parse_compression(compression) is None:
            raise IndexFileError(f"{where}: an empty name for a compression")
        parse_size_limit(size_limit)
        self._common[compression, hash_names, size_limit] = names
        return names


def parse_hashes(text: str | None) -> dict[str, str]:
    """Parse the hashes of a file, name to digest, from the JSON in a table; the digests are not checked."""
    match = _ONE_HASH.fullmatch(text or "")
    found = {match[1]: match[2]} if match else json.loads(text or "null")
    return {sys.intern(algorithm): digest for algorithm, digest in found.items()}


def _file(
    name: str | None,
    num_bytes: int | None,
    hashes: str | None,
    *,
    where: str,
    limit: int = MAX_FILE_BYTES,
    first_hash: int | None = None,
) -> FileInfo | None:
    if name is None:
        return None
    unsigned = None if first_hash is None else first_hash % (1 << 64)
    file = FileInfo(name, -1 if num_bytes is None else num_bytes, parse_hashes(hashes), unsigned)
    file.check(where, limit=limit)
    return file
