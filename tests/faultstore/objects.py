"""The buckets and what is in them, in memory; objects never change, they are replaced. Knows no HTTP."""

import hashlib
import mmap
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Stored:
    """One object."""

    data: memoryview
    etag: str
    """Without quotes."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers given by the writer: `content-type`, `x-amz-meta-*`."""
    modified: float = field(default_factory=time.time)
    """Seconds since 1970."""

    @classmethod
    def of(cls, data: Buffer, headers: dict[str, str] | None = None, etag: str | None = None) -> "Stored":
        """An object with these bytes, which are not copied."""
        mark = etag or hashlib.md5(data, usedforsecurity=False).hexdigest()
        return cls(memoryview(data).toreadonly(), mark, headers or {})


@dataclass
class Upload:
    """A multipart upload that is under way."""

    key: str
    headers: dict[str, str]
    parts: dict[int, Stored] = field(default_factory=dict)
    begun: float = field(default_factory=time.time)
    """Seconds since 1970."""


class Bucket:
    """Objects by key."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self._keys: list[str] | None = None

    def clear(self) -> None:
        """As new."""
        self.objects, self.uploads, self._keys = {}, {}, None

    def put(self, key: str, stored: Stored) -> None:
        """Replace the object."""
        if key not in self.objects:
            self._keys = None
        self.objects[key] = stored

    def delete(self, key: str) -> None:
        """Remove it if it is there."""
        if self.objects.pop(key, None) is not None:
            self._keys = None

    def until(self, moment: float) -> "Bucket":
        """Return a read-only view of the objects that existed at a time, in seconds since 1970."""
        seen = Bucket()
        seen.objects = {key: stored for key, stored in self.objects.items() if stored.modified <= moment}
        return seen

    def keys(self) -> list[str]:
        """All of them, in the order in which S3 lists: by the bytes of their UTF-8."""
        if self._keys is None:
            self._keys = sorted(self.objects, key=str.encode)
        return self._keys

    def begin_upload(self, key: str, headers: dict[str, str]) -> str:
        """The id of a new multipart upload."""
        name = secrets.token_hex(16)
        self.uploads[name] = Upload(key, headers)
        return name

    def join_upload(self, name: str, numbers: list[int]) -> Stored:
        """The object that the parts make.

        Raises:
            KeyError: a part is not there.
        """
        upload = self.uploads[name]
        parts = [upload.parts[number] for number in numbers]
        marks = b"".join(bytes.fromhex(part.etag) for part in parts)
        etag = f"{hashlib.md5(marks, usedforsecurity=False).hexdigest()}-{len(parts)}"
        return Stored.of(b"".join(part.data for part in parts), upload.headers, etag)


def load_folder(bucket: Bucket, folder: Path) -> None:
    """Every file below the folder, mapped where it lies: a large set costs no memory and no time."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        facts = path.stat()
        etag = hashlib.md5(f"{path}:{facts.st_size}:{facts.st_mtime_ns}".encode(), usedforsecurity=False).hexdigest()
        data: Buffer = b""
        if facts.st_size:
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        bucket.put(path.relative_to(folder).as_posix(), Stored.of(data, etag=etag))
