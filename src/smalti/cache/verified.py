"""Which files were verified in this run, known to this process and to its forks. No files are read here."""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash


class Verified:
    """The state in which each shard's files were when they were verified; one fork's work is known to all.

    A loader's worker processes would otherwise hash the whole set once each, and once more in every epoch. The memory
    is anonymous and shared: a fork has it too, nothing is left behind, and what nobody wrote takes no space. Eight
    aligned bytes are written at once, so that a reader sees a whole entry or none.
    """

    def __init__(self, num_shards: int) -> None:
        memory = mmap.mmap(-1, max(1, num_shards) * 8)
        self._marks = np.frombuffer(memory, np.uint64)

    def add(self, shard_id: int, paths: Sequence[Path]) -> None:
        """Remembers that these files, as they are now, hold the shard."""
        self._marks[shard_id] = _mark(paths)

    def knows(self, shard_id: int, paths: Sequence[Path]) -> bool:
        """Whether these files were verified, and have not changed since.

        Raises:
            OSError: a file cannot be looked at.
        """
        return bool(self._marks[shard_id]) and bool(self._marks[shard_id] == _mark(paths))

    def is_changed(self, shard_id: int, paths: Sequence[Path]) -> bool:
        """Return whether files were verified as this shard, and are not those, or not as they were, any more.

        Raises:
            OSError: a file cannot be looked at.
        """
        return bool(self._marks[shard_id]) and not self.knows(shard_id, paths)


def _mark(paths: Sequence[Path]) -> Any:
    """Device, inode, size and modification time of the files, as one number that is not 0."""
    facts = []
    for path in paths:
        found = os.stat(path)  # noqa: PTH116 -- links are followed: what counts is the content
        facts.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    return np.uint64(xxhash.xxh3_64_intdigest(repr(facts).encode()) | 1)
