"""Bringing one shard here: found and verified, or fetched, checked while it streams, unpacked, published by rename."""

import errno
import os
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
from smalti.errors import (
    ChecksumMismatch,
    FormatError,
    ShardNotFound,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    StoreTimeout,
)
from smalti.format import FileInfo, ShardInfo, new_hash, parse_compression, verify_file
from smalti.storage import Store
from smalti.storage.retry import Deadline

FIRST_PAUSE_SECONDS = 0.1
REMADE_FOLDERS = 2
"""How often the cache's folder may be removed by somebody else while one shard is brought."""
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Wanted:
    """One shard, with its name for messages."""

    info: ShardInfo
    what: str
    """Such as "shard 17 (train/.../shard.00017.mds) of s3://b/set, version digest 1a2b3c"."""


Use = Callable[[Path], Any]
"""Checks and opens a file; raises `FormatError` when it is not the shard."""


class Fetcher:
    """Brings shards of one data set to this machine; thread-safe, holds no handles."""

    def __init__(self, store: Store, digest: str, options: CacheOptions) -> None:
        self._store = store
        self._digest = digest
        self._options = options
        self._root: Path | None = None

    def bring(self, wanted: Wanted, use: Use, *, trusted: Callable[[Path], bool]) -> Any:
        """What `use` returns for the shard's local file, verified unless `trusted` says that this was done already.

        Raises:
            SmaltiError: the classes that `ShardCache.shard` names.
        """
        local = self._store.local_path(wanted.info.raw.basename) if wanted.info.zip is None else None
        if local is not None:
            return self._use_in_place(wanted, local, use, trusted)
        target = self._target(wanted.info.raw)
        deadline = Deadline(self._options.download_timeout)
        try:
            found = self._use(wanted, target, use, trusted)
        except (OSError, FormatError):
            pass  # absent, unreadable or bad: decided again by whoever holds the lock
        else:
            self._tidy(wanted, target)
            return found
        with self._disk_faults(wanted, target):
            for _ in range(REMADE_FOLDERS):
                try:
                    return self._bring_locked(wanted, target, use, deadline)
                except FileNotFoundError as error:  # noqa: PERF203 -- at most a few rounds
                    if isinstance(error, StoreError):
                        raise  # the shard is gone, not the folder
            return self._bring_locked(wanted, target, use, deadline)

    def _use_in_place(self, wanted: Wanted, path: Path, use: Use, trusted: Callable[[Path], bool]) -> Any:
        try:
            return self._use(wanted, path, use, trusted)
        except FileNotFoundError as error:
            raise self._gone(wanted) from error
        except PermissionError as error:
            raise StoreAuthError(f"{wanted.what}: no permission to read {path}", **self._facts(wanted)) from error
        except OSError as error:
            raise StoreError(f"{wanted.what}: {path} cannot be read: {error}", **self._facts(wanted)) from error

    def _use(self, wanted: Wanted, path: Path, use: Use, trusted: Callable[[Path], bool]) -> Any:
        if not trusted(path):
            path.stat()
            verify_file(path, wanted.info.raw, what=wanted.what)
        return use(path)

    def _bring_locked(self, wanted: Wanted, target: Path, use: Use, deadline: Deadline) -> Any:
        make_parent(self._folder(), target)
        with FileLock(_lock_of(target), deadline, wanted.what):
            remove_parts(target)
            try:
                return self._use(wanted, target, use, trusted=lambda _: False)
            except FileNotFoundError:
                pass
            except (FormatError, OSError):
                quarantine(target)  # bit rot, a cut copy, an unreadable sector: never served, fetched again
            return self._attempts(wanted, target, use, deadline)

    def _tidy(self, wanted: Wanted, target: Path) -> None:
        """Remove what a process left that died just after it had published the file; its lock file tells."""
        lock = _lock_of(target)
        if lock.exists():
            with suppress(OSError), FileLock(lock, Deadline(0.0), wanted.what):
                remove_parts(target)

    def _attempts(self, wanted: Wanted, target: Path, use: Use, deadline: Deadline) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                self._fetch(wanted, target, deadline)
                return use(target)
            except StoreAuthError:
                raise
            except (StoreError, FormatError) as error:
                if isinstance(error, FormatError):
                    quarantine(target)
                pause = FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1) * random.uniform(1.0, 1.5)
                if attempt >= self._options.download_retry or deadline.left() <= pause:
                    raise self._final(wanted, error, attempt) from error
            time.sleep(pause)

    def _fetch(self, wanted: Wanted, target: Path, deadline: Deadline) -> None:
        """One attempt: stream to a temporary, check, unpack, publish."""
        info = wanted.info
        token = secrets.token_hex(8)
        stored, unpacked = part_of(target, token), part_of(target, f"{token}.raw")
        try:
            self._download(wanted, stored, deadline)
            if info.zip is None:
                stored.replace(target)
                return
            self._unpack(wanted, stored, unpacked)
            if self._options.keep_zip:
                kept = self._target(info.zip)
                make_parent(self._folder(), kept)
                stored.replace(kept)
            unpacked.replace(target)
        finally:
            stored.unlink(missing_ok=True)
            unpacked.unlink(missing_ok=True)

    def _download(self, wanted: Wanted, path: Path, deadline: Deadline) -> None:
        stall = self._options.download_timeout / self._options.download_retry
        stored = wanted.info.stored
        with _Checked(path, stored, wanted.what) as out:
            for chunk in stream(self._store, stored.basename, deadline=deadline, stall=stall):
                out.write(chunk)
            out.finish()

    def _unpack(self, wanted: Wanted, stored: Path, unpacked: Path) -> None:
        compression = parse_compression(wanted.info.compression)
        if compression is None:
            raise FormatError(
                f"{wanted.what}: it is compressed, but the manifest names no compression", **self._facts(wanted)
            )
        with _Checked(unpacked, wanted.info.raw, f"{wanted.what}, unpacked") as out:
            compression.decompress_file(stored, cast("BinaryIO", out), wanted.info.raw.num_bytes)
            out.finish()

    def _folder(self) -> Path:
        root = self._root
        if root is None:
            local = Path(self._options.local).expanduser() if self._options.local else detect_cache_folder()
            root = self._root = open_root(local, self._digest)
        return root

    def _target(self, file: FileInfo) -> Path:
        return self._folder() / file.basename

    def _facts(self, wanted: Wanted) -> dict[str, Any]:
        return {"key": wanted.info.stored.basename, "digest": self._digest, "url": self._store.url}

    def _gone(self, wanted: Wanted) -> ShardNotFound:
        return ShardNotFound(
            f"{wanted.what} is gone from the store: it was deleted after it was published. "
            "`smalti.catalog.verify` lists what is "
            "missing; restore the object, or open another version",
            **self._facts(wanted),
        )

    def _final(self, wanted: Wanted, error: StoreError | FormatError, attempts: int) -> StoreError | FormatError:
        """The error that consumers see: which shard, how often, why."""
        facts = self._facts(wanted)
        if isinstance(error, StoreNotFound):
            return self._gone(wanted)
        text = f"{wanted.what}: {error.message} ({attempts} attempts)"
        if isinstance(error, StoreTimeout):
            return StoreTimeout(text, **facts)
        if isinstance(error, ChecksumMismatch):
            return ChecksumMismatch(
                f"{text}; the object in the store is damaged, cut or of another version: write it again or roll back",
                **facts,
            )
        return FormatError(text, **facts) if isinstance(error, FormatError) else StoreError(text, **facts)

    def _disk_faults(self, wanted: Wanted, target: Path) -> "_DiskFaults":
        return _DiskFaults(wanted, target, self._facts(wanted))


def _lock_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


class _DiskFaults:
    """Says faults of the cache's own disk in Smalti's errors."""

    def __init__(self, wanted: Wanted, target: Path, facts: dict[str, Any]) -> None:
        self._wanted, self._target, self._facts = wanted, target, facts

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, OSError) or isinstance(error, StoreError):
            return
        where = f"the cache folder {self._target.parent}"
        if error.errno in _DISK_FULL:
            need = self._wanted.info.raw.num_bytes
            raise StoreError(
                f"{self._wanted.what}: {where} is full ({need} bytes are needed); free space, or give "
                "another folder as `local`",
                **self._facts,
            ) from error
        raise StoreError(
            f"{self._wanted.what}: {where} cannot be used: {error}; give another folder as `local`", **self._facts
        ) from error


class _Checked:
    """A new file whose size and hashes are checked as it is written; on disk when `finish` returns."""

    def __init__(self, path: Path, expected: FileInfo, what: str) -> None:
        self._expected = expected
        self._what = what
        self._hashes = {name: new_hash(name) for name in expected.hashes}
        self._num_bytes = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._file = os.fdopen(descriptor, "wb")

    def __enter__(self) -> "_Checked":
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
