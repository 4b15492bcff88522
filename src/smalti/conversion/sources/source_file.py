"""One file of a source: where it is, and its bytes as a stream, decompressed where its name shows a compression."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from smalti.conversion.files import SourceFiles, list_files, open_sequential
from smalti.conversion.source import SourceOptions
from smalti.errors import FormatError, SmaltiError
from smalti.storage import Store

_COMPRESSIONS = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4"}


@dataclass(frozen=True)
class SourceFile:
    """One file of a source; picklable."""

    store: Store
    key: str
    num_bytes: int

    @property
    def url(self) -> str:
        """Address of the file, for messages."""
        return self.store.locate(self.key)

    @property
    def compression(self) -> str | None:
        """Compression that the file's name shows; None for none."""
        return _COMPRESSIONS.get(Path(self.key).suffix.lower())

    def open(self) -> BinaryIO:
        """Return the file's bytes, decompressed, as a stream.

        Raises:
            SmaltiError: The file cannot be opened.
        """
        if self.compression is not None and not self.num_bytes:
            raise FormatError(
                f"{self.url}: the file is empty, so it is no {self.compression} file; it was cut short. Write it again",
                key=self.key,
            )
        raw = self.open_stored()
        if self.compression is None:
            return raw
        return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), self.compression))

    def open_stored(self) -> BinaryIO:
        """Return the file's bytes as stored, as a stream that can be moved.

        Raises:
            SmaltiError: The file cannot be opened.
        """
        return cast("BinaryIO", open_sequential(self.store, self.key, self.num_bytes))


def find_files(place: Any, options: SourceOptions, is_wanted: Callable[[str], bool]) -> SourceFiles:
    """Return the files of a source: the place itself, those of a pattern, or those below it whose names are wanted.

    Raises:
        StoreNotFound: There are none.
        StoreError: The place cannot be listed.
    """
    found = list_files(place, options.storage_options)
    return found.wanted(is_wanted, what="there are no files of this format")


def each_file(found: SourceFiles) -> list[SourceFile]:
    """Return the files one by one."""
    return [SourceFile(found.store, file.key, file.num_bytes) for file in found.files]


def without_compression(key: str) -> str:
    """Return a file's name in lower case, without the ending of a compression."""
    name = key.lower()
    ending = Path(name).suffix
    return name.removesuffix(ending) if ending in _COMPRESSIONS and ending != ".tgz" else name


def is_file_name(name: object) -> bool:
    """Return whether a value that an index gives names a file beside it."""
    if not isinstance(name, str) or "/" in name or name in {"", ".", ".."}:
        return False
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def read_some(stream: BinaryIO, num_bytes: int, what: str) -> bytes:
    """Return the next bytes of a stream; fewer at its end.

    Raises:
        FormatError: They cannot be read or decompressed.
    """
    try:
        return stream.read(num_bytes)
    except (OSError, EOFError, pa.ArrowException) as error:
        if isinstance(error, SmaltiError):
            raise
        raise FormatError(f"{what}: cannot be read: {str(error)[:200]}") from error
