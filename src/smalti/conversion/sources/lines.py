"""Files of lines: pieces of a file that begin and end with a line, blocks of whole lines, and declared types.

Limits are enforced here, on the bytes that arrive: no line is longer than `MAX_LINE_BYTES`, and text has no NUL byte.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from smalti.conversion.files import SourceFiles, StoredFile, list_files, read_some
from smalti.conversion.source import SourceOptions
from smalti.errors import FormatError, SchemaError

PART_BYTES = 64 << 20
BLOCK_BYTES = 8 << 20
_REST_BYTES = 1 << 16  # read at once behind the end of a range, up to the end of its last line
MAX_LINE_BYTES = 128 << 20
MAX_COLUMNS = 50_000
"""Columns of a table: more take pyarrow over 2 GB, and its parser then ends the process."""
BATCH_ROWS = 1 << 18
"""At most so many rows are written at once, also if rows are empty."""
_OTHER_COMPRESSIONS = frozenset({".xz", ".lzma", ".z", ".zip", ".7z", ".br", ".snappy", ".lzo", ".deflate"})
_COLUMN_FOLDER = re.compile(r"[^=]+=.*")
BOM = b"\xef\xbb\xbf"
_DECIMAL = re.compile(r"decimal(128|256)?\((\d{1,2}), ?(-?\d{1,2})\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
_ALIASES = {"timestamp": pa.timestamp("us"), "timestamp_utc": pa.timestamp("us", "UTC"), "date": pa.date32()}


@dataclass(frozen=True)
class LineRange:
    """The lines of a file that start in a range of its bytes; the whole of a compressed file."""

    file: StoredFile
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

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of these lines, at most `BLOCK_BYTES` at once; a missing line end of the last line is added.

        Raises:
            FormatError: There is a NUL byte, or the file cannot be read.
        """
        at, end = max(0, self.begin - 1), self.end
        is_inside = not self.begin  # otherwise the first line begins behind the next line end
        has_line_end = True
        with self.file.open() as stream:
            if at:
                stream.seek(at)
            while data := read_some(
                stream, BLOCK_BYTES if end is None else min(BLOCK_BYTES, max(end - at, _REST_BYTES)), self.file.url
            ):
                if not is_inside:
                    cut = data.find(b"\n") + 1
                    is_inside, skipped = bool(cut), cut or len(data)
                    at, data = at + skipped, data[skipped:]
                    if end is not None and at >= end:
                        return
                if b"\0" in data:
                    raise FormatError(
                        f"{self.file.url}: a NUL byte at about byte {at + data.index(0)}; it is no text in UTF-8, or "
                        "is damaged. Convert the file to UTF-8, or remove the byte",
                        key=self.file.key,
                    )
                if end is not None and (cut := data.find(b"\n", max(0, end - 1 - at)) + 1):
                    yield data[:cut]
                    return
                at += len(data)
                if data:
                    has_line_end = data.endswith(b"\n")
                    yield data
            if not has_line_end:
                yield b"\n"


@dataclass(frozen=True)
class Block:
    """Whole lines of a file, one after the other."""

    piece: LineRange
    data: bytes
    at: int
    """Bytes of the piece that are before the block."""

    def divided(self, num_lines: int) -> Iterator["Block"]:
        """Yield the lines in blocks of at most so many."""
        if 8 * num_lines >= len(self.data) or self.data.count(b"\n") <= num_lines:  # most lines have 8 bytes
            yield self
            return
        lines = [line + b"\n" for line in self.data.split(b"\n")[:-1]]
        at = self.at
        for begin in range(0, len(lines), num_lines):
            data = b"".join(lines[begin : begin + num_lines])
            yield Block(self.piece, data, at)
            at += len(data)

    def error(
        self, message: str, offset: int = 0, kind: type[FormatError] | type[SchemaError] = FormatError
    ) -> FormatError | SchemaError:
        """Return an error about the line that has this byte of the block; reads all before it."""
        piece, file = self.piece, self.piece.file
        line = 1 + _count_lines(piece, self.at) + _line_ends(self.data[:offset])
        if piece.begin:
            line += _count_lines(LineRange(file, 0, piece.begin))
        return kind(f"{file.url}, line {line}: {message}", line=line, key=file.key)


def _count_lines(piece: LineRange, num_bytes: int | None = None) -> int:
    """Return the number of lines among the first bytes of a piece; by default, of all."""
    count = 0
    for block in line_blocks(piece) if num_bytes != 0 else ():
        left = None if num_bytes is None else num_bytes - block.at
        count += _line_ends(block.data[:left])
        if left is not None and left <= len(block.data):
            break
    return count


def _line_ends(data: bytes) -> int:
    r"""Return the number of line ends: `\n`, `\r\n` or `\r`."""
    carriage_returns = data.count(b"\r")
    return data.count(b"\n") + (carriage_returns - data.count(b"\r\n") if carriage_returns else 0)


