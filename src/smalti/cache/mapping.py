"""Shards that this process has mapped: opened after verification, unmapped when their files change, bounded in number.

A file that is truncated while it is mapped ends the process by SIGBUS when a page behind its new end is read, and one
that is rewritten in place gives samples of both contents. So mapped files are compared before each batch, by inode,
size and times. What remains is a file that is truncated or rewritten while a batch is gathered from it, or truncated
while it is verified: a window of about a millisecond for each batch, and of some for each shard.

Every map holds a file descriptor. A process that has none left gets `EMFILE` at any call that opens something, its own
code included. So all caches together take at most half of the files that it may open; when one of them gets the error
all the same, they unmap half of their shards, and the call is repeated.
"""

import errno
import math
import mmap
import os
import resource
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xxhash

from smalti.cache.files import is_quarantined, quarantine
from smalti.cache.sources import CachedShard
from smalti.errors import ChecksumMismatch, StoreError
from smalti.format import AnyShard, open_shard

CHECKS_PER_SECOND = 2_000.0
"""Files that are compared per second at most: about one percent of a core, at some microseconds each."""
_MAX_OPEN_SHARDS = 512
_SAVED_SECONDS = 2.0
"""Seconds whose comparisons may be made at once, at the start and after a pause."""
_SKIPPED_CALLS = 63
"""Samples read one by one between two looks at the clock: a look takes a tenth of the time of such a read."""
_OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}

T = TypeVar("T")


class FileState(NamedTuple):
    """The facts by which a change of a file is noticed."""

    path: str
    device: int
    inode: int
    num_bytes: int
    modified: int
    """Time of the last modification, nanoseconds."""
    status_changed: int
    """Time of the last change of contents or status, nanoseconds; unlike `modified`, programs cannot set it."""


States = tuple[FileState, ...]


