"""Sums over rows, by which what is in a shard set is compared with the rows that it was made from.

Both sides give, for each split, the number of rows and the sum of a hash of every row. The sum does not depend on the
order, so that the sums of shards can be added up, in whatever order the table names their rows.

Also here: the sums of a version's shards. Each is read once; a later run reads the shards that are new to it.

The sums of a shard follow from its content alone. So they are kept under its name, size and hashes, in one small file
beside the data set, and those of a version are added up. `hashes_verify` reads whether a shard is still what it was.
"""

import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from smalti.catalog import Manifest
from smalti.catalog.verify import open_checked
from smalti.errors import BadImageError, StoreError
from smalti.format import ShardInfo
from smalti.images import decode_rgb
from smalti.spark.prepared.table import PreparedTable
from smalti.storage import Store
from smalti_dagster.reports.tables import named

ROWS = "rows"
"""Accepts that any number of rows are gone."""

ALL = "*"
"""Accepts that anything is gone."""

_HEX_DIGITS = 15  # 60 bits of a row's hash
MAX_NAMED = 20
"""Names of losses, or of unusable images, that a message has."""

MODULUS = 1 << 64
"""Modulus of sums of hashes."""


@dataclass
class SplitSums:
    """The content of one split on one side, or of a part of it."""

    rows: int = 0
    hash_sum: int = 0
    """Modulo `MODULUS`."""
    labels: Counter[int] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    """Paths of images that do not decode; the first few."""

    def add(self, other: "SplitSums") -> None:
        """Add the sums of other rows to these."""
        self.rows += other.rows
        self.hash_sum = (self.hash_sum + other.hash_sum) % MODULUS
        self.labels.update(other.labels)
        self.unreadable += other.unreadable[: MAX_NAMED - len(self.unreadable)]


def not_in(manifest: Manifest | None) -> Callable[[ShardInfo], bool]:
    """Return whether a shard is none of this version's, byte for byte; every one is, where there is no version."""
    known = {_content(info) for info in manifest.shards} if manifest is not None else set()
    return lambda info: not info.raw.hashes or _content(info) not in known


def _content(info: ShardInfo) -> tuple[Any, ...]:
    return info.raw.basename, info.raw.num_bytes, *sorted(info.raw.hashes.items())


def row_hash(image: bytes, label: int, path: str) -> int:
    """Return 60 bits of SHA-256 over a row."""
    return _hash_of_texts(hashlib.sha256(image).hexdigest(), label, path)


def _hash_of_texts(digest: str, label: int, path: str) -> int:
    return int(hashlib.sha256(f"{digest}|{label}|{path}".encode()).hexdigest()[:_HEX_DIGITS], 16)


def sums_of_table(table: PreparedTable) -> dict[str, SplitSums]:
    """Return the sums of a table of prepared images, from the digests that were taken when they were prepared."""
    sums: dict[str, SplitSums] = {}
    names = ("split", "digest", "label", "path")
    columns = [table.good.column(name).to_pylist() for name in names]
    for split, digest, label, path in zip(*columns, strict=True):
        part = sums.setdefault(split, SplitSums())
        part.rows += 1
        part.hash_sum = (part.hash_sum + _hash_of_texts(digest, label, path)) % MODULUS
        part.labels[label] += 1
    return sums


def class_counts(sums: Mapping[str, SplitSums], classes: Sequence[str]) -> dict[str, int]:
    """Return how many rows each class has over all splits; a label is an index of `classes`."""
    return {name: sum(part.labels[label] for part in sums.values()) for label, name in enumerate(classes)}


def find_losses(
    before: Mapping[str, int],
    now: Mapping[str, int],
    *,
    accepted: Collection[str],
    max_row_loss: float,
    names: str = "classes",
) -> list[str]:
    """Say what is gone from a version to a later one, beyond what was accepted; empty if nothing is. Pure.

    Rows are compared class by class: a class that grew does not make up for one that shrank.

    Args:
        before: rows of each class of the earlier version.
        now: rows of each class of the later one.
        accepted: names of classes that may go, "rows" for any number of rows, "*" for everything.
        max_row_loss: share of the earlier version's rows that may go.
        names: what the rows are counted by, for messages.
    """
    if ALL in accepted:
        return []
    watched = {name: count for name, count in before.items() if count and name not in accepted}
    gone = [name for name in watched if not now.get(name)]
    lost = sum(max(0, count - now.get(name, 0)) for name, count in watched.items())
    of = sum(watched.values())
    losses = []
    if gone:
        losses.append(f"{len(gone)} of {len(watched)} {names} are gone ({named(gone, MAX_NAMED)})")
    if ROWS not in accepted and lost > max_row_loss * of:
        losses.append(f"{lost} of {of} rows are gone, at most {max_row_loss:.0%} may go")
    return losses


KEPT = "shard_sums.parquet"
"""Name of the file with the sums of the shards of the newest version that was read."""

