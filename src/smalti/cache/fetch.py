"""Bringing one shard here: found and verified, or fetched, checked while it streams, unpacked, published by rename.

An MDS shard is one file; a text shard is two, brought under one lock and each of them verified by itself.

Files that the cache writes: checked as they come, with faults of its own disk told apart. Knows no stores.
"""

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from smalti.cache.early import is_readable_early
from smalti.cache.eviction import Keeper
from smalti.cache.files import check_filesystem, lock_of, make_parent, open_root, part_of, quarantine, remove_parts
from smalti.cache.locking import FileLock
from smalti.cache.options import CacheOptions, detect_cache_folder
from smalti.cache.prefetch import Pace
from smalti.cache.stats import Counters
from smalti.cache.transfer import PART_BYTES, PartsTimeout, cut, stream, stream_parts
from smalti.cache.wanted import Wanted, WantedFile, most_seconds_for
from smalti.errors import (
    ChecksumMismatch,
    FormatError,
    ShardNotFound,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    StoreTimeout,
)
from smalti.format import FIRST_BYTES, FileInfo, ShardInfo, new_hash, parse_compression, verify_file
from smalti.storage import Store
from smalti.storage.deadline import TransferDeadline
from smalti.storage.process import PerProcess
from smalti.storage.retry import Deadline, jitter

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_full(error: OSError) -> bool:
    """Whether removing files helps."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


class DiskFaults:
    """Says faults of the cache's own disk in Smalti's errors."""

    def __init__(self, what: str, folder: Path, num_bytes: int, facts: dict[str, Any]) -> None:
        self._what, self._folder, self._num_bytes, self._facts = what, folder, num_bytes, facts

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, OSError) or isinstance(error, StoreError):
            return
        where = f"the cache folder {self._folder}"
        if error.errno in _DISK_FULL:
            raise StoreError(
                f"{self._what}: {where} is full ({self._num_bytes} bytes are needed); free space, or give "
                "another folder as `local`",
                **self._facts,
            ) from error
        if error.errno == errno.ENOMEM:
            raise StoreError(
                f"{self._what}: out of memory while it was brought into {where}; take fewer loader workers, or smaller "
                "shards",
                **self._facts,
            ) from error
        raise StoreError(
            f"{self._what}: {where} cannot be used: {error}; give another folder as `local`", **self._facts
        ) from error


class CheckedFile:
    """A new file whose size and hashes are checked as it is written; on disk when `finish` returns."""

    def __init__(self, path: Path, expected: FileInfo, what: str) -> None:
        self._expected = expected
        self._what = what
        self._hashes = {name: new_hash(name) for name in expected.hashes}
        self._num_bytes = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._file = os.fdopen(descriptor, "wb")

    def __enter__(self) -> "CheckedFile":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._file.close()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Count, hash and write the bytes; refuse the first one too many."""
        size = len(data)
        self._num_bytes += size
        if self._num_bytes > self._expected.num_bytes:
            raise self._wrong(f"{self._expected.num_bytes} bytes", f"at least {self._num_bytes}")
        for digest in self._hashes.values():
            digest.update(data)
        self._file.write(data)
        return size

    def finish(self) -> None:
        """Compare with what was declared, and bring the bytes to disk.

        Raises:
            ChecksumMismatch: size or a hash differs.
        """
        if self._num_bytes != self._expected.num_bytes:
            raise self._wrong(f"{self._expected.num_bytes} bytes", f"{self._num_bytes}")
        for name, digest in self._hashes.items():
            if digest.hexdigest() != self._expected.hashes[name]:
                raise self._wrong(f"{name} {self._expected.hashes[name]}", digest.hexdigest())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _wrong(self, expected: str, found: str) -> ChecksumMismatch:
        return ChecksumMismatch(f"{self._what}: expected {expected}, found {found}", expected=expected, found=found)


