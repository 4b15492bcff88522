"""Sums over rows, by which what is in a shard set is compared with the rows that it was made from.

Both sides give, for each split, the number of rows and the sum of a hash of every row. The sum does not depend on the
order, so that the sums of shards can be added up, in whatever order the table names their rows.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smalti.catalog import Manifest
from smalti.format import ShardInfo
from smalti.spark.prepared.table import PreparedTable
from smalti_dagster.reports.tables import named

ROWS = "rows"
"""Accepts that any number of rows are gone."""

ALL = "*"
"""Accepts that anything is gone."""

_HEX_DIGITS = 15  # 60 bits of a row's hash
MAX_NAMED = 20
"""Names of losses, or of unusable images, that a message has."""

MODULUS = 1 << 64
"""Of sums of hashes."""


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
