"""Fetching one shard: found and verified, or transferred, verified, unpacked, and published by rename.

An MDS shard is one file; a text shard is two, fetched under one lock and each of them verified by itself.

A wrong hash reaches the user in these steps:

1. `compare_digests` (`format/hashing.py`) raises `ChecksumMismatch` for a file read in place or a copy that exists
   already, and `CheckedFile` (`transfer.py`) raises it while a file arrives.
2. The fetch of a file is repeated; after the last attempt `_Fetch._final_error` adds shard, key and
   number of attempts. For a file read in place, `ShardOpener.explain` (`mapping.py`) says if it has changed since.
3. `FetchQueue` (`cache.py`) keeps the error for the reader of the shard, and `ShardCache` raises a copy in every thread
   that reads it. Nothing above wraps it.

For a shard that is read by ranges, `format/hashing.py` compares each block, `cache/blocks.py` adds the shard's name.
A size that is wrong is found before its hash: `format/reading/files.py`.
"""

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from smalti.cache.eviction import SpaceManager
from smalti.cache.files import CACHE_FOLDER, FileLock, lock_of, make_parent, part_of, quarantine, remove_parts
from smalti.cache.mapping import ShardOpener
from smalti.cache.sources import CachedShard, ShardFile
from smalti.cache.transfer import PART_BYTES, CheckedFile, ConcurrencyTuner, PartsTimeout, stream, stream_parts
from smalti.errors import ChecksumMismatch, FormatError, StoreAuthError, StoreError, StoreNotFound, StoreTimeout
from smalti.format import AnyShard, Shard, parse_compression, verify_file
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


