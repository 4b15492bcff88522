"""Reading of the members of tar and zip archives, with every check that the formats allow.

1. A gzip, bzip2 or xz stream is read to its end, which contains its checksum. `tarfile` would stop earlier.
2. A tar must end with two blocks of zeros and nothing after them. `tarfile` also ends silently if the file is truncated
   between two members, and at a header with a wrong checksum.
3. In a zip, the checksum of each content is compared, and the two copies of its name.

An uncompressed tar only has checksums of its headers: changed content is not detected.
"""

import bz2
import gzip
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from smalti.errors import FormatError, StoreError
from smalti.storage.redact import raise_clean

_CHUNK_BYTES = 1 << 20
_EXTENSION_TYPES = {
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
}  # fmt: skip
_MAX_EXTENSION_BYTES = 1 << 20
"""Largest extension of a header (long names and the like), which is read into memory at once."""
_DECOMPRESSORS: tuple[tuple[bytes, Callable[[BinaryIO], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_ENCRYPTED, _UTF8_NAME = 0x1, 0x800
"""Flags of a zip member."""
_END_RECORD = struct.Struct("<4s6xH10x")
"""End record of a zip, before its comment: signature and number of members."""
_ZIP64_LOCATOR = struct.Struct("<4s4xQ4x")
"""Locator before the end record of a large zip: signature and offset of the following record."""
_ZIP64_END_RECORD = struct.Struct("<4s28xQ16x")
"""End record of a large zip: signature and number of members."""
_SIGNATURES = {_END_RECORD: b"PK\5\6", _ZIP64_LOCATOR: b"PK\6\7", _ZIP64_END_RECORD: b"PK\6\6"}
_NUMBERS_WITHOUT_ZIP64 = 1 << 16  # of members: the end record has 16 bits for it
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError,
    LookupError, ArithmeticError, RuntimeError,
)  # fmt: skip
"""Exceptions of the standard library for damaged or hostile archives; also `OSError` without an error number."""


@dataclass(frozen=True)
class Member:
    """One member of an archive."""

    name: str
    num_bytes: int
    """Declared size of its content, bytes; 0 without content."""
    content: Iterator[bytes] | None = None
    """Content of a regular file; raises `FormatError` if it is damaged. Must be read before the next member."""
    linked: str = ""
    """Target of a hard link: the name of the member whose content it shares."""
    is_folder: bool = False


def read_members(shown: str, archive: BinaryIO, *, is_zip: bool) -> Iterator[Member]:
    """Yield all members; all checks of the archive, a seekable file, have passed when the iterator ends.

    Raises:
        FormatError: not an archive, damaged, truncated, encrypted, or packed by a method that Python does not support.
        StoreError: the archive cannot be read from disk.
    """
    with _damage_as_format_error(shown):
        yield from _zip_members(shown, archive) if is_zip else _tar_members(shown, archive)


@contextmanager
def _damage_as_format_error(shown: str) -> Iterator[None]:
    try:
        yield
    except (FormatError, StoreError):
        raise
    except NotImplementedError as error:
        raise FormatError(
            f"{shown} is packed by a method that cannot be unpacked here ({error}); pack it again as .tgz or plain "
            ".zip, or unpack it and give the folder",
            source=shown,
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise StoreError(
                f"{shown}: the archive cannot be read from disk ({error.strerror}); check the disk", source=shown
            ) from error
        raise_clean(_damaged(shown, error), error)
    except _DAMAGE as error:
        raise_clean(_damaged(shown, error), error)


def _damaged(shown: str, error: Exception) -> FormatError:
    found = str(error).encode("utf-8", "backslashreplace").decode() or type(error).__name__
    return FormatError(f"{shown} is damaged or not an archive ({found}); fetch it again", source=shown)


def _content(shown: str, file: IO[bytes], num_bytes: int) -> Iterator[bytes]:
    with _damage_as_format_error(shown):
        received = 0
        while chunk := file.read(_CHUNK_BYTES):
            received += len(chunk)
            yield chunk
        if received != num_bytes:
            raise EOFError(f"a member has {received} bytes of {num_bytes}")


# ---------------------------------------------------------------- tar


_ZEROS = bytes(tarfile.BLOCKSIZE)


class _TarEnd(tarfile.HeaderError):
    """A block of zeros where a header is expected."""


class _StrictHeader(tarfile.TarInfo):
    """A header whose errors are raised; `tarfile` takes most of them for the end of the archive."""


# The class method that `tarfile` parses every header with: newer patch releases of Python parse with a private one.
_PARSER = "_frombuf" if hasattr(tarfile.TarInfo, "_frombuf") else "frombuf"


def _parse_strictly(cls: Any, /, buf: bytes, encoding: str, errors: str, **options: Any) -> _StrictHeader:
    if len(buf) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it ends without the two blocks of zeros that end a tar: its end is missing")
    if buf == _ZEROS:
        raise _TarEnd("it holds nothing")
    try:
        header: _StrictHeader = getattr(super(_StrictHeader, cls), _PARSER)(buf, encoding, errors, **options)
    except tarfile.HeaderError as error:
        raise tarfile.ReadError(f"a header is wrong: {error}") from error
    if header.type in _EXTENSION_TYPES and header.size > _MAX_EXTENSION_BYTES:
        raise tarfile.ReadError(f"a header is followed by {header.size} bytes of names")
    if header.size < 0:
        raise tarfile.ReadError(f"a header has the size {header.size}")
    return header


setattr(_StrictHeader, _PARSER, classmethod(_parse_strictly))


def _tar_members(shown: str, archive: BinaryIO) -> Iterator[Member]:
    with (
        closing(_decompressed(archive)) as stream,
        tarfile.open(
            fileobj=stream, mode="r|", tarinfo=_StrictHeader, encoding="utf-8",
            errors="surrogateescape",
        ) as tarred,
    ):  # fmt: skip
        while True:
            try:
                found = tarred.next()
            except _TarEnd:
                break
            if found is None:
                raise tarfile.ReadError("its end is missing")
            cast("Any", tarred).members.clear()  # otherwise all headers stay in memory
            file = tarred.extractfile(found) if found.isreg() else None
            yield Member(
                found.name,
                0 if file is None else found.size,  # of folders and links it is meaningless
                None if file is None else _content(shown, file, found.size),
                found.linkname if found.islnk() else "",
                found.isdir(),
            )
        _check_tar_end(tarred.fileobj.read)


def _check_tar_end(read: Callable[[int], bytes]) -> None:
    """Read the stream to its end, from after the first block of zeros."""
    if read(tarfile.BLOCKSIZE) != _ZEROS:
        raise tarfile.ReadError("one block of zeros, where two end a tar: its end is missing or damaged")
    while chunk := read(_CHUNK_BYTES):
        if chunk.strip(b"\0"):
            raise tarfile.ReadError("something follows its end; archives that were joined must be unpacked one by one")


def _decompressed(archive: BinaryIO) -> IO[bytes]:
    head = archive.read(6)
    archive.seek(0)
    for magic, opener in _DECOMPRESSORS:
        if head.startswith(magic):
            return cast("IO[bytes]", opener(archive))
    return archive


# ---------------------------------------------------------------- zip


def _zip_members(shown: str, archive: BinaryIO) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        members = zipped.infolist()
        _check_number(archive, zipped)
        before = min((info.header_offset for info in members), default=0)
        if before:
            raise zipfile.BadZipFile(
                f"{before} bytes precede its first member; archives that were joined must be unpacked one by one"
            )
        for info in members:
            if info.flag_bits & _ENCRYPTED:
                raise FormatError(
                    f"{shown} is encrypted (member {info.filename!r}); unpack it with its password and give the folder",
                    source=shown,
                    member=info.filename,
                )
            with zipped.open(info) as file:  # compares the two copies of the name
                content = _content(shown, file, info.file_size)
                if not info.is_dir():
                    yield Member(_name_of(info), info.file_size, content)
                elif info.file_size:
                    raise zipfile.BadZipFile(f"the folder {info.filename!r} has content")


def _check_number(archive: BinaryIO, zipped: zipfile.ZipFile) -> None:
    """Compare the number of members with the one in the end record, which `zipfile` ignores.

    A member with a declared length that is too large hides the headers of those after it.
    """
    end = archive.seek(0, os.SEEK_END) - len(zipped.comment) - _END_RECORD.size
    declared, found = _number_at(archive, end, _END_RECORD), len(zipped.infolist())
    if declared is None:
        raise zipfile.BadZipFile("something follows its end, or its end is damaged")
    if declared == _NUMBERS_WITHOUT_ZIP64 - 1:
        at = _number_at(archive, end - _ZIP64_LOCATOR.size, _ZIP64_LOCATOR)
        declared = found if at is None else _number_at(archive, at, _ZIP64_END_RECORD)
    # Some programs write large zips without the extension, with the last 16 bits of the number.
    if declared is None or (declared - found) % _NUMBERS_WITHOUT_ZIP64:
        raise zipfile.BadZipFile(f"it declares {declared} members, but lists {found}")


def _number_at(archive: BinaryIO, position: int, record: struct.Struct) -> int | None:
    """Return the number in a record; None if there is no such record."""
    archive.seek(max(position, 0))
    data = archive.read(record.size)
    if len(data) < record.size:
        return None
    signature, number = record.unpack(data)
    return int(number) if signature == _SIGNATURES[record] else None


def _name_of(info: zipfile.ZipInfo) -> str:
    """Return the member's name: many programs write UTF-8 without its flag, and `zipfile` then decodes CP437."""
    if not info.flag_bits & _UTF8_NAME:
        with suppress(UnicodeError):
            return info.filename.encode("cp437").decode()
    return info.filename
