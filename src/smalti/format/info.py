"""What an index file says about one shard, checked as strictly as it is believed. Opens no files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from smalti.errors import IndexFileError, SchemaError
from smalti.format.compression import parse_compression
from smalti.format.fields import Fields, fault
from smalti.format.hashing import HASH_NAMES, hex_length
from smalti.format.names import check_basename
from smalti.format.schema import Schema
from smalti.format.sizes import MAX_FILE_BYTES, parse_size_limit

VERSION = 2
_MAX_STORED_BYTES = MAX_FILE_BYTES + (1 << 26)  # what compression may add to data that does not compress
_MAX_COLUMNS = 100_000
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class FileInfo:
    """One file: its name below the root, its size, and its checksums by hash name."""

    basename: str
    num_bytes: int
    hashes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As in an index file."""
        return {"basename": self.basename, "bytes": self.num_bytes, "hashes": dict(self.hashes)}

    @classmethod
    def from_json(cls, obj: object, *, where: str, limit: int = MAX_FILE_BYTES) -> "FileInfo":
        """A checked entry; `limit` is the largest size in bytes that is believed.

        Raises:
            IndexFileError: Anything in it is not as it must be.
        """
        fields = Fields(obj, where)
        name = check_basename(fields.get("basename"), where=fields.at("basename"))
        num_bytes = fields.integer("bytes", low=0, high=limit)
        hashes = fields.mapping("hashes", {})
        for algorithm, digest in hashes.items():
            _check_digest(algorithm, digest, fields.at("hashes"))
        return cls(name, num_bytes, dict(hashes))


