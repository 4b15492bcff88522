"""Index files: the list of a shard set's shards, read strictly and within limits, written for MosaicML's reader.

`ShardInfo` is the entry of one shard, and `FileInfo` of one file of it. Opens no files.
"""

import gc
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from smalti.errors import IndexFileError, SchemaError
from smalti.format.compression import parse_compression
from smalti.format.encodings.registry import num_replaced
from smalti.format.hashing import HASH_NAMES, BlockList, hex_length
from smalti.format.json_fields import Fields, fault, finite_float, is_deeper_than, refuse_constant, unique_keys
from smalti.format.schema import MAX_COLUMNS, Schema
from smalti.format.sizes import MAX_FILE_BYTES, VERSION, parse_size_limit
from smalti.format.text import TEXT_FORMATS, TextLayout, is_utf8, layout_of, parse_layout

MAX_NAME_CHARS = 1024
"""Longest key that S3, GCS and Azure all accept."""
_ENTRIES_AT_ONCE = 1024
_ALLOWED = re.compile(r"[A-Za-z0-9._\-/=]+")  # `smalti.catalog.table.content` has this rule as a pattern
PARQUET = "parquet"
"""Value of `format` of a file that is no shard but a part in Parquet: versions of prepared images consist of them."""
ONE_FILE_FORMATS = frozenset({"mds", PARQUET})
"""Formats without a meta file."""
MAX_STORED_BYTES = MAX_FILE_BYTES + (1 << 26)
"""Largest compressed file; compression enlarges incompressible data by far less than the difference."""
_SIZE_TYPES = frozenset({int, type(None)})
_HEX = frozenset("0123456789abcdef")
_HEX_DIGITS = {name: hex_length(name) for name in HASH_NAMES}
MAX_INDEX_BYTES = 1 << 29
"""Largest index file that is parsed: about a million shards with two hashes each."""
FILE_KINDS = ("raw", "zip", "meta", "zip_meta")
"""The files of a shard, as `ShardInfo` names them."""
MAX_DEPTH = 64
"""Levels of nesting that a reader accepts in index files and version headers."""


