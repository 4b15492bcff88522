"""The shards of data set versions as open, verified maps.

Intended behaviour; anything else is a bug:
1. A raw shard in a local folder is mapped where it lies, also where the index names a compressed one for it;
   everything else is fetched to `<local>/<digest>/<basename>`. What has no checksum goes to `<digest>.<address>`.
   The two files of a text shard (CSV, JSONL and the like) come under one lock, and each is verified by itself.
2. No byte is read before the file has its declared size and hashes: checked while it streams, or once for a file
   that was there already, by this process or one that it was forked from or with (again when it has changed since).
3. A file appears under its name whole, by rename; a process killed at any moment leaves temporaries that the next one
   removes, and nothing else.
4. One process of a host fetches a shard, the others wait for it with a deadline; the lock of a dead process is free.
5. A file that does not verify is put aside and fetched again. What stays wrong is an error on every consumer that asks
   for that shard, with shard, key, version and cause; the next request tries again.
6. Nothing is opened, started or locked before the first use; a forked or unpickled copy makes its own.
"""

import errno
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from smalti.cache.fetching import Fetcher, Wanted
from smalti.cache.jobs import Jobs
from smalti.cache.options import CacheOptions, detect_open_limit
from smalti.cache.verified import Verified
from smalti.errors import SmaltiError, StoreTimeout
from smalti.format import AnyShard, ShardInfo, open_shard
from smalti.storage import Store
from smalti.storage.process import PerProcess

GRACE_SECONDS = 5.0
"""How much longer than the fetching thread a waiting one waits: the former has the better message."""


@dataclass(frozen=True, eq=False)
class Source:
    """One version of a shard set, and how its shards come here."""

    store: Store
    """The root of the set."""
    digest: str
    """The manifest's digest; names the folder of the copies."""
    shards: Sequence[ShardInfo]
    """The manifest's shards, or some of them."""
    options: CacheOptions
    """Where copies lie, how often and how long to try."""
    allow_unsafe_types: bool = False
    """Whether columns that run code when decoded may be opened."""


class ShardCache:
    """Shards by number, here and verified; thread-safe, safe under fork, picklable.

    Args:
        sources: Where the shards come from; a shard's id is its place in all of them, laid end to end. They share what
            is open at once, and the threads that fetch.
    """

    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        self._reset()
        self._jobs: PerProcess[Jobs[AnyShard]] = PerProcess(self._make_jobs)

    def shard(self, shard_id: int) -> AnyShard:
        """The open shard; blocks until it is here and verified, `download_timeout` seconds at most.

        Raises:
            ShardNotFound: the store no longer has it.
            ChecksumMismatch: its bytes are not those of the manifest, on every attempt.
            FormatError: it verifies, but is not a shard as its manifest describes it.
            StoreTimeout: it did not arrive in time.
            StoreAuthError: the store refused the credentials.
            StoreError: the store, or the cache's own disk, failed.
        """
        found = self._open.get(shard_id)
        if found is not None:
            self._used[shard_id] = True
            return found
        return self._obtain(shard_id)

    def prefetch(self, shard_ids: Iterable[int]) -> None:
        """Start to bring these shards, in this order, on background threads; returns at once.

        A shard that fails is tried again when it is asked for, and raises then if it fails still.
        """
        wanted = [shard_id for shard_id in shard_ids if shard_id not in self._open]
        if wanted:
            self._jobs.get().ahead(wanted)

    def close(self) -> None:
        """Give up what is queued and let go of all maps; shards handed out stay usable. The cache can be used again."""
        jobs = self._jobs.peek()
        if jobs is not None:
            jobs.close()
        self._reset()
        self._jobs = PerProcess(self._make_jobs)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {"_sources": self._sources}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
        self._jobs = PerProcess(self._make_jobs)

    def _reset(self) -> None:
        # A fork copies these: maps are read-only and stay valid in the child.
        self._open: dict[int, AnyShard] = {}
        self._used: dict[int, bool] = {}
        self._ends = list(accumulate(len(source.shards) for source in self._sources))
        self._verified = Verified(len(self))
        self._fetchers = [Fetcher(source.store, source.digest, source.options) for source in self._sources]
        self._max_open: int | None = None

    @property
    def max_open(self) -> int:
        """How many shards are kept mapped at once; each holds a file descriptor."""
        if self._max_open is None:
            self._max_open = detect_open_limit()
        return self._max_open

    def _make_jobs(self) -> Jobs[AnyShard]:
        return Jobs(self._bring)

    def _obtain(self, shard_id: int) -> AnyShard:
        if not 0 <= shard_id < len(self):
            urls = ", ".join(source.store.url for source in self._sources)
            raise IndexError(f"shard {shard_id} is not one of the {len(self)} shards of {urls}")
        _, source, _ = self._find(shard_id)
        timeout = source.options.download_timeout
        try:
            return self._jobs.get().obtain(shard_id, timeout + GRACE_SECONDS)
        except SmaltiError as error:
            # A fresh one for each consumer: threads that raise one object mix up their tracebacks.
            raise type(error)(error.message, **error.facts) from error
        except TimeoutError as error:
            raise StoreTimeout(
                f"{self._name(shard_id)}: another thread has been fetching it for more than "
                f"{timeout:.0f} s; the disk of the cache does not answer",
                shard=shard_id,
                digest=source.digest,
            ) from error

    def _bring(self, shard_id: int) -> AnyShard:
        found = self._open.get(shard_id)
        if found is not None:
            return found
        number, source, place = self._find(shard_id)
        info = source.shards[place]
        wanted = Wanted(info, self._name(shard_id))

        def use(paths: tuple[Path, ...]) -> AnyShard:
            shard = self._map(paths, info, source)
            self._verified.add(shard_id, paths)
            return shard

        def trusted(paths: tuple[Path, ...]) -> bool:
            return self._verified.knows(shard_id, paths)

        shard: AnyShard = self._fetchers[number].bring(wanted, use, trusted=trusted)
        self._make_room()
        self._open[shard_id] = shard
        return shard

    def _map(self, paths: tuple[Path, ...], info: ShardInfo, source: Source) -> AnyShard:
        try:
            return open_shard(paths, info, allow_unsafe_types=source.allow_unsafe_types)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            self._max_open = max(1, len(self._open) // 2)  # others use descriptors too: live with fewer
            self._make_room()
            return open_shard(paths, info, allow_unsafe_types=source.allow_unsafe_types)

    def _make_room(self) -> None:
        """Let go of maps that were not used since the last look, oldest first; readers that still hold one keep it."""
        excess = len(self._open) + 1 - self.max_open
        if excess <= 0:
            return
        # A stable sort: not used first, and within each the ones opened first.
        for shard_id in sorted(self._open, key=lambda i: self._used.pop(i, False))[:excess]:
            self._open.pop(shard_id, None)

    def _find(self, shard_id: int) -> tuple[int, Source, int]:
        """The number of a shard's source, the source, and the shard's place in it."""
        number = bisect_right(self._ends, shard_id)
        return number, self._sources[number], shard_id - (self._ends[number - 1] if number else 0)

    def _name(self, shard_id: int) -> str:
        _, source, place = self._find(shard_id)
        key = source.shards[place].stored.basename
        return f"shard {place} ({key}) of {source.store.url}, version digest {source.digest[:12]}"