@dataclass(frozen=True)
class ShardInfo:
    """One shard: its columns, samples and files."""

    schema: Schema
    samples: int
    raw: FileInfo
    """The uncompressed file; it is in the store only when there is no `zip`."""
    zip: FileInfo | None = None
    compression: str | None = None
    hash_names: tuple[str, ...] = ()
    size_limit: int | None = None
    partition: str | None = None
    """Smalti's own (the split, for example); not in an MDS index entry."""

    @property
    def stored(self) -> FileInfo:
        """The file that lies in the store."""
        return self.zip or self.raw

    def to_json(self) -> dict[str, Any]:
        """The entry of an MDS index file, with exactly the keys that MosaicML's reader takes."""
        return {
            "column_encodings": list(self.schema.encodings),
            "column_names": list(self.schema.names),
            "column_sizes": list(self.schema.sizes),
            "compression": self.compression,
            "format": "mds",
            "hashes": list(self.hash_names),
            "raw_data": self.raw.to_json(),
            "samples": self.samples,
            "size_limit": self.size_limit,
            "version": VERSION,
            "zip_data": self.zip.to_json() if self.zip else None,
        }

    @classmethod
    def from_json(cls, obj: object, *, where: str) -> "ShardInfo":
        """A checked entry; keys that it does not know are ignored.

        Args:
            obj: Parsed JSON.
            where: The place it comes from, such as `index.json: $.shards[3]`.

        Raises:
            IndexFileError: Anything in it is missing, of another type, out of range, contradictory or unsafe.
        """
        fields = Fields(obj, where)
        check_version(fields)
        if fields.get("format") != "mds":
            raise fault(fields.at("format"), 'the format "mds", the only one this version reads', fields.get("format"))
        schema = _schema(fields)
        names = fields.texts("hashes", [])
        raw = FileInfo.from_json(fields.get("raw_data"), where=fields.at("raw_data"))
        zipped, compression = _zip(fields)
        for part, info in (("raw_data", raw), ("zip_data", zipped)):
            missing = sorted(set(names) - set(info.hashes)) if info else []
            if missing:
                raise fault(f"{where}.{part}.hashes", f"the hashes {missing} that the shard declares", None)
        # Every sample has four bytes in the table of offsets, whatever its columns: more cannot be in that file.
        samples = fields.integer("samples", low=0, high=max(0, (raw.num_bytes - 8) // 4))
        try:
            size_limit = parse_size_limit(fields.get("size_limit", None))
        except SchemaError as error:
            raise fault(fields.at("size_limit"), "a byte count or null", fields.get("size_limit")) from error
        return cls(schema, samples, raw, zipped, compression, names, size_limit)

    def with_prefix(self, prefix: str) -> "ShardInfo":
        """The same shard with its files below `prefix`; an empty prefix changes nothing."""
        prefix = prefix.strip("/")
        if not prefix:
            return self

        def moved(info: FileInfo) -> FileInfo:
            return replace(info, basename=check_basename(f"{prefix}/{info.basename}", where="`prefix`"))

        return replace(self, raw=moved(self.raw), zip=moved(self.zip) if self.zip else None)


def check_version(fields: Fields) -> None:
    """Return only if the object says version 2.

    Raises:
        IndexFileError: It says another, or none.
    """
    found = fields.get("version")
    if type(found) is int and found > VERSION:
        raise IndexFileError(
            f"{fields.at('version')}: this is MDS version {found} and this reader knows version {VERSION}: "
            "it is too old, install a newer Smalti.",
            where=fields.where,
        )
    if type(found) is not int or found != VERSION:
        raise fault(fields.at("version"), f"version {VERSION}", found)


def _check_digest(algorithm: str, digest: object, where: str) -> None:
    if algorithm not in HASH_NAMES:
        raise fault(where, f"hash names out of {', '.join(sorted(HASH_NAMES))}", algorithm)
    if not isinstance(digest, str) or len(digest) != hex_length(algorithm) or not _HEX.issuperset(digest):
        raise fault(f"{where}.{algorithm}", f"{hex_length(algorithm)} lower-case hex digits", digest)


def _zip(fields: Fields) -> tuple[FileInfo | None, str | None]:
    text, zip_data = fields.get("compression", None), fields.get("zip_data", None)
    if text is None and zip_data is None:
        return None, None
    if text is None or zip_data is None:
        raise fault(fields.where, "`compression` and `zip_data` both, or neither", text or type(zip_data).__name__)
    try:
        if parse_compression(fields.text("compression")) is None:
            raise fault(fields.at("compression"), "the name of a compression", text)
    except SchemaError as error:
        raise IndexFileError(f"{fields.at('compression')}: {error.message}", where=fields.where) from error
    return FileInfo.from_json(zip_data, where=fields.at("zip_data"), limit=_MAX_STORED_BYTES), text


def _schema(fields: Fields) -> Schema:
    names, encodings = fields.texts("column_names"), fields.texts("column_encodings")
    sizes = fields.get("column_sizes")
    if not isinstance(sizes, list) or not len(names) == len(encodings) == len(sizes):
        raise fault(fields.at("column_sizes"), "as many names, encodings and sizes", sizes)
    if not 1 <= len(names) <= _MAX_COLUMNS or len(set(names)) != len(names):
        raise fault(fields.at("column_names"), f"1 to {_MAX_COLUMNS} names, each once", f"{len(names)} names")
    if any(size is not None and type(size) is not int for size in sizes):
        raise fault(fields.at("column_sizes"), "whole numbers and nulls", sizes)
    try:
        return _checked_schema(names, encodings, tuple(sizes))
    except SchemaError as error:
        raise IndexFileError(f"{fields.where}: {error.message}", where=fields.where, **error.facts) from error


@lru_cache(maxsize=256)  # the shards of a set share one schema: a million entries must not mean a million copies
def _checked_schema(names: tuple[str, ...], encodings: tuple[str, ...], sizes: tuple[int | None, ...]) -> Schema:
    schema = Schema(names, encodings, sizes)
    for name, size, codec in zip(names, sizes, schema.codecs(), strict=True):
        if size != codec.size:
            raise SchemaError(f"column {name!r}: {codec.name} takes {codec.size} bytes, and the index says {size}.")
    return schema
