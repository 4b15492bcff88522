"""Whose a file in the cache's folders is, told by its name; and what each shard takes there."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smalti.catalog.shard_table import ShardTable
from smalti.format import ShardInfo

Ints = NDArray[np.int64]


class Owners:
    """Shards by the names of their uncompressed files.

    Args:
        shards: Of one source.
        first: The number of its first one.
    """

    def __init__(self, shards: Sequence[ShardInfo], first: int) -> None:
        self._shards, self._first = shards, first
        self._known: dict[str, list[int]] = {}

    def of(self, name: str) -> list[int]:
        """The numbers of the shards that have a file of this name."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = [self._first + place for place in self._named(name)]
        return found

    def _named(self, name: str) -> list[int]:
        return self._shards.named(name) if isinstance(self._shards, ShardTable) else self._table.get(name, [])

    @cached_property
    def _table(self) -> dict[str, list[int]]:
        table: dict[str, list[int]] = {}
        for place, info in enumerate(self._shards):
            for file in info.raw_files:
                table.setdefault(file.basename, []).append(place)
        return table


def owners_in(path: Path, roots: Sequence[tuple[Path, Owners]]) -> list[int]:
    """The shards whose file this is, over sources and the folders of their copies."""
    text, found = str(path), list[int]()
    for root, owners in roots:
        folder = f"{root}/"
        if text.startswith(folder):
            found += owners.of(text[len(folder) :])
    return sorted(set(found))
