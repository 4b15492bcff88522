"""Fetching one shard: found and verified, or transferred, verified, unpacked, and published by rename.

An MDS shard is one file; a text shard is two, fetched under one lock and each of them verified by itself.

A wrong hash reaches the user in these steps:

1. `compare_digests` (`format/hashing.py`) raises `ChecksumMismatch` for a file read in place or a copy that exists
   already, and `CheckedFile` (`transfer.py`) raises it while a file arrives.
2. The fetch of a file is repeated; after the last attempt `Fetcher._final_error` adds shard, key and
   number of attempts. For a file read in place, `ShardOpener.explain` (`mapping.py`) says if it has changed since.
3. `FetchQueue` (`cache.py`) keeps the error for the reader of the shard, and `ShardCache` raises a copy in every thread
   that reads it. Nothing above wraps it.

For a shard that is read by ranges, `format/blocks.py` compares each block, and `cache/blocks.py` adds the shard's name.
A size that is wrong is found before its hash: `format/reading/files.py`.
"""

import errno
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from smalti.cache.eviction import SpaceManager
from smalti.cache.files import CACHE_FOLDER, FileLock, lock_of, make_parent, part_of, quarantine, remove_parts
from smalti.cache.mapping import OpenShards, ShardOpener
from smalti.cache.sources import CopyPaths, ShardFile, ShardSource, ShardSources, ShardToFetch
from smalti.cache.stats import Counters
from smalti.cache.transfer import (
    PART_BYTES,
    CheckedFile,
    ConcurrencyTuner,
    PartsTimeout,
    divide,
    stream,
    stream_parts,
)
from smalti.errors import (
    ChecksumMismatch,
    FormatError,
    ShardNotFound,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    StoreTimeout,
)
from smalti.format import AnyShard, Shard, parse_compression, verify_file
from smalti.process import PerProcess
from smalti.storage.retry import Deadline, TransferDeadline, jitter

FIRST_PAUSE_SECONDS = 0.1
"""Pause before the second attempt; doubles each time, with up to half as much again at random."""
MAX_PAUSE_SECONDS = 2.0
NOT_FOUND_SHARE = 10
"""The share of `download_timeout`, a tenth, in which "not found" is retried: stores and mounts may be late."""
FULL_DISK_SHARE = 10
"""The share of `download_timeout`, a tenth, in which a full disk is retried: other processes may free space."""
_MAX_FULL_PAUSE_SECONDS = 0.8  # between attempts on a full disk; an epoch on a small disk waits so long for space
MAX_REMOVED_FOLDERS = 2
"""Times that others may remove the cache's folder while one shard is fetched."""
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FREEABLE = {errno.ENOSPC, errno.EDQUOT}
"""Errors that evicting copies may resolve."""
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of this process that say nothing about a file."""


class ShardLoader:
    """Shards by id: fetched, verified and mapped. Thread-safe; each shard must be loaded by one thread at a time."""

    def __init__(
        self,
        sources: ShardSources,
        opened: OpenShards,
        space: PerProcess[SpaceManager],
        counters: Counters,
        tuner: PerProcess[ConcurrencyTuner],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources, self._opened, self._space, self._counters = sources, opened, space, counters
        self._fetchers = [
            Fetcher(source, paths, counters, tuner, clock)
            for source, paths in zip(sources.sources, sources.paths, strict=True)
        ]

    def load(self, shard_id: int, *, is_ahead: bool = False) -> AnyShard:
        """Return the shard, mapped; `is_ahead` where no reader waits for it yet.

        Raises:
            NoSpaceYet: it is fetched ahead, and there is no space for it yet.
            SmaltiError: the classes that `ShardCache.shard` names.
        """
        found = self._opened.peek(shard_id)
        if found is not None:
            return found
        shard = self._sources.shard(shard_id)
        number, _ = self._sources.locate(shard_id)
        space, copies = self._space.get(), self._sources.paths[number].copies(shard)
        was_here = all(map(os.path.exists, copies))
        opener = ShardOpener(shard, self._sources.sources[number], self._opened, is_copied=bool(copies))
        try:
            while True:
                try:
                    loaded = self._fetchers[number].load(shard, opener, space, is_ahead=is_ahead)
                    break
                except StoreError as error:  # locks and temporaries are files, too
                    if not self._opened.free_descriptors(error):
                        raise
        except ChecksumMismatch as error:
            explained = opener.explain(error)
            if explained is error:
                raise
            raise explained from error
        if was_here:
            self._counters.add(bytes_from_disk=sum(file.num_bytes for file in shard.info.raw_files))
        if is_ahead and self._opened.is_read_whole and isinstance(loaded, Shard):
            loaded.mapped().load_pages()  # here rather than in the reader's thread, page fault by page fault
        space.record_use(shard_id)
        self._opened.add(shard_id, loaded)
        return loaded


@dataclass(frozen=True)
class _Fetch:
    """One fetch of one shard: its opener, limits and lock."""

    opener: ShardOpener
    space: SpaceManager
    deadline: Deadline
    """For all of it: waits for other processes, attempts and the pauses between them."""
    transfer: TransferDeadline
    """For the bytes of all attempts."""
    is_ahead: bool
    """True if no reader waits for it yet."""
    lock: FileLock | None = None

    def is_over(self, pause: float) -> bool:
        """Return whether no time would be left after a pause of so many seconds."""
        return min(self.deadline.left(), self.transfer.remaining()) <= pause


@dataclass(frozen=True)
class _StagedFile:
    """A file of a shard that has arrived and was verified, under temporary names."""

    file: ShardFile
    parts: tuple[Path, ...]
    renames: tuple[tuple[Path, Path], ...]
    """Temporary name and final name."""


class _Staging:
    """The files of a shard that have arrived; a context manager that removes temporaries that were not published."""

    def __init__(self) -> None:
        self.files: list[_StagedFile] = []
        self.is_published = False
        """True once they have their final names."""
        self._parts: list[Path] = []

    def __enter__(self) -> "_Staging":
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._parts:
            part.unlink(missing_ok=True)

    @contextmanager
    def cleared_on_error(self, *parts: Path) -> Iterator[None]:
        """Remove a failed attempt's temporaries at once: the next attempt needs the space."""
        self._parts += parts
        try:
            yield
        except BaseException:
            for part in parts:
                part.unlink(missing_ok=True)
            raise


