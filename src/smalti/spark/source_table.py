"""Which source file each sample of a version came from: what an incremental run needs to know of the one before.

An Arrow file beside the shards, compressed: a row for each run of samples of one file in one shard, in the order of the
samples; a file that gave no sample has a row without a shard. A million files of one image each are some 20 MB.
"""

import base64
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from smalti.catalog.sidecars import SOURCES
from smalti.errors import IndexFileError, SchemaError, SmaltiError, StoreNotFound
from smalti.format import ShardInfo
from smalti.format.names import check_basename
from smalti.storage import Store

_TEXTS = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema([("shard", _TEXTS), ("path", _TEXTS), ("fingerprint", _TEXTS), ("rows", pa.int32())])


@dataclass(frozen=True)
class SourceFile:
    """One file that rows are made of."""

    path: str
    """Its name: what the rows that are made of it hold in their path column."""
    fingerprint: str
    """Changes when its rows would: size and time or ETag, and whatever else they depend on, such as its label."""


@dataclass(frozen=True)
class Run:
    """Samples of one file that follow each other in a shard."""

    path: str
    rows: int


@dataclass(frozen=True)
class SourceTable:
    """What a version was made of."""

    fingerprints: Mapping[str, str]
    """Of every file, by path; of those too that gave no sample."""
    runs: Mapping[str, Sequence[Run]]
    """By the name of a shard's uncompressed file: whose samples it holds, in order."""

    def holding(self, paths: set[str]) -> set[str]:
        """The names of the shards that hold samples of these files."""
        return {name for name, runs in self.runs.items() if any(run.path in paths for run in runs)}

    def check(self, shards: Sequence[ShardInfo], *, where: str) -> None:
        """Return only if it tells of every sample of these shards, and of no others.

        Raises:
            IndexFileError: it is of another version.
        """
        told = {name: sum(run.rows for run in runs) for name, runs in self.runs.items()}
        if told != {shard.raw.basename: shard.samples for shard in shards}:
            raise IndexFileError(f"{where}: the table of source files tells of other shards than the version has")

    def emit(self) -> bytes:
        """The Arrow file."""
        rows: list[tuple[str | None, str, int]]
        rows = [(name, run.path, run.rows) for name, runs in self.runs.items() for run in runs]
        rows += [(None, path, 0) for path in sorted(self.fingerprints.keys() - {path for _, path, _ in rows})]
        shards, paths, counts = zip(*rows, strict=True) if rows else ((), (), ())
        columns = [shards, paths, [self.fingerprints[path] for path in paths]]
        arrays = [pa.array(column, pa.string()).cast(_TEXTS) for column in columns]
        table = pa.table([*arrays, pa.array(counts, pa.int32())], schema=_SCHEMA)
        return _ipc(table)


def parse_sources(data: bytes, *, where: str) -> SourceTable:
    """The table of an Arrow file.

    Raises:
        IndexFileError: it is not what `SourceTable.emit` gives.
    """
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        if table.schema != _SCHEMA:
            raise IndexFileError(f"{where}: expected columns {_SCHEMA.names}, found {table.schema.names}")
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


def store_sources(store: Store, table: SourceTable, write_id: str, recipe: str) -> dict[str, Any]:
    """The entry for a header's `sidecars`, after the table was put below the write's own folder."""
    data = table.emit()
    key = f"{write_id}/sources.arrow"
    store.put(key, data)
    return {
        "kind": SOURCES,
        "key": key,
        "sha256": hashlib.sha256(data).hexdigest(),
        "recipe": recipe,
        "files": len(table.fingerprints),
    }


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


class RunRecorder:
    """The runs of rows that go through a task."""

    def __init__(self) -> None:
        """None yet."""
        self._paths: list[str] = []
        self._rows: list[int] = []

    def add(self, paths: "pa.Array[Any]") -> None:
        """Rows with these values in their path column.

        Raises:
            SchemaError: one has none, or another kind of value.
        """
        if paths.null_count or not (pa.types.is_string(paths.type) or pa.types.is_large_string(paths.type)):
            raise SchemaError(f"the path column must hold the file of every row, as text; found {paths.type} or a null")
        for path in paths.to_pylist():
            if self._paths and self._paths[-1] == path:
                self._rows[-1] += 1
            else:
                self._paths.append(path)
                self._rows.append(1)

    def pack(self) -> str:
        """As text for a task's answer."""
        table = pa.table({"path": pa.array(self._paths, pa.string()), "rows": pa.array(self._rows, pa.int64())})
        return base64.b64encode(_ipc(table)).decode()


def unpack_runs(text: str) -> Iterator[Run]:
    """What `RunRecorder.pack` packed."""
    table = pa.ipc.open_file(pa.py_buffer(base64.b64decode(text))).read_all()
    return map(Run, table.column("path").to_pylist(), table.column("rows").to_pylist())


def _ipc(table: "pa.Table") -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue()
