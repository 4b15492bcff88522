"""The sums of a version's shards, each of which is read once: a later run reads the shards that are new to it.

The sums of a shard follow from its content alone. So they are kept under its name, size and hashes, in one small file
beside the data set, and those of a version are added up. `hashes_verify` reads whether a shard is still what it was.
"""

import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from smalti.catalog import Manifest
from smalti.catalog.verify import open_checked
from smalti.errors import BadImageError, StoreError
from smalti.format import ShardInfo
from smalti.images import decode_rgb
from smalti.storage import Store
from smalti_dagster.checks.sums import MAX_NAMED, MODULUS, SplitSums, row_hash

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