FIRST_PAUSE_SECONDS = 0.1
MOST_PAUSE_SECONDS = 2.0
PATIENCE_SHARE = 10
"""Of `download_timeout`, the part in which "not found" is not believed."""
REMADE_FOLDERS = 2
"""How often the cache's folder may be removed by somebody else while one shard is brought."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


@dataclass(frozen=True)
class _Staged:
    """A file of a shard that is here and verified, under temporary names."""

    file: WantedFile
    parts: tuple[Path, ...]
    renames: tuple[tuple[Path, Path], ...]
    """Temporary name and name."""


class _Staging:
    """The files of a shard that are here already; a context manager that removes what got no name."""

    def __init__(self) -> None:
        self.files: list[_Staged] = []
        self.is_published = False
        """Whether they have their names."""
        self._parts: list[Path] = []

    def __enter__(self) -> "_Staging":
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._parts:
            part.unlink(missing_ok=True)

    @contextmanager
    def cleared_on_error(self, *parts: Path) -> Iterator[None]:
        """A failed attempt's temporaries go at once: the next one needs the room."""
        self._parts += parts
        try:
            yield
        except BaseException:
            for part in parts:
                part.unlink(missing_ok=True)
            raise


Use = Callable[[tuple[Path, ...]], Any]
"""Opens the files of a shard; raises `FormatError` when they are not the shard."""
Trusted = Callable[[tuple[Path, ...]], bool]


@dataclass(frozen=True)
class Visit:
    """One way to a shard: who keeps it, and until when it must be here."""

    keeper: Keeper
    deadline: Deadline
    """For all of it: waits for other processes, attempts and the pauses between them."""
    transfer: TransferDeadline
    """For the bytes of all attempts."""
    ahead: bool
    """Whether nobody waits for it yet."""
    lock: FileLock | None = None

    def is_over(self, pause: float) -> bool:
        """Return whether no time would be left after a pause of so many seconds."""
        return min(self.deadline.left(), self.transfer.remaining()) <= pause


def folder_name(digest: str, url: str, *, has_hash: bool) -> str:
    """The name of the folder of a data set's copies."""
    if has_hash:
        return digest
    # Names and sizes alone do not tell two sets apart, such as two runs of one writer over rows of fixed size: their
    # digests are equal, and only the address says whose copy it is.
    return f"{digest}.{hashlib.sha256(url.encode()).hexdigest()[:16]}"


