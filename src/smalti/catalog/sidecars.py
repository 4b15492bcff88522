"""Objects beside the shards of a version: columns that were added later, source files of samples, deletions.

A header's `sidecars` are entries of three kinds, each with objects of its own below a write id. The Spark jobs that
make them are in `smalti.spark`.

columns   a shard table aligned with the version's own: shard i has further columns of the samples of shard i
sources   a table of the source files of the samples, so that an incremental run can find new and changed files
files     a Parquet file with facts of each source file of prepared images; see `spark.prepared.table`

The digest of a version covers its own shards alone. Cached copies, the sample order and saved cursors are therefore
those of the version without the added columns.

The table of source files is a compressed Arrow file: a row for each run of samples of one file in one shard, in sample
order, and a row without a shard for each file without samples. A million files of one image each take some 20 MB. It
may cover a part of a version's shards only: shards that were appended without their source files are not in it. A
compaction transfers it to the shards that it makes (`SourceTable.moved`).

Records of deleted samples are objects of the same kind, so that an incremental run does not bring the samples back
unnoticed. Every header carries, in `erased`, an entry for each deletion in this and earlier versions:

    {"version": 7, "write_id": "...", "by": "ids", "samples": 12, "purged": true,
     "key": "<write id>/erased.arrow", "sha256": "...", "salt": "..."}

`version` is a number of this store, `write_id` that of the deletion: a copy in another store keeps it.

The entry does not contain what was looked for, which may be personal data. Where the version's source files are known,
the object lists those that had deleted samples, each as a keyed BLAKE2b hash of its path. Such a file must not be
converted again: it may still contain what was deleted.
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.catalog.digest import digest_of
from smalti.catalog.manifest import ROW_HASH, Draft, Header, Manifest
from smalti.catalog.table.arrow import emit_table, ipc_file, load_table
from smalti.catalog.table.content import MAX_TABLE_BYTES
from smalti.catalog.table.shard_table import ShardTable, block_files_of, kinds_of, num_bytes_of, sizes_of
from smalti.errors import IndexFileError, SchemaError, SmaltiError, StoreNotFound
from smalti.format import Schema, ShardInfo
from smalti.format.index import check_basename
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = "columns"
SOURCES = "sources"
FILES = "files"
_OBJECTS = (SOURCES, FILES)
Entries = Sequence[Mapping[str, Any]]
Version = Header | Manifest
_SHA256 = re.compile("[0-9a-f]{64}")
ERASED = "erased"
_HASH_BYTES = 16


@dataclass(frozen=True)
class ColumnsEntry:
    """The `sidecars` entry of columns that were added together."""

    columns: Mapping[str, str]
    """Name to encoding."""
    table_key: str
    """Key of the Arrow file with the aligned shards, below the write id that added them."""
    table_sha256: str
    digest: str
    """Digest of the aligned shards; names the folder of their cached copies."""
    num_bytes: int
    """Bytes of the aligned shards as stored."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    """Logical types by column; see `Annotations.logical`."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as it is in a header."""
        return {"kind": COLUMNS, **vars(self), "columns": dict(self.columns), "logical": dict(self.logical)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], *, where: str) -> "ColumnsEntry":
        """Parse and check an entry.

        Raises:
            IndexFileError: a field is missing or invalid.
        """
        values: dict[str, Any] = {name: entry.get(name) for name in cls.__dataclass_fields__}
        columns, digests = values["columns"], (values["table_sha256"], values["digest"])
        is_valid = (
            isinstance(columns, dict)
            and all(isinstance(item, str) for pair in columns.items() for item in pair)
            and all(isinstance(text, str) and _SHA256.fullmatch(text) for text in digests)
            and isinstance(values["num_bytes"], int)
            and isinstance(values["logical"], dict)
        )
        if not is_valid:
            raise IndexFileError(f"{where}: an entry of `sidecars` cannot be understood: {dict(entry)!r:.200}")
        found = cls(**values)
        check_basename(found.table_key, where=where)
        return found


