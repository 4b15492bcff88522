"""Bringing one shard here: found and verified, or fetched, checked while it streams, unpacked, published by rename.

An MDS shard is one file; a text shard is two, brought under one lock and each of them verified by itself.
"""

import errno
import hashlib
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from smalti.cache.folders import make_parent, open_root, part_of, quarantine, remove_parts
from smalti.cache.locking import FileLock
from smalti.cache.options import CacheOptions, detect_cache_folder
from smalti.cache.transfer import stream
from smalti.cache.writing import CheckedFile, DiskFaults
from smalti.errors import (
    ChecksumMismatch,
    FormatError,
    ShardNotFound,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    StoreTimeout,
)
from smalti.format import FileInfo, ShardInfo, parse_compression, verify_file
from smalti.storage import Store
from smalti.storage.retry import Deadline

FIRST_PAUSE_SECONDS = 0.1
REMADE_FOLDERS = 2
"""How often the cache's folder may be removed by somebody else while one shard is brought."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


@dataclass(frozen=True)
class Wanted:
    """One shard, with its name for messages."""

    info: ShardInfo
    what: str
    """Such as "shard 17 (train/.../shard.00017.mds) of s3://b/set, version digest 1a2b3c"."""

    def files(self) -> tuple["WantedFile", ...]:
        """Its files: data, and meta for a text shard."""
        pairs = zip(self.info.raw_files, self.info.stored_files, (self.info.zip, self.info.zip_meta), strict=False)
        return tuple(
            WantedFile(raw, stored, zipped, self.info.compression, self.what if raw is self.info.raw else self._meta())
            for raw, stored, zipped in pairs
        )

    def _meta(self) -> str:
        return f"meta file {self.info.stored_files[-1].basename} of {self.what}"


@dataclass(frozen=True)
class WantedFile:
    """One file of a shard."""

    raw: FileInfo
    stored: FileInfo
    zip: FileInfo | None
    compression: str | None
    what: str


Use = Callable[[tuple[Path, ...]], Any]
"""Opens the files of a shard; raises `FormatError` when they are not the shard."""
Trusted = Callable[[tuple[Path, ...]], bool]


class Fetcher:
    """Brings shards of one data set to this machine; thread-safe, holds no handles."""

    def __init__(self, store: Store, digest: str, options: CacheOptions) -> None:
        self._store = store
        self._digest = digest
        self._options = options
        self._roots: dict[bool, Path] = {}

    def bring(self, wanted: Wanted, use: Use, *, trusted: Trusted) -> Any:
        """What `use` returns for the shard's local files, verified unless `trusted` says that this was done already.

        Raises:
            SmaltiError: the classes that `ShardCache.shard` names.
        """
        files = wanted.files()
        places = self._places(wanted, files)
        if places:
            return self._use_in_place(files, places, use, trusted)
        targets = tuple(map(self._target, files))
        deadline = Deadline(self._options.download_timeout)
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
                    return self._bring_locked(wanted, targets, use, deadline)
                except FileNotFoundError as error:  # noqa: PERF203 -- at most a few rounds
                    if isinstance(error, StoreError):
                        raise  # the shard is gone, not the folder
            return self._bring_locked(wanted, targets, use, deadline)

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

    def _bring_locked(self, wanted: Wanted, targets: tuple[Path, ...], use: Use, deadline: Deadline) -> Any:
        files = wanted.files()
        for file, target in zip(files, targets, strict=True):
            make_parent(self._folder(file), target)
        with FileLock(_lock_of(targets), deadline, wanted.what):
            missing = []
            for file, target in zip(files, targets, strict=True):
                remove_parts(target)
                if not _is_good(file, target):
                    missing.append(file)
            if not missing:
                try:
                    return use(targets)
                except (FormatError, OSError):
                    _put_aside(targets)  # whole, and still not the shard
                    missing = list(files)
            return self._attempts(wanted, missing, use, deadline)

    def _tidy(self, wanted: Wanted, targets: tuple[Path, ...]) -> None:
        """Remove what a process left that died just after it had published the file; its lock file tells."""
        lock = _lock_of(targets)
        if lock.exists():
            with suppress(OSError), FileLock(lock, Deadline(0.0), wanted.what):
                for target in targets:
                    remove_parts(target)

    def _attempts(self, wanted: Wanted, missing: list[WantedFile], use: Use, deadline: Deadline) -> Any:
        files = wanted.files()
        targets = tuple(map(self._target, files))
        attempt = 0
        while True:
            attempt += 1
            try:
                while missing:
                    self._fetch(missing[0], deadline)
                    missing.pop(0)
                return use(targets)
            except StoreAuthError:
                raise
            except (StoreError, FormatError) as error:
                at_fault = missing[0] if missing else files[0]
                if not missing:
                    _put_aside(targets)
                    missing = list(files)
                pause = FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1) * random.uniform(1.0, 1.5)
                if attempt >= self._options.download_retry or deadline.left() <= pause:
                    raise self._final(at_fault, error, attempt) from error
            time.sleep(pause)

    def _fetch(self, file: WantedFile, deadline: Deadline) -> None:
        """One attempt at one file: stream to a temporary, check, unpack, publish."""
        target, token = self._target(file), secrets.token_hex(8)
        stored, unpacked = part_of(target, token), part_of(target, f"{token}.raw")
        try:
            self._download(file, stored, deadline)
            if file.zip is None:
                stored.replace(target)
                return
            self._unpack(file, stored, unpacked)
            if self._options.keep_zip:
                kept = self._folder(file) / file.zip.basename
                make_parent(self._folder(file), kept)
                stored.replace(kept)
            unpacked.replace(target)
        finally:
            stored.unlink(missing_ok=True)
            unpacked.unlink(missing_ok=True)

    def _download(self, file: WantedFile, path: Path, deadline: Deadline) -> None:
        stall = self._options.download_timeout / self._options.download_retry
        with CheckedFile(path, file.stored, file.what) as out:
            for chunk in stream(self._store, file.stored.basename, deadline=deadline, stall=stall):
                out.write(chunk)
            out.finish()

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
            name = self._digest
            if not has_hash:
                # Names and sizes alone do not tell two sets apart, such as two runs of one writer over rows of fixed
                # size: their digests are equal, and only the address says whose copy it is.
                name += f".{hashlib.sha256(self._store.url.encode()).hexdigest()[:16]}"
            root = self._roots[has_hash] = open_root(local, name)
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


def _lock_of(targets: tuple[Path, ...]) -> Path:
    return targets[0].with_name(f".{targets[0].name}.lock")
