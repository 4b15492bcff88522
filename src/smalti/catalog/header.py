"""The header of a version, `_versions/<n>.json`: a small JSON object, immutable, created by put-if-absent.

A version exists if and only if its header does; everything else (index files, tags) can be derived or rebuilt.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smalti.catalog.digest import digest_of, digest_of_shards, is_content, version_digest
from smalti.catalog.manifest import ROW_HASH, Annotations, Manifest, VersionFacts, shared_fields
from smalti.catalog.table.arrow import load_table
from smalti.catalog.table.segment_list import segment_shards_of
from smalti.catalog.table.segments import load_segments
from smalti.catalog.table.shard_table import ShardTable, samples_of, segments_in
from smalti.errors import IndexFileError, StoreNotFound
from smalti.format import Schema, ShardInfo, load_strict, text_schema
from smalti.storage import Store

FOLDER = "_versions"
INDEX = "index.json"
HEADER_FORMAT = 1
SEGMENTED_FORMAT = 2
"""The format of earlier versions in segments, so that a reader that is older than these refuses them."""
CONTENT_FORMAT = 3
"""The format of versions whose digest is of their content."""
MAX_HEADER_BYTES = 16 << 20
"""Far above any real header: the shards are in a table of their own."""
MAX_REMEMBERED_WRITES = 256
"""Number of earlier write ids that a header carries, so that a repeated publish is recognised by one read."""
SEGMENT_LIST_SUFFIX = ".segments.json"
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Header(Annotations, VersionFacts):
    """A version without its shards; the other fields are those of `Manifest`."""

    num_shards: int
    num_bytes: int
    partitions: tuple[str, ...]
    columns: Mapping[str, str]
    table_key: str
    """Key of the shard table; of a version in segments, that of their list."""
    table_sha256: str
    writes: Mapping[str, int] = field(default_factory=dict)
    """Write id -> version, of this and earlier versions."""
    fenced: tuple[str, ...] = ()
    """Write ids whose leftovers a vacuum removes, and digests of removed tables: they must not be published again."""
    expired: tuple[int, ...] = ()
    """Versions whose shards a vacuum removes: no version may be built on them."""
    erased: tuple[Mapping[str, Any], ...] = ()
    """Deletions of samples in this and earlier versions (`erasures`): what was erased must not come back."""

    def emit(self) -> bytes:
        """Return the header as JSON bytes; optional fields are left out where they are empty."""
        values = {name: getattr(self, name) for name in (*_REQUIRED, *_OPTIONAL)}
        kept = {name: value for name, value in values.items() if value or name in _REQUIRED}
        top = {"smalti": _format_of(self.digest_scheme), **kept}
        return json.dumps(top, indent=1, sort_keys=True, allow_nan=False).encode()

    @property
    def is_segmented(self) -> bool:
        """True if the shard table is in segments."""
        return segment_shards_of(self.digest_scheme) is not None

    def has_files_of(self, other: "Header") -> bool:
        """Return whether the other version has the same files, not only the same content."""
        return all(getattr(self, name) == getattr(other, name) for name in ("table_sha256", "sidecars", "logical"))


_ABSENT = object()
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "version": int,
    "parent": (int, type(None)),
    "write_id": str,
    "operation": str,
    "digest": str,
    "rows": int,
    "num_shards": int,
    "num_bytes": int,
    "partitions": (list, tuple),
    "columns": dict,
    "table_key": str,
    "table_sha256": str,
    "created": str,
    "lineage": dict,
    "metadata": dict,
    "writes": dict,
}
"""The JSON types of the fields that every header has."""
_OPTIONAL: dict[str, tuple[type, type | None]] = {
    "digest_scheme": (str, None),
    "logical": (dict, None),
    "row_hash": (str, None),
    "sidecars": (list, dict),
    "fenced": (list, str),
    "expired": (list, int),
    "erased": (list, dict),
}
"""The JSON types of fields, and of their members, that are left out when they are empty, as in older headers."""


def header_key(version: int) -> str:
    """Return the key of a version's header."""
    return f"{FOLDER}/{version:08d}.json"


def parse_header(data: bytes, *, where: str) -> Header:
    """Parse a header strictly.

    Raises:
        IndexFileError: not JSON, a field is missing or of the wrong type, too large, or from a newer Smalti.
    """
    if not data:
        raise IndexFileError(f"version header {where} is empty", key=where)
    if len(data) > MAX_HEADER_BYTES:
        raise IndexFileError(f"version header {where} is larger than {MAX_HEADER_BYTES} bytes", key=where)
    found = parse_json(data, where=where)
    if found.get("smalti") not in (HEADER_FORMAT, SEGMENTED_FORMAT, CONTENT_FORMAT) or found["smalti"] is True:
        raise IndexFileError(
            f"version header {where} has format {found.get('smalti')!r:.40}, this reader knows {CONTENT_FORMAT}: "
            "update smalti",
            key=where,
        )
    values: dict[str, Any] = {}
    for name in (*_REQUIRED, *(name for name in _OPTIONAL if name in found)):
        kind, member = _OPTIONAL.get(name) or (_REQUIRED[name], None)
        value = found.get(name, _ABSENT)
        fits = isinstance(value, kind) and not isinstance(value, bool)
        fits = fits and (member is None or all(type(each) is member for each in value))
        if not fits or (name == "row_hash" and not ROW_HASH.fullmatch(value)):
            fault = "is of the wrong type" if name in _OPTIONAL else "is missing or of the wrong type"
            raise IndexFileError(f"version header {where}: field {name!r} {fault} ({value!r:.80})", key=where)
        values[name] = tuple(value) if isinstance(value, list) else value
    header = Header(**values)
    if found["smalti"] != _format_of(header.digest_scheme):
        raise IndexFileError(
            f"version header {where} of format {found['smalti']} has the digest scheme {header.digest_scheme!r:.40}: "
            "update smalti",
            key=where,
        )
    parent_fits = header.parent is None or 1 <= header.parent < header.version
    if header.version < 1 or not parent_fits or min(header.rows, header.num_shards, header.num_bytes) < 0:
        raise IndexFileError(
            f"version header {where}: version {header.version} with parent {header.parent}, {header.rows} rows, "
            f"{header.num_shards} shards and {header.num_bytes} bytes: expected counts from 0 and a parent before it",
            key=where,
        )
    for name in ("digest", "table_sha256"):  # they name folders and files
        if not _SHA256.fullmatch(getattr(header, name)):
            raise IndexFileError(
                f"version header {where}: expected 64 lower-case hex digits as {name!r}, found "
                f"{getattr(header, name)!r:.80}",
                key=where,
            )
    return header


