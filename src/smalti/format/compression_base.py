"""What a compression is, and the rule that no file unpacks to more than its limit. The algorithms are beside this."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO, ClassVar

from smalti.errors import FormatError
from smalti.format.hashing import Buffer

CHUNK_BYTES = 1 << 18
"""How much is unpacked at a time: large enough that Python's share is nothing, small beside any shard."""


class Compression(ABC):
    """One algorithm at one level; pure and thread-safe.

    Compressing and decompressing let other Python threads run, in every algorithm that MDS knows.
    """

    extension: ClassVar[str]
    """What stands behind the dot in names of compressed files; the algorithm's name as well."""
    levels: ClassVar[range] = range(0)
    """The levels that may be asked for; empty where the algorithm has none."""
    default_level: ClassVar[int] = 0

    def __init__(self, text: str, level: int) -> None:
        self.text = text
        """As written by the user and in the index file: `"zstd"` or `"zstd:7"`."""
        self.level = level

    @abstractmethod
    def compress(self, data: Buffer) -> bytes:
        """The content of a file that `decompress_file`, and MosaicML's reader, turn back into `data`.

        The same bytes for the same data and level, whatever the clock and the number of cores.
        """

    def decompress_file(self, src: Path, dst: BinaryIO, limit: int) -> int:
        """Write the content of `src` to `dst` and return its number of bytes.

        Args:
            src: A compressed local file.
            dst: Where the content goes.
            limit: The most bytes that may come out: the size that the index declares. Never is more written, and
                memory follows what the file holds and what has come out of it, not what its header claims.

        Raises:
            FormatError: Not such a file, cut short, something behind its end, or its content is longer than `limit`.
            OSError: `src` cannot be read, or `dst` cannot be written.
        """
        out = BoundedOutput(dst, limit, src)
        with src.open("rb") as file:
            self._unpack(file, out)
        return out.total

    @abstractmethod
    def _unpack(self, file: BinaryIO, out: "BoundedOutput") -> None:
        """Write the whole content of `file` to `out`, or raise FormatError."""


class BoundedOutput:
    """Passes on what is written to it, up to the limit; makes the errors that name the file."""

    def __init__(self, dst: BinaryIO, limit: int, src: Path) -> None:
        self._dst = dst
        self._src = src
        self.limit = limit
        self.total = 0

    @property
    def most_parts(self) -> int:
        """How many blocks or members are believed; a file of empty ones would take minutes to tell nothing."""
        return 1024 + self.limit // 512

    @property
    def room(self) -> int:
        """How much to ask the decoder for: at most a chunk, and one byte more than may come, to see it come."""
        return min(CHUNK_BYTES, self.limit - self.total + 1)

    def write(self, data: Buffer) -> None:
        """Pass `data` on.

        Raises:
            FormatError: It goes beyond the limit; nothing of it was passed on.
        """
        self.total += len(data)
        if self.total > self.limit:
            raise self.too_long()
        self._dst.write(data)

    def too_long(self) -> FormatError:
        """The error for content beyond the limit."""
        return FormatError(
            f"{self._src}: its content is longer than the {self.limit} bytes that the index declares; the file is "
            "damaged or hostile. Nothing beyond the limit was written.",
            path=str(self._src),
            limit=self.limit,
        )

    def damaged(self, algorithm: str, reason: object) -> FormatError:
        """The error for a file that is not what the index calls it."""
        return FormatError(
            f"{self._src}: not a readable {algorithm} file ({reason}); it was cut short, damaged or is another file. "
            "Fetch it again, or run the writer again.",
            path=str(self._src),
        )
