"""Files of a ledger in segments: `rank-00000.jsonl`, then `rank-00000.jsonl.1` and so on, read as one file."""

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from smalti.errors import FormatError, StoreError
from smalti.regular_files import open_regular

SEGMENT = re.compile(r"(rank-\d{5,9}\.jsonl)\.([1-9]\d{0,8})")
"""The name of a segment after the first: that of the file, and a number."""


def segment_name(name: str, number: int) -> str:
    """Return the name, or key, of a segment of a file; the first is number 0."""
    return name if number == 0 else f"{name}.{number}"


def missing_segment(name: str, names: Iterable[str]) -> str | None:
    """Return the name of the first segment of a file that is missing before others; None if there is none."""
    numbers = {int(match[2]) for each in names if (match := SEGMENT.fullmatch(each)) and match[1] == name}
    missing = set(range(1, max(numbers, default=0))) - numbers
    return segment_name(name, min(missing)) if missing else None


def open_segments(path: Path) -> BinaryIO:
    """Open a file with its segments as one stream of bytes.

    Raises:
        StoreError: the first cannot be opened.
        FormatError: one is not a plain file.
    """
    joined = _Joined(path)
    return cast("BinaryIO", io.BufferedReader(joined))


class _Joined(io.RawIOBase):
    """The bytes of a file and of its segments, one after the other."""

    def __init__(self, path: Path) -> None:
        self._parts = _opened(path)
        self._part = next(self._parts)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read bytes into a buffer, and return their number; 0 at the end of the last segment."""
        while not (count := self._part.readinto(buffer)):  # type: ignore[arg-type]  # a buffer of BufferedReader's
            following = next(self._parts, None)
            if following is None:
                return 0
            self._part.close()
            self._part = following
        return count

    def close(self) -> None:
        """Close the segment that is open."""
        self._part.close()
        super().close()


def _opened(path: Path) -> Iterator[io.FileIO]:
    number = 0
    while number == 0 or path.with_name(segment_name(path.name, number)).exists():
        yield _plain_file(path.with_name(segment_name(path.name, number)))
        number += 1


def _plain_file(path: Path) -> io.FileIO:
    try:
        return open_regular(path, 0)
    except (StoreError, IsADirectoryError) as fault:
        raise FormatError(f"{path} is not a plain file: {fault.strerror}.", path=str(path)) from fault
    except OSError as fault:
        raise StoreError(f"ledger {path}: cannot be read: {fault.strerror}.", path=str(path)) from fault
