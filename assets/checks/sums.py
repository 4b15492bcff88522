"""Comparing what is in a shard set with the rows that it was made from; reads everything, keeps only sums.

Both sides give, for each split, the number of rows and the sum of a hash of every row. The sum does not depend on the
order, so that shards may be read one after the other, in whatever order the table names their rows.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smalti.cache import CacheOptions, ShardCache, Source, default_cache_limit
from smalti.catalog import Manifest
from smalti.errors import BadImageError
from smalti.format import ShardInfo
from smalti.images import decode_rgb
from smalti.spark.prepared.table import PreparedTable
from smalti.storage import Store

ROWS = "rows"
"""Accepts that any number of rows are gone."""

ALL = "*"
"""Accepts that anything is gone."""

_HEX_DIGITS = 15  # 60 bits of a row's hash
_MAX_NAMED = 20


@dataclass
class SplitSums:
    """The content of one split on one side."""

    rows: int = 0
    hash_sum: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    decoded: int = 0
    """Rows whose image was decoded, or did not decode."""
    unreadable: list[str] = field(default_factory=list)
    """Paths of images that do not decode; the first few."""


def sums_of_shards(
    store: Store, manifest: Manifest, *, decodes: Callable[[ShardInfo], bool] = lambda _: True
) -> dict[str, SplitSums]:
    """Return the sums of every shard of a version.

    Args:
        store: of the set.
        manifest: of the version.
        decodes: of which shards each image is to be decoded in full; by default of all.

    Raises:
        FormatError: a shard is not what its manifest says.
        StoreError: a shard cannot be read.
    """
    sums = {split: SplitSums() for split in manifest.partitions}
    cache = bounded_cache(store, manifest)
    try:
        for number, info in enumerate(manifest.shards):
            shard = cache.shard(number)
            part, batch = sums[str(info.partition)], shard.batch(np.arange(len(shard)))
            _add(part, batch)
            if decodes(info):
                _decode(part, batch)
    finally:
        cache.close()
    return sums


def bounded_cache(store: Store, manifest: Manifest) -> ShardCache:
    """Return a cache for a version's shards whose copies take half of the free disk at most."""
    source = Source(store, manifest.digest, manifest.shards, CacheOptions())
    return ShardCache(source, limit=default_cache_limit(source))


def _add(sums: SplitSums, batch: Mapping[str, Any]) -> None:
    for image, label, path in zip(batch["image"], batch["label"], batch["path"], strict=True):
        sums.rows += 1
        sums.hash_sum += row_hash(bytes(image), int(label), path)
        sums.labels[int(label)] += 1


def _decode(sums: SplitSums, batch: Mapping[str, Any]) -> None:
    for image, path in zip(batch["image"], batch["path"], strict=True):
        sums.decoded += 1
        try:
            decode_rgb(bytes(image))
        except BadImageError:
            if len(sums.unreadable) < _MAX_NAMED:
                sums.unreadable.append(path)


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
        part.hash_sum += _hash_of_texts(digest, label, path)
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
        losses.append(f"{len(gone)} of {len(watched)} {names} are gone ({_named(gone)})")
    if ROWS not in accepted and lost > max_row_loss * of:
        losses.append(f"{lost} of {of} rows are gone, at most {max_row_loss:.0%} may go")
    return losses


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