def columns_of(sidecars: Entries, *, where: str = "version header") -> tuple[ColumnsEntry, ...]:
    """Return the entries of added columns, in the order in which they were added.

    Raises:
        IndexFileError: an entry is invalid.
    """
    return tuple(ColumnsEntry.from_json(entry, where=where) for entry in sidecars if entry.get("kind") == COLUMNS)


def sources_of(sidecars: Entries) -> Mapping[str, Any] | None:
    """Return the entry of the source files; None if there is none."""
    return entry_of(sidecars, SOURCES)


def entry_of(sidecars: Entries, kind: str) -> Mapping[str, Any] | None:
    """Return the first entry of a kind; None if there is none."""
    return next((entry for entry in sidecars if entry.get("kind") == kind), None)


def objects_of(sidecars: Entries) -> list[Mapping[str, Any]]:
    """Return the entries that are one object each."""
    return [entry for entry in sidecars if entry.get("kind") in _OBJECTS]


def store_object(store: Store, kind: str, key: str, data: bytes, **facts: Any) -> dict[str, Any]:
    """Put an object, and return the entry for a header's `sidecars`."""
    store.put(key, data)
    return {"kind": kind, "key": key, "sha256": hashlib.sha256(data).hexdigest(), **facts}


def load_object(store: Store, entry: Mapping[str, Any]) -> bytes:
    """Load the object that an entry names.

    Raises:
        IndexFileError: it is missing, or not the one that was written.
    """
    key = check_basename(entry.get("key"), where=f"{store.url}: `sidecars`")
    try:
        data = store.get_limited(key, MAX_TABLE_BYTES)
    except StoreNotFound as error:
        raise IndexFileError(f"the table of source files {store.locate(key)} is gone", key=key) from error
    if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        raise IndexFileError(
            f"{store.locate(key)} is not the table that its version names: damaged or replaced", key=key
        )
    return data


def sidecars_after(parent: Version | None, draft: Draft, mode: str) -> tuple[Mapping[str, Any], ...]:
    """Return the sidecars of the version that publishing `draft` after `parent` creates.

    Raises:
        SchemaError: an append to a version with added columns, which the new shards would lack.
    """
    if mode != "append" or parent is None:
        return tuple(draft.sidecars)
    check_no_added_columns(parent)
    # The appended rows have no known source files; what is known of the parent's shards stays valid.
    return tuple(entry for entry in parent.sidecars if entry.get("kind") == SOURCES)


def check_no_added_columns(parent: Version) -> None:
    """Check that rows can be appended to the version.

    Raises:
        SchemaError: it has added columns, which the new shards would lack.
    """
    added = [name for entry in columns_of(parent.sidecars) for name in entry.columns]
    if added:
        raise SchemaError(
            f"cannot append to version {parent.version}: its columns {', '.join(map(repr, added))} were added beside "
            "the shards, and the new shards would lack them. Take them out with `drop_columns`, append, and add them "
            "again; or write the whole set anew with mode='overwrite'",
            version=parent.version,
            columns=added,
        )


def aligned_shards(store: Store, entry: ColumnsEntry, main: Sequence[ShardInfo]) -> ShardTable:
    """Load the shards with an entry's columns, and check that they match `main`, the shards of the version, one by one.

    Raises:
        IndexFileError: their table is missing, damaged, or does not match.
    """
    found = shards_of(store, entry)
    expected = Schema.from_columns(entry.columns, allow_unsafe_types=True).columns()
    fits = np.array_equal(sizes_of(found), sizes_of(main))
    if not fits or any(kind.schema.columns() != expected for kind in kinds_of(found)):
        raise IndexFileError(
            f"{store.locate(entry.table_key)}: the shards of the added columns "
            f"{', '.join(entry.columns)} do not fit the {len(main)} shards that they were added to",
            key=entry.table_key,
        )
    return found


def shards_of(store: Store, entry: ColumnsEntry) -> ShardTable:
    """Load the shards with an entry's columns.

    Raises:
        IndexFileError: the table is missing, too large, or not the one that the header names.
    """
    key = entry.table_key
    try:
        return load_table(store, key, sha256=entry.table_sha256)
    except StoreNotFound as error:
        raise IndexFileError(f"the table of added columns {store.locate(key)} is gone; roll back", key=key) from error