def _state_of(path: str) -> FileState:
    found = os.stat(path)  # noqa: PTH116 -- links are followed: what counts is the content
    return FileState(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def states_of(paths: Sequence[Path]) -> States:
    """Return the present states of the files.

    Raises:
        OSError: a file cannot be looked at.
    """
    return tuple(_state_of(os.fspath(path)) for path in paths)


def are_changed(states: States) -> bool:
    """Return whether any of the files differs from its state. An unlinked file does not: its map stays good.

    A file that another process has quarantined was changed; that process may not have fetched it again yet.
    """
    for state in states:
        try:
            now = _state_of(state.path)
        except FileNotFoundError:
            if is_quarantined(Path(state.path), state.inode):
                return True
            continue
        except OSError:
            return True  # opening it again reports why
        if now._replace(device=state.device) != state:  # a file system has another number once it is mounted again
            return True
    return False


class CheckBudget:
    """A rate limit for comparing files, so that comparisons take at most a percent of the time.

    A loop that does nothing but read compares only some of its files. A loop with other work, as in any training,
    compares all of them. Not exact when several threads use it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._due, self._skipped = clock, -math.inf, 0
        """`due`: the time from which another comparison may be made."""

    def allows(self, count: int) -> bool:
        """Return whether so many files may be compared, and count them."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = max(self._due, now - _SAVED_SECONDS) + count / CHECKS_PER_SECOND
        return True

    def allows_one(self) -> bool:
        """Return whether one file may be compared; while none may, the clock is read every few calls only."""
        if self._skipped:
            self._skipped -= 1
            return False
        if self.allows(1):
            return True
        self._skipped = _SKIPPED_CALLS
        return False


class VerifiedFiles:
    """The state of each shard's files when they were verified, shared with all forks of this process.

    Otherwise each worker process of a loader would hash the whole set once, and again in every epoch. The memory is
    anonymous and shared: a fork has it too, nothing is left behind, and untouched pages take no memory. Eight aligned
    bytes are written at once, so that a reader sees a whole entry or none.
    """

    def __init__(self, num_shards: int) -> None:
        memory = mmap.mmap(-1, max(1, num_shards) * 8)
        self._marks = np.frombuffer(memory, np.uint64)

    def add(self, shard_id: int, paths: Sequence[Path], *, with_status: bool = True) -> None:
        """Record that these files, in their present state, hold the shard."""
        self._marks[shard_id] = _mark(paths, with_status=with_status)

    def contains(self, shard_id: int, paths: Sequence[Path], *, with_status: bool = True) -> bool:
        """Return whether these files were verified as this shard and have not changed since.

        Raises:
            OSError: a file cannot be looked at.
        """
        return bool(self._marks[shard_id]) and bool(self._marks[shard_id] == _mark(paths, with_status=with_status))

    def has_any(self, shard_id: int) -> bool:
        """Return whether any files were verified as this shard."""
        return bool(self._marks[shard_id])


def _mark(paths: Sequence[Path], *, with_status: bool) -> Any:
    """Return device, inode, size and times of the files as one number that is not 0."""
    facts = [each[1:] if with_status else each[1:-1] for each in states_of(paths)]
    return np.uint64(xxhash.xxh3_64_intdigest(repr(facts).encode()) | 1)


class OpenShards:
    """The shards that this process has mapped, and the states in which their files were verified and mapped."""

    def __init__(self, num_shards: int) -> None:
        self.verified = VerifiedFiles(num_shards)
        # A fork copies the rest: maps are read-only and stay valid in the child.
        self.states: dict[int, States] = {}
        """By shard id, the states of its files when they were mapped."""
        self.is_read_whole = False
        """True if the samples of a shard are read in stored order, so that all of its pages are needed soon."""
        self._shards: dict[int, AnyShard] = {}
        self._were_used: dict[int, bool] = {}
        _caches[id(self)] = self

    @cached_property
    def max_open(self) -> int:
        """Number of shards that are kept mapped: a quarter of the files this process may open, 8 to 512."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _MAX_OPEN_SHARDS if soft == resource.RLIM_INFINITY else max(8, min(_MAX_OPEN_SHARDS, soft // 4))

    def get(self, shard_id: int) -> AnyShard | None:
        """Return a shard if it is mapped, and record that it was used."""
        found = self._shards.get(shard_id)
        if found is not None:
            self._were_used[shard_id] = True
        return found

    def peek(self, shard_id: int) -> AnyShard | None:
        """Return a shard if it is mapped."""
        return self._shards.get(shard_id)

    def missing(self, shard_ids: Iterable[int]) -> list[int]:
        """Return those of the shards that are not mapped."""
        return [shard_id for shard_id in shard_ids if shard_id not in self._shards]

    def add(self, shard_id: int, shard: AnyShard) -> None:
        """Keep a mapped shard, in place of others where too many are mapped."""
        self._unmap_excess()
        self._shards[shard_id] = shard

    def drop(self, shard_ids: Iterable[int]) -> None:
        """Unmap shards; readers that hold one keep it."""
        for shard_id in shard_ids:
            self._shards.pop(shard_id, None)

    def drop_changed(self, shard_ids: Sequence[int]) -> None:
        """Unmap those of the shards whose files have changed: pages may be missing, or have other contents."""
        open_ids = (shard_id for shard_id in shard_ids if shard_id in self._shards)
        self.drop([shard_id for shard_id in open_ids if are_changed(self.states.get(shard_id, ()))])

    def drop_unlinked(self) -> None:
        """Unmap shards whose files were removed: these take space on the disk for as long as they are mapped."""
        for shard_id in list(self._shards):
            if not all(map(os.path.exists, (state.path for state in self.states.get(shard_id, ())))):
                self.drop([shard_id])

    def close(self) -> None:
        """Unmap all shards."""
        self._shards.clear()

    def __len__(self) -> int:
        return len(self._shards)

    def free_descriptors(self, error: StoreError) -> bool:
        """Return whether shards were unmapped because no descriptor was left, so that another attempt may succeed.

        Other caches unmap first, then this one, which keeps no more shards mapped from then on.
        """
        if not is_out_of_descriptors(error):
            return False
        if _drop_half_of_each(but=self):
            return True
        before = len(self._shards)
        self.max_open = max(1, before // 2)
        self._unmap_excess()
        return len(self._shards) < before

    def _unmap_excess(self) -> None:
        """Make place for one more map."""
        excess = len(self._shards) + 1 - self.max_open
        if excess > 0:
            self.drop(self._oldest(excess))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and sum(map(len, _living())) >= soft // 2:
            _drop_half_of_each(but=self)

    def _oldest(self, count: int) -> list[int]:
        # A stable sort: those not used since the last look first, and within each the ones opened first.
        return sorted(self._shards, key=lambda shard_id: self._were_used.pop(shard_id, False))[:count]


_caches: "weakref.WeakValueDictionary[int, OpenShards]" = weakref.WeakValueDictionary()
"""The open shards of all caches of this process, by identity."""


def _living() -> list[OpenShards]:
    # Not `values()`: another thread may add a cache meanwhile.
    return [found for reference in _caches.valuerefs() if (found := reference()) is not None]


def _drop_half_of_each(*, but: OpenShards | None = None) -> int:
    """Have all caches except `but` unmap half of their shards; return how many were unmapped."""
    count = 0
    for shards in _living():
        if shards is not but:
            oldest = shards._oldest(-(-len(shards) // 2))
            shards.drop(oldest)
            count += len(oldest)
    return count


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is that no descriptor is left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS:
            return True
        error = error.__cause__
    return False


def with_descriptors(call: Callable[[], T]) -> T:
    """Return what `call` returns; while no descriptor is left, have all caches unmap shards, and call again.

    Raises:
        BaseException: what `call` raised, once nothing is left to unmap.
    """
    while True:
        try:
            return call()
        except OSError as error:  # noqa: PERF203 -- at most a few rounds
            if not is_out_of_descriptors(error) or not _drop_half_of_each():
                raise


class ShardOpener:
    """The opening of one shard: whether its files have to be verified, and mapping them.

    The files are recorded in `known` when they are mapped. With `is_copied` they are copies, which are fetched again
    when they are wrong.
    """

    def __init__(self, shard: CachedShard, known: OpenShards, *, is_copied: bool) -> None:
        self._shard, self._known, self._is_copied = shard, known, is_copied
        self._before: States = ()
        # `chmod`, hard links and backups change only the status: without hashes and copies, such a file is still read.
        # A shard that is unpacked beside its compressed file is a copy first, and lies in place for later readers.
        self._with_status = (is_copied and not shard.source.is_own_mirror) or bool(shard.info.raw.hashes)

    def is_verified(self, paths: tuple[Path, ...]) -> bool:
        """Return whether these files were verified as the shard in this run and have not changed since.

        Raises:
            ChecksumMismatch: they are not copies, did change, and have no checksum to verify the new contents by.
            OSError: a file cannot be looked at.
        """
        shard_id, verified = self._shard.shard_id, self._known.verified
        if not self._is_copied:
            self._before = states_of(paths)
        is_same = verified.contains(shard_id, paths, with_status=self._with_status)
        if not self._shard.info.raw.hashes and verified.has_any(shard_id) and not is_same:
            if not self._is_copied:
                raise self._changed(f"{self._shard.name}: it has no checksum")
            before = self._known.states.get(shard_id, ())
            changes = [pair for pair in zip(before, states_of(paths), strict=bool(before)) if pair[0] != pair[1]]
            # The same file with other contents; otherwise another process has fetched it again.
            if any((was.device, was.inode) == (now.device, now.inode) for was, now in changes):
                for path in paths:
                    quarantine(path)
        return is_same

    def open(self, paths: tuple[Path, ...]) -> AnyShard:
        """Map the files.

        Raises:
            ChecksumMismatch: they were changed while they were verified or mapped.
            FormatError: they are not the shard.
            OSError: a file cannot be opened.
        """
        before = self._before or states_of(paths)
        info = self._shard.info
        shard = open_shard(paths, info, self._shard.source.open_options(info))
        states = states_of(paths)
        if [each[:-1] for each in states] != [each[:-1] for each in before]:  # all but the status
            raise self._changed(self._shard.name)
        if states == before:
            self._known.verified.add(self._shard.shard_id, paths, with_status=self._with_status)
        # The states before mapping: a change since then is noticed before the first batch.
        self._known.states[self._shard.shard_id] = before
        return shard

    def explain(self, error: ChecksumMismatch) -> ChecksumMismatch:
        """Return the error to raise for files that do not verify: if they did before, they were changed since."""
        if self._is_copied or not self._known.states.get(self._shard.shard_id):
            return error
        return self._changed(error.message)

    def _changed(self, message: str) -> ChecksumMismatch:
        return ChecksumMismatch(
            f"{message}; the file was changed after this dataset had begun to read it. Do not write to a data set that "
            "is being read: publish a new version, and open a new dataset to read that",
            shard=self._shard.shard_id,
            key=self._shard.info.raw.basename,
        )