def check_basename(name: object, *, where: str) -> str:
    """Return `name` if it is a relative name that stays below the root it is joined to.

    Raises:
        IndexFileError: Not text, empty, absolute, longer than 1024 characters, with characters outside
            `[A-Za-z0-9._-/=]`, or with an empty part, `.` or `..`.
    """
    if not isinstance(name, str):
        raise IndexFileError(f"{where}: expected a file name, found {type(name).__name__}.", where=where)
    parts = name.split("/")
    if len(name) > MAX_NAME_CHARS or _ALLOWED.fullmatch(name) is None or not {"", ".", ".."}.isdisjoint(parts):
        raise IndexFileError(
            f"{where}: {name[:80]!r} is not a safe file name: expected a relative name of A-Z a-z 0-9 . _ - = and /, "
            "without `..` or empty parts. The index file is damaged or hostile: do not use this data set.",
            where=where,
            name=name,
        )
    return name


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file: its name below the root, its size, and its checksums by hash name."""

    basename: str
    num_bytes: int
    hashes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as in an index file."""
        return {"basename": self.basename, "bytes": self.num_bytes, "hashes": dict(self.hashes)}

    @classmethod
    def from_json(cls, obj: object, *, where: str, limit: int = MAX_FILE_BYTES) -> "FileInfo":
        """Parse and check an entry; `limit` is the largest accepted size in bytes.

        Raises:
            IndexFileError: A value is missing, of another type or out of range.
        """
        fields = Fields(obj, where)
        info = cls(fields.get("basename"), fields.get("bytes"), dict(fields.mapping("hashes", {})))
        info.check(where, limit=limit)
        return info

    def check(self, where: str, *, limit: int = MAX_FILE_BYTES) -> None:
        """Return only if name, size and hashes are valid, whatever their types; `limit` as for `from_json`.

        Raises:
            IndexFileError: They are not.
        """
        check_basename(self.basename, where=where)
        if type(self.num_bytes) is not int or not 0 <= self.num_bytes <= limit:
            raise fault(f"{where}.bytes", f"a whole number from 0 to {limit}", self.num_bytes)
        for algorithm, digest in self.hashes.items():
            digits = _HEX_DIGITS.get(algorithm)
            if digits is None:
                raise fault(f"{where}.hashes", f"hash names out of {', '.join(sorted(HASH_NAMES))}", algorithm)
            if type(digest) is not str or len(digest) != digits or not _HEX.issuperset(digest):
                raise fault(f"{where}.hashes.{algorithm}", f"{digits} lower-case hex digits", digest)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard: its columns, samples and files."""

    schema: Schema
    samples: int
    raw: FileInfo
    """The uncompressed data file; in the store only if there is no `zip`."""
    zip: FileInfo | None = None
    compression: str | None = None
    hash_names: tuple[str, ...] = ()
    """The hashes that the shard declares in its own header and in index files. Its files may have others, unlisted
    ones, which the shard table of a version keeps."""
    size_limit: int | None = None
    partition: str | None = None
    """Smalti's own (the split, for example); not in an MDS index entry."""
    format: str = "mds"
    """mds, parquet, json, csv, tsv or xsv; the last four are text shards, with a meta file beside the data file."""
    meta: FileInfo | None = None
    """The uncompressed meta file of a text shard; in the store only if there is no `zip_meta`."""
    zip_meta: FileInfo | None = None
    newline: str | None = None
    """End of each line of a text shard."""
    separator: str | None = None
    """Text between the values of a line; None for mds and json."""
    blocks: BlockList | None = field(default=None, compare=False)
    """The hashes of the blocks of `raw`, which verify parts of it; None if it has none. Not in an MDS index entry."""

    @property
    def stored(self) -> FileInfo:
        """The data file that lies in the store."""
        return self.zip or self.raw

    @property
    def stored_files(self) -> tuple[FileInfo, ...]:
        """All files that lie in the store: the data file, and then the meta file of a text shard."""
        return (self.stored,) if self.meta is None else (self.stored, self.zip_meta or self.meta)

    @property
    def raw_files(self) -> tuple[FileInfo, ...]:
        """The same files, uncompressed."""
        return (self.raw,) if self.meta is None else (self.raw, self.meta)

    @property
    def file_names(self) -> tuple[str, ...]:
        """The names of all files, compressed and not, each once."""
        if self.meta is None:
            return (self.raw.basename,) if self.zip is None else (self.raw.basename, self.zip.basename)
        return tuple({file.basename for file in (*self.raw_files, *self.stored_files)})

    @property
    def unlisted_hashes(self) -> tuple[str, ...]:
        """Names of the hashes that every file has and the shard does not declare, sorted."""
        common = set.intersection(*(set(file.hashes) for file in (*self.raw_files, *self.stored_files)))
        return tuple(sorted(common.difference(self.hash_names)))

    def listed(self) -> "ShardInfo":
        """Return the shard as the index files of its version show it: its files without unlisted hashes."""
        if len(self.raw.hashes) <= len(self.hash_names):
            return self
        return self._with_files(
            lambda file: replace(
                file, hashes={name: file.hashes[name] for name in self.hash_names if name in file.hashes}
            )
        )

    def _with_files(self, change: Callable[[FileInfo], FileInfo]) -> "ShardInfo":
        files: dict[str, Any] = {}
        for kind in FILE_KINDS:
            file: FileInfo | None = getattr(self, kind)
            files[kind] = file and change(file)
        return replace(self, **files)

    @property
    def layout(self) -> TextLayout | None:
        """Layout of the lines of a text shard; None for other formats."""
        if self.newline is None:
            return None
        return layout_of(self.format, self.schema, self.newline, self.separator)

    def config(self) -> dict[str, Any]:
        """Return the description of the samples that the shard itself, or its meta file, has too."""
        columns = self.schema if self.layout is None or self.meta is None else self.layout
        config = columns.config(compression=self.compression, hashes=self.hash_names, size_limit=self.size_limit)
        return config | {"format": self.format}

    def to_json(self) -> dict[str, Any]:
        """Return the entry of an index file, with exactly the keys that MosaicML's reader takes."""
        entry: dict[str, Any] = {
            "raw_data": self.raw.to_json(),
            "samples": self.samples,
            "zip_data": self.zip.to_json() if self.zip else None,
        }
        if self.meta is not None:
            entry["raw_meta"] = self.meta.to_json()
            entry["zip_meta"] = self.zip_meta.to_json() if self.zip_meta else None
        return self.config() | entry

    @classmethod
    def from_json(cls, obj: object, *, where: str) -> "ShardInfo":
        """Parse and check an entry; unknown keys are ignored.

        `where` is the place of `obj`, parsed JSON, such as `index.json: $.shards[3]`.

        Raises:
            IndexFileError: A value is missing, of another type, out of range, contradictory or unsafe.
        """
        fields = Fields(obj, where)
        check_version(fields)
        kind = fields.text("format")
        if kind != "mds" and kind not in TEXT_FORMATS:  # Parquet parts stand in manifests alone
            raise fault(fields.at("format"), f"a format out of mds, {', '.join(sorted(TEXT_FORMATS))}", kind)
        names = _interned(fields.texts("hashes", []))
        compression = fields.get("compression", None)
        try:
            if compression is not None and parse_compression(fields.text("compression")) is None:
                raise fault(fields.at("compression"), "the name of a compression", compression)
        except SchemaError as error:
            raise IndexFileError(f"{fields.at('compression')}: {error.message}", where=fields.where) from error
        compression = compression and sys.intern(compression)
        raw, zipped = _parse_files(fields, "data")
        try:
            size_limit = parse_size_limit(fields.get("size_limit", None))
        except SchemaError as error:
            raise fault(fields.at("size_limit"), "a byte count or null", fields.get("size_limit")) from error
        samples = fields.get("samples")
        if kind == "mds":
            info = cls(parse_schema(fields), samples, raw, zipped, compression, names, size_limit)
        else:
            layout = parse_layout(fields, kind)
            meta, zip_meta = _parse_files(fields, "meta")
            info = cls(
                layout.schema, samples, raw, zipped, compression, names, size_limit,
                format=layout.format, meta=meta, zip_meta=zip_meta, newline=layout.newline, separator=layout.separator,
            )  # fmt: skip
        info.check(where)
        return info

    def check(self, where: str) -> None:
        """Return only if the parts fit together: count and sizes, compression and files, hashes and names.

        Raises:
            IndexFileError: They do not.
        """
        # Every sample takes four bytes in the table of offsets, whatever its columns; in Parquet, an image takes more.
        max_samples = max(0, ((self.meta or self.raw).num_bytes - 8) // 4)
        if self.newline:
            max_samples = min(max_samples, self.raw.num_bytes // len(self.newline.encode("utf-8")))
        if type(self.samples) is not int or not 0 <= self.samples <= max_samples:
            raise fault(f"{where}.samples", f"a whole number from 0 to {max_samples}", self.samples)
        pairs = [("data", self.raw, self.zip)]
        if self.meta is not None:
            pairs.append(("meta", self.meta, self.zip_meta))
        for part, raw, zipped in pairs:
            if (zipped is None) != (self.compression is None):
                found = self.compression or "no compression"
                raise fault(where, f"`compression` and `zip_{part}` both, or neither", found)
            for form, info in (("raw", raw), ("zip", zipped)):
                if info is None:
                    continue
                for name in self.hash_names:
                    if name not in info.hashes:
                        raise fault(f"{where}.{form}_{part}.hashes", f"the hash {name}, which the shard declares", None)
        if len(set(self.file_names)) != len(pairs) * (1 if self.zip is None else 2):
            raise fault(where, "a name of its own for each file of the shard", self.raw.basename)

    def with_prefix(self, prefix: str) -> "ShardInfo":
        """Return the same shard with its files below `prefix`; an empty prefix changes nothing."""
        prefix = prefix.strip("/")
        if not prefix:
            return self
        return self.with_names(lambda name: check_basename(f"{prefix}/{name}", where="`prefix`"))

    def with_names(self, rename: Callable[[str], str]) -> "ShardInfo":
        """Return the same shard with every file's name passed through `rename`."""
        blocks = None if self.blocks is None else replace(self.blocks, file=rename(self.blocks.file))
        renamed = self._with_files(lambda file: replace(file, basename=rename(file.basename)))
        return replace(renamed, blocks=blocks)


_MAX_VERSION_CHARS = 300


def check_version(fields: Fields) -> None:
    """Return only if the object declares version 2.

    Raises:
        IndexFileError: It declares another, or none.
    """
    found = fields.get("version")
    if type(found) is int and found > VERSION:
        raise IndexFileError(
            f"{fields.at('version')}: this is MDS version {found} and this reader knows version {VERSION}: "
            "it is too old, install a newer Smalti.",
            where=fields.where,
            format_version=found,
        )
    if isinstance(found, str):  # of a Smalti set with very many shards (`smalti.catalog.index`)
        raise IndexFileError(f"{fields.at('version')} is {found[:_MAX_VERSION_CHARS]!r}, expected {VERSION}")
    if type(found) is not int or found != VERSION:
        facts = {"format_version": found} if type(found) is int else {}
        raise fault(fields.at("version"), f"version {VERSION}", found, **facts)


def parse_schema(fields: Fields) -> Schema:
    """Parse and check the columns of an MDS entry; the same object for the same columns.

    Raises:
        IndexFileError: A column is malformed, or an encoding is unknown.
    """
    names, encodings = fields.texts("column_names"), fields.texts("column_encodings")
    sizes = fields.get("column_sizes")
    if not isinstance(sizes, list) or not len(names) == len(encodings) == len(sizes):
        raise fault(fields.at("column_sizes"), "as many names, encodings and sizes", sizes)
    if not _SIZE_TYPES.issuperset(map(type, sizes)):
        raise fault(fields.at("column_sizes"), "whole numbers and nulls", sizes)
    try:
        return _checked_schema(names, encodings, tuple(sizes), num_replaced())
    except SchemaError as error:
        raise IndexFileError(f"{fields.where}: {error.message}", where=fields.where, **error.facts) from error


def _parse_files(fields: Fields, part: str) -> tuple[FileInfo, FileInfo | None]:
    """Parse the uncompressed and the compressed form of the file called `part`."""
    raw = FileInfo.from_json(fields.get(f"raw_{part}"), where=fields.at(f"raw_{part}"))
    zipped = fields.get(f"zip_{part}", None)
    if zipped is None:
        return raw, None
    return raw, FileInfo.from_json(zipped, where=fields.at(f"zip_{part}"), limit=MAX_STORED_BYTES)


_interned = lru_cache(maxsize=256)(tuple[str, ...])  # one object for all shards of a set, as for schemas


@lru_cache(maxsize=256)  # the shards of a set share one schema: a million entries need one copy
def _checked_schema(
    names: tuple[str, ...], encodings: tuple[str, ...], sizes: tuple[int | None, ...], _: int
) -> Schema:
    if not 1 <= len(names) <= MAX_COLUMNS or len(set(names)) != len(names):
        raise SchemaError(f"expected 1 to {MAX_COLUMNS} columns, each name once, found {len(names)} names.")
    schema = Schema(names, encodings, sizes)
    if not all(map(is_utf8, names)):
        raise SchemaError("a column has a name that UTF-8 cannot hold.")
    for name, size, codec in zip(names, sizes, schema.codecs(allow_unsafe_types=True), strict=True):
        if size != codec.size:
            raise SchemaError(f"column {name!r}: {codec.name} takes {codec.size} bytes, and the index says {size}.")
    return schema


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection within the block, for code that makes many objects and no cycles.

    The collector scans a growing number of objects again and again, which takes half the time of parsing a large index.
    It is resumed only by the block that paused it, so threads and nested blocks do not interfere.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@uncollected()
def parse_index(data: bytes, *, where: str) -> tuple[list[ShardInfo], dict[str, Any]]:
    """Return the shards of an index file, and its other top-level keys (`"smalti"`, for example).

    `data` is at most 512 MiB.

    Raises:
        IndexFileError: Not such a file; the message has the place as a JSON path. Also if this version cannot read an
            encoding, format or compression, so that the error does not come at the first sample.
    """
    return shards_of(load_strict(data, where=where), where=where)


@uncollected()
def shards_of(top: Any, *, where: str) -> tuple[list[ShardInfo], dict[str, Any]]:
    """Return the same from an index file that `load_strict` parsed."""
    fields = Fields(top, f"{where}: $")
    check_version(fields)
    entries = fields.get("shards")
    if not isinstance(entries, list):
        raise fault(fields.at("shards"), "a list", entries)
    shards = [ShardInfo.from_json(entry, where=f"{fields.where}.shards[{i}]") for i, entry in enumerate(entries)]
    owners: dict[str, int] = {}
    for i, shard in enumerate(shards):
        for name in shard.file_names:
            first = owners.setdefault(name, i)
            if first != i:
                raise IndexFileError(
                    f"{fields.where}.shards[{i}]: file {name!r} is listed by shards[{first}] already; each shard may "
                    "be listed once. Merge the index files again.",
                    where=fields.where,
                    name=name,
                )
    return shards, {key: value for key, value in top.items() if key not in {"shards", "version"}}


def emit_index(shards: Iterable[ShardInfo], extra: Mapping[str, Any] | None = None) -> bytes:
    """Return the bytes of an index file that MosaicML's reader opens; it ignores the `extra` top-level keys.

    Raises:
        IndexFileError: `extra` would replace the shards or the version, or cannot be written as strict JSON.
    """
    return b"".join(index_parts(shards, extra))


def index_parts(shards: Iterable[ShardInfo], extra: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the bytes that `emit_index` returns, some thousand entries at a time: a million are 700 MB.

    Raises:
        IndexFileError: as for `emit_index`, before any part.
    """
    taken = {"shards", "version"} & set(extra or {})
    if taken:
        raise IndexFileError(f"`extra` may not hold {sorted(taken)}: those are the index file's own keys.")
    top = {**(extra or {}), "shards": None, "version": VERSION}
    try:
        texts = {key: json.dumps(top[key], sort_keys=True, allow_nan=False) for key in sorted(top)}
    except (TypeError, ValueError) as error:
        raise IndexFileError(f"`extra` cannot be written as strict JSON: {error}.") from error
    separator, rest = "{", iter(shards)
    for key, text in texts.items():
        yield f"{separator}{json.dumps(key)}: {'[' if key == 'shards' else text}".encode("ascii")
        separator = ", "
        if key != "shards":
            continue
        between = ""
        while batch := list(islice(rest, _ENTRIES_AT_ONCE)):
            values = [shard.to_json() for shard in batch]
            try:
                entries = json.dumps(values, sort_keys=True, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise IndexFileError(f"a shard's entry cannot be written as strict JSON: {error}.") from error
            yield f"{between}{entries[1:-1]}".encode("ascii")
            between = ", "
        yield b"]"
    yield b"}"


def load_strict(data: bytes, *, where: str, max_bytes: int = MAX_INDEX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """Parse JSON strictly: UTF-8, no key twice in one object, no NaN, at most `max_depth` levels deep.

    Raises:
        IndexFileError: Anything else.
    """
    if len(data) > max_bytes:
        raise IndexFileError(f"{where}: {len(data)} bytes are more than the {max_bytes} allowed.", where=where)
    try:
        obj = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=unique_keys,
            parse_constant=refuse_constant,
            parse_float=finite_float,
        )
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise IndexFileError(
            f"{where}: not readable JSON ({reason}); it was cut short or damaged. Write it again.", where=where
        ) from error
    if is_deeper_than(obj, max_depth):
        raise IndexFileError(f"{where}: nested more than {max_depth} levels deep.", where=where)
    return obj
