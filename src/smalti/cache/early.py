"""Reading the first bytes of a shard while the rest is on its way, to this process or to another one of the host.

Whoever fetches says in the lock file under which name; whoever waits looks there, and believes the bytes when their
hash is the one that the manifest declares. Nothing is asked of the fetcher, so it does not matter who that is.
"""

import os
from collections.abc import Callable
from pathlib import Path

from smalti.cache.files import PART_SUFFIX, lock_of
from smalti.errors import FormatError
from smalti.format import FIRST_BYTES, FileInfo, Shard, ShardInfo

_MOST_NAME_BYTES = 512
_HOPE = 2.0
"""Samples are of different sizes: one that ends here by the average may still be among the first."""


def is_readable_early(raw: FileInfo, zipped: FileInfo | None) -> bool:
    """Whether a file's first bytes can be told from others while the rest is on its way."""
    return zipped is None and raw.first_hash is not None


def may_be_first(info: ShardInfo, last: int) -> bool:
    """Whether sample `last` may lie in first bytes that are readable early."""
    if not is_readable_early(info.raw, info.zip):
        return False
    return (last + 1) / info.samples * info.raw.num_bytes <= _HOPE * FIRST_BYTES


class Arriving:
    """One shard that somebody fetches."""

    def __init__(self, target: Path, open_first: Callable[[Path], Shard | None]) -> None:
        """Look at nothing yet.

        Args:
            target: Where its copy will be.
            open_first: Opens it over the first bytes of a file, as `Shard.open_first`.
        """
        self._target, self._open_first = target, open_first
        self._tried: Path | None = None

    def look(self) -> Shard | None:
        """The shard, good for the samples up to `last`; None if they are not here yet, or come with the rest only."""
        part = self._part()
        if part is None or part == self._tried:
            return None
        try:
            if part.stat().st_size < FIRST_BYTES:
                return None
            self._tried = part  # once: bytes that are no good now stay so, and the whole file is checked anyway
            return self._open_first(part)
        except (OSError, FormatError):
            return None  # it has its name by now, or was given up: that is for those to say who wait for all of it

    def _part(self) -> Path | None:
        """The file that is written now, by the name in the lock file."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(lock_of(self._target), flags)
        except OSError:
            return None  # nobody has begun, or it is here
        try:
            said = os.pread(descriptor, _MOST_NAME_BYTES, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        name = said.partition(b"\0")[0].decode(errors="replace")
        is_one = name.startswith(f".{self._target.name}.") and name.endswith(PART_SUFFIX) and "/" not in name
        return self._target.with_name(name) if is_one else None
