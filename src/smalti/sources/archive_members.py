"""Reading of the members of tar and zip archives, with every check that the formats allow; the only reader of both.

1. A compressed stream is read to its end, which contains its checksum. `tarfile` would stop earlier.
2. A tar must end with two blocks of zeros, and nothing but the padding of its last record after them. `tarfile` ends
   silently at a block of zeros, at a header with a wrong checksum, and where the file is truncated between two members.
3. What precedes the content of a member (long names, extended headers, maps of sparse files) is limited, and parsed in
   linear time.
4. In a zip, the checksum of each content is compared, and the two copies of its name; members do not overlap.

An uncompressed tar only has checksums of its headers: changed content is not detected.
"""

import gzip
import io
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, BinaryIO, NoReturn, cast

import pyarrow as pa

from smalti.errors import FormatError, SmaltiError, StoreError
from smalti.storage.redact import raise_clean

_CHUNK_BYTES = 1 << 20
_DECOMPRESSORS: tuple[tuple[bytes, Callable[[BinaryIO], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", partial(pa.CompressedInputStream, compression="bz2")),
    (b"\xfd7zXZ\x00", lambda archive: io.BufferedReader(_XzStream(archive), _CHUNK_BYTES)),
    (b"\x28\xb5\x2f\xfd", partial(pa.CompressedInputStream, compression="zstd")),
    (b"\x04\x22\x4d\x18", partial(pa.CompressedInputStream, compression="lz4")),
)
"""By the first bytes of a stream. Each reads streams that follow one another, and refuses other bytes after them, which
the files of `bz2` and `lzma` ignore."""
_SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
"""First bytes of a frame of zstd and lz4 that decompressors skip; `pzstd` writes one before each of its others."""
_MAX_SKIPPED = 64
"""Frames at the begin of a stream that are skipped to find out how it is compressed."""
_XZ_CHUNK_BYTES = 16 << 10  # copied at each of the streams that follow one another
_MAX_XZ_BYTES = 512 << 20
"""Most memory that an xz stream may ask for; `xz -9` asks for 65 MiB."""
_ENCRYPTED, _FACTS_FOLLOW, _UTF8_NAME = 0x1, 0x8, 0x800
"""Flags of a zip member."""
_UNIX = 3  # the system that a zip member was packed on
_LOCAL_HEADER = struct.Struct("<6xH6xIIIHH")
"""Header before the content of a zip member: flags, checksum, sizes, and the lengths of its name and extra fields."""
_IN_ZIP64 = (1 << 32) - 1  # in a header: the number is in an extra field
_MAX_DESCRIPTOR_BYTES = 24  # after the content of a zip member: its checksum and sizes
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
    LookupError, ArithmeticError, RuntimeError, struct.error,
)  # fmt: skip
"""Exceptions of the standard library for damaged or hostile archives; also `OSError` without an error number."""
_SYSTEM_FILES = re.compile(r"(?:.*/)?(?:\._[^/]*|\.DS_Store|Thumbs\.db|desktop\.ini|__MACOSX(?:/.*)?)", re.DOTALL)


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

    A tar may be compressed by gzip, bzip2, xz, zstd or lz4, whatever its name is.

    Raises:
        FormatError: not an archive, damaged, truncated, encrypted, packed by a method that Python does not support, or
            followed by other data.
        StoreError: the archive cannot be read from disk.
    """
    place = _Place(shown)
    try:
        yield from _zip_members(place, archive) if is_zip else _tar_members(place, archive)
    except Exception as error:  # noqa: BLE001 -- sorted there
        _raise_typed(place, error)


def is_system_file(name: str) -> bool:
    """Return whether a member only has metadata of macOS or Windows: `._photo.jpg`, `__MACOSX/...`, `.DS_Store`."""
    return _SYSTEM_FILES.fullmatch(name) is not None


@dataclass
class _Place:
    """The place of the reader in an archive, for messages."""

    shown: str
    member: str = ""
    """The member that was begun last."""
    is_inside: bool = False
    """True while the content of this member is read."""

    def __str__(self) -> str:
        return f"{self.shown}, member {self.member!r:.200}" if self.is_inside else self.shown

    @property
    def after(self) -> str:
        return f" after the member {self.member!r:.200}" if self.member and not self.is_inside else ""

    @property
    def facts(self) -> dict[str, str]:
        return {"source": self.shown, **({"member": self.member} if self.member else {})}


def _raise_typed(place: _Place, error: Exception) -> NoReturn:
    """Raise the error of this project for a fault of an archive; any other error is raised unchanged."""
    if isinstance(error, SmaltiError):
        raise error
    if isinstance(error, NotImplementedError):
        raise FormatError(
            f"{place} is packed by a method that cannot be unpacked here ({error}); pack it again as .tgz or plain "
            ".zip, or unpack it and give the folder",
            **place.facts,
        ) from error
    if isinstance(error, MemoryError):
        raise FormatError(f"{place} needs more memory than this process may use", **place.facts) from error
    if isinstance(error, OSError) and error.errno is not None:
        raise StoreError(
            f"{place.shown}: the archive cannot be read from disk ({error.strerror}); check the disk", **place.facts
        ) from error
    if isinstance(error, (OSError, *_DAMAGE)):
        raise_clean(_damaged(place, error), error)
    raise error


def _damaged(place: _Place, error: Exception) -> FormatError:
    found = str(error).encode("utf-8", "backslashreplace").decode()[:400] or type(error).__name__
    what = "is damaged" if place.member else "is damaged or not an archive"
    return FormatError(f"{place} {what} ({found}{place.after}); fetch it again", **place.facts)


def _checked(place: _Place, pieces: Iterable[bytes], num_bytes: int) -> Iterator[bytes]:
    """Yield the content of a member, and compare its size with the declared one."""
    received = 0
    try:
        for piece in pieces:
            received += len(piece)
            yield piece
    except Exception as error:  # noqa: BLE001 -- sorted there
        _raise_typed(place, error)
    if received != num_bytes:
        raise _damaged(place, EOFError(f"its content has {received} bytes of {num_bytes}: it was cut short"))


# ---------------------------------------------------------------- tar


_ZEROS = bytes(tarfile.BLOCKSIZE)
_MAX_HEADER_BYTES = 1 << 20
"""Most bytes of all headers of one member."""
_MAX_HEADERS = 16
"""Most headers of one member: programs write two of long names, one or two extended ones, and its own."""
_MAX_RECORDS = 4096
"""Most records in an extended header."""
_MAX_END_BYTES = tarfile.RECORDSIZE + tarfile.BLOCKSIZE
"""Most zeros at the end: the two blocks, and the rest of the last record of 20 blocks, as programs write by default.
More zeros may be the rest of the archive that never reached the disk."""
_PAX_TYPES = {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE}
_EXTENSION_TYPES = {*_PAX_TYPES, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
_NUMBERS = re.compile(rb"[0-9]{1,19}(?:,[0-9]{1,19})*")
_UTF8 = ("utf-8", "surrogateescape")


class _TarEnd(tarfile.HeaderError):
    """A block of zeros where a header is expected."""


class _StrictHeader(tarfile.TarInfo):
    """A header whose errors are raised; `tarfile` takes most of them for the end of the archive."""

    def _proc_member(self, tarred: "_TarStream") -> Any:
        if self.type == tarfile.REGTYPE:  # nearly all: `tarfile` does the same in twice the time
            self.offset_data = tarred.at
            tarred.offset = tarred.at + -(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            return self
        if self.type not in _EXTENSION_TYPES:
            return super()._proc_member(tarred)  # type: ignore[misc]
        tarred.num_extensions += 1
        if tarred.num_extensions == _MAX_HEADERS:
            raise tarfile.ReadError(f"a member has more than {_MAX_HEADERS} headers")
        return self._extended(tarred) if self.type in _PAX_TYPES else super()._proc_member(tarred)  # type: ignore[misc]

    def _extended(self, tarred: "_TarStream") -> Any:
        """Return the member after this extended header, whose records are checked before `tarfile` sees any of them.

        `tarfile` ignores malformed records, and takes quadratic time for some. It gets those of sizes and sparse files.
        """
        names: dict[bytes, bytes] = {}
        numbers = b""
        for key, value, record in _records(
            tarred.read(-(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)[: self.size]
        ):
            if key in (b"path", b"linkpath", b"GNU.sparse.name"):
                names[key] = value
            elif key == b"size" or key.startswith(b"GNU.sparse."):
                if _NUMBERS.fullmatch(value) is None:
                    raise tarfile.ReadError(f"an extended header has {key.decode(*_UTF8)[:40]} = {value[:40]!r}")
                numbers += record
        if self.type == tarfile.XGLTYPE:
            if names or numbers:
                raise tarfile.ReadError("a header gives all members after it the same name or size")
            return self.fromtarfile(tarred)  # type: ignore[arg-type]
        if numbers:
            tarred.unread = numbers + bytes(-len(numbers) % tarfile.BLOCKSIZE)
            self.size = len(numbers)
            member: Any = super()._proc_member(tarred)  # type: ignore[misc]
        else:
            member = self.fromtarfile(tarred)  # type: ignore[arg-type]
        name = names.get(b"GNU.sparse.name") or names.get(b"path")
        if name:
            member.name = name.decode(*_UTF8).rstrip("/")
        if names.get(b"linkpath"):
            member.linkname = names[b"linkpath"].decode(*_UTF8)
        return member


def _records(data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield key and value of each record `<length> <key>=<value>` of an extended header, and the whole record."""
    at = 0
    for _ in range(_MAX_RECORDS):
        if not data[at : at + 1].strip(b"\0"):  # some programs fill the rest with zeros
            if data[at:].strip(b"\0"):
                break
            return
        blank = data.find(b" ", at, at + 8)
        length = int(data[at:blank]) if blank > 0 and data[at:blank].isdigit() else 0
        record = data[at : at + length]
        key, equals, value = record[blank + 1 - at :].partition(b"=")
        if len(record) != length or not key or not equals or not value.endswith(b"\n"):
            break
        yield key, value[:-1], record
        at += length
    raise tarfile.ReadError("an extended header is damaged, or too long")


# The class method that `tarfile` parses every header with: newer patch releases of Python parse with a private one.
_PARSER = "_frombuf" if hasattr(tarfile.TarInfo, "_frombuf") else "frombuf"


def _parse_strictly(cls: Any, /, buf: bytes, encoding: str, errors: str, **options: Any) -> _StrictHeader:
    if len(buf) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError(
            "it ends without the two blocks of zeros that end a tar: it was cut short, or is no tar"
        )
    if buf == _ZEROS:
        raise _TarEnd
    try:
        header: _StrictHeader = getattr(super(_StrictHeader, cls), _PARSER)(buf, encoding, errors, **options)
    except tarfile.HeaderError as error:
        raise tarfile.ReadError(f"a header is wrong: {error}") from error
    if header.size < 0:
        raise tarfile.ReadError(f"a header has the size {header.size}")
    return header


setattr(_StrictHeader, _PARSER, classmethod(_parse_strictly))


@dataclass
class _TarStream:
    """A stream that is read forward only: in the place of a `tarfile.TarFile`, and of the file that it reads."""

    stream: IO[bytes]
    at: int = 0
    """Bytes read so far."""
    offset: int = 0
    """Place of the next header; set by `tarfile`."""
    num_extensions: int = 0
    """Headers before the member's own one."""
    encoding, errors = _UTF8
    pax_headers: dict[str, str] = field(default_factory=dict)
    unread: bytes = b""
    """Bytes that `read` returns next."""
    _free: int = 0

    @property
    def fileobj(self) -> "_TarStream":
        """The file that `tarfile` reads headers from."""
        return self

    def next(self) -> _StrictHeader | None:
        """Return the header of the next member; None at the first block of zeros."""
        self._free, self.num_extensions = _MAX_HEADER_BYTES, 0
        try:
            return _StrictHeader.fromtarfile(self)  # type: ignore[arg-type]
        except _TarEnd:
            if self.num_extensions:
                raise tarfile.ReadError("its end follows a header of long names") from None
            return None

    def tell(self) -> int:
        """Return the number of bytes that were read."""
        return self.at

    def read(self, size: int) -> bytes:
        """Return the next bytes, for `tarfile`: of headers."""
        if self.unread:
            data, self.unread = self.unread[:size], self.unread[size:]
            return data
        self._free -= size
        if self._free < 0:
            raise tarfile.ReadError(f"the headers of a member take more than {_MAX_HEADER_BYTES:,} bytes")
        return self.take(size)

    def take(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end of the stream."""
        data = self.stream.read(size)
        while len(data) < size and (more := self.stream.read(size - len(data))):
            data += more
        self.at += len(data)
        return data

    def pieces(self, num_bytes: int) -> Iterator[bytes]:
        """Yield the next bytes; fewer at the end of the stream."""
        while num_bytes and (piece := self.take(min(num_bytes, _CHUNK_BYTES))):
            num_bytes -= len(piece)
            yield piece

    def skip_to(self, position: int) -> None:
        """Read up to a position."""
        if self.at < position:
            for _ in self.pieces(position - self.at):
                pass
        if self.at != position:
            raise EOFError(f"it ends {position - self.at} bytes too early: it was cut short")


def _tar_members(place: _Place, archive: BinaryIO) -> Iterator[Member]:
    with closing(_decompressed(archive)) as stream:
        tarred = _TarStream(stream)
        while (header := tarred.next()) is not None:
            end = tarred.offset
            place.member, place.is_inside = header.name, True
            if header.isreg():
                content = _checked(place, _pieces(tarred, header, end), header.size)
                yield Member(header.name, header.size, content)
            else:
                yield Member(header.name, 0, None, header.linkname if header.islnk() else "", header.isdir())
            tarred.skip_to(end)
            place.is_inside = False
        _check_tar_end(place, tarred)


def _pieces(tarred: _TarStream, header: Any, end: int) -> Iterator[bytes]:
    """Return the content of a regular member; holes of a sparse one are zeros."""
    if header.sparse is None:
        return tarred.pieces(header.size)
    stored = [(offset, size) for offset, size in header.sparse if size]  # the rest of a full header is zeros
    position = num_stored = 0
    for offset, size in stored:
        if not position <= offset <= offset + size <= header.size:
            raise tarfile.ReadError("the map of a sparse member is damaged")
        position, num_stored = offset + size, num_stored + size
    if not 0 <= end - tarred.at - num_stored < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the map of a sparse member does not fit its size")
    return _with_holes(tarred, stored, header.size)


def _with_holes(tarred: _TarStream, stored: Iterable[tuple[int, int]], num_bytes: int) -> Iterator[bytes]:
    position = 0
    for offset, size in (*stored, (num_bytes, 0)):
        while position < offset:
            hole = bytes(min(offset - position, _CHUNK_BYTES))
            yield hole
            position += len(hole)
        yield from tarred.pieces(size)
        position += size


def _check_tar_end(place: _Place, tarred: _TarStream) -> None:
    """Read the stream to its end, from after the first block of zeros."""
    if tarred.take(tarfile.BLOCKSIZE) != _ZEROS:
        raise tarfile.ReadError(
            "one block of zeros, where two end a tar: its end is missing, or a part was overwritten"
        )
    begin = tarred.at - 2 * tarfile.BLOCKSIZE
    while chunk := tarred.take(_CHUNK_BYTES):
        if chunk.strip(b"\0"):
            raise FormatError(
                f"{place}: something follows its end at byte {begin:,}{place.after}. If tar files were joined, unpack "
                "it with `tar --ignore-zeros -xf` and pack the files again; if not, a part of it was overwritten: "
                "fetch it again",
                **place.facts,
            )
        if tarred.at - begin > _MAX_END_BYTES:
            raise FormatError(
                f"{place}: more than {_MAX_END_BYTES:,} bytes of zeros follow its end at byte {begin:,}{place.after}: "
                "its last part may be missing, fetch it again. If it was packed with a larger blocking factor than 20, "
                "unpack it and pack the files again without the option `-b`",
                **place.facts,
            )


class _XzStream(io.RawIOBase):
    """The content of xz streams that follow one another."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decompressor, self._waiting = file, _new_xz(), b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress into a buffer, and return the number of bytes; 0 at the end of the last stream."""
        data = b""
        while not data:
            if self._decompressor.eof:
                rest = self._decompressor.unused_data.lstrip(b"\0") or self._file.read(_XZ_CHUNK_BYTES)
                if not rest.strip(b"\0"):
                    if rest:
                        continue
                    return 0
                self._decompressor, self._waiting = _new_xz(), rest.lstrip(b"\0")
            if self._decompressor.needs_input and not self._waiting:
                self._waiting = self._file.read(_XZ_CHUNK_BYTES)
                if not self._waiting:
                    raise EOFError("its compressed stream was cut short")
            data = self._decompressor.decompress(self._waiting, len(buffer))
            self._waiting = b""
        buffer[: len(data)] = data
        return len(data)


def _new_xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES)


def _decompressed(archive: BinaryIO) -> IO[bytes]:
    head = archive.read(8)
    for _ in range(_MAX_SKIPPED):
        if not _SKIPPED.match(head):
            break
        archive.seek(int.from_bytes(head[4:], "little"), os.SEEK_CUR)
        head = archive.read(8)
    archive.seek(0)
    for magic, opener in _DECOMPRESSORS:
        if head.startswith(magic):
            return cast("IO[bytes]", opener(archive))
    return archive


# ---------------------------------------------------------------- zip


def _zip_members(place: _Place, archive: BinaryIO) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        members = zipped.infolist()
        _check_number(archive, zipped)
        _check_places(archive, zipped)
        for info in members:
            if info.flag_bits & _ENCRYPTED:
                raise FormatError(
                    f"{place} is encrypted (member {info.filename!r}); unpack it with its password and give the folder",
                    source=place.shown,
                    member=info.filename,
                )
            place.member, place.is_inside = info.filename, True
            if not info.flag_bits & _UTF8_NAME:  # many programs write UTF-8 without it, and `zipfile` decodes CP437
                with suppress(UnicodeError):
                    place.member = info.filename.encode("cp437").decode()
            with zipped.open(info) as file:  # compares the two copies of the name
                if info.is_dir():
                    if info.file_size:
                        raise zipfile.BadZipFile("a folder has content")
                elif info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16):
                    yield Member(place.member, 0)  # a symbolic link, whose content is the name of its target
                else:
                    content = _checked(place, iter(partial(file.read, _CHUNK_BYTES), b""), info.file_size)
                    yield Member(place.member, info.file_size, content)
            place.is_inside = False


