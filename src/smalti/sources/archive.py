"""Unpacking of archives of images (.tgz, .tar.gz, .tar, .zip) from a path or URL into a local folder.

1. The archive is downloaded to a temporary file below the target's parent, with a deadline and a size limit.
2. Regular files and hard links are unpacked, but no metadata of macOS and Windows; names that leave the folder are
   refused, bytes and members are limited.
3. The folder appears by one rename after the whole archive was read and its checksums were compared. It contains a note
   of its source, by which a second call finds it and is a no-op.

Also here: the bytes of an archive, from its source as an open local file, and downloads from any store, http(s) servers
included.

A download has one deadline over the whole transfer, within which the store retries and continues broken connections.
Errors and descriptions contain no secrets of the address.
"""

import errno
import hashlib
import json
import logging
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import quote

from smalti.errors import FormatError, SmaltiError, StoreAuthError, StoreError, StoreNotFound, StoreTimeout
from smalti.redaction import address_secrets, has_login, redact, redact_address, unsigned_address
from smalti.regular_files import open_regular
from smalti.sources.archive_members import Member, is_system_file, read_members
from smalti.storage import Store, open_store
from smalti.storage.redact import raise_clean
from smalti.storage.retry import TransferDeadline

_NOT_ENCODED = "!#$%&'()*+,/:;=?@[]~"  # characters of an address; "%" because it may be encoded already
SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip")
_ADDRESSES = re.compile(r"^(?:cannot read )?\S+://\S+: ")
"""Begin of the messages of stores, whose address is shown already."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|dbfs:|/Volumes/")


def is_archive(source: str) -> bool:
    """Return whether a path or URL names an archive that `fetch_archive` unpacks.

    Args:
        source: Path or URL.

    Examples:
        >>> is_archive("s3://bucket/photos.tar.gz"), is_archive("s3://bucket/photos")
        (True, False)
    """
    return _path_of(source).lower().endswith(SUFFIXES)


def describe_archive(source: str) -> str:
    """Return the address of an archive without secrets; equal for addresses of the same archive.

    Args:
        source: Path or URL.

    Raises:
        SmaltiError: the address is not one of an archive, or it is refused.

    Examples:
        >>> describe_archive("https://example.com/photos.zip?X-Amz-Signature=abc")
        'https://example.com/photos.zip'
    """
    archive = ArchiveSource.parse(source)
    if not _is_web(source):
        return archive.shown
    place = re.split(r"[?#]", archive.shown, maxsplit=1)[0]
    # The rest of the query may identify the archive, and may be secret.
    return f"{place}?*** ({archive.digest[:12]})" if "?" in unsigned_address(source) else place


def _path_of(source: str) -> str:
    """Return the source without query and fragment; in a path "?" and "#" have no meaning, in a store's key "#"."""
    if _is_web(source):
        return re.split(r"[?#]", source, maxsplit=1)[0]
    return source.split("?", 1)[0] if _ADDRESS.match(source) else source


