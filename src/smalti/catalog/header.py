"""The small JSON header of a version, `_versions/<n>.json`: immutable, created by put-if-absent, the only truth."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from smalti.catalog.manifest import ROW_HASH, Manifest, VersionInfo
from smalti.catalog.table.arrow import map_table, parse_table
from smalti.catalog.table.digest import digest_of
from smalti.catalog.table.shard_table import ShardTable, sizes_of
from smalti.errors import IndexFileError, StoreNotFound
from smalti.format import Schema, ShardInfo, load_strict, text_schema
from smalti.storage import Store

_SHA256 = re.compile("[0-9a-f]{64}")
FOLDER = "_versions"
INDEX = "index.json"
HEADER_FORMAT = 1
MAX_HEADER_BYTES = 16 << 20
"""Far above any honest header: shards are in the table beside it."""
MAX_TABLE_BYTES = 1 << 30
"""About five million shards."""
MAX_REMEMBERED_WRITES = 256
"""How many earlier write ids a header carries, so that a repeated publish is recognised by one read."""


@dataclass(frozen=True)
class Header:
    """A version without its shards; see `Manifest` for the fields of the same names."""

    version: int
    parent: int | None
    write_id: str
    operation: str
    digest: str
    rows: int
    num_shards: int
    num_bytes: int
    partitions: tuple[str, ...]
    columns: Mapping[str, str]
    table_key: str
    table_sha256: str
    created: str
    lineage: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    """Write id -> version, of this and earlier versions."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    row_hash: str = ""
    sidecars: Sequence[Mapping[str, Any]] = ()
    fenced: tuple[str, ...] = ()
    """Write ids of which a vacuum removes what they left: nothing of them may be published any more."""
    expired: tuple[int, ...] = ()
    """Versions whose shards a vacuum removes: nothing may be built on them any more."""

    def emit(self) -> bytes:
        """The header as JSON bytes; a field that says nothing is left out where older headers do not have it."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        fields |= {name: value for name in _OPTIONAL if (value := getattr(self, name))}
        return json.dumps({"smalti": HEADER_FORMAT, **fields}, indent=1, sort_keys=True, allow_nan=False).encode()

    def info(self, *, is_expired: bool = False) -> VersionInfo:
        """The line of the history."""
        names = VersionInfo.__dataclass_fields__.keys() - {"is_expired"}
        return VersionInfo(**{name: getattr(self, name) for name in names}, is_expired=is_expired)


_FIELDS: dict[str, type | tuple[type, ...]] = {
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
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "logical": (dict,),
    "row_hash": (str,),
    "sidecars": (list,),
    "fenced": (list,),
    "expired": (list,),
}
_MEMBERS: dict[str, type] = {"sidecars": dict, "fenced": str, "expired": int}
"""What the members of lists are."""


def header_key(version: int) -> str:
    """Where the header of a version lies."""
    return f"{FOLDER}/{version:08d}.json"


def table_key(sha256: str) -> str:
    """Where a shard table lies; named by its content, so that writing it twice is harmless."""
    return f"{FOLDER}/{sha256}.arrow"


def parse_header(data: bytes, *, where: str) -> Header:
    """A header, strictly.

    Raises:
        IndexFileError: not JSON, a field is missing or of the wrong type, or it is from a newer Smalti.
    """
    found = parse_json(data, where=where)
    if found.get("smalti") != HEADER_FORMAT:
        raise IndexFileError(
            f"version header {where} has format {found.get('smalti')!r:.40}, this reader knows {HEADER_FORMAT}: "
            "update smalti",
            key=where,
        )
    values: dict[str, Any] = {}
    for name, kind in _FIELDS.items():
        value: Any = found.get(name, _ABSENT)
        if value is _ABSENT or not isinstance(value, kind) or isinstance(value, bool):
            raise IndexFileError(
                f"version header {where}: field {name!r} is missing or of the wrong type ({value!r:.80})", key=where
            )
        values[name] = value
    values["partitions"] = tuple(values["partitions"])
    header = Header(**values, **_optional(found, where))
    _check_numbers(header, where)
    return header


def _optional(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields that older headers do not have, and that are left out where they say nothing."""
    values: dict[str, Any] = {}
    for name, kinds in _OPTIONAL.items():
        value: Any = found.get(name, _ABSENT)
        if value is _ABSENT:
            continue
        member = _MEMBERS.get(name)
        fits = isinstance(value, kinds)
        fits = fits and (member is None or all(type(each) is member for each in value))
        if not fits or (name == "row_hash" and not ROW_HASH.fullmatch(value)):
            raise IndexFileError(
                f"version header {where}: field {name!r} is of the wrong type ({value!r:.80})", key=where
            )
        values[name] = tuple(value) if member else value
    return values


