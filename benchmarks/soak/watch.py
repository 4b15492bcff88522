"""The cache's folders, looked at from outside: how many bytes lie there at once, and what is left at the end."""

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_HIDDEN = (".lock", ".part")
_COPIES_OF = re.compile(r"[0-9a-f]{32,128}")
Seen = dict[tuple[str, int, int], int]
"""Size by path, inode and time of the last change."""


def look(folder: Path) -> tuple[Seen, Seen]:
    """Copies below a folder (with files put aside), and what is on its way there."""
    copies: Seen = {}
    coming: Seen = {}
    for path, name, found in _files(folder):
        if ".leases" in path.split(os.sep):
            continue
        chosen = coming if name.startswith(".") and name.endswith(_HIDDEN) else copies
        if not name.endswith(".lock"):  # its size is what it asks room for
            chosen[path, found.st_ino, found.st_ctime_ns] = found.st_size
    return copies, coming


def _files(folder: Path) -> Iterable[tuple[str, str, os.stat_result]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with suppress(OSError):
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode):
                    yield path, name, found


def together(first: Seen, then: Seen) -> int:
    """Bytes that were there at one moment for sure: what both of two looks saw, the second begun after the first."""
    return sum(size for key, size in first.items() if then.get(key) == size)


@dataclass
class Bound:
    """The largest that the copies of one data set were, and their limit."""

    limit: int
    roots: list[str]
    """Names of its folders."""
    most: int = 0
    most_coming: int = 0
    looks: int = 0
    over: list[tuple[float, int]] = field(default_factory=list)
    """When it was above its limit, and how much there was."""

    def sample(self, cache: Path, at: float) -> None:
        """One look more."""
        looks = []
        for _ in range(2):
            copies: Seen = {}
            coming: Seen = {}
            for root in self.roots:
                for all_of, found in zip((copies, coming), look(cache / root), strict=True):
                    all_of.update(found)
            looks.append((copies, coming))
        now = together(looks[0][0], looks[1][0])
        self.looks += 1
        self.most, self.most_coming = max(self.most, now), max(self.most_coming, together(looks[0][1], looks[1][1]))
        if now > self.limit:
            self.over.append((at, now))


def leftovers(cache: Path) -> list[str]:
    """What no process needs any more when all have ended: everything but whole copies in folders of data sets."""
    left = []
    for path in sorted(cache.rglob("*")):
        if path.is_symlink():
            continue  # planted, and nobody asked for the shard since
        place = path.relative_to(cache)
        is_copy = _COPIES_OF.match(place.parts[0]) and not any(part.startswith(".") for part in place.parts)
        is_empty = path.is_dir() and not any(path.iterdir())
        if not is_copy and not path.name.startswith(".bad-") and not (path.name == ".leases" and is_empty):
            left.append(str(place))
    return left