def load_shard(
    space: SpaceManager,
    tuner: ConcurrencyTuner,
    shard_id: int,
    *,
    is_ahead: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> AnyShard:
    """Return a shard, fetched, verified and mapped; `is_ahead` where no reader waits for it yet.

    Thread-safe; each shard must be loaded by one thread at a time. `clock` is that of the transfer's deadline.

    Raises:
        NoSpaceYet: it is fetched ahead, and there is no space for it yet.
        SmaltiError: the classes that `ShardCache.shard` names.
    """
    opened = space.opened
    found = opened.peek(shard_id)
    if found is not None:
        return found
    shard = space.sources.shard(shard_id)
    copies = shard.copies()
    was_here = all(map(os.path.exists, copies))
    opener = ShardOpener(shard, opened, is_copied=bool(copies))
    try:
        while True:
            try:
                loaded = _Fetch(space, tuner, shard, opener, clock, is_ahead=is_ahead).load()
                break
            except StoreError as error:  # locks and temporaries are files, too
                if not opened.free_descriptors(error):
                    raise
    except ChecksumMismatch as error:
        explained = opener.explain(error)
        if explained is error:
            raise
        raise explained from error
    if was_here:
        space.counters.add(bytes_from_disk=sum(file.num_bytes for file in shard.info.raw_files))
    if is_ahead and opened.is_read_whole and isinstance(loaded, Shard):
        loaded.mapped().load_pages()  # here rather than in the reader's thread, page fault by page fault
    space.record_use(shard_id)
    opened.add(shard_id, loaded)
    return loaded


class _Fetch:
    """One fetch of one shard: its limits, its lock, and its files that have arrived and are not published."""

    def __init__(
        self,
        space: SpaceManager,
        tuner: ConcurrencyTuner,
        shard: CachedShard,
        opener: ShardOpener,
        clock: Callable[[], float],
        *,
        is_ahead: bool,
    ) -> None:
        self.shard, self.space, self.is_ahead = shard, space, is_ahead
        self.deadline = Deadline(shard.max_seconds)
        """For all of it: waits for other processes, attempts and the pauses between them."""
        self._opener, self._counters, self._tuner = opener, space.counters, tuner
        self._store, self._options = shard.source.store, shard.source.options
        size, key = sum(file.stored.num_bytes for file in shard.files), shard.files[0].stored.basename
        self._transfer = TransferDeadline(
            self._options.download_timeout, size, clock, what=self._store.locate(key), key=key
        )
        """For the bytes of all attempts."""
        self._renames: list[list[tuple[Path, Path]]] = []
        """Temporary name and final name of what has arrived, by file."""
        self._parts: list[Path] = []
        """Temporary names."""
        self._is_published = False
        """True once the files have their final names."""

    def load(self) -> AnyShard:
        """Return the shard, opened from local files that were verified unless the opener knows that they were already.

        Raises:
            NoSpaceYet: it is fetched ahead, and there is no space for it yet.
            SmaltiError: the classes that `ShardCache.shard` names.
        """
        shard = self.shard
        in_place = shard.in_place()
        if in_place:
            return self._open_in_place(in_place)
        targets = shard.targets()
        try:
            if not self._opener.is_verified(targets):
                for file, path in zip(shard.files, targets, strict=True):
                    verify_file(path, file.raw, what=file.name, by_map=True)
            found = self._opener.open(targets)
        except (OSError, FormatError):
            pass  # absent, unreadable or wrong: decided again by the holder of the lock
        else:
            lock = lock_of(targets[0])
            if lock.exists():  # of a process that died just after publishing the file, with its temporaries
                with suppress(OSError), FileLock(lock, Deadline(0.0), shard.name):
                    for target in targets:
                        remove_parts(target)
            return found
        with self._disk_errors(targets[0].parent):
            for _ in range(MAX_REMOVED_FOLDERS):
                try:
                    return self._fetch_locked(targets)
                except FileNotFoundError as error:  # noqa: PERF203 -- at most a few rounds
                    if isinstance(error, StoreError):
                        raise  # the shard is missing, not the folder
            return self._fetch_locked(targets)

    def _open_in_place(self, paths: tuple[Path, ...]) -> AnyShard:
        file, path = self.shard.files[0], paths[0]
        try:
            if not self._opener.is_verified(paths):
                for file, path in zip(self.shard.files, paths, strict=True):
                    verify_file(path, file.raw, what=file.name, by_map=True)
            return self._opener.open(paths)
        except FileNotFoundError as error:
            raise self.shard.not_found(file) from error
        except PermissionError as error:
            raise StoreAuthError(f"{file.name}: no permission to read {path}", **self.shard.facts(file)) from error
        except OSError as error:
            raise StoreError(f"{file.name}: {path} cannot be read: {error}", **self.shard.facts(file)) from error

    def _fetch_locked(self, targets: tuple[Path, ...]) -> AnyShard:
        """Fetch what another process has not fetched by the time that this one has the lock."""
        files = self.shard.files
        for file, target in zip(files, targets, strict=True):
            make_parent(self.shard.root(file), target)
        with FileLock(lock_of(targets[0]), self.deadline, self.shard.name) as lock:
            missing = []
            for file, target in zip(files, targets, strict=True):
                if not lock.is_new:  # or every fetch would look through a folder of a million names
                    remove_parts(target)
                if not _is_good(file, target):
                    missing.append(file)
            if not missing:
                try:
                    return self._opener.open(targets)
                except (FormatError, OSError) as error:
                    if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
                        raise
                    missing = self._quarantined()
            need = sum(file.kept_bytes for file in missing)
            self.space.admit(self.shard.shard_id, need, lock, self.deadline, is_ahead=self.is_ahead)
            self._renames, self._parts, self._is_published = [], [], False
            try:
                return self._fetch_with_retries(missing, lock)
            finally:
                _remove(self._parts)

    def _quarantined(self) -> list[ShardFile]:
        """Quarantine all files, whose bytes verify, but which are not the shard that the manifest describes."""
        for target in self.shard.targets():
            quarantine(target)
        return list(self.shard.files)

    def _fetch_with_retries(self, missing: list[ShardFile], lock: FileLock) -> AnyShard:
        is_local = self._store.local_path(missing[0].stored.basename) is not None
        attempt, num_faults = 0, 0
        # Counts from the first request: time spent waiting for another process that found nothing is not given again.
        waited = self.deadline.seconds - self.deadline.left()
        not_found_seconds = self._options.download_timeout / NOT_FOUND_SHARE
        not_found_deadline = Deadline(0.0 if is_local else not_found_seconds - waited)
        self._transfer.restart()  # another process may have been fetching until now
        full_disk = _FullDisk(self, self._options.download_timeout / FULL_DISK_SHARE)
        while True:
            attempt += 1
            try:
                for file in missing[len(self._renames) :]:
                    self._renames.append(self._stage(file))
                    self._transfer.restart()  # unpacking a file is no lack of progress of the next
                return self._publish(missing, lock)
            except StoreAuthError as error:
                self._counters.failed(error)
                raise
            except (StoreError, FormatError) as error:
                self._counters.failed(error)
                at_fault = missing[min(len(self._renames), len(missing) - 1)]
                if self._is_published:
                    missing = self._quarantined()
                    self._renames, self._is_published = [], False
                num_faults += 1
                pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (num_faults - 1), MAX_PAUSE_SECONDS) * jitter(1.0, 1.5)
                is_late = isinstance(error, StoreNotFound) and not not_found_deadline.passed()
                # After parts that do not arrive, the next attempt reads the object whole, where progress is seen.
                if is_late or (isinstance(error, PartsTimeout) and not self._transfer.passed()):
                    attempt -= 1
                elif attempt >= self._options.download_retry or (
                    min(self.deadline.left(), self._transfer.remaining()) <= pause
                ):
                    raise self._final_error(at_fault, error, attempt) from error
            except OSError as error:
                self._counters.failed(error)
                if error.errno not in _FREEABLE or self.deadline.passed():
                    raise
                wait = full_disk.pause_after_freeing(sum(file.staged_bytes for file in missing))
                if wait is None:
                    raise
                pause = wait
                attempt -= 1  # not the store's fault
            self._counters.add(retries=1)
            time.sleep(pause)

    def _stage(self, file: ShardFile) -> list[tuple[Path, Path]]:
        """Make one attempt at one file: transfer it to a temporary, verify and unpack it; return its renames.

        A failed attempt's temporaries are removed at once: the next attempt needs the space.
        """
        target, token = self.shard.target(file), secrets.token_hex(8)
        stored, unpacked = part_of(target, token), part_of(target, f"{token}.raw")
        self._parts += stored, unpacked
        try:
            self._download(file, stored)
            self._counters.add(fetches=1, bytes_fetched=file.stored.num_bytes)
            if file.zip is None:
                return [(stored, target)]
            compression = parse_compression(self.shard.info.compression)
            if compression is None:
                raise FormatError(
                    f"{file.name}: it is compressed, but the manifest names no compression", **self.shard.facts(file)
                )
            with CheckedFile(unpacked, file.raw, f"{file.name}, unpacked") as out:
                compression.decompress_file(stored, cast("BinaryIO", out), file.raw.num_bytes)
                out.finish()
            if not file.keeps_zip:
                return [(unpacked, target)]
            root = self.shard.root(file)
            make_parent(root, root / file.zip.basename)
            return [(stored, root / file.zip.basename), (unpacked, target)]
        except BaseException:
            _remove((stored, unpacked))
            raise

    def _publish(self, files: list[ShardFile], lock: FileLock) -> AnyShard:
        """Publish all files together: a published one may be evicted at any moment, and half a shard is useless."""
        size = sum(file.kept_bytes for file in files)
        with self.space.publishing(self.shard.shard_id, size, lock, self.deadline):
            for part, name in chain.from_iterable(self._renames):
                part.replace(name)
            _remove(self._parts)  # or they would count beside the published files
            self._is_published = True
            return self._opener.open(self.shard.targets())

    def _download(self, file: ShardFile, path: Path) -> None:
        tuner, key, size = self._tuner, file.stored.basename, file.stored.num_bytes
        retries, seconds = self._options.download_retry, self._options.download_timeout
        with (
            CheckedFile(path, file.stored, file.name) as out,
            self._counters.receiving() as count_bytes,
            tuner.transfer() as num_parts,
        ):
            if num_parts > 1 and file.stored.hashes and size > PART_BYTES:
                # Less than the time limit, so that enough is left to read the object whole.
                stall = seconds / (retries + 1)
                chunks = stream_parts(self._store, key, size, num_parts, deadline=self._transfer, stall=stall)
            else:
                chunks = stream(self._store, key, deadline=self._transfer, stall=self._options.stall_seconds)
            with closing(chunks):
                for chunk in chunks:
                    count_bytes(len(chunk))
                    tuner.add_bytes(len(chunk))
                    out.write(chunk)
            out.finish()

    def _final_error(self, file: ShardFile, error: StoreError | FormatError, attempts: int) -> StoreError | FormatError:
        """Return the error that readers see: which shard, how often it was attempted, and why it failed."""
        if isinstance(error, StoreNotFound):
            return self.shard.not_found(file)
        message = error.message.removeprefix(f"{file.name}: ")  # a verified file names itself already
        text = f"{file.name}: {message} ({attempts} attempts)"
        if isinstance(error, ChecksumMismatch):
            text += "; the object in the store is damaged, cut or of another version: write it again or roll back"
        kind = next(
            kind for kind in (StoreTimeout, ChecksumMismatch, FormatError, StoreError) if isinstance(error, kind)
        )
        return kind(text, **self.shard.facts(file))

    @contextmanager
    def _disk_errors(self, folder: Path) -> Iterator[None]:
        """Raise errors of the cache's own disk as `StoreError` with advice."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            where = f"the cache folder {folder}"
            if error.errno in _DISK_FULL:
                needed = f"{sum(file.raw.num_bytes for file in self.shard.files)} bytes are needed"
                text = f"{where} is full ({needed}); free space, or give another folder as {CACHE_FOLDER}"
            elif error.errno == errno.ENOMEM:
                text = f"out of memory while it was fetched into {where}; use fewer loader workers, or smaller shards"
            else:
                text = f"{where} cannot be used: {error}; give another folder as {CACHE_FOLDER}"
            raise StoreError(f"{self.shard.name}: {text}", **self.shard.facts(self.shard.files[0])) from error


class _FullDisk:
    """Freeing space for one shard on a full disk.

    `seconds` is how long to wait for evicted files that are still mapped in some process, whichever process evicted
    them, and for copies that other readers need first.
    """

    def __init__(self, fetch: _Fetch, seconds: float) -> None:
        self._fetch, self._seconds = fetch, seconds
        self._wait_deadline: Deadline | None = None
        self._pause = FIRST_PAUSE_SECONDS

    def pause_after_freeing(self, num_bytes: int) -> float | None:
        """Evict other shards; return the seconds to wait before the next attempt, None where no space can be awaited.

        Raises:
            NoSpaceYet: the shard is fetched ahead, and waits until there is space.
        """
        space, shard_id = self._fetch.space, self._fetch.shard.shard_id
        if self._fetch.is_ahead:
            raise space.defer(shard_id)
        freed = space.free_disk(shard_id, num_bytes, self._fetch.deadline)
        if freed is None:
            return None
        if freed or self._wait_deadline is None:
            self._wait_deadline, self._pause = Deadline(self._seconds), FIRST_PAUSE_SECONDS
        if freed:
            return 0.0
        # Shards that others fetch can be evicted when they are published, or are abandoned.
        if self._wait_deadline.passed() and not space.are_others_fetched(shard_id):
            return None
        # Longer and longer: each attempt transfers the object again, up to where the disk is full.
        pause, self._pause = self._pause, min(2 * self._pause, _MAX_FULL_PAUSE_SECONDS)
        return pause


def _is_good(file: ShardFile, target: Path) -> bool:
    """Return whether the file is there and verifies; one that does not is quarantined."""
    try:
        verify_file(target, file.raw, what=file.name, by_map=True)
    except FileNotFoundError:
        return False
    except (FormatError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
            raise
        quarantine(target)  # bit rot, a truncated copy, an unreadable sector: never served, fetched again
        return False
    return True


def _remove(parts: Iterable[Path]) -> None:
    for part in parts:
        part.unlink(missing_ok=True)
