"""Unpacking of archives of images (.tgz, .tar.gz, .tar, .zip) from a path or URL into a local folder.

1. The archive is downloaded to a temporary file below the target's parent, with a deadline and a size limit.
2. Regular files and hard links are unpacked, but no metadata of macOS and Windows; names that leave the folder are
   refused, bytes and members are limited.
3. The folder appears by one rename after the whole archive was read and its checksums were compared. It contains a note
   of its source, by which a second call finds it and is a no-op.
"""

import errno
import json
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smalti.errors import FormatError, SmaltiError, StoreError
from smalti.regular_files import open_regular
from smalti.sources.archive_download import ArchiveSource, describe_archive, is_archive, too_large
from smalti.sources.archive_members import Member, is_system_file, read_members

__all__ = ["FLOWER_PHOTOS", "ArchiveLimits", "describe_archive", "fetch_archive", "is_archive"]

FLOWER_PHOTOS = "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz"
"""TensorFlow's flowers: 3,670 photos of five classes, 218 MiB."""

_NOTE = ".source.json"  # hidden files do not count as images
_MAX_NAME = 100  # characters of an archive's name in its folder's name
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BAD_NAME = {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits above which an archive is refused."""

    max_bytes: int = 64 << 30
    """Largest size of the archive, and of its unpacked content, bytes."""
    max_files: int = 5_000_000
    """Largest number of members."""
    download_timeout: float = 60.0
    """Time limit of the download, seconds; see `smalti.storage.retry`."""


def fetch_archive(source: str, into: Path, *, limits: ArchiveLimits | None = None) -> Path:
    """Unpack an archive below `into` and return the folder with the class folders.

    The source is a local path, an http(s) URL, which may be signed, or any URL that `smalti.storage.open_store` takes.
    Each source gets its own sub-folder of `into`, which a later call reuses. The signature of an address is not part of
    its identity.

    Raises:
        StoreNotFound: no such file or URL.
        StoreAuthError: the server or disk refuses access.
        StoreTimeout: the download did not end in time, or stalled.
        StoreError: the source cannot be read, or the folder cannot be written.
        FormatError: not an archive, damaged, encrypted, too large, or a member that would be written outside the
            folder.
    """
    limits = limits or ArchiveLimits()
    archive = ArchiveSource.parse(source)
    digest = archive.digest
    target = into / f"{archive.name[:_MAX_NAME]}-{digest[:12]}"
    with _disk_errors(archive, into):
        if not (target / _NOTE).is_file():
            into.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=into) as work:
                _unpack_source(archive, digest, Path(work), target, limits)
        return _class_folder(target)


def _unpack_source(source: ArchiveSource, digest: str, work: Path, target: Path, limits: ArchiveLimits) -> None:
    unpacked = work / "files"
    unpacked.mkdir()
    with source.opened(
        work / "archive", max_bytes=limits.max_bytes, download_timeout=limits.download_timeout
    ) as archive:
        skipped = _unpack(source, read_members(source.shown, archive, is_zip=source.is_zip), unpacked, limits)
    for kind, count in skipped.items():
        _log.warning("%s: %d members are %s, and were not unpacked", source.shown, count, kind)
    (unpacked / _NOTE).write_text(json.dumps({"source": source.shown, "sha256": digest, "fetched": time.time()}))
    try:
        unpacked.rename(target)
    except OSError:
        if not (target / _NOTE).is_file():  # otherwise another process unpacked the same archive first
            raise


@contextmanager
def _disk_errors(source: ArchiveSource, into: Path) -> Iterator[None]:
    try:
        yield
    except SmaltiError:
        raise
    except OSError as error:
        what = "the disk is full; free space" if error.errno in _DISK_FULL else f"{error}; check the folder"
        raise StoreError(
            f"{source.shown} cannot be unpacked below {into}: {what}, or name another one", source=source.shown
        ) from error


def _unpack(source: ArchiveSource, members: Iterator[Member], folder: Path, limits: ArchiveLimits) -> Counter[str]:
    """Write the files; return the number of members that were skipped, by what they are."""
    left, written, skipped = limits.max_bytes, 0, Counter[str]()
    for count, member in enumerate(members):
        if count >= limits.max_files:
            raise FormatError(
                f"{source.shown} holds more than {limits.max_files:,} files; raise `ArchiveLimits.max_files`",
                source=source.shown,
            )
        left -= member.num_bytes
        if left < 0:
            raise too_large(f"{source.shown} unpacked", limits.max_bytes)
        if is_system_file(member.name):
            if not member.is_folder:
                skipped["metadata of macOS or Windows"] += 1
        elif member.content is not None or member.linked:
            with _name_errors(source, member):
                left -= _write(source, member, folder)
            written += 1
        elif not member.is_folder:
            skipped["links or devices"] += 1
    if not written:
        raise FormatError(f"{source.shown} holds no file; expected images in folders by class", source=source.shown)
    return skipped


def _write(source: ArchiveSource, member: Member, folder: Path) -> int:
    """Write a member; return the bytes that it takes beyond its declared size, which is 0 for a hard link."""
    path = folder.joinpath(*_safe_parts(source, member.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.content is not None:
        with path.open("xb") as out:
            out.writelines(member.content)
        return 0
    linked = folder.joinpath(*_safe_parts(source, member.linked))
    if not linked.is_file():
        raise FormatError(
            f"{source.shown}: its member {member.name!r} is a link to {member.linked!r}, which is not before it; "
            "pack it again with both files",
            source=source.shown,
            member=member.name,
        )
    with path.open("xb") as out, open_regular(linked) as content:
        shutil.copyfileobj(content, out)
    return linked.stat().st_size


@contextmanager
def _name_errors(source: ArchiveSource, member: Member) -> Iterator[None]:
    try:
        yield
    except SmaltiError:
        raise
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise FormatError(
            f"{source.shown} names the same file twice: {member.name!r}; pack it again", source=source.shown
        ) from error
    except OSError as error:
        if error.errno not in _BAD_NAME:
            raise
        raise FormatError(
            f"{source.shown}: its member {member.name!r} has a name that this file system does not allow "
            f"({error.strerror}); rename it and pack it again",
            source=source.shown,
            member=member.name,
        ) from error


def _safe_parts(source: ArchiveSource, name: str) -> tuple[str, ...]:
    """Split a member's name into the parts of its path; raise `FormatError` if it leaves the folder. Pure."""
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part != ".")
    if not parts or name.startswith("/") or any(part in ("", "..") or "\0" in part for part in parts):
        raise FormatError(
            f"{source.shown} is refused: its member {name!r} would be written outside the folder",
            source=source.shown,
            member=name,
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise FormatError(
            f"{source.shown}: the name of its member {name!r} is not UTF-8; rename it and pack it again",
            source=source.shown,
            member=name,
        ) from error
    return parts


def _class_folder(folder: Path) -> Path:
    """Return the folder with the class folders, which may lie below single sub-folders."""
    while True:
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
        if len(inside) != 1 or not inside[0].is_dir():
            return folder
        if not any(path.is_dir() for path in inside[0].iterdir()):
            return folder
        folder = inside[0]