def live_keys(store: Store, sidecars: Entries) -> Iterator[str]:
    """Yield the keys of all objects that the sidecars of a version need; none of them may be removed.

    Raises:
        IndexFileError: a table cannot be read, so that its keys are unknown.
    """
    yield from (str(entry["key"]) for entry in objects_of(sidecars))
    for added in columns_of(sidecars):
        yield added.table_key
        shards = shards_of(store, added)
        yield from block_files_of(shards)
        for shard in shards:
            yield from (file.basename for file in shard.stored_files)


def store_columns(
    store: Store, key: str, shards: Sequence[ShardInfo], columns: Mapping[str, str], logical: Mapping[str, Any]
) -> ColumnsEntry:
    """Put the table of aligned shards, and return the entry for a header's `sidecars`.

    `shards` has one shard for each of the version, with as many samples, in the store already. The key lies below the
    folder of the write that made them.

    Raises:
        StoreError: the table could not be put.
    """
    table = emit_table(shards)
    store.put(key, table)
    return ColumnsEntry(
        columns=columns,
        table_key=key,
        table_sha256=hashlib.sha256(table).hexdigest(),
        digest=digest_of(shards),
        num_bytes=num_bytes_of(shards),
        logical=logical,
    )


@dataclass(frozen=True)
class SampleRun:
    """Consecutive samples of one source file in a shard."""

    path: str
    rows: int
    """Number of samples."""


@dataclass(frozen=True)
class SourceTable:
    """The source files of a version, or of a part of its shards."""

    fingerprints: Mapping[str, str]
    """Fingerprint of every file by path, including files without samples."""
    runs: Mapping[str, Sequence[SampleRun]]
    """The runs of a shard in sample order, by the name of its uncompressed file."""

    def shards_with(self, paths: set[str]) -> set[str]:
        """Return the names of the shards that contain samples of these files."""
        return {name for name, runs in self.runs.items() if any(run.path in paths for run in runs)}

    def covers(self, shard: ShardInfo) -> bool:
        """Return whether the source files of this shard are known."""
        return shard.raw.basename in self.runs

    def check(self, shards: Iterable[ShardInfo], *, where: str) -> None:
        """Check that every shard in the table is one of these, with as many samples.

        Raises:
            IndexFileError: the table is of another version.
        """
        recorded = {name: sum(run.rows for run in runs) for name, runs in self.runs.items()}
        there = {shard.raw.basename: shard.samples for shard in shards if self.covers(shard)}
        if recorded != there:
            raise IndexFileError(f"{where}: the table of source files covers other shards than the version has")

    def moved(self, groups: Iterable[tuple[Sequence[ShardInfo], Sequence[ShardInfo]]]) -> "SourceTable":
        """Return the table after the samples of some shards were moved to other shards, in the same order.

        `groups` has pairs of former and new shards; the table covers all of the former of a pair, or none of them.

        Raises:
            SmaltiError: the new shards have more or fewer samples.
        """
        runs = dict(self.runs)
        for before, after in groups:
            if all(map(self.covers, before)):
                runs |= split_runs(chain.from_iterable(runs.pop(shard.raw.basename) for shard in before), after)
        return SourceTable(self.fingerprints, runs)

    def emit(self) -> bytes:
        """Return the table as an Arrow file."""
        import pyarrow as pa

        rows: list[tuple[str | None, str, int]]
        rows = [(name, run.path, run.rows) for name, runs in self.runs.items() for run in runs]
        rows += [(None, path, 0) for path in sorted(self.fingerprints.keys() - {path for _, path, _ in rows})]
        shards, paths, counts = zip(*rows, strict=True) if rows else ((), (), ())
        columns = [shards, paths, [self.fingerprints[path] for path in paths]]
        schema = _schema()
        arrays = [pa.array(column, pa.string()).cast(schema.field(0).type) for column in columns]
        return ipc_file(pa.table([*arrays, pa.array(counts, pa.int32())], schema=schema))