def _check_places(archive: BinaryIO, zipped: zipfile.ZipFile) -> None:
    """Check that the members follow one another, and that their own headers say the same as the list at the end.

    Overlapping members make petabytes of a small file. Bytes that belong to no member are members that are not listed.
    """
    end, name = 0, ""
    for info in (*sorted(zipped.infolist(), key=lambda info: info.header_offset), None):
        gap = (zipped.start_dir if info is None else info.header_offset) - end
        if gap < 0:
            raise zipfile.BadZipFile(f"two members overlap, of which the first is {name!r:.200}")
        if gap > (_MAX_DESCRIPTOR_BYTES if name else 0):
            where = f"follow the member {name!r:.200}, and belong to none" if name else "precede its first member"
            raise zipfile.BadZipFile(f"{gap} bytes {where}; archives that were joined must be unpacked one by one")
        if info is not None:
            end, name = _end_of(archive, info), info.filename


def _end_of(archive: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Return the place after the content of a member, whose own header is compared with the list."""
    archive.seek(info.header_offset)
    data = archive.read(_LOCAL_HEADER.size)
    if len(data) < _LOCAL_HEADER.size:
        raise zipfile.BadZipFile(f"the header of the member {info.filename!r:.200} is missing")
    flags, *facts, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(data)
    unknown = {_IN_ZIP64, 0} if flags & _FACTS_FOLLOW else {_IN_ZIP64}
    for own, listed in zip(facts, (info.CRC, info.compress_size, info.file_size), strict=True):
        if own not in {*unknown, listed}:
            raise zipfile.BadZipFile(f"the member {info.filename!r:.200} has another size or checksum in the list")
    return int(info.header_offset + len(data) + name_bytes + extra_bytes + info.compress_size)


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
    is_there = len(data) == record.size and data[:4] == _SIGNATURES[record]
    return int(record.unpack(data)[1]) if is_there else None
