"""Sources of rows for tests of `convert`, with faults that can be planted, and the rows of a version."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from smalti import open_dataset
from smalti.catalog import load_manifest
from smalti.catalog.verify import open_checked
from smalti.storage import open_store


def ids_of(place):
    """Return the ids of all rows of the newest version, in stored order."""
    store = open_store(place)
    found = []
    for info in load_manifest(store).shards:
        with open_checked(store, info) as shard:
            found += [int(shard[row]["id"]) for row in range(len(shard))]
    return found


def samples_of(place):
    """Return all rows of the newest version as a reader gets them, in stored order."""
    dataset = open_dataset(str(place))
    return [dataset[row] for row in range(len(dataset))]


@dataclass(frozen=True)
class Numbers:
    """Rows with the ids of a range, in batches of these sizes."""

    begin: int
    sizes: tuple[int, ...]
    num_bytes: int = 1
    kill_at: int | None = None
    """Number of the batch before which the process that reads is killed, until `marker` has `kills` letters."""
    marker: str = ""
    kills: int = 1

    @property
    def name(self):
        return f"numbers from {self.begin}"

    def batches(self):
        begin = self.begin
        for place, size in enumerate((*self.sizes, 0)):
            if place == self.kill_at:
                self._die()
            if size:
                yield pa.RecordBatch.from_pydict({"id": pa.array(range(begin, begin + size), pa.int64())})
            begin += size

    def _die(self):
        path = Path(self.marker)
        if len(path.read_text()) < self.kills:
            with path.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class NumberSource:
    """A source of parts with numbers."""

    found: list[Numbers]
    mark: str = "1"
    columns: pa.Schema = field(default_factory=lambda: pa.schema([("id", pa.int64())]))
    url: str = "numbers"

    def schema(self):
        return self.columns

    def parts(self):
        return self.found

    def identity(self):
        return {"digest": self.mark}


def numbers(*sizes_of_parts, **options):
    """Return a source with one part for each tuple of batch sizes."""
    parts, begin = [], 0
    for sizes in sizes_of_parts:
        parts.append(Numbers(begin, tuple(sizes), **options))
        begin += sum(sizes)
    return NumberSource(parts)


@dataclass(frozen=True)
class Rows:
    """A part with the rows of a table, in one batch."""

    table: pa.Table
    num_bytes: int = 1
    name: str = "rows"

    def batches(self):
        yield from self.table.combine_chunks().to_batches()


def table_source(table):
    """Return a source of one part with the rows of a table."""
    return NumberSource([Rows(table)], columns=table.schema)