_FORMAT_KEY, _FORMAT = b"smalti.shard_sums", b"1"  # raise it when the same shard would have other sums
_SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("rows", pa.int64()),
        ("hash_sum", pa.uint64()),
        ("labels", pa.list_(pa.int64())),
        ("counts", pa.list_(pa.int64())),
        ("unreadable", pa.list_(pa.string())),
    ],
    metadata={_FORMAT_KEY: _FORMAT},
)
_BATCH_ROWS = 512
_MAX_THREADS = 8
_MAX_BYTES = 1 << 28  # of the shards that are read at a time; a remote one is copied to the disk


@dataclass(frozen=True)
class SetSums:
    """The content of a version."""

    shards: Mapping[str, SplitSums]
    """By what identifies a shard."""
    splits: Mapping[str, SplitSums]
    read: int
    """Rows that were read for this; those of the other shards were read before."""


def sums_of_shards(store: Store, manifest: Manifest, known: Mapping[str, SplitSums] | None = None) -> SetSums:
    """Return the sums of a version, from those of its shards; every image of a shard that is read is decoded.

    Args:
        store: Of the set.
        manifest: Of the version.
        known: Sums of shards that are not read again, as `load_sums` returns them.

    Raises:
        FormatError: A shard is not what its manifest says.
        StoreError: A shard cannot be read.
    """
    known = known or {}
    new = [info for info in manifest.shards if identity_of(info) not in known]
    largest = max((info.raw.num_bytes for info in new), default=1)
    threads = max(1, min(_MAX_THREADS, 2 * (os.cpu_count() or 1), _MAX_BYTES // largest))
    with ThreadPoolExecutor(threads, thread_name_prefix="smalti-sums") as pool:
        read = list(pool.map(lambda info: _read(store, info), new))
    fresh = {info.raw.basename: sums for info, sums in zip(new, read, strict=True)}
    shards: dict[str, SplitSums] = {}
    splits = {split: SplitSums() for split in manifest.partitions}
    for info in manifest.shards:
        identity = identity_of(info)
        sums = fresh.get(info.raw.basename) or known[str(identity)]
        splits[str(info.partition)].add(sums)
        if identity is not None:
            shards[identity] = sums
    return SetSums(shards, splits, sum(sums.rows for sums in read))


def identity_of(info: ShardInfo) -> str | None:
    """Return a text that is the same for the same shard only; None for a shard without hashes, which any bytes fit."""
    if not info.raw.hashes:
        return None
    return " ".join(
        [info.raw.basename, str(info.raw.num_bytes), *(f"{k}={v}" for k, v in sorted(info.raw.hashes.items()))]
    )


def load_sums(store: Store) -> dict[str, SplitSums]:
    """Return the sums that `save_sums` has kept; none if there are none that can be read."""
    with suppress(StoreError, pa.ArrowException, OSError):
        table = pq.read_table(pa.BufferReader(store.get(KEPT)))
        if (table.schema.metadata or {}).get(_FORMAT_KEY) == _FORMAT and table.schema.names == _SCHEMA.names:
            return {row["shard"]: _parse(row) for row in table.to_pylist()}
    return {}


def save_sums(store: Store, sums: SetSums) -> None:
    """Keep the sums of a version's shards in place of those before. Best effort: without them, shards are read."""
    rows = [{"shard": name, **_emit(each)} for name, each in sums.shards.items()]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), out, compression="zstd")
    with suppress(StoreError):
        store.put(KEPT, out.getvalue())


def _emit(sums: SplitSums) -> dict[str, Any]:
    labels = sorted(sums.labels)
    counts = [sums.labels[label] for label in labels]
    facts = {"rows": sums.rows, "hash_sum": sums.hash_sum, "unreadable": sums.unreadable}
    return {**facts, "labels": labels, "counts": counts}


def _parse(row: Mapping[str, Any]) -> SplitSums:
    labels = Counter(dict(zip(row["labels"], row["counts"], strict=True)))
    return SplitSums(row["rows"], row["hash_sum"], labels, row["unreadable"])


def _read(store: Store, info: ShardInfo) -> SplitSums:
    """Read a shard."""
    sums = SplitSums()
    with open_checked(store, info) as shard:
        for begin in range(0, len(shard), _BATCH_ROWS):
            batch = shard.batch(np.arange(begin, min(begin + _BATCH_ROWS, len(shard))))
            for image, label, path in _rows(batch):
                sums.rows += 1
                sums.hash_sum = (sums.hash_sum + row_hash(image, label, path)) % MODULUS
                sums.labels[label] += 1
                if len(sums.unreadable) < MAX_NAMED and not _decodes(image):
                    sums.unreadable.append(path)
    return sums


def _rows(batch: Mapping[str, Any]) -> Iterator[tuple[bytes, int, str]]:
    columns = (batch[name] for name in ("image", "label", "path"))
    return ((bytes(image), int(label), path) for image, label, path in zip(*columns, strict=True))


def _decodes(image: bytes) -> bool:
    """Return whether all data of an image is read without a fault; at an eighth of its size, which takes less time."""
    try:
        decode_rgb(image, min_size=1)
    except BadImageError:
        return False
    return True
