"""Getting an archive of images (.tgz, .tar.gz, .tar, .zip) from a path or URL into a local folder, safely and whole.

1. the archive is downloaded to a temporary file beside the target, under a deadline and a size limit;
2. members are unpacked by hand: regular files only, no name that leaves the folder, limits on bytes and files;
3. the folder appears by one rename, with a note of where it came from; a second call finds it and does nothing.
"""

import gzip
import hashlib
import json
import lzma
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO
from urllib.request import Request, urlopen

from smalti.errors import FormatError, SmaltiError, StoreError, StoreNotFound, StoreTimeout
from smalti.storage import open_store

FLOWER_PHOTOS = "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz"
"""TensorFlow's flowers: 3,670 photos of five classes, 218 MiB."""

_SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip")
_NOTE = ".source.json"  # hidden, so that it is no image
_CHUNK = 1 << 20
_DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError,
    NotImplementedError,
)  # fmt: skip
_SILENCE_SECONDS = 60.0  # longest wait for the next bytes of a download


@dataclass(frozen=True)
class ArchiveLimits:
    """What an archive may take before it is refused."""

    max_bytes: int = 64 << 30
    """Of the archive, and of everything unpacked, each."""
    max_files: int = 5_000_000
    """Members."""
    deadline_seconds: float = 3600.0
    """For the download."""


def is_archive(source: str) -> bool:
    """Whether a path or URL names an archive that `fetch_archive` unpacks."""
    return source.split("?", 1)[0].lower().endswith(_SUFFIXES)


def fetch_archive(source: str, into: Path, *, limits: ArchiveLimits | None = None) -> Path:
    """Unpack an archive below `into`; returns the folder that holds the class folders.

    Args:
        source: a local path, an http(s) URL, or any URL that `smalti.storage.open_store` takes.
        into: a folder for unpacked archives; each source gets its own sub-folder, which a later call reuses.
        limits: what the archive may take.

    Raises:
        StoreNotFound: no such file or URL.
        StoreTimeout: the download did not end in time, or stalled.
        StoreError: the source cannot be read.
        FormatError: not an archive, damaged, too large, or a member that would be written outside the folder.
    """
    limits = limits or ArchiveLimits()
    if not is_archive(source):
        raise FormatError(f"{source} is no archive that can be unpacked: expected a name ending in {_SUFFIXES}")
    name = PurePosixPath(source.split("?", 1)[0]).name
    target = into / f"{name.split('.', 1)[0]}-{hashlib.sha256(_identity(source).encode()).hexdigest()[:12]}"
    if not (target / _NOTE).is_file():
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=into) as work:
            unpacked = Path(work) / "files"
            unpacked.mkdir()
            with _opened(source, Path(work) / "archive", limits) as archive:
                _unpack(source, archive, unpacked, limits)
            (unpacked / _NOTE).write_text(json.dumps({"source": source, "fetched": time.time()}))
            _move_into_place(unpacked, target)
    return _class_folder(target)


def _identity(source: str) -> str:
    """What must be equal for an unpacked folder to be used again: for a local file, its size and time as well."""
    path = Path(source)
    if "://" in source or not path.is_file():
        return source
    stat = path.stat()
    return f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"


def _move_into_place(unpacked: Path, target: Path) -> None:
    try:
        unpacked.rename(target)
    except OSError:
        if not (target / _NOTE).is_file():  # else another process unpacked the same archive first
            raise


@contextmanager
def _opened(source: str, scratch: Path, limits: ArchiveLimits) -> Iterator[BinaryIO]:
    """The archive as an open local file."""
    if source.startswith(("http://", "https://")):
        _download(source, scratch, limits)
    elif "://" in source:
        parent, _, name = source.rpartition("/")
        with scratch.open("wb") as out:
            open_store(parent).fetch(name, out)
    else:
        scratch = Path(source).expanduser()
        if not scratch.is_file():
            raise StoreNotFound(f"{source}: there is no such archive", source=source)
    with scratch.open("rb") as archive:
        yield archive


def _download(url: str, out: Path, limits: ArchiveLimits) -> None:
    end = time.monotonic() + limits.deadline_seconds
    request = Request(url, headers={"User-Agent": "smalti"})  # noqa: S310  the scheme was checked by the caller
    try:
        with urlopen(request, timeout=_SILENCE_SECONDS) as reply, out.open("wb") as file:  # noqa: S310
            expected = reply.headers.get("Content-Length")
            received = _copy(reply, file, limit=limits.max_bytes, end=end, what=url)
    except SmaltiError:
        raise
    except TimeoutError as error:
        raise StoreTimeout(f"{url}: no bytes for {_SILENCE_SECONDS:g} s; try again later", source=url) from error
    except OSError as error:  # URLError and HTTPError are among them
        if getattr(error, "code", None) in (404, 410):
            raise StoreNotFound(f"{url}: the server has no such file ({error})", source=url) from error
        raise StoreError(
            f"{url} cannot be fetched ({error}); check the address and the network, or download the file by "
            f"other means and give its path",
            source=url,
        ) from error
    if expected is not None and received != int(expected):
        raise StoreError(f"{url}: expected {expected} bytes, received {received}; try again", source=url)


def _copy(source: IO[bytes], out: IO[bytes], *, limit: int, end: float | None, what: str) -> int:
    """Copy bytes under a limit and a deadline; returns how many."""
    copied = 0
    while chunk := source.read(_CHUNK):
        copied += len(chunk)
        if copied > limit:
            raise FormatError(f"{what} is larger than the limit of {limit:,} bytes; raise `ArchiveLimits` if it should")
        if end is not None and time.monotonic() > end:
            raise StoreTimeout(f"{what}: not complete at the deadline, {copied:,} bytes received", source=what)
        out.write(chunk)
    return copied


def _unpack(source: str, archive: BinaryIO, folder: Path, limits: ArchiveLimits) -> None:
    left = limits.max_bytes
    try:
        for count, (name, content) in enumerate(_members(source, archive)):
            if count >= limits.max_files:
                raise FormatError(f"{source} holds more than {limits.max_files:,} files; raise `ArchiveLimits`")
            path = folder.joinpath(*_safe_parts(source, name))
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                left -= _copy(content, out, limit=left, end=None, what=f"{source} unpacked")
    except _DAMAGED as error:
        raise FormatError(f"{source} is damaged or not an archive ({error}); fetch it again", source=source) from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise FormatError(f"{source} names the same file twice: {error.filename}", source=source) from error


def _members(source: str, archive: BinaryIO) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of every regular file; other kinds of member (links, devices) are passed over."""
    if source.split("?", 1)[0].lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir() and not info.filename.startswith("__MACOSX/"):
                    with zipped.open(info) as content:
                        yield info.filename, content
        return
    with tarfile.open(fileobj=archive, mode="r|*") as tarred:
        for member in tarred:
            content_or_none = tarred.extractfile(member) if member.isreg() else None
            if content_or_none is not None:
                yield member.name, content_or_none


def _safe_parts(source: str, name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part != ".")
    if not parts or name.startswith("/") or any(part in ("", "..") or "\0" in part for part in parts):
        raise FormatError(
            f"{source} is refused: its member {name!r} would be written outside the folder", source=source, member=name
        )
    return parts


def _class_folder(folder: Path) -> Path:
    """The first folder, going down single sub-folders, that has several sub-folders or files of its own."""
    while True:
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
        if len(inside) != 1 or not inside[0].is_dir():
            return folder
        if not any(path.is_dir() for path in inside[0].iterdir()):
            return folder
        folder = inside[0]
