"""Files of lines: pieces of a file that begin and end with a line, blocks of whole lines, and declared types."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from smalti.conversion.sources.source_file import SourceFile, read_some
from smalti.errors import FormatError

PART_BYTES = 64 << 20
BLOCK_BYTES = 8 << 20
_MAX_LINE = 1 << 30


@dataclass(frozen=True)
class LineRange:
    """The lines of a file that start in a range of its bytes; the whole of a compressed file."""

    file: SourceFile
    begin: int = 0
    end: int | None = None
    """None for the end of the file."""

    @property
    def name(self) -> str:
        """The file, and the range if it is not the whole."""
        whole = not self.begin and self.end is None
        return self.file.key if whole else f"{self.file.key}, bytes {self.begin} to {self.end or self.file.num_bytes}"

    @property
    def num_bytes(self) -> int:
        """Stored bytes."""
        return (self.end or self.file.num_bytes) - self.begin

    def open(self) -> BinaryIO:
        """Return the bytes of these lines as a stream.

        Raises:
            FormatError: A NUL byte, which text has not.
        """
        return io.BufferedReader(_LineStream(self), 1 << 20)

    def first_line(self) -> int:
        """Return the number of the first line in the file, from 1; reads all before it."""
        count = 1
        with self.file.open() as stream:
            missing = self.begin
            while missing and (piece := stream.read(min(missing, BLOCK_BYTES))):
                count += piece.count(b"\n")
                missing -= len(piece)
        # A range begins after the line that its first byte is in, unless a line begins there.
        return count + (1 if self.begin and not _begins_line(self) else 0)


def _begins_line(piece: LineRange) -> bool:
    with piece.file.open_stored() as stream:
        stream.seek(piece.begin - 1)
        return stream.read(1) == b"\n"


class _LineStream(io.RawIOBase):
    """The bytes of the lines of a range."""

    def __init__(self, piece: LineRange) -> None:
        super().__init__()
        self._piece = piece
        self._stream = piece.file.open()
        self._pending = b""
        self._at = piece.begin
        self._is_done = False
        if piece.begin:
            self._stream.seek(piece.begin - 1)
            self._at = piece.begin - 1 + self._skip_line()
            self._is_done = piece.end is not None and self._at >= piece.end
        if not piece.begin and self._peek().startswith(b"\xef\xbb\xbf"):
            self._pending = self._pending[3:]

    def readable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Read lines; what is beyond the range is read to the end of its line."""
        if not self._pending and not self._is_done:
            self._pending = self._next(len(buffer))
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count

    def _peek(self) -> bytes:
        self._pending = self._next(1 << 16)
        return self._pending

    def _next(self, size: int) -> bytes:
        end = self._piece.end
        if end is None or self._at + size <= end:
            piece = self._read(size)
        else:
            piece = self._read(max(0, end - self._at))
            if self._at >= end:
                self._is_done = True
                if not piece.endswith(b"\n"):
                    piece += self._rest_of_line()
        return piece

    def _read(self, size: int) -> bytes:
        piece = read_some(self._stream, size, self._piece.file.url) if size else b""
        if b"\0" in piece:
            raise FormatError(
                f"{self._piece.file.url}: a NUL byte at about byte {self._at + piece.index(0)}; it is no text in "
                "UTF-8, or is damaged",
                key=self._piece.file.key,
            )
        self._at += len(piece)
        return piece

    def _rest_of_line(self) -> bytes:
        found = bytearray()
        while True:
            piece = self._read(1 << 16)
            cut = piece.find(b"\n") + 1
            found += piece[:cut] if cut else piece
            if cut or not piece:
                return bytes(found)

    def _skip_line(self) -> int:
        """Move behind the next line end, and return how many bytes that were."""
        skipped = 0
        while piece := self._stream.read(1 << 16):
            cut = piece.find(b"\n") + 1
            skipped += cut or len(piece)
            if cut:
                self._stream.seek(self._piece.begin - 1 + skipped)
                break
        return skipped


def line_ranges(file: SourceFile, part_bytes: int = PART_BYTES) -> list[LineRange]:
    """Return a file in pieces that can be read side by side; a compressed file is one piece."""
    count = max(1, round(file.num_bytes / part_bytes)) if file.compression is None else 1
    if count == 1:
        return [LineRange(file)]
    ends = [file.num_bytes * number // count for number in range(1, count)]
    return [LineRange(file, begin, end) for begin, end in zip([0, *ends], [*ends, None], strict=True)]


def line_blocks(piece: LineRange) -> Iterator[bytes]:
    """Yield blocks of whole lines, about `BLOCK_BYTES` each.

    Raises:
        FormatError: A line is longer than 1 GiB.
    """
    with piece.open() as stream:
        rest = b""
        while block := stream.read(BLOCK_BYTES):
            cut = block.rfind(b"\n") + 1
            if not cut:
                rest += block
                if len(rest) > _MAX_LINE:
                    raise FormatError(f"{piece.file.url}: a line is longer than {_MAX_LINE} bytes; is it text?")
                continue
            yield rest + block[:cut]
            rest = block[cut:]
        if rest:
            yield rest


def declared_types(types: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Return the types that the caller declares, as Arrow types or their names.

    Raises:
        ValueError: A name is unknown.
    """
    if not isinstance(types, Mapping):
        raise ValueError(f"`types`: expected types by column such as {{'id': 'int64'}}, found {types!r:.100}")  # noqa: TRY004 -- as for other options
    found = {}
    for name, kind in types.items():
        if isinstance(kind, pa.DataType):
            found[name] = kind
            continue
        try:
            found[name] = _ALIASES[kind] if kind in _ALIASES else pa.type_for_alias(kind)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"`types`: {kind!r} of column {name!r} is no Arrow type such as int64 or string"
            ) from error
    return found


_ALIASES = {"timestamp": pa.timestamp("us"), "timestamp_utc": pa.timestamp("us", "UTC"), "date": pa.date32()}