def _is_web(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


@dataclass(frozen=True)
class ArchiveSource:
    """An archive at a path or URL."""

    address: str = field(repr=False)
    """The full address, which may be signed: only for reading."""
    shown: str
    """The address for messages and notes, without secrets."""
    file: Path | None
    """Its path on this machine; None if it must be downloaded."""

    @classmethod
    def parse(cls, source: str) -> "ArchiveSource":
        """Return the source of a path or URL.

        Raises:
            FormatError: the name is not one of an archive.
            StoreError: the address contains a password, or a query although it is not http(s).
        """
        shown = redact_address(source)
        if not is_archive(source):
            raise FormatError(
                f"{shown} is no archive that can be unpacked: expected a name ending in {SUFFIXES}", source=shown
            )
        if _is_web(source):
            if has_login(source):
                raise StoreError(
                    f"{shown}: no user or password in an address; give a signed address, or download the file by other "
                    "means and give its path",
                    source=shown,
                )
            return cls(source, shown, None)
        if not _ADDRESS.match(source):
            return cls(source, shown, Path(source).expanduser())
        if "?" in source or redact(source) != source:
            raise StoreError(
                f"{shown}: no password, signature or token in an address of a store; set them in the environment",
                source=shown,
            )
        parent, _, name = source.rpartition("/")
        return cls(source, shown, open_store(f"{parent}/").local_path(name))

    @property
    def digest(self) -> str:
        """SHA-256 of the identity of the archive: an unpacked folder with the same digest is reused.

        The identity is the address without its signature, or path, size and modification time of a local file.
        """
        identity = unsigned_address(self.address) if _is_web(self.address) else self.address
        if self.file is not None:
            with suppress(OSError):  # `open` raises it
                stat = self.file.stat()
                identity = f"{self.file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()

    def fault(self, reason: str, **facts: Any) -> FormatError:
        """Return an error about the archive; `reason` continues its address."""
        return FormatError(f"{self.shown}{reason}", source=self.shown, **facts)

    def open(self, scratch: Path, limits: "ArchiveLimits") -> BinaryIO:
        """Open the archive, after a download to `scratch` unless it is on this machine.

        Raises:
            StoreNotFound: no such file or URL.
            StoreTimeout: the download did not end in time.
            StoreError: the source cannot be read.
            FormatError: it is larger than `limits.max_bytes`.
        """
        if self.file is None:
            self._download(scratch, limits)
        try:
            return open_regular(self.file or scratch)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            pass
        except PermissionError as error:
            raise StoreAuthError(f"{self.shown}: no permission to read it", source=self.shown) from error
        except OSError as error:
            raise StoreError(f"{self.shown} cannot be read: {error.strerror}", source=self.shown) from error
        raise StoreNotFound(f"{self.shown}: there is no such archive; check the path", source=self.shown)

    def _download(self, scratch: Path, limits: "ArchiveLimits") -> None:
        deadline = TransferDeadline(limits.download_timeout, None, what=self.shown, source=self.shown)
        secrets = address_secrets(self.address) if _is_web(self.address) else ()
        with scratch.open("xb") as out:

            def check(chunk: bytes) -> None:
                deadline.progress(len(chunk))
                if out.tell() + len(chunk) > limits.max_bytes:
                    raise self.fault(_TOO_LARGE.format(max_bytes=limits.max_bytes))

            try:
                deadline.progress(0)
                store, key = self._store(limits.download_timeout)
                store.fetch(key, out, on_chunk=check)
            except StoreError as error:
                raise_clean(self._fetch_error(error, secrets, deadline), error, secrets)

    def _store(self, download_timeout: float) -> tuple[Store, str]:
        """Return the store of the archive, and its key there."""
        if not _is_web(self.address):
            parent, _, name = self.address.rpartition("/")
            return open_store(f"{parent}/"), name
        scheme, _, rest = self.address.partition("#")[0].partition("://")
        host, slash, path = rest.partition("/")
        address = f"{scheme}://{host}{slash}{quote(path, safe=_NOT_ENCODED)}"  # in ASCII, as a browser sends it
        server = "/".join(_path_of(self.address).split("/", 3)[:3])
        options = {
            "exact_address": address,
            "request_timeout": download_timeout,
            "client_kwargs": {"trust_env": True},  # proxies
        }
        return open_store(server, options), PurePosixPath(_path_of(address)).name

    def _fetch_error(self, error: StoreError, secrets: tuple[str, ...], deadline: TransferDeadline) -> StoreError:
        """Return the error of a download for a person who gave only an address, without its secrets."""
        if isinstance(error, StoreTimeout):
            return deadline.error()
        detail = _ADDRESSES.sub("", " ".join(redact(error.message, secrets).split()))[:400]
        reasons: dict[type[StoreError], str] = {
            StoreNotFound: ": there is no such file; check the address",
            StoreAuthError: ": the server refuses access; a signed address may have expired: sign it again",
            StoreError: f" cannot be fetched ({detail}); check the address and the network, or download the file by "
            "other means and give its path",
        }
        kind = next(kind for kind in reasons if isinstance(error, kind))
        return kind(f"{self.shown}{reasons[kind]}", source=self.shown)


_TOO_LARGE = " is larger than the limit of {max_bytes:,} bytes; raise `ArchiveLimits.max_bytes` if it should be"
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

    The folder appears after the archive was read to its end and its checksums were right (an uncompressed .tar has
    no checksums of its files). A later call uses the folder again: it recognises a local archive by size and time,
    others by their address without its signature. A broken download continues where it stopped. Files and hard links
    are unpacked; other links, devices, and files of macOS and Windows (`._1.jpg`, `__MACOSX/`) are not, and their
    number is logged. Messages show query and fragment of an address as `***`.

    Args:
        source: Local path, http(s) URL, which may be signed, or any URL that `smalti.open_store` takes.
        into: Folder in which the archive gets a sub-folder, which a later call reuses.
        limits: Sizes above which an archive is refused, and the time limit.

    Raises:
        StoreNotFound: no such file or URL.
        StoreAuthError: the server or disk refuses access.
        StoreTimeout: the download did not end in time, or stalled.
        StoreError: the source cannot be read, or the folder cannot be written.
        FormatError: not an archive, damaged, encrypted, too large, or a member that would be written outside the
            folder.

    Examples:
        >>> _ = shutil.make_archive("flowers", "zip", "photos")
        >>> folder = fetch_archive("flowers.zip", Path("unpacked"), limits=ArchiveLimits(max_files=1000))
        >>> list_images(str(folder)).classes
        ('cat', 'dog')
    """
    limits = limits or ArchiveLimits()
    archive = ArchiveSource.parse(source)
    digest = archive.digest
    name = PurePosixPath(_path_of(source)).name.split(".", 1)[0]
    target = into / f"{name[:_MAX_NAME]}-{digest[:12]}"
    try:
        if not (target / _NOTE).is_file():
            into.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=into) as work:
                unpacked = Path(work, "files")
                unpacked.mkdir()
                with archive.open(Path(work, "archive"), limits) as stream:
                    is_zip = _path_of(source).lower().endswith(".zip")
                    _unpack(archive, read_members(archive.shown, stream, is_zip=is_zip), unpacked, limits)
                note = {"source": archive.shown, "sha256": digest, "fetched": time.time()}
                (unpacked / _NOTE).write_text(json.dumps(note))
                try:
                    unpacked.rename(target)
                except OSError:
                    if not (target / _NOTE).is_file():  # otherwise another process unpacked the same archive first
                        raise
        return _class_folder(target)
    except SmaltiError:
        raise
    except OSError as error:
        what = "the disk is full; free space" if error.errno in _DISK_FULL else f"{error}; check the folder"
        raise StoreError(
            f"{archive.shown} cannot be unpacked below {into}: {what}, or name another one", source=archive.shown
        ) from error


def _unpack(source: ArchiveSource, members: Iterator[Member], folder: Path, limits: ArchiveLimits) -> None:
    """Write the files; log the number of members that were skipped, by what they are."""
    left, written, skipped = limits.max_bytes, 0, Counter[str]()
    for count, member in enumerate(members):
        if count >= limits.max_files:
            raise source.fault(f" holds more than {limits.max_files:,} files; raise `ArchiveLimits.max_files`")
        left -= member.num_bytes
        if left < 0:
            raise source.fault(" unpacked" + _TOO_LARGE.format(max_bytes=limits.max_bytes))
        if is_system_file(member.name):
            if not member.is_folder:
                skipped["metadata of macOS or Windows"] += 1
        elif member.content is not None or member.linked:
            left -= _write(source, member, folder)
            written += 1
        elif not member.is_folder:
            skipped["links or devices"] += 1
    if not written:
        raise source.fault(" holds no file; expected images in folders by class")
    for kind, count in skipped.items():
        _log.warning("%s: %d members are %s, and were not unpacked", source.shown, count, kind)


def _write(source: ArchiveSource, member: Member, folder: Path) -> int:
    """Write a member; return the bytes that it takes beyond its declared size, which is 0 for a hard link."""
    try:
        path = folder.joinpath(*_safe_parts(source, member.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.content is not None:
            with path.open("xb") as out:
                out.writelines(member.content)
            return 0
        linked = folder.joinpath(*_safe_parts(source, member.linked))
        if not linked.is_file():
            raise source.fault(
                f": its member {member.name!r} is a link to {member.linked!r}, which is not before it; pack it again "
                "with both files",
                member=member.name,
            )
        with path.open("xb") as out, open_regular(linked) as content:
            shutil.copyfileobj(content, out)
        return linked.stat().st_size
    except SmaltiError:
        raise
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise source.fault(f" names the same file twice: {member.name!r}; pack it again") from error
    except OSError as error:
        if error.errno not in _BAD_NAME:
            raise
        raise source.fault(
            f": its member {member.name!r} has a name that this file system does not allow ({error.strerror}); rename "
            "it and pack it again",
            member=member.name,
        ) from error


def _safe_parts(source: ArchiveSource, name: str) -> tuple[str, ...]:
    """Split a member's name into the parts of its path; raise `FormatError` if it leaves the folder. Pure."""
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part != ".")
    if not parts or name.startswith("/") or any(part in ("", "..") or "\0" in part for part in parts):
        raise source.fault(f" is refused: its member {name!r} would be written outside the folder", member=name)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        reason = f": the name of its member {name!r} is not UTF-8; rename it and pack it again"
        raise source.fault(reason, member=name) from error
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