def _check_numbers(header: Header, where: str) -> None:
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


_ABSENT = object()


def parse_json(data: bytes, *, where: str) -> dict[str, Any]:
    """A JSON object, or `IndexFileError`; nesting cannot exhaust the stack."""
    found = load_strict(data, where=where)
    if not isinstance(found, dict):
        raise IndexFileError(f"{where} holds a JSON {type(found).__name__}, expected an object", key=where)
    return found


def read_header(store: Store, version: int) -> Header:
    """The header of a version.

    Raises:
        StoreNotFound: there is no such version.
        IndexFileError: it cannot be trusted.
    """
    key = header_key(version)
    data = store.get_range(key, 0, MAX_HEADER_BYTES + 1)
    if not data:
        raise IndexFileError(f"version header {store.locate(key)} is empty", key=key)
    if len(data) > MAX_HEADER_BYTES:
        raise IndexFileError(f"version header {store.locate(key)} is larger than {MAX_HEADER_BYTES} bytes", key=key)
    header = parse_header(data, where=store.locate(key))
    if header.version != version:
        raise IndexFileError(f"version header {store.locate(key)} says that it is version {header.version}", key=key)
    return header


def read_manifest(store: Store, header: Header, *, recount: bool = True) -> Manifest:
    """The whole version that a header belongs to.

    Args:
        store: The root of the set.
        header: Of the version.
        recount: Recompute the digest of the content, which makes every shard of the table; publishers and `verify` do.
            A reader believes the header, which was put only if absent, whole, by a publisher that recounted: the
            SHA-256 beside the digest pins every byte of the table. A header that lies about its digest gains nothing:
            cached files are verified by the hashes of the table that asks for them, or else lie apart by address.

    Raises:
        IndexFileError: the shard table is gone, changed, or contradicts the header.
    """
    shards = _read_table(store, header)
    rows = int(sizes_of(shards).sum())
    digest = digest_of(shards) if recount else header.digest
    if (digest, rows, len(shards)) != (header.digest, header.rows, header.num_shards):
        raise IndexFileError(
            f"version {header.version} of {store.url}: header says {header.num_shards} shards, {header.rows} "
            "samples, digest "
            f"{header.digest[:12]}; its table has {len(shards)}, {rows}, {digest[:12]}",
            key=header.table_key,
        )
    return make_manifest(header, shards)


def _read_table(store: Store, header: Header) -> ShardTable:
    """The table of a version: mapped where it is a file of this machine, else fetched."""
    where = store.locate(header.table_key)
    try:
        num_bytes = store.size(header.table_key)
        if num_bytes > MAX_TABLE_BYTES:
            raise IndexFileError(f"shard table {where}: {num_bytes} bytes are more than {MAX_TABLE_BYTES}", key=where)
        path = store.local_path(header.table_key)
        if path is not None:
            with suppress(OSError):  # some network disks map nothing; `get` says what else it is
                return map_table(path, sha256=header.table_sha256, where=where)
        data = store.get(header.table_key)
    except StoreNotFound as error:
        raise IndexFileError(
            f"version {header.version} names the shard table {where}, which is gone", key=header.table_key
        ) from error
    return parse_table(data, sha256=header.table_sha256, where=where)


def make_manifest(header: Header, shards: Sequence[ShardInfo]) -> Manifest:
    """The whole version: a header, and shards whose digest was compared with its."""
    return Manifest(
        version=header.version,
        parent=header.parent,
        write_id=header.write_id,
        digest=header.digest,
        schema=shards[0].schema if shards else _schema_of_nothing(header),
        shards=shards if isinstance(shards, ShardTable) else tuple(shards),
        rows=header.rows,
        lineage=header.lineage,
        metadata=header.metadata,
        created=header.created,
        logical=header.logical,
        row_hash=header.row_hash,
        sidecars=tuple(header.sidecars),
    )


def _schema_of_nothing(header: Header) -> Schema:
    """The columns of a version without shards, which nothing else tells."""
    if "float" in header.columns.values():  # an encoding of text shards alone
        return text_schema(header.columns)
    return Schema.from_columns(header.columns, allow_unsafe_types=True)
