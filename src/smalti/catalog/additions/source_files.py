"""Which source file each sample of a version came from: what an incremental run needs to know of those before it.

An Arrow file beside the shards, compressed: a row for each run of samples of one file in one shard, in the order of the
samples; a file that gave no sample has a row without a shard. A million files of one image each are some 20 MB.

It may tell of a part of a version's shards: what was appended to a version without saying where it came from is not in
it. A compaction carries it over to the shards that it makes (`SourceTable.moved`).
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
from smalti.format.names import check_basename
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Run:
    """Samples of one file that follow each other in a shard."""

    path: str
    rows: int


@dataclass(frozen=True)
class SourceTable:
    """What a version, or a part of its shards, was made of."""

    fingerprints: Mapping[str, str]
    """Of every file, by path; of those too that gave no sample."""
    runs: Mapping[str, Sequence[Run]]
    """By the name of a shard's uncompressed file: whose samples it holds, in order."""

    def holding(self, paths: set[str]) -> set[str]:
        """The names of the shards that hold samples of these files."""
        return {name for name, runs in self.runs.items() if any(run.path in paths for run in runs)}

    def tells_of(self, shard: ShardInfo) -> bool:
        """Whether it is known where the samples of this shard came from."""
        return shard.raw.basename in self.runs

    def check(self, shards: Iterable[ShardInfo], *, where: str) -> None:
        """Return only if every shard that it tells of is one of these, with as many samples.

        Raises:
            IndexFileError: it is of another version.
        """
        told = {name: sum(run.rows for run in runs) for name, runs in self.runs.items()}
        there = {shard.raw.basename: shard.samples for shard in shards if self.tells_of(shard)}
        if told != there:
            raise IndexFileError(f"{where}: the table of source files tells of other shards than the version has")

    def moved(self, groups: Iterable[tuple[Sequence[ShardInfo], Sequence[ShardInfo]]]) -> "SourceTable":
        """The same, after the samples of some shards were moved to others, in their order.

        Args:
            groups: shards, and those that hold their samples now; it tells of all of the former, or of none.

        Raises:
            SmaltiError: the new shards hold more or fewer samples.
        """
        runs = dict(self.runs)
        for before, after in groups:
            if all(map(self.tells_of, before)):
                runs |= laid_out(chain.from_iterable(runs.pop(shard.raw.basename) for shard in before), after)
        return SourceTable(self.fingerprints, runs)

    def emit(self) -> bytes:
        """The Arrow file."""
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
class ToldSources:
    """What the header of a version says of its source files, read."""

    table: SourceTable
    recipe: str
    """How files became rows; of another recipe nothing is known."""
    row_hash: str | None
    """Of the samples that the table tells of; empty if it is not known, None where older versions did not say it."""


def parse_sources(data: bytes, *, where: str) -> SourceTable:
    """The table of an Arrow file.

    Raises:
        IndexFileError: it is not what `SourceTable.emit` gives.
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
    runs: dict[str, list[Run]] = {}
    for name, path, fingerprint, rows in zip(*columns, strict=True):
        if path is None or fingerprint is None or rows is None:
            raise IndexFileError(f"{where}: a row without path, fingerprint or count")
        fingerprints[path] = fingerprint
        if name is not None:
            runs.setdefault(name, []).append(Run(path, rows))
    return SourceTable(fingerprints, runs)


def store_sources(store: Store, told: ToldSources, write_id: str) -> dict[str, Any]:
    """The entry for a header's `sidecars`, after the table was put below the write's own folder."""
    data = told.table.emit()
    key = f"{write_id}/sources.arrow"
    store.put(key, data)
    entry = {
        "kind": SOURCES,
        "key": key,
        "sha256": hashlib.sha256(data).hexdigest(),
        "recipe": told.recipe,
        "files": len(told.table.fingerprints),
    }
    return entry if told.row_hash is None else entry | {"row_hash": told.row_hash}


def load_sources(store: Store, entry: Mapping[str, Any]) -> SourceTable:
    """The table that an entry names.

    Raises:
        IndexFileError: it is gone or is another one; roll back, or convert everything anew.
    """
    key = check_basename(entry.get("key"), where=f"{store.url}: `sidecars`")
    try:
        data = store.get(key)
    except StoreNotFound as error:
        raise IndexFileError(f"the table of source files {store.locate(key)} is gone", key=key) from error
    if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        raise IndexFileError(f"{store.locate(key)} is not the table that its version names: damaged or replaced")
    return parse_sources(data, where=store.locate(key))


def read_told(store: Store, entry: Mapping[str, Any], shards: Iterable[ShardInfo]) -> ToldSources:
    """What an entry of a version with these shards says.

    Raises:
        IndexFileError: it cannot be understood; or the table is gone, is another one, or of another version.
    """
    row_hash, recipe = entry.get("row_hash"), entry.get("recipe")
    if not (row_hash is None or (isinstance(row_hash, str) and ROW_HASH.fullmatch(row_hash))):
        raise IndexFileError(f"{store.url}: `sidecars`: expected a row hash of source files, found {row_hash!r:.80}")
    if not isinstance(recipe, str):
        raise IndexFileError(f"{store.url}: `sidecars`: expected the recipe of source files, found {recipe!r:.80}")
    table = load_sources(store, entry)
    table.check(shards, where=store.url)
    return ToldSources(table, recipe, row_hash)


def laid_out(runs: Iterable[Run], shards: Sequence[ShardInfo]) -> dict[str, list[Run]]:
    """The runs as the shards hold them, which hold all their samples in this order.

    Raises:
        SmaltiError: the shards hold more or fewer samples.
    """
    found: dict[str, list[Run]] = {}
    rest = iter(runs)
    run = next(rest, None)
    for shard in shards:
        room, held = shard.samples, found.setdefault(shard.raw.basename, [])
        while room and run is not None:
            taken = min(room, run.rows)
            if held and held[-1].path == run.path:
                held[-1] = Run(run.path, held[-1].rows + taken)
            else:
                held.append(Run(run.path, taken))
            room -= taken
            run = Run(run.path, run.rows - taken) if taken < run.rows else next(rest, None)
        if room:
            raise SmaltiError(f"shard {shard.raw.basename} holds {room} samples of no file; nothing was published")
    if run is not None:
        raise SmaltiError(f"{run.rows} samples of {run.path} or more are in no shard; nothing was published")
    return found


def ipc_file(table: "pa.Table") -> bytes:
    """The table as a compressed Arrow file."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _schema() -> "pa.Schema":
    import pyarrow as pa

    texts = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([("shard", texts), ("path", texts), ("fingerprint", texts), ("rows", pa.int32())])