class Fetcher:
    """Fetches of one source; thread-safe, holds no handles. Arguments as those of `ShardLoader`."""

    def __init__(
        self,
        source: ShardSource,
        paths: CopyPaths,
        counters: Counters,
        tuner: PerProcess[ConcurrencyTuner],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._paths, self._counters, self._tuner, self._clock = source, paths, counters, tuner, clock
        self._store, self._options = source.store, source.options

    def load(self, shard: ShardToFetch, opener: ShardOpener, space: SpaceManager, *, is_ahead: bool) -> AnyShard:
        """Return the shard, opened from local files that were verified unless the opener knows that they were already.

        Raises:
            NoSpaceYet: it is fetched ahead, and there is no space for it yet.
            SmaltiError: the classes that `ShardCache.shard` names.
        """
        files = shard.files()
        in_place = self._paths.in_place(shard)
        if in_place:
            return self._open_in_place(files, in_place, opener)
        targets = tuple(map(self._paths.target, files))
        deadline = Deadline(self._source.max_seconds(shard.info))
        fetch = _Fetch(opener, space, deadline, self._transfer_deadline(files), is_ahead)
        try:
            found = _verified_and_opened(files, targets, opener)
        except (OSError, FormatError):
            pass  # absent, unreadable or wrong: decided again by the holder of the lock
        else:
            self._remove_leftovers(shard, targets)
            return found
        size = sum(file.raw.num_bytes for file in files)
        with _disk_errors(shard.name, targets[0].parent, size, self._facts(files[0])):
            for _ in range(MAX_REMOVED_FOLDERS):
                try:
                    return self._fetch_locked(shard, targets, fetch)
                except FileNotFoundError as error:  # noqa: PERF203 -- at most a few rounds
                    if isinstance(error, StoreError):
                        raise  # the shard is missing, not the folder
            return self._fetch_locked(shard, targets, fetch)

    def _transfer_deadline(self, files: tuple[ShardFile, ...]) -> TransferDeadline:
        size, key = sum(file.stored.num_bytes for file in files), files[0].stored.basename
        return TransferDeadline(
            self._options.download_timeout, size, self._clock, what=self._store.locate(key), key=key
        )

    def _open_in_place(self, files: tuple[ShardFile, ...], paths: tuple[Path, ...], opener: ShardOpener) -> AnyShard:
        file, path = files[0], paths[0]
        try:
            if not opener.is_verified(paths):
                for file, path in zip(files, paths, strict=True):
                    _verify(file, path)
            return opener.open(paths)
        except FileNotFoundError as error:
            raise self._not_found(file) from error
        except PermissionError as error:
            raise StoreAuthError(f"{file.name}: no permission to read {path}", **self._facts(file)) from error
        except OSError as error:
            raise StoreError(f"{file.name}: {path} cannot be read: {error}", **self._facts(file)) from error

    def _fetch_locked(self, shard: ShardToFetch, targets: tuple[Path, ...], fetch: _Fetch) -> AnyShard:
        """Fetch what another process has not fetched by the time that this one has the lock."""
        files = shard.files()
        for file, target in zip(files, targets, strict=True):
            make_parent(self._paths.root(file), target)
        with FileLock(lock_of(targets[0]), fetch.deadline, shard.name) as lock:
            missing = []
            for file, target in zip(files, targets, strict=True):
                if not lock.is_new:  # or every fetch would look through a folder of a million names
                    remove_parts(target)
                if not _is_good(file, target):
                    missing.append(file)
            if not missing:
                try:
                    return fetch.opener.open(targets)
                except (FormatError, OSError) as error:
                    if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
                        raise
                    _quarantine_all(targets)  # its bytes verify, but it is not the shard that the manifest describes
                    missing = list(files)
            need = sum(file.kept_bytes(keep_zip=self._options.keep_zip) for file in missing)
            fetch.space.admit(shard.shard_id, need, lock, fetch.deadline, is_ahead=fetch.is_ahead)
            return self._fetch_with_retries(shard, missing, replace(fetch, lock=lock))

    def _remove_leftovers(self, shard: ShardToFetch, targets: tuple[Path, ...]) -> None:
        """Remove temporaries of a process that died just after publishing the file; its lock file shows that."""
        lock = lock_of(targets[0])
        if lock.exists():
            with suppress(OSError), FileLock(lock, Deadline(0.0), shard.name):
                for target in targets:
                    remove_parts(target)

    def _fetch_with_retries(self, shard: ShardToFetch, missing: list[ShardFile], fetch: _Fetch) -> AnyShard:
        is_local = self._store.local_path(missing[0].stored.basename) is not None
        attempt, num_faults = 0, 0
        # Counts from the first request: time spent waiting for another process that found nothing is not given again.
        waited = fetch.deadline.seconds - fetch.deadline.left()
        not_found_seconds = self._options.download_timeout / NOT_FOUND_SHARE
        not_found_deadline = Deadline(0.0 if is_local else not_found_seconds - waited)
        fetch.transfer.restart()  # another process may have been fetching until now
        full_disk = _FullDisk(shard.shard_id, fetch, self._options.download_timeout / FULL_DISK_SHARE)
        with _Staging() as staging:
            while True:
                attempt += 1
                try:
                    for file in missing[len(staging.files) :]:
                        staging.files.append(self._stage(file, fetch, staging))
                        fetch.transfer.restart()  # unpacking a file is no lack of progress of the next
                    return self._publish(shard, staging, fetch)
                except StoreAuthError as error:
                    self._counters.failed(error)
                    raise
                except (StoreError, FormatError) as error:
                    self._counters.failed(error)
                    at_fault = missing[min(len(staging.files), len(missing) - 1)]
                    if staging.is_published:  # its bytes verify, but it is not the shard that the manifest describes
                        missing = list(shard.files())
                        _quarantine_all(tuple(map(self._paths.target, missing)))
                        staging.files, staging.is_published = [], False
                    num_faults += 1
                    pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (num_faults - 1), MAX_PAUSE_SECONDS)
                    pause *= jitter(1.0, 1.5)
                    if isinstance(error, StoreNotFound) and not not_found_deadline.passed():
                        attempt -= 1
                    elif isinstance(error, PartsTimeout) and not fetch.transfer.passed():
                        attempt -= 1  # the next attempt reads the object whole, where progress is seen
                    elif attempt >= self._options.download_retry or fetch.is_over(pause):
                        raise self._final_error(at_fault, error, attempt) from error
                except OSError as error:
                    self._counters.failed(error)
                    need = sum(file.staged_bytes for file in missing)
                    if error.errno not in _FREEABLE or fetch.deadline.passed():
                        raise
                    wait = full_disk.pause_after_freeing(need)
                    if wait is None:
                        raise
                    pause = wait
                    attempt -= 1  # not the store's fault
                self._counters.add(retries=1)
                time.sleep(pause)

    def _stage(self, file: ShardFile, fetch: _Fetch, staging: _Staging) -> _StagedFile:
        """Make one attempt at one file: transfer it to a temporary, verify and unpack it."""
        target, token = self._paths.target(file), secrets.token_hex(8)
        stored, unpacked = part_of(target, token), part_of(target, f"{token}.raw")
        with staging.cleared_on_error(stored, unpacked):
            self._download(file, stored, fetch)
            self._counters.add(fetches=1, bytes_fetched=file.stored.num_bytes)
            if file.zip is None:
                return _StagedFile(file, (stored,), ((stored, target),))
            self._unpack(file, stored, unpacked)
            renames = [(unpacked, target)]
            if self._options.keep_zip:
                kept = self._paths.root(file) / file.zip.basename
                make_parent(self._paths.root(file), kept)
                renames.insert(0, (stored, kept))
            return _StagedFile(file, (stored, unpacked), tuple(renames))

    def _publish(self, shard: ShardToFetch, staging: _Staging, fetch: _Fetch) -> AnyShard:
        """Publish all files together: a published one may be evicted at any moment, and half a shard is useless."""
        size = sum(each.file.kept_bytes(keep_zip=self._options.keep_zip) for each in staging.files)
        with fetch.space.publishing(shard.shard_id, size, fetch.lock, fetch.deadline):
            for each in staging.files:
                for part, name in each.renames:
                    part.replace(name)
                for part in each.parts:
                    part.unlink(missing_ok=True)  # or it would count beside the published file
            staging.is_published = True
            return fetch.opener.open(tuple(map(self._paths.target, shard.files())))

    def _download(self, file: ShardFile, path: Path, fetch: _Fetch) -> None:
        tuner = self._tuner.get()
        with (
            CheckedFile(path, file.stored, file.name) as out,
            self._counters.receiving() as count_bytes,
            tuner.transfer() as num_parts,
            closing(self._chunks(file, fetch, num_parts)) as chunks,
        ):
            for chunk in chunks:
                count_bytes(len(chunk))
                tuner.add_bytes(len(chunk))
                out.write(chunk)
            out.finish()

    def _chunks(self, file: ShardFile, fetch: _Fetch, num_parts: int) -> Generator[bytes]:
        key, size = file.stored.basename, file.stored.num_bytes
        if num_parts > 1 and file.stored.hashes and size > PART_BYTES:
            # Less than the time limit, so that enough is left to read the object whole.
            stall = self._options.download_timeout / (self._options.download_retry + 1)
            return stream_parts(self._store, key, divide(size, num_parts), deadline=fetch.transfer, stall=stall)
        return stream(self._store, key, deadline=fetch.transfer, stall=self._options.stall_seconds)

    def _unpack(self, file: ShardFile, stored: Path, unpacked: Path) -> None:
        compression = parse_compression(file.compression)
        if compression is None:
            raise FormatError(
                f"{file.name}: it is compressed, but the manifest names no compression", **self._facts(file)
            )
        with CheckedFile(unpacked, file.raw, f"{file.name}, unpacked") as out:
            compression.decompress_file(stored, cast("BinaryIO", out), file.raw.num_bytes)
            out.finish()

    def _facts(self, file: ShardFile) -> dict[str, Any]:
        return {"key": file.stored.basename, "digest": self._source.digest, "url": self._store.url}

    def _not_found(self, file: ShardFile) -> ShardNotFound:
        return ShardNotFound(
            f"{file.name} is gone from the store: it was deleted after it was published. `smalti.catalog.verify` lists "
            "what is missing; restore the object, or open another version",
            **self._facts(file),
        )

    def _final_error(self, file: ShardFile, error: StoreError | FormatError, attempts: int) -> StoreError | FormatError:
        """Return the error that readers see: which shard, how often it was attempted, and why it failed."""
        facts = self._facts(file)
        if isinstance(error, StoreNotFound):
            return self._not_found(file)
        message = error.message.removeprefix(f"{file.name}: ")  # a verified file names itself already
        text = f"{file.name}: {message} ({attempts} attempts)"
        if isinstance(error, StoreTimeout):
            return StoreTimeout(text, **facts)
        if isinstance(error, ChecksumMismatch):
            return ChecksumMismatch(
                f"{text}; the object in the store is damaged, cut or of another version: write it again or roll back",
                **facts,
            )
        return FormatError(text, **facts) if isinstance(error, FormatError) else StoreError(text, **facts)


