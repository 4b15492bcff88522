"""A few rows of a version: the first, those from a place on, or random ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.attributes import whole_number
from smalti.inspection.reading import VersionRows
from smalti.inspection.values import value_json
from smalti.storage import Place

DEFAULT_ROWS = 10
MAX_ROWS = 10_000
"""Rows that `head` returns at most: they are in memory at the same time."""


@dataclass(frozen=True)
class Head:
    """Some rows of a version."""

    url: str
    version: int
    """0 for a set without versions."""
    digest: str
    split: str | None
    num_rows: int
    """Rows of the version, or of the split."""
    columns: dict[str, str]
    """Encodings of the columns that were read, by name."""
    numbers: tuple[int, ...]
    """Number of each row in the version or split, from 0: `dataset[number]` of a dataset opened alike."""
    rows: tuple[dict[str, Any], ...]
    """Values by column. Images and pickled values are the stored bytes, which were not decoded."""

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON; `smalti.inspection.values` describes the values."""
        return {
            "url": self.url,
            "version": self.version,
            "digest": self.digest,
            "split": self.split,
            "num_rows": self.num_rows,
            "columns": dict(self.columns),
            "rows": [
                {"row": number, "values": {name: value_json(row[name], self.columns[name]) for name in row}}
                for number, row in zip(self.numbers, self.rows, strict=True)
            ],
        }


def head(  # noqa: PLR0913
    place: Place,
    rows: int = DEFAULT_ROWS,
    *,
    version: int | None = None,
    tag: str | None = None,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    offset: int = 0,
    sample: bool = False,
    seed: int = 0,
) -> Head:
    """Return a few rows of a version, the newest by default.

    Of uncompressed shards only these rows are read; of a compressed shard, its beginning up to the last of them.

    Args:
        place: The root of the set: a URL, folder or store.
        rows: Number of rows, at most 10,000; fewer if there are fewer.
        version: The number of the version.
        tag: Its tag, instead of the number.
        split: Split to read; None for the whole set.
        columns: Columns to read; None for all.
        offset: Number of the first row.
        sample: Return random rows of those from `offset` on, in their order, instead of the first ones.
        seed: Number that determines which rows are random.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version or tag.
        CatalogError: there is no such split.
        SchemaError: there is no such column.
        FormatError: a row is damaged.
        ValueError: a number is out of range, or both `version` and `tag` are given.
    """
    count, begin = whole_number("`rows`", rows, 0, MAX_ROWS), whole_number("`offset`", offset, 0)
    found = VersionRows(place, version=version, tag=tag, split=split)
    chosen = found.choose(columns)
    numbers = choose_rows(begin, found.num_rows, count, seed=seed if sample else None)
    manifest = found.set.manifest
    return Head(
        url=found.store.url,
        version=manifest.version,
        digest=manifest.digest,
        split=split,
        num_rows=found.num_rows,
        columns={name: found.encodings[name] for name in chosen},
        numbers=tuple(numbers.tolist()),
        rows=tuple(found.read(numbers, chosen)) if len(numbers) else (),
    )


def choose_rows(begin: int, end: int, count: int, *, seed: int | None) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the sorted numbers of at most `count` rows in [begin, end): the first ones, or random ones by a seed."""
    there = max(0, end - begin)
    if seed is None or count >= there:
        return np.arange(begin, begin + min(count, there), dtype=np.int64)
    drawn = np.random.default_rng(seed)
    if count * 4 > there:
        return np.sort(drawn.permutation(there)[:count]) + begin
    found = np.unique(drawn.integers(0, there, count, dtype=np.int64))
    while len(found) < count:  # few repeats: at most a quarter of the rows is chosen
        found = np.unique(np.concatenate([found, drawn.integers(0, there, count - len(found), dtype=np.int64)]))
    return found + begin
