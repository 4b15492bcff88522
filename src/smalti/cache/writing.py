"""Files that the cache writes: checked as they come, with faults of its own disk told apart. Knows no stores."""

import errno
import os
from pathlib import Path
from typing import Any

from smalti.errors import ChecksumMismatch, StoreError
from smalti.format import FileInfo, new_hash

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