class _FullDisk:
    """Freeing space for one shard on a full disk.

    `seconds` is how long to wait for evicted files that are still mapped in some process, whichever process evicted
    them, and for copies that other readers need first.
    """

    def __init__(self, shard_id: int, fetch: _Fetch, seconds: float) -> None:
        self._shard_id, self._fetch, self._seconds = shard_id, fetch, seconds
        self._wait_deadline: Deadline | None = None
        self._pause = FIRST_PAUSE_SECONDS

    def pause_after_freeing(self, num_bytes: int) -> float | None:
        """Evict other shards; return the seconds to wait before the next attempt, None where no space can be awaited.

        Raises:
            NoSpaceYet: the shard is fetched ahead, and waits until there is space.
        """
        space = self._fetch.space
        if self._fetch.is_ahead:
            raise space.defer(self._shard_id)
        freed = space.free_disk(self._shard_id, num_bytes, self._fetch.deadline)
        if freed is None:
            return None
        if freed or self._wait_deadline is None:
            self._wait_deadline, self._pause = Deadline(self._seconds), FIRST_PAUSE_SECONDS
        if freed:
            return 0.0
        # Shards that others fetch can be evicted when they are published, or are abandoned.
        if self._wait_deadline.passed() and not space.are_others_fetched(self._shard_id):
            return None
        # Longer and longer: each attempt transfers the object again, up to where the disk is full.
        pause, self._pause = self._pause, min(2 * self._pause, _MAX_FULL_PAUSE_SECONDS)
        return pause