@dataclass(frozen=True)
class SourceRecord:
    """The `sidecars` entry of source files, with its table loaded."""

    table: SourceTable
    recipe: str
    """Identifier of the conversion of files to rows; a run with another one cannot reuse the table."""
    row_hash: str | None
    """Row hash of the samples that the table covers; empty if it is not known, None in entries of older versions."""


def parse_sources(data: bytes, *, where: str) -> SourceTable:
    """Parse a table of source files.

    Raises:
        IndexFileError: the data is not of the form that `SourceTable.emit` returns.
    """
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        if table.schema != _schema():
            raise IndexFileError(f"{where}: expected columns {_schema().names}, found {table.schema.names}")
        table.validate(full=True)
        columns = [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise IndexFileError(f"{where} is no table of source files: {str(error)[:200]}") from error
    fingerprints: dict[str, str] = {}
    runs: dict[str, list[SampleRun]] = {}
    for name, path, fingerprint, rows in zip(*columns, strict=True):
        if path is None or fingerprint is None or rows is None:
            raise IndexFileError(f"{where}: a row without path, fingerprint or count")
        fingerprints[path] = fingerprint
        if name is not None:
            runs.setdefault(name, []).append(SampleRun(path, rows))
    return SourceTable(fingerprints, runs)


def store_sources(store: Store, record: SourceRecord, write_id: str) -> dict[str, Any]:
    """Put the table below the folder of the write, and return the entry for a header's `sidecars`."""
    facts = {"recipe": record.recipe, "files": len(record.table.fingerprints)}
    entry = store_object(store, SOURCES, f"{write_id}/sources.arrow", record.table.emit(), **facts)
    return entry if record.row_hash is None else entry | {"row_hash": record.row_hash}


def load_sources(store: Store, entry: Mapping[str, Any]) -> SourceTable:
    """Load the table that an entry names.

    Raises:
        IndexFileError: it is missing or not the one that was written; roll back, or convert all files again.
    """
    return parse_sources(load_object(store, entry), where=store.locate(str(entry["key"])))


def read_source_record(store: Store, entry: Mapping[str, Any], shards: Iterable[ShardInfo]) -> SourceRecord:
    """Parse the entry of a version with these shards, and load its table.

    Raises:
        IndexFileError: it is invalid; or the table is missing, not the one that was written, or of another version.
    """
    row_hash, recipe = entry.get("row_hash"), entry.get("recipe")
    if not (row_hash is None or (isinstance(row_hash, str) and ROW_HASH.fullmatch(row_hash))):
        raise IndexFileError(f"{store.url}: `sidecars`: expected a row hash of source files, found {row_hash!r:.80}")
    if not isinstance(recipe, str):
        raise IndexFileError(f"{store.url}: `sidecars`: expected the recipe of source files, found {recipe!r:.80}")
    table = load_sources(store, entry)
    table.check(shards, where=store.url)
    return SourceRecord(table, recipe, row_hash)


def split_runs(runs: Iterable[SampleRun], shards: Sequence[ShardInfo]) -> dict[str, list[SampleRun]]:
    """Divide runs among the shards that contain their samples in this order; return them by shard name.

    Raises:
        SmaltiError: the shards have more or fewer samples.
    """
    found: dict[str, list[SampleRun]] = {}
    rest = iter(runs)
    run = next(rest, None)
    for shard in shards:
        left, own = shard.samples, found.setdefault(shard.raw.basename, [])
        while left and run is not None:
            taken = min(left, run.rows)
            if own and own[-1].path == run.path:
                own[-1] = SampleRun(run.path, own[-1].rows + taken)
            else:
                own.append(SampleRun(run.path, taken))
            left -= taken
            run = SampleRun(run.path, run.rows - taken) if taken < run.rows else next(rest, None)
        if left:
            raise SmaltiError(f"shard {shard.raw.basename} holds {left} samples of no file; nothing was published")
    if run is not None:
        raise SmaltiError(f"{run.rows} samples of {run.path} or more are in no shard; nothing was published")
    return found


def _schema() -> "pa.Schema":
    import pyarrow as pa

    texts = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([("shard", texts), ("path", texts), ("fingerprint", texts), ("rows", pa.int32())])


@dataclass(frozen=True)
class Erasure:
    """One deletion of samples."""

    by: str
    """The kind of choice of the samples: where, ids, expression, function or positions."""
    samples: int
    """Number of samples that were deleted."""
    purged: bool
    """True if older versions with these samples were to be removed too."""
    paths: Sequence[str] = ()
    """Source files of deleted samples, as far as they are known."""

    def store(self, store: Store, write_id: str) -> dict[str, Any]:
        """Put the hashes of the paths below the folder of the write, and return the entry for the header."""
        facts = {"by": self.by, "samples": self.samples, "purged": self.purged}
        if not self.paths:
            return facts
        import pyarrow as pa

        salt = secrets.token_bytes(_HASH_BYTES)
        hashes = sorted({_hash(salt, path) for path in self.paths})
        data = ipc_file(pa.table({"file": pa.array(hashes, pa.binary(_HASH_BYTES))}))
        entry = store_object(store, ERASED, f"{write_id}/{ERASED}.arrow", data, salt=salt.hex())
        return {**facts, **{name: entry[name] for name in ("key", "sha256", "salt")}}


def erased_paths(store: Store, header: Header, paths: Iterable[str]) -> list[str]:
    """Return those of these source files that had samples which were deleted in this version or an earlier one.

    Raises:
        IndexFileError: a record is missing, or not the one that was written.
    """
    wanted = list(paths)
    found: set[str] = set()
    for entry in header.erased if wanted else ():
        if "key" in entry:
            salt, hashes = _load(store, entry)
            found.update(path for path in wanted if _hash(salt, path) in hashes)
    return [path for path in wanted if path in found]


def kept_after_rollback(newest: Header, target: Header) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of a version that rolls back to `target`.

    A deletion after the target that was not purged is undone by the rollback, on request; the others still hold.
    """
    return tuple(
        entry for entry in newest.erased if entry.get("purged") or int(entry.get("version", 0)) <= target.version
    )


def joined_erasures(
    before: Iterable[Mapping[str, Any]], added: Iterable[Mapping[str, Any]], *, version: int, write_id: str
) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of version `version`: those of its parent, and those that it adds, each deletion once."""
    found = {erasure_id(entry): dict(entry) for entry in before}
    for entry in added:
        new = {"write_id": write_id, **entry, "version": version}
        known = found.setdefault(erasure_id(new), new)
        known["purged"] = bool(known.get("purged") or entry.get("purged"))
    return tuple(found.values())


def purged_erasures(newest: Header, retired: Collection[int]) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of a version that retires these: deletions after one of them cannot be undone any more."""
    return tuple(
        {**entry, "purged": True} if any(version < int(entry.get("version", 0)) for version in retired) else entry
        for entry in newest.erased
    )


def erasure_id(entry: Mapping[str, Any]) -> str:
    """Return the write id of a deletion, which identifies it in every store."""
    return str(entry.get("write_id", ""))


def erased_keys(header: Header) -> list[str]:
    """Return the keys of the objects with source files of deleted samples."""
    return [str(entry["key"]) for entry in header.erased if "key" in entry]


def last_erasure(header: Header) -> int:
    """Return the version of the last deletion; 0 if there was none. Older versions may hold deleted samples."""
    return max((int(entry.get("version", 0)) for entry in header.erased), default=0)


def _hash(salt: bytes, path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), key=salt, digest_size=_HASH_BYTES).digest()


def _load(store: Store, entry: Mapping[str, Any]) -> tuple[bytes, frozenset[bytes]]:
    import pyarrow as pa

    data = load_object(store, entry)
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        return bytes.fromhex(str(entry["salt"])), frozenset(table.column("file").to_pylist())
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        where = store.locate(str(entry["key"]))
        raise IndexFileError(f"{where} is no record of deleted samples: {str(error)[:200]}") from error