def find_text_files(place: Any, options: SourceOptions, is_wanted: Callable[[str], bool], expected: str) -> SourceFiles:
    """Return the files of a source: the place itself, those of a pattern, or those below it whose names are wanted.

    Raises:
        StoreNotFound: There are none.
        FormatError: Files are compressed in another way than is read, or in folders that hold a column.
    """
    found = list_files(place, options.storage_options)
    for file in found.files:
        ending = Path(file.key).suffix.lower()
        if ending in _OTHER_COMPRESSIONS and (found.pattern or is_wanted(file.key[: -len(ending)])):
            raise FormatError(
                f"{found.store.locate(file.key)}: files that end with {ending} are not read. Decompress the file, or "
                "compress it as .gz, .bz2, .zst or .lz4",
                key=file.key,
            )
    chosen = found.wanted(
        is_wanted,
        what=f"there are no files of this format, whose names end with {expected} and perhaps a compression. Files of "
        "other names are read by a pattern, such as 'folder/*.txt'",
    )
    held = next(
        (part for file in chosen.files for part in file.key.split("/")[:-1] if _COLUMN_FOLDER.fullmatch(part)), None
    )
    if held is not None:
        raise FormatError(
            f"{found.url}: the folder {held} holds a column that is not in the files. Write the rows without "
            "`partitionBy`; or convert each such folder by itself, which leaves the column out",
            url=found.url,
        )
    return chosen


def line_ranges(file: StoredFile, part_bytes: int = PART_BYTES) -> list[LineRange]:
    """Return a file in pieces that can be read side by side; a compressed file is one piece."""
    count = max(1, round(file.num_bytes / part_bytes)) if file.compression is None else 1
    if count == 1:
        return [LineRange(file)]
    ends = [file.num_bytes * number // count for number in range(1, count)]
    return [LineRange(file, begin, end) for begin, end in zip([0, *ends], [*ends, None], strict=True)]


def line_blocks(piece: LineRange) -> Iterator[Block]:
    """Yield blocks of whole lines, about `BLOCK_BYTES` each.

    Raises:
        FormatError: A line is longer than `MAX_LINE_BYTES`.
    """
    at, pending = 0, [b""]
    for data in piece.pieces():
        cut = data.rfind(b"\n") + 1
        if cut:
            lines = b"".join([*pending, data[:cut]])
            if not at and not piece.begin:
                lines = lines.removeprefix(BOM)
            yield Block(piece, lines, at)
            at += len(lines)
            pending = []
        pending.append(data[cut:])
        if sum(map(len, pending)) > MAX_LINE_BYTES:
            raise too_long(Block(piece, b"", at))


def too_long(block: Block, what: str = "line") -> FormatError | SchemaError:
    """Return an error about the line or row with which a block begins."""
    return block.error(
        f"a {what} is too long; a line has at most {MAX_LINE_BYTES} bytes. Divide it, or keep large values in files "
        "of their own, as `webdataset` has them"
    )


def declared_types(
    types: Any, parse: Callable[[pa.DataType], Any], *, files: str, advice: str
) -> dict[str, pa.DataType]:
    """Return the types that the caller declares, as Arrow types or their names.

    Args:
        types: The setting.
        parse: Parses a null as a value of a type, to see whether the parser has values of it.
        files: Name of the format, for the message about a type that it has not.
        advice: End of this message.

    Raises:
        SchemaError: They are no types by column, or the parser has no values of one.
    """
    if not isinstance(types, Mapping) or not all(isinstance(name, str) for name in types):
        raise SchemaError(f"setting `types`: expected types by column such as {{'id': 'int64'}}, found {types!r:.100}")
    kinds = {name: kind if isinstance(kind, pa.DataType) else _named_type(name, kind) for name, kind in types.items()}
    for name, kind in kinds.items():
        try:
            parse(kind)
        except (pa.ArrowException, ValueError) as error:  # noqa: PERF203 -- few columns
            raise SchemaError(
                f"setting `types`: values of {files} are not read as {kind}, the type of column {name!r}. {advice}",
                column=name,
            ) from error
    return kinds


def _named_type(column: str, name: Any) -> pa.DataType:
    """Return the type with this name: `int64`, `timestamp[us]`, `decimal128(38, 2)`, or one of `_ALIASES`."""
    try:
        if name in _ALIASES:
            return _ALIASES[name]
        if match := _DECIMAL.fullmatch(name):
            make = pa.decimal256 if match[1] == "256" else pa.decimal128
            return make(int(match[2]), int(match[3]))
        if match := _ZONED.fullmatch(name):
            return pa.timestamp(match[1], match[2])
        return pa.type_for_alias(name)
    except (ValueError, TypeError) as error:
        raise SchemaError(
            f"setting `types`: {name!r:.100} of column {column!r} is no Arrow type such as 'int64', 'string', 'date', "
            "'timestamp' or 'decimal128(38, 2)'",
            column=column,
        ) from error
