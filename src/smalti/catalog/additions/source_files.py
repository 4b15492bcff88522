"""The source file of each sample of a version, so that an incremental run can find new and changed files.

Stored as a compressed Arrow file next to the shards: a row for each run of samples of one file in one shard, in sample
order, and a row without a shard for each file without samples. A million files of one image each take some 20 MB.

The table may cover a part of a version's shards only: shards that were appended without their source files are not in
it. A compaction transfers it to the shards that it makes (`SourceTable.moved`).
"""

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from smalti.catalog.additions.columns import SOURCES
from smalti.catalog.manifest import ROW_HASH
from smalti.errors import IndexFileError, SmaltiError, StoreNotFound
from smalti.format import ShardInfo
from smalti.format.index import check_basename
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa


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

        Args:
            groups: Pairs of the former shards and the new ones; the table covers all of the former, or none of them.

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
    data = record.table.emit()
    key = f"{write_id}/sources.arrow"
    store.put(key, data)
    entry = {
        "kind": SOURCES,
        "key": key,
        "sha256": hashlib.sha256(data).hexdigest(),
        "recipe": record.recipe,
        "files": len(record.table.fingerprints),
    }
    return entry if record.row_hash is None else entry | {"row_hash": record.row_hash}


def load_sources(store: Store, entry: Mapping[str, Any]) -> SourceTable:
    """Load the table that an entry names.

    Raises:
        IndexFileError: it is missing or not the one that was written; roll back, or convert all files again.
    """
    key = check_basename(entry.get("key"), where=f"{store.url}: `sidecars`")
    try:
        data = store.get(key)
    except StoreNotFound as error:
        raise IndexFileError(f"the table of source files {store.locate(key)} is gone", key=key) from error
    if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        raise IndexFileError(f"{store.locate(key)} is not the table that its version names: damaged or replaced")
    return parse_sources(data, where=store.locate(key))


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


def ipc_file(table: "pa.Table") -> bytes:
    """Return the table as a compressed Arrow file."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _schema() -> "pa.Schema":
    import pyarrow as pa

    texts = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([("shard", texts), ("path", texts), ("fingerprint", texts), ("rows", pa.int32())])
