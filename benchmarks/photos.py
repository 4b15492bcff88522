"""Photos under many ids: each copy holds its number, so that no two files are alike and every one is recognised."""

import os
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT

FOLDER = Path(os.environ.get("SMALTI_FLOWERS", ROOT.parent / "shared" / "flowers"))
"""Photos in one folder per class."""
_COMMENT = b"\xff\xfe\x00\x0a"  # a JPEG comment of 8 bytes, right after the first marker
NUMBER_AT = 2 + len(_COMMENT)


def numbered(photo: bytes, number: int) -> bytes:
    """The photo with its number in a comment, which decoders pass over."""
    return photo[:2] + _COMMENT + struct.pack("<q", number) + photo[2:]


def number_in(photo: Any) -> int:
    """The number that `numbered` put in."""
    (found,) = struct.unpack_from("<q", photo, NUMBER_AT)
    return int(found)


class Photos:
    """So many samples; made as they are asked for, since all of them together are large."""

    def __init__(self, count: int, folder: Path = FOLDER) -> None:
        self.count, self._folder = count, folder

    @cached_property
    def originals(self) -> list[tuple[bytes, int]]:
        """Files with the numbers of their classes.

        Raises:
            FileNotFoundError: there are no photos.
        """
        classes = sorted(path for path in self._folder.glob("*") if path.is_dir())
        found = [
            (path.read_bytes(), label) for label, each in enumerate(classes) for path in sorted(each.glob("*.jpg"))
        ]
        if not found:
            raise FileNotFoundError(f"no photos in {self._folder}/*/*.jpg; SMALTI_FLOWERS names another folder")
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        beside = 12 + 8 + 12  # comment, label, name
        return sum(len(self._original(number)[0]) + beside for number in range(self.count))

    def _original(self, number: int) -> tuple[bytes, int]:
        # A step that has no divisor in common with 500 puts classes beside each other.
        return self.originals[number * 203 % len(self.originals)]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.count):
            photo, label = self._original(number)
            yield {"image": numbered(photo, number), "label": label, "name": f"{number:08d}.jpg"}