@contextmanager
def _disk_errors(name: str, folder: Path, num_bytes: int, facts: dict[str, Any]) -> Iterator[None]:
    """Raise errors of the cache's own disk as `StoreError` with advice."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        where = f"the cache folder {folder}"
        if error.errno in _DISK_FULL:
            needed = f"{num_bytes} bytes are needed"
            text = f"{where} is full ({needed}); free space, or give another folder as {CACHE_FOLDER}"
        elif error.errno == errno.ENOMEM:
            text = f"out of memory while it was fetched into {where}; use fewer loader workers, or smaller shards"
        else:
            text = f"{where} cannot be used: {error}; give another folder as {CACHE_FOLDER}"
        raise StoreError(f"{name}: {text}", **facts) from error


def _verified_and_opened(files: tuple[ShardFile, ...], paths: tuple[Path, ...], opener: ShardOpener) -> AnyShard:
    if not opener.is_verified(paths):
        for file, path in zip(files, paths, strict=True):
            _verify(file, path)
    return opener.open(paths)


def _verify(file: ShardFile, path: Path) -> None:
    verify_file(path, file.raw, what=file.name, by_map=True)


def _is_good(file: ShardFile, target: Path) -> bool:
    """Return whether the file is there and verifies; one that does not is quarantined."""
    try:
        _verify(file, target)
    except FileNotFoundError:
        return False
    except (FormatError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
            raise
        quarantine(target)  # bit rot, a truncated copy, an unreadable sector: never served, fetched again
        return False
    return True


def _quarantine_all(targets: tuple[Path, ...]) -> None:
    for target in targets:
        quarantine(target)
