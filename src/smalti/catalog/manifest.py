"""The facts of a version, its header as it is stored, the draft of a new version, and row hashes.

The header, `_versions/<n>.json`, is a small JSON object, immutable, created by put-if-absent. A version exists if and
only if its header does; everything else (index files, tags) can be derived or rebuilt.

A new field belongs in `VersionFacts` if the history shows it (and in `Draft` too if writers fill it in), else in
`Annotations`. Headers, manifests and drafts inherit from them, and `shared_fields` copies the values between these
classes by name. Its JSON type follows from its type. The other places to change: `_OPTIONAL` has the names of fields
that headers leave out when they are empty, as new ones must be for older headers to be read; a value that the publisher
itself sets, such as `created`, is also set in `next_header` (`next_version.py`).
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from difflib import get_close_matches
from typing import Any, get_args, get_origin, get_type_hints

from smalti.catalog.digest import digest_of, digest_of_shards, is_content, version_digest
from smalti.catalog.table.arrow import load_table
from smalti.catalog.table.segments import digest_of_list, load_segments
from smalti.catalog.table.shard_table import (
    ShardTable,
    check_shards,
    num_bytes_of,
    of_split,
    partitions_of,
    samples_of,
    segment_shards_of,
    segments_in,
)
from smalti.errors import CatalogError, IndexFileError, SchemaError, StoreNotFound
from smalti.format import Schema, ShardInfo, load_strict, text_schema
from smalti.format.hashing import MODULUS
from smalti.format.index import MAX_DEPTH
from smalti.storage import Store

MAX_VALUE_DEPTH = MAX_DEPTH - 4
"""Levels of nesting of a writer's own JSON: a header or index file that contains it has up to four levels above it."""
_WRITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{3,127}\Z")
_NEW_WRITE_ID = re.compile(r"(?:\A|/)[0-9]{8}t[0-9]{6}-[0-9a-f]{16}/")
ROW_HASH = re.compile("[0-9a-f]{32}|", re.ASCII)
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
_ABSENT = object()
_OPTIONAL = ("digest_scheme", "logical", "row_hash", "sidecars", "fenced", "expired", "erased")
"""Fields of headers that are left out when they are empty, as in older headers."""


@dataclass(frozen=True, kw_only=True)
class VersionFacts:
    """The facts that the header, the manifest and the history entry of a version share."""

    version: int
    """1, 2, ...; 0 for a plain MDS set, which has no versions."""
    parent: int | None = None
    """The version that this one was built on; None for the first."""
    write_id: str = ""
    """Name of the write that published the version; empty for a plain MDS set."""
    digest: str
    """SHA-256, hex, of the content (`smalti.catalog.digest`): equal content, equal digest."""
    digest_scheme: str = ""
    """Scheme of the digest: `content`, or `content-segments-8192` for a version in segments; of earlier versions, whose
    digests cover the names of files, empty or `segments-8192`."""
    rows: int
    """Samples in all shards."""
    operation: str = ""
    """create, overwrite, append, rollback, compact, vacuum or another one; empty for a plain MDS set."""
    created: str = ""
    """Time of publication by the writer's clock, ISO 8601 in UTC. For display; nothing is ordered by it."""


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The statements of a writer about the samples of a version."""

    lineage: Mapping[str, Any] = field(default_factory=dict)
    """The origin of the data, as JSON."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Any other data of the writer, as JSON."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    """Logical types of columns by name (docs/types.md); empty where the stored values are the values."""
    row_hash: str = ""
    """Multiset hash of the stored samples, independent of their order and shards (`smalti.format.hashing`): 32 hex
    digits, or empty where it is not known."""
    sidecars: Sequence[Mapping[str, Any]] = ()
    """Entries for added columns and other data stored next to the shards (docs/resharding.md), as JSON."""


@dataclass(frozen=True, kw_only=True)
class VersionInfo(VersionFacts):
    """One entry of the history."""

    num_shards: int
    num_bytes: int
    """Bytes of all shards as stored."""
    is_expired: bool = False
    """True if a vacuum has removed the shards, so that the version cannot be opened."""
    problem: str = ""
    """Why the header cannot be read; empty if it can. The other facts of such a version are unknown: 0 or empty."""