class Fetcher:
    """Brings shards of one data set to this machine; thread-safe, holds no handles."""

    def __init__(
        self,
        source: tuple[Store, str, CacheOptions],
        counters: Counters,
        pace: PerProcess[Pace],
        limit: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        store, digest, options = source
        self._store, self._pace = store, pace
        self._digest = digest
        self._options = options
        self._counters = counters
        self._limit, self._clock = limit, clock
        self._roots: dict[bool, Path] = {}

    def bring(self, wanted: Wanted, use: Use, *, trusted: Trusted, keeper: Keeper, ahead: bool = False) -> Any:
        """What `use` returns for the shard's local files, verified unless `trusted` says that this was done already.

        Raises:
            NoRoom: it is fetched ahead, and there is no room for it yet.
            SmaltiError: the classes that `ShardCache.shard` names.
        """
        files = wanted.files()
        places = self._places(wanted, files)
        if places:
            return self._use_in_place(files, places, use, trusted)
        targets = tuple(map(self._target, files))
        deadline = Deadline(most_seconds_for(wanted.info, self._options))
        visit = Visit(keeper, deadline, self._transfer(files), ahead)
        try:
            found = self._use(files, targets, use, trusted)
        except (OSError, FormatError):
            pass  # absent, unreadable or bad: decided again by whoever holds the lock
        else:
            self._tidy(wanted, targets)
            return found
        size = sum(file.raw.num_bytes for file in files)
        with DiskFaults(wanted.what, targets[0].parent, size, self._facts(files[0])):
            for _ in range(REMADE_FOLDERS):
                try:
                    return self._bring_locked(wanted, targets, use, visit)
                except FileNotFoundError as error:  # noqa: PERF203 -- at most a few rounds
                    if isinstance(error, StoreError):
                        raise  # the shard is gone, not the folder
            return self._bring_locked(wanted, targets, use, visit)

    def _transfer(self, files: tuple[WantedFile, ...]) -> TransferDeadline:
        size, key = sum(file.stored.num_bytes for file in files), files[0].stored.basename
        return TransferDeadline(
            self._options.download_timeout, size, self._clock, what=self._store.locate(key), key=key
        )

    def roots(self) -> tuple[Path, ...]:
        """The folders of the copies, as far as any was asked for."""
        return tuple(self._roots.values())

    def copies(self, info: ShardInfo) -> tuple[Path, ...]:
        """Where the copies of a shard's files are; nothing for one that is read where it lies."""
        files = Wanted(0, info, "").files()
        return () if self._places(Wanted(0, info, ""), files) else tuple(map(self._target, files))

    def _places(self, wanted: Wanted, files: tuple[WantedFile, ...]) -> tuple[Path, ...]:
        """Where the uncompressed files lie when the store is a local folder that has them; else nothing."""
        found = [self._store.local_path(file.raw.basename) for file in files]
        places = tuple(path for path in found if path is not None)
        if len(places) != len(files):
            return ()
        # MosaicML's reader unpacks a compressed set into a folder that is a set too, mostly without compressed files.
        return places if wanted.info.zip is None or all(map(_is_whole, files, places)) else ()

    def _use_in_place(self, files: tuple[WantedFile, ...], paths: tuple[Path, ...], use: Use, trusted: Trusted) -> Any:
        file, path = files[0], paths[0]
        try:
            if not trusted(paths):
                for file, path in zip(files, paths, strict=True):
                    _verify(file, path)
            return use(paths)
        except FileNotFoundError as error:
            raise self._gone(file) from error
        except PermissionError as error:
            raise StoreAuthError(f"{file.what}: no permission to read {path}", **self._facts(file)) from error
        except OSError as error:
            raise StoreError(f"{file.what}: {path} cannot be read: {error}", **self._facts(file)) from error

    def _use(self, files: tuple[WantedFile, ...], paths: tuple[Path, ...], use: Use, trusted: Trusted) -> Any:
        if not trusted(paths):
            for file, path in zip(files, paths, strict=True):
                _verify(file, path)
        return use(paths)

    def _bring_locked(self, wanted: Wanted, targets: tuple[Path, ...], use: Use, visit: Visit) -> Any:
        files = wanted.files()
        for file, target in zip(files, targets, strict=True):
            make_parent(self._folder(file), target)
        with FileLock(lock_of(targets[0]), visit.deadline, wanted.what) as lock:
            missing = []
            for file, target in zip(files, targets, strict=True):
                if not lock.is_new:  # or every fetch would look through a folder of a million names
                    remove_parts(target)
                if not _is_good(file, target):
                    missing.append(file)
            if not missing:
                try:
                    return use(targets)
                except (FormatError, OSError) as error:
                    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                        raise  # that says nothing about the files
                    _put_aside(targets)  # whole, and still not the shard
                    missing = list(files)
            need = sum(file.num_bytes_kept(keep_zip=self._options.keep_zip) for file in missing)
            visit.keeper.admit(wanted.number, need, lock, visit.deadline, ahead=visit.ahead)
            return self._attempts(wanted, missing, use, replace(visit, lock=lock))

    def _tidy(self, wanted: Wanted, targets: tuple[Path, ...]) -> None:
        """Remove what a process left that died just after it had published the file; its lock file tells."""
        lock = lock_of(targets[0])
        if lock.exists():
            with suppress(OSError), FileLock(lock, Deadline(0.0), wanted.what):
                for target in targets:
                    remove_parts(target)

    def _attempts(self, wanted: Wanted, missing: list[WantedFile], use: Use, visit: Visit) -> Any:
        is_near = self._store.local_path(missing[0].stored.basename) is not None
        attempt, faults = 0, 0
        # Counted from when it was wanted: who waited for another process that gave up need not be as patient again.
        waited = visit.deadline.seconds - visit.deadline.left()
        patience = Deadline(0.0 if is_near else self._options.download_timeout / PATIENCE_SHARE - waited)
        visit.transfer.restart()  # until now another process may have been at it
        relief = _Relief(wanted.number, visit, self._options.download_timeout / PATIENCE_SHARE)
        with _Staging() as staging:
            while True:
                attempt += 1
                try:
                    for file in missing[len(staging.files) :]:
                        staging.files.append(self._stage(file, visit, staging))
                        visit.transfer.restart()  # unpacking a file is no lack of progress of the next
                    return self._publish(wanted, staging, use, visit)
                except StoreAuthError as error:
                    self._counters.failed(error)
                    raise
                except (StoreError, FormatError) as error:
                    self._counters.failed(error)
                    at_fault = missing[min(len(staging.files), len(missing) - 1)]
                    if staging.is_published:  # whole, and still not the shard
                        missing = list(wanted.files())
                        _put_aside(tuple(map(self._target, missing)))
                        staging.files, staging.is_published = [], False
                    faults += 1
                    pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (faults - 1), MOST_PAUSE_SECONDS)
                    pause *= jitter(1.0, 1.5)
                    if isinstance(error, StoreNotFound) and not patience.passed():
                        attempt -= 1  # a store may say so for some seconds after it was written, or mounted
                    elif isinstance(error, PartsTimeout) and not visit.transfer.passed():
                        attempt -= 1  # the next one reads the object as a whole, and its progress is seen
                    elif attempt >= self._options.download_retry or visit.is_over(pause):
                        raise self._final(at_fault, error, attempt) from error
                except OSError as error:
                    self._counters.failed(error)
                    need = sum(file.num_bytes_needed for file in missing)
                    if not is_full(error) or visit.deadline.passed():
                        raise
                    wait = relief.pause(need)
                    if wait is None:
                        raise
                    pause = wait
                    attempt -= 1  # that was no fault of the store
                self._counters.add(retries=1)
                time.sleep(pause)

    def _stage(self, file: WantedFile, visit: Visit, staging: "_Staging") -> "_Staged":
        """One attempt at one file: stream to a temporary, check, unpack."""
        target, token = self._target(file), secrets.token_hex(8)
        stored, unpacked = part_of(target, token), part_of(target, f"{token}.raw")
        with staging.cleared_on_error(stored, unpacked):
            if visit.lock is not None and is_readable_early(file.raw, file.zip):
                visit.lock.say(stored.name)
            self._download(file, stored, visit)
            self._counters.add(fetches=1, bytes_fetched=file.stored.num_bytes)
            if file.zip is None:
                return _Staged(file, (stored,), ((stored, target),))
            self._unpack(file, stored, unpacked)
            renames = [(unpacked, target)]
            if self._options.keep_zip:
                kept = self._folder(file) / file.zip.basename
                make_parent(self._folder(file), kept)
                renames.insert(0, (stored, kept))
            return _Staged(file, (stored, unpacked), tuple(renames))

    def _publish(self, wanted: Wanted, staging: "_Staging", use: Use, visit: Visit) -> Any:
        """Names for all files at once: what has one may be evicted at any moment, and then the rest were no shard."""
        size = sum(each.file.num_bytes_kept(keep_zip=self._options.keep_zip) for each in staging.files)
        with visit.keeper.publishing(wanted.number, size, visit.lock, visit.deadline):
            for each in staging.files:
                for part, name in each.renames:
                    part.replace(name)
                for part in each.parts:
                    part.unlink(missing_ok=True)  # or it would count beside what it became
            staging.is_published = True
            return use(tuple(map(self._target, wanted.files())))

    def _download(self, file: WantedFile, path: Path, visit: Visit) -> None:
        pace = self._pace.get()
        with (
            CheckedFile(path, file.stored, file.what) as out,
            self._counters.arriving() as arrived,
            pace.fetch() as parts,
            closing(self._chunks(file, visit, parts)) as chunks,
        ):
            for chunk in chunks:
                arrived(len(chunk))
                pace.arrived(len(chunk))
                out.write(chunk)
            out.finish()

    def _chunks(self, file: WantedFile, visit: Visit, parts: int) -> Generator[bytes]:
        key, size = file.stored.basename, file.stored.num_bytes
        if parts > 1 and file.stored.hashes and size > PART_BYTES:
            first = FIRST_BYTES if is_readable_early(file.raw, file.zip) else 0
            # Less than the time limit, so that enough is left to read it as a whole.
            stall = self._options.download_timeout / (self._options.download_retry + 1)
            return stream_parts(self._store, key, cut(size, first, parts), deadline=visit.transfer, stall=stall)
        stall = self._options.download_timeout / self._options.download_retry
        return stream(self._store, key, deadline=visit.transfer, stall=stall)

    def _unpack(self, file: WantedFile, stored: Path, unpacked: Path) -> None:
        compression = parse_compression(file.compression)
        if compression is None:
            raise FormatError(
                f"{file.what}: it is compressed, but the manifest names no compression", **self._facts(file)
            )
        with CheckedFile(unpacked, file.raw, f"{file.what}, unpacked") as out:
            compression.decompress_file(stored, cast("BinaryIO", out), file.raw.num_bytes)
            out.finish()

    def _folder(self, file: WantedFile) -> Path:
        has_hash = bool(file.raw.hashes)
        root = self._roots.get(has_hash)
        if root is None:
            local = Path(self._options.local).expanduser() if self._options.local else detect_cache_folder()
            root = open_root(local, folder_name(self._digest, self._store.url, has_hash=has_hash))
            check_filesystem(root, self._limit)
            self._roots[has_hash] = root
        return root

    def _target(self, file: WantedFile) -> Path:
        return self._folder(file) / file.raw.basename

    def _facts(self, file: WantedFile) -> dict[str, Any]:
        return {"key": file.stored.basename, "digest": self._digest, "url": self._store.url}

    def _gone(self, file: WantedFile) -> ShardNotFound:
        return ShardNotFound(
            f"{file.what} is gone from the store: it was deleted after it was published. "
            "`smalti.catalog.verify` lists what is "
            "missing; restore the object, or open another version",
            **self._facts(file),
        )

    def _final(self, file: WantedFile, error: StoreError | FormatError, attempts: int) -> StoreError | FormatError:
        """The error that consumers see: which shard, how often, why."""
        facts = self._facts(file)
        if isinstance(error, StoreNotFound):
            return self._gone(file)
        text = f"{file.what}: {error.message} ({attempts} attempts)"
        if isinstance(error, StoreTimeout):
            return StoreTimeout(text, **facts)
        if isinstance(error, ChecksumMismatch):
            return ChecksumMismatch(
                f"{text}; the object in the store is damaged, cut or of another version: write it again or roll back",
                **facts,
            )
        return FormatError(text, **facts) if isinstance(error, FormatError) else StoreError(text, **facts)