def _format_of(digest_scheme: str) -> int | None:
    """Return the format of headers with this scheme; None for a scheme that is not known."""
    if is_content(digest_scheme):
        return CONTENT_FORMAT
    if segment_shards_of(digest_scheme) is not None:
        return SEGMENTED_FORMAT
    return None if digest_scheme else HEADER_FORMAT


def parse_json(data: bytes, *, where: str) -> dict[str, Any]:
    """Parse a JSON object; deep nesting cannot exhaust the stack.

    Raises:
        IndexFileError: it is not JSON, or not an object.
    """
    found = load_strict(data, where=where)
    if not isinstance(found, dict):
        raise IndexFileError(f"{where} holds a JSON {type(found).__name__}, expected an object", key=where)
    return found


def read_header(store: Store, version: int) -> Header:
    """Read the header of a version.

    Raises:
        StoreNotFound: there is no such version.
        IndexFileError: it cannot be trusted.
    """
    key = header_key(version)
    header = parse_header(store.get_range(key, 0, MAX_HEADER_BYTES + 1), where=store.locate(key))
    if header.version != version:
        raise IndexFileError(f"version header {store.locate(key)} says that it is version {header.version}", key=key)
    return header


def read_manifest(store: Store, header: Header, *, recount: bool = True) -> Manifest:
    """Read the shard table that a header names, and return the complete version.

    With `recount`, as publishers and `verify` do, the digest is recomputed, which reads the whole table. Readers skip
    it: the SHA-256 in the header pins every byte of the table, and the publisher that created the header computed the
    digest. A wrong digest in a header has no effect on what is read: cached files are verified by the hashes in the
    table, or are kept apart by address.

    Of a version in segments only their list is read, over which the digest is computed; the segments are loaded on
    demand, and compared with the list then.

    Raises:
        IndexFileError: the shard table is missing, was changed, or contradicts the header.
    """
    shards = _read_table(store, header)
    rows, digest = samples_of(shards), header.digest
    if recount or header.is_segmented:
        digest = digest_by(header.digest_scheme, shards, header.logical)
    if (digest, rows, len(shards)) != (header.digest, header.rows, header.num_shards):
        raise IndexFileError(
            f"version {header.version} of {store.url}: header says {header.num_shards} shards, {header.rows} "
            "samples, digest "
            f"{header.digest[:12]}; its table has {len(shards)}, {rows}, {digest[:12]}",
            key=header.table_key,
        )
    return make_manifest(header, shards)


def digest_by(scheme: str, shards: Sequence[ShardInfo], logical: Mapping[str, Any]) -> str:
    """Return the digest of a version's shards by a scheme; of segments, it is computed over the digests in the list."""
    content = segments_in(shards)
    if not is_content(scheme):
        return digest_of(shards) if content is None else content.listed.digest
    parts = [digest_of_shards(shards)] if content is None else [facts.digest for facts in content.listed.segments]
    return version_digest(parts, logical, scheme)


def segment_keys(store: Store, header: Header) -> dict[str, str]:
    """Return the keys of the segments of a version by their SHA-256; none for a version with a single table.

    Raises:
        IndexFileError: the list of segments is missing or damaged.
    """
    content = segments_in(_read_table(store, header)) if header.is_segmented else None
    return {} if content is None else {facts.sha256: facts.key for facts in content.listed.segments}


def _read_table(store: Store, header: Header) -> ShardTable:
    key, sha256, scheme = header.table_key, header.table_sha256, header.digest_scheme
    try:
        if header.is_segmented:
            return load_segments(store, key, sha256=sha256, scheme=scheme, columns=header.columns)
        return load_table(store, key, sha256=sha256)
    except StoreNotFound as error:
        raise IndexFileError(
            f"version {header.version} names the shard table {store.locate(key)}, which is gone", key=key
        ) from error


def make_manifest(header: Header, shards: Sequence[ShardInfo]) -> Manifest:
    """Combine a header with its shards, whose digest the caller has compared with the header's."""
    if shards:
        schema = shards[0].schema
    elif "float" in header.columns.values():  # only text shards have this encoding
        schema = text_schema(header.columns)
    else:
        schema = Schema.from_columns(header.columns, allow_unsafe_types=True)
    is_table = isinstance(shards, ShardTable)
    return Manifest(**shared_fields(header, Manifest), schema=schema, shards=shards if is_table else tuple(shards))