@dataclass(frozen=True, kw_only=True)
class Manifest(Annotations, VersionFacts):
    """One version of a shard set, complete: every shard that it lists was in the store when it was published."""

    schema: Schema
    shards: Sequence[ShardInfo]
    """In order of sample ids. Immutable: a tuple, or a table that creates shards on access."""

    def select(self, split: str | None) -> Sequence[ShardInfo]:
        """Return the shards of one split, or all shards for None.

        Raises:
            CatalogError: there is no such split; the message lists the splits.
        """
        if split is None:
            return self.shards
        chosen = of_split(self.shards, split)
        if not chosen:
            names = ", ".join(map(repr, self.partitions)) or "none (open it without `split`)"
            near = get_close_matches(split, self.partitions, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise CatalogError(
                f"version {self.version} has no split {split!r}; its splits are: {names}{hint}",
                split=split,
                version=self.version,
            )
        return chosen

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted; empty when the set has none."""
        return partitions_of(self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""
        return num_bytes_of(self.shards)

    def redraft(self, write_id: str, **changes: Any) -> "Draft":
        """Return a draft of this version's content under another write id, with some fields of `Draft` changed."""
        return Draft(**{**shared_fields(self, Draft), "write_id": write_id, **changes})


@dataclass(frozen=True)
class Draft(Annotations):
    """A version to be published, whose shards are in the store already."""

    write_id: str
    """From `new_write_id`; publishing the same one again returns the same version."""
    schema: Schema
    shards: Sequence[ShardInfo]
    """Keys below the root: `[<split>/]<write id>/<task>/shard.00000.mds[.zstd]`, or of another format."""

    def __post_init__(self) -> None:
        check_write_id(self.write_id)
        if not ROW_HASH.fullmatch(self.row_hash):
            raise CatalogError(f"row hash {self.row_hash!r:.80} is not usable: expected 32 lower-case hex digits")
        for name, value in (("lineage", self.lineage), ("metadata", self.metadata), ("logical", self.logical)):
            check_json(name, value)
        for sidecar in self.sidecars:
            check_json("sidecars", sidecar)
        check_shards(self.shards, self.schema)


def shared_fields(source: Any, target: type) -> dict[str, Any]:
    """Return the fields of the dataclass instance `source` that the dataclass `target` has too, by name.

    Mappings are copied, so that later changes by their owner have no effect.
    """
    names = {each.name for each in fields(target)}
    values = {each.name: getattr(source, each.name) for each in fields(source) if each.name in names}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def has_write_id(name: str) -> bool:
    """Return whether the file name of a shard contains a write id, which only Smalti's writers put there."""
    return _NEW_WRITE_ID.search(name) is not None


def new_write_id() -> str:
    """Return a unique name for a write: the time in UTC, for readability, and 64 random bits."""
    return f"{datetime.now(timezone.utc):%Y%m%dt%H%M%S}-{secrets.token_hex(8)}"


def check_write_id(write_id: str) -> None:
    """Check that a write id can name a folder.

    Raises:
        CatalogError: it cannot.
    """
    if not _WRITE_ID.match(write_id):
        raise CatalogError(
            f"write id {write_id!r} is not usable: expected 4 to 128 letters, digits, '.' and '-'; see new_write_id()"
        )


def check_json(name: str, value: Mapping[str, Any]) -> None:
    """Check that a header can contain the value and its readers accept it there: strict JSON, not nested too deeply.

    Raises:
        SchemaError: they would not; the message contains `name`.
    """
    try:
        text = json.dumps(dict(value), allow_nan=False)
        load_strict(text.encode("ascii"), where=name, max_depth=MAX_VALUE_DEPTH)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(
            f"`{name}` must be JSON (strings, finite numbers, booleans, lists, objects): {error}"
        ) from error
    except IndexFileError as error:
        raise SchemaError(
            f"`{name}` could not be read back ({error.message}); expected strict JSON of at most {MAX_VALUE_DEPTH} "
            "levels, each key once in its object. Make it simpler"
        ) from error


def stored_bytes(shard: ShardInfo) -> int:
    """Return the bytes of all files of a shard as stored."""
    return sum(file.num_bytes for file in shard.stored_files)


def row_hash_text(total: int) -> str:
    """Return a sum of sample hashes as headers contain it: 32 hex digits."""
    return f"{total % MODULUS:032x}"


def add_row_hashes(parts: Iterable[tuple[str, int]]) -> str:
    """Return the row hash of all parts together, each given as (row hash, number of samples).

    It is empty if the row hash of a part with samples is not known.
    """
    known = [(text, rows) for text, rows in parts if rows]
    return "" if any(not text for text, _ in known) else row_hash_text(sum(int(text, 16) for text, _ in known))


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
    """Deletions of samples in this and earlier versions (`catalog.sidecars`): what was erased must not come back."""

    def emit(self) -> bytes:
        """Return the header as JSON bytes; optional fields are left out where they are empty."""
        kept = {name: value for name, value in vars(self).items() if value or name not in _OPTIONAL}
        top = {"smalti": _format_of(self.digest_scheme), **kept}
        return json.dumps(top, indent=1, sort_keys=True, allow_nan=False).encode()

    @property
    def is_segmented(self) -> bool:
        """True if the shard table is in segments."""
        return segment_shards_of(self.digest_scheme) is not None

    def has_files_of(self, other: "Header") -> bool:
        """Return whether the other version has the same files, not only the same content."""
        return all(getattr(self, name) == getattr(other, name) for name in ("table_sha256", "sidecars", "logical"))


def _json_type(hint: Any) -> tuple[Any, type | None]:
    """Return the JSON type, or types, of a field with this type, and the type of the members of a list."""
    members = get_args(hint)
    if get_origin(hint) in (tuple, Sequence):
        return list, _json_type(members[0])[0]
    return (dict if get_origin(hint) is Mapping else members or hint), None


_JSON_TYPES = {name: _json_type(hint) for name, hint in get_type_hints(Header).items()}


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
    for name, (kind, member) in _JSON_TYPES.items():
        if name in _OPTIONAL and name not in found:
            continue
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
        return digest_of(shards) if content is None else digest_of_list(content)
    parts = [digest_of_shards(shards)] if content is None else [facts.digest for facts in content.facts]
    return version_digest(parts, logical, scheme)


def segment_keys(store: Store, header: Header) -> dict[str, str]:
    """Return the keys of the segments of a version by their SHA-256; none for a version with a single table.

    Raises:
        IndexFileError: the list of segments is missing or damaged.
    """
    content = segments_in(_read_table(store, header)) if header.is_segmented else None
    return {} if content is None else {facts.sha256: facts.key for facts in content.facts}


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