class _Relief:
    """Making room for one shard on a full disk.

    Args:
        number: Of the shard.
        visit: Who asks for it.
        patience: Seconds to wait for what went and is still mapped somewhere.
    """

    def __init__(self, number: int, visit: Visit, patience: float) -> None:
        self._number, self._visit, self._seconds = number, visit, patience
        self._patience: Deadline | None = None

    def pause(self, need: int) -> float | None:
        """Make room; return the seconds to wait before the next attempt, None where nothing can be done.

        Raises:
            NoRoom: it is fetched ahead: it waits until there is room.
        """
        keeper = self._visit.keeper
        if self._visit.ahead:
            raise keeper.refused(self._number)
        if keeper.relieve(self._number, need, self._visit.deadline):
            self._patience = Deadline(self._seconds)
            return 0.0
        if keeper.others_fetch(self._number):
            return FIRST_PAUSE_SECONDS  # what they fetch can go when it is here, or is given up
        is_waiting = self._patience is not None and not self._patience.passed()
        return FIRST_PAUSE_SECONDS if is_waiting else None


def _verify(file: WantedFile, path: Path) -> None:
    verify_file(path, file.raw, what=file.what)


def _is_whole(file: WantedFile, path: Path) -> bool:
    try:
        return path.stat().st_size == file.raw.num_bytes
    except OSError:
        return False  # then it is the compressed file that is asked for, and missed


def _is_good(file: WantedFile, target: Path) -> bool:
    """Whether the file is there and verifies; one that does not is put aside."""
    try:
        _verify(file, target)
    except FileNotFoundError:
        return False
    except (FormatError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            raise  # that says nothing about the file
        quarantine(target)  # bit rot, a cut copy, an unreadable sector: never served, fetched again
        return False
    return True


def _put_aside(targets: tuple[Path, ...]) -> None:
    for target in targets:
        quarantine(target)
