"""Compression algorithms by name, such as `zstd` and `zstd:7`, and checksums by name, of the files of a shard.

`smalti.format.compression` and `smalti.format.hashing` do the work.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import Self

from smalti.format import MAX_FILE_BYTES, parse_compression
from smalti.format.compression import COMPRESSION_NAMES
from smalti.format.compression import Compression as Algorithm
from smalti.format.hashing import HASH_NAMES, digest_bytes

__all__ = ["compress", "decompress", "get_compression_extension", "get_compressions", "is_compression"]


class Compression(ABC):
    """A family of algorithms: one for each level."""

    extension: str = ""
    levels: ClassVar[list[Any]] = []
    """Empty for an algorithm without levels."""

    @classmethod
    def each(cls) -> Iterator[tuple[str, Self]]:
        """Yield the name and the algorithm of every level, the default first."""
        yield cls.extension, cls()
        for level in cls.levels:
            yield f"{cls.extension}:{level}", cls(level)  # type: ignore[call-arg]

    @abstractmethod
    def compress(self, data: bytes) -> bytes:
        """Return the compressed bytes."""

    @abstractmethod
    def decompress(self, data: bytes) -> bytes:
        """Return what was compressed, at most 4 GiB.

        Raises:
            ValueError: the bytes are damaged.
        """


class _EngineCompression(Compression):
    """A family of the engine's."""

    level: int | None = None

    def _at(self, level: int) -> None:
        if level not in self.levels:
            raise AssertionError(f"{self.extension} has the levels {self.levels[0]} to {self.levels[-1]}, not {level}")
        self.level = level

    def compress(self, data: bytes) -> bytes:
        """Return the compressed bytes."""
        return compress(self.extension if self.level is None else f"{self.extension}:{self.level}", data)

    def decompress(self, data: bytes) -> bytes:
        """Return what was compressed; see `Compression`."""
        return decompress(self.extension, data)


class LevelledCompression(_EngineCompression):
    """A family of algorithms with levels.

    Args:
        level: one of `levels`.
    """

    def __init__(self, level: int | None = None) -> None:
        raise NotImplementedError


class Brotli(LevelledCompression):
    """Brotli."""

    extension = "br"
    levels: ClassVar[list[Any]] = list(range(12))

    def __init__(self, level: int = 11) -> None:
        self._at(level)


class Bzip2(LevelledCompression):
    """bzip2."""

    extension = "bz2"
    levels: ClassVar[list[Any]] = list(range(1, 10))

    def __init__(self, level: int = 9) -> None:
        self._at(level)


class Gzip(LevelledCompression):
    """gzip, with 0 as the time of writing, so that equal data have equal bytes."""

    extension = "gz"
    levels: ClassVar[list[Any]] = list(range(10))

    def __init__(self, level: int = 9) -> None:
        self._at(level)


class Snappy(_EngineCompression):
    """Snappy, which has no levels."""

    extension = "snappy"


class Zstandard(LevelledCompression):
    """Zstandard."""

    extension = "zstd"
    levels: ClassVar[list[Any]] = list(range(1, 23))

    def __init__(self, level: int = 3) -> None:
        self._at(level)


def get_compressions() -> set[str]:
    """Return the names of all algorithms, with and without levels."""
    return set(COMPRESSION_NAMES)


def is_compression(algo: str | None) -> bool:
    """Return whether there is an algorithm of this name."""
    return algo in COMPRESSION_NAMES


def get_compression_extension(algo: str) -> str:
    """Return the extension of compressed files.

    Raises:
        ValueError: there is no algorithm of this name.
    """
    return _algorithm(algo).extension


def compress(algo: str | None, data: bytes) -> bytes:
    """Return the compressed bytes; `data` itself for None.

    Raises:
        ValueError: there is no algorithm of this name.
    """
    return data if algo is None else _algorithm(algo).compress(data)


def decompress(algo: str | None, data: bytes) -> bytes:
    """Return what was compressed, at most 4 GiB; `data` itself for None.

    Raises:
        ValueError: there is no algorithm of this name, or the bytes are damaged.
    """
    return data if algo is None else _algorithm(algo).decompress(data, MAX_FILE_BYTES)


def _algorithm(name: str) -> Algorithm:
    found = parse_compression(name) if is_compression(name) else None
    if found is None:
        raise ValueError(f"{name} is not a supported compression algorithm; `get_compressions` lists all.")
    return found


def get_hashes() -> set[str]:
    """Return the names of all checksums that a shard can have."""
    return set(HASH_NAMES)


def is_hash(algo: str) -> bool:
    """Return whether there is a checksum of this name."""
    return algo in HASH_NAMES


def get_hash(algo: str, data: bytes) -> str:
    """Return a checksum of `data` as hex digits.

    Raises:
        ValueError: there is no checksum of this name.
    """
    if not is_hash(algo):
        raise ValueError(f"{algo} is not a supported hash algorithm; expected one of {', '.join(sorted(HASH_NAMES))}.")
    return digest_bytes(data, [algo])[algo]
