"""Mapping one shard's files so that they stay what was verified; knows no stores, locks or limits.

Noticing that a mapped file was changed by others, by its inode, size and times. Reads no contents.

A file that is cut short under a map ends the process by SIGBUS when a page behind its new end is read, and one that is
rewritten in place gives samples of both contents. So files are compared before each batch. What remains is a file that
is cut short, or rewritten, while a batch is gathered from it: a window of about a millisecond for each batch.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smalti.cache.files import Verified, is_put_aside, quarantine
from smalti.cache.wanted import Wanted
from smalti.errors import ChecksumMismatch
from smalti.format import AnyShard

CHECKS_PER_SECOND = 2_000.0
"""Files that are compared per second at most: about one percent of a core, at some microseconds each."""
_SAVED_SECONDS = 2.0
"""Time whose comparisons may be made at once, at the start and after a pause."""
_SKIPPED_CALLS = 63
"""Samples read one by one before the clock is looked at again: looking takes a tenth of the time of such a read."""


@dataclass(frozen=True)
class FileState:
    """What tells that a file was changed."""

    path: str
    device: int
    inode: int
    num_bytes: int
    time: int
    """Of the last modification, nanoseconds."""
    status_time: int
    """Of the last change of content or status, nanoseconds; unlike the other, no program can put it back."""


States = tuple[FileState, ...]


def states_of(paths: Sequence[Path]) -> States:
    """Return the states in which the files are now.

    Raises:
        OSError: a file cannot be looked at.
    """
    states = []
    for path in map(os.fspath, paths):
        found = os.stat(path)  # noqa: PTH116 -- links are followed: what counts is the content
        states.append(FileState(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return tuple(states)


def are_changed(states: States) -> bool:
    """Return whether any of the files is not as it was. One that was unlinked is: its map stays good.

    One that another process put aside was changed: that process looked first, and may not have fetched it again yet.
    """
    for state in states:
        try:
            found = os.stat(state.path)  # noqa: PTH116
        except FileNotFoundError:
            if is_put_aside(Path(state.path), state.inode):
                return True
            continue
        except OSError:
            return True  # whoever opens it again says why
        if found.st_mtime_ns != state.time or found.st_size != state.num_bytes or found.st_ino != state.inode:
            return True
        if found.st_ctime_ns != state.status_time:
            return True
    return False


def is_rewritten(before: States, now: States) -> bool:
    """Return whether any file is still the same one and has other contents, not replaced by another file."""
    return any(
        was != each and (was.device, was.inode) == (each.device, each.inode)
        for was, each in zip(before, now, strict=True)
    )


def _without_status(states: States) -> list[FileState]:
    return [replace(state, status_time=0) for state in states]


class CheckBudget:
    """How many files may be compared now, so that it costs a percent of the time at most.

    A loop that does nothing but read compares only some of its files. One that takes its time, as any training does,
    compares all of them. Not exact where several threads ask at once.

    Args:
        clock: Seconds from any fixed point.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._due, self._skipped = clock, -math.inf, 0
        """`due`: when so much time has passed that another comparison may be made."""

    def allows(self, count: int) -> bool:
        """Return whether so many files may be compared, and count them."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = max(self._due, now - _SAVED_SECONDS) + count / CHECKS_PER_SECOND
        return True

    def allows_one(self) -> bool:
        """Return whether one file may be compared; while none may, it looks at the clock every few calls only."""
        if self._skipped:
            self._skipped -= 1
            return False
        if self.allows(1):
            return True
        self._skipped = _SKIPPED_CALLS
        return False


class Known:
    """What this process knows of the files of the shards that it has opened.

    Args:
        num_shards: Of the cache.
    """

    def __init__(self, num_shards: int) -> None:
        self.verified = Verified(num_shards)
        self._states: dict[int, States] = {}

    def states(self, shard_id: int) -> States:
        """Return the states in which the files of a shard were mapped; none for a shard that was not opened here."""
        return self._states.get(shard_id, ())

    def is_changed(self, shard_id: int) -> bool:
        """Return whether a file of an open shard was changed since it was mapped."""
        return are_changed(self._states.get(shard_id, ()))

    def add(self, shard_id: int, states: States, *, is_verified: bool, with_status: bool) -> None:
        """Record that files in these states hold the shard; when next opened, they count as verified or not."""
        if is_verified:
            self.verified.add(shard_id, [Path(state.path) for state in states], with_status=with_status)
        self._states[shard_id] = states


class Opening:
    """The opening of one shard.

    Args:
        wanted: The shard.
        known: Of its cache; told of the files once they are mapped.
        open_files: Maps them, as `open_shard`.
        is_copied: Whether its files are copies, which are fetched again when they are wrong.
    """

    def __init__(
        self, wanted: Wanted, known: Known, open_files: Callable[[Sequence[Path]], AnyShard], *, is_copied: bool
    ) -> None:
        self._wanted, self._known = wanted, known
        self._open_files, self._is_copied = open_files, is_copied
        self._before: States = ()
        # `chmod`, a link or a backup change the status alone: what can be neither hashed nor fetched again is read on.
        self._with_status = is_copied or bool(wanted.info.raw.hashes)

    def trusted(self, paths: tuple[Path, ...]) -> bool:
        """Return whether these files were verified as the shard in this run, and did not change since.

        Raises:
            ChecksumMismatch: they are no copies, did change, and have no checksum by which to tell what they hold now.
            OSError: a file cannot be looked at.
        """
        number, verified = self._wanted.number, self._known.verified
        if not self._is_copied:
            self._before = states_of(paths)
        if not self._wanted.info.raw.hashes and verified.is_changed(number, paths, with_status=self._with_status):
            self._refuse_rewritten(paths)
        return verified.knows(number, paths, with_status=self._with_status)

    def use(self, paths: tuple[Path, ...]) -> AnyShard:
        """Map the files.

        Raises:
            ChecksumMismatch: they were changed while they were verified or mapped.
            FormatError: they are not the shard.
            OSError: a file cannot be opened.
        """
        before = self._before or states_of(paths)
        shard = self._open_files(paths)
        now = states_of(paths)
        if _without_status(now) != _without_status(before):
            raise self._changed(self._wanted.what)
        # As they were before: a change since then is noticed before the first batch.
        self._known.add(self._wanted.number, before, is_verified=now == before, with_status=self._with_status)
        return shard

    def explained(self, error: ChecksumMismatch) -> ChecksumMismatch:
        """Return the error to raise for files that do not verify: whether they did before, they were changed."""
        if self._is_copied or not self._known.states(self._wanted.number):
            return error
        return self._changed(error.message)

    def _refuse_rewritten(self, paths: tuple[Path, ...]) -> None:
        """Refuse a set that was changed; put a copy aside that was rewritten in place, so that it is fetched again."""
        if not self._is_copied:
            raise self._changed(f"{self._wanted.what}: it has no checksum")
        before = self._known.states(self._wanted.number)
        if before and is_rewritten(before, states_of(paths)):  # another file was fetched, by another process
            for path in paths:
                quarantine(path)

    def _changed(self, message: str) -> ChecksumMismatch:
        return ChecksumMismatch(
            f"{message}; the file was changed after this dataset had begun to read it. Do not write to a data set that "
            "is being read: publish a new version, and open a new dataset to read that",
            shard=self._wanted.number,
            key=self._wanted.info.raw.basename,
        )
