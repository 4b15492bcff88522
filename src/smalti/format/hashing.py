"""Checksums under the names that MDS index files use, hashes of samples, and of the blocks of a shard.

The row hash of a set is the sum modulo 2^128 of XXH3-128 of every sample as stored: adding samples adds their sum, and
moving samples between shards changes nothing. A changed sample leaves the sum equal with probability 2^-128. It
protects against mistakes and damage, not against deliberate collisions.

Parts of a shard can be verified alone by the hashes of its blocks. A shard file is divided into blocks of one size, the
last of which may be shorter. The hashes of its blocks, in order, are its block list: 8 bytes a block, xxh3_64,
little-endian. The lists of many shards lie back to back in one file, so that opening a set does not get slower: readers
fetch the list of a shard by range when they need it, and verify it against the digest in `BlockList`. Only shards that
Smalti stores uncompressed with its default hash have a list: a user who chose SHA-256 does not accept bytes verified by
a weaker hash.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import xxhash
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from smalti.errors import ChecksumMismatch, IndexFileError, SchemaError

Buffer = bytes | bytearray | memoryview
BLOCK_BYTES = 1 << 16
"""Size of the blocks of new shards. A sample at a random place costs its own bytes and one more block on average, so
small blocks save bytes; smaller ones than this save less than a round trip costs."""
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 1 << 12, 1 << 24
HASH_BYTES = 8
_BLOCK_HASH = np.dtype("<u8")
_BLOCK_HASH_NAME = "xxh3_64"


class Hasher(Protocol):
    """A running checksum."""

    digest_size: int
    """In bytes."""

    def update(self, data: Any, /) -> None:
        """Add `data`."""

    def hexdigest(self) -> str:
        """Return the checksum so far, as lower-case hex digits."""


_HASHES: dict[str, Callable[[], Any]] = {
    # `usedforsecurity=False`: md5 and sha1 are integrity checks here, and must work under FIPS.
    name: partial(hashlib.new, name, usedforsecurity=False)
    for name in sorted(hashlib.algorithms_guaranteed)
    if not name.startswith("shake_")  # no fixed length, and not part of MDS
}
_HASHES |= {name: getattr(xxhash, name) for name in ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")}

HASH_NAMES = frozenset(_HASHES)
"""Every hash name that can stand in an index file."""


def new_hash(name: str) -> Hasher:
    """Return a new running checksum called `name`.

    Raises:
        SchemaError: No such hash.
    """
    if name not in _HASHES:
        raise SchemaError(f"unknown hash {name!r}: expected one of {', '.join(sorted(HASH_NAMES))}.", hash=name)
    hasher: Hasher = _HASHES[name]()
    return hasher


def hex_length(name: str) -> int:
    """Return the number of hex digits of a checksum called `name`."""
    return 2 * new_hash(name).digest_size


def check_hash_names(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names, sorted as MDS requires; none for None.

    Raises:
        SchemaError: A name is unknown or stands twice.
    """
    listed = [names] if isinstance(names, str) else list(names or ())
    for name in listed:
        new_hash(name)
    if len(set(listed)) != len(listed):
        raise SchemaError(f"`hashes`: {sorted(listed)} names a hash twice; name each once.")
    return tuple(sorted(listed))


def digest_bytes(data: Buffer, names: Iterable[str]) -> dict[str, str]:
    """Return the checksums of `data` by name."""
    digests = {}
    for name in names:
        hasher = new_hash(name)
        hasher.update(data)
        digests[name] = hasher.hexdigest()
    return digests


def compare_digests(found: Mapping[str, str], expected: Mapping[str, str], *, what: str) -> None:
    """Return only if every checksum in `expected` equals the one in `found`.

    Raises:
        ChecksumMismatch: One differs.
    """
    for name, digest in expected.items():
        if found[name] != digest:
            raise ChecksumMismatch(
                f"{what}: checksum {name} expected {digest}, found {found[name]}; the upload is incomplete or the "
                "file was changed. Fetch it again, or run the writer again.",
                expected=digest,
                found=found[name],
                hash=name,
            )


MODULUS = 1 << 128
"""Row hashes are sums modulo this number."""
_ROWS_AT_ONCE = 1 << 16  # bounds the memory of their digests


def hash_rows(data: memoryview, ends: "Sequence[int] | np.ndarray[Any, np.dtype[np.int64]]") -> int:
    """Return the sum of the hashes of samples that lie back to back in `data`.

    `ends` is where the first begins, and where each ends; rising.
    """
    total = 0
    for begin in range(0, len(ends) - 1, _ROWS_AT_ONCE):
        part = ends[begin : begin + _ROWS_AT_ONCE + 1]
        places = part.tolist() if isinstance(part, np.ndarray) else part
        total += _sum([xxh3_128_digest(data[a:b]) for a, b in pairwise(places)])
    return total % MODULUS


def _sum(digests: list[bytes]) -> int:
    """Add up digests as big-endian numbers: four columns of 32 bits, whose sums fit 64 bits."""
    words = np.frombuffer(b"".join(digests), ">u4").reshape(-1, 4)
    first, second, third, last = words.sum(axis=0, dtype=np.uint64).tolist()
    return int((first << 96) + (second << 64) + (third << 32) + last)


@dataclass(frozen=True, slots=True)
class BlockList:
    """The place of the block hashes of one shard, and their digest."""

    file: str
    """Name of the file below the root, which holds the lists of many shards."""
    offset: int
    """Position of the first hash in the file."""
    block_bytes: int
    """Size of each block but the last."""
    digest: int
    """xxh3_64 of the hashes of this shard."""

    def check(self, where: str) -> None:
        """Return only if offset, size and digest are in range; the name is checked by the caller.

        Raises:
            IndexFileError: One is not.
        """
        is_power = self.block_bytes > 0 and self.block_bytes & (self.block_bytes - 1) == 0
        if not (is_power and MIN_BLOCK_BYTES <= self.block_bytes <= MAX_BLOCK_BYTES):
            raise IndexFileError(
                f"{where}: blocks of {self.block_bytes} bytes; expected a power of two from {MIN_BLOCK_BYTES} to "
                f"{MAX_BLOCK_BYTES}.",
                where=where,
            )
        if not (0 <= self.offset < 1 << 48 and 0 <= self.digest < 1 << 64):
            raise IndexFileError(f"{where}: the offset or digest of a block list is out of range.", where=where)

    def span(self, num_bytes: int) -> tuple[int, int]:
        """Return begin and end in `file` of the hashes of a shard of so many bytes."""
        return self.offset, self.offset + HASH_BYTES * num_blocks(num_bytes, self.block_bytes)


def num_blocks(num_bytes: int, block_bytes: int) -> int:
    """Return the number of blocks of a file of so many bytes."""
    return -(-num_bytes // block_bytes)


def hash_blocks(data: Buffer, block_bytes: int = BLOCK_BYTES) -> bytes:
    """Return the block list of a file: the hash of each of its blocks."""
    view = memoryview(data)
    hashes = [xxh3_64_intdigest(view[at : at + block_bytes]) for at in range(0, len(view), block_bytes)]
    return np.array(hashes, _BLOCK_HASH).tobytes()


def has_block_hash(names: Iterable[str]) -> bool:
    """Return whether a file with checksums called `names` may be verified by its blocks: they have no other hash."""
    return tuple(names) == (_BLOCK_HASH_NAME,)


def is_one_block(num_bytes: int, names: Iterable[str]) -> bool:
    """Return whether a file of this size, with these checksums, can be verified as one block without a list."""
    return 0 < num_bytes <= BLOCK_BYTES and has_block_hash(names)


class BlockHashes:
    """The verified block hashes of one shard."""

    __slots__ = ("_hashes", "_what", "block_bytes", "num_bytes")

    def __init__(self, data: bytes, blocks: BlockList, num_bytes: int, *, what: str) -> None:
        """Verify `data`, the hashes of a shard of `num_bytes` bytes called `what`.

        Raises:
            ChecksumMismatch: They are not those that the version names.
        """
        expected = HASH_BYTES * num_blocks(num_bytes, blocks.block_bytes)
        found = xxh3_64_intdigest(data)
        if len(data) != expected or found != blocks.digest:
            raise ChecksumMismatch(
                f"{what}: the list of its block hashes, {expected} bytes at {blocks.offset} of {blocks.file}, has "
                f"{len(data)} bytes and the checksum {found:016x}, expected {blocks.digest:016x}; the file was changed "
                "or cut: restore it, or write its shards anew with `compact`",
                expected=f"{blocks.digest:016x}",
                found=f"{found:016x}",
                hash=_BLOCK_HASH_NAME,
            )
        self.block_bytes, self.num_bytes, self._what = blocks.block_bytes, num_bytes, what
        self._hashes = np.frombuffer(data, _BLOCK_HASH)  # a list of numbers would take five times the memory

    @classmethod
    def of_small_file(cls, digest: str, num_bytes: int, *, what: str) -> "BlockHashes":
        """Return the hashes of a file of at most `BLOCK_BYTES`, whose only block hash is its own xxh3_64, hex."""
        data = int(digest, 16).to_bytes(HASH_BYTES, "little")
        return cls(data, BlockList(what, 0, BLOCK_BYTES, xxh3_64_intdigest(data)), num_bytes, what=what)

    def verify(self, data: Buffer, first: int) -> None:
        """Return only if `data` is whole blocks of the shard, from block `first` on.

        Raises:
            ChecksumMismatch: A block is damaged, or too short.
        """
        view, size = memoryview(data), self.block_bytes
        for number in range(first, first + max(1, num_blocks(len(view), size))):
            at = (number - first) * size
            block = view[at : at + size]
            begin = number * size
            is_whole = len(block) == min(size, self.num_bytes - begin)
            expected = int(self._hashes[number])
            if not is_whole or xxh3_64_intdigest(block) != expected:
                raise ChecksumMismatch(
                    f"{self._what}: block {number}, {min(size, self.num_bytes - begin)} bytes at {begin}, expected the "
                    f"checksum {expected:016x}, found {xxh3_64_intdigest(block):016x} of {len(block)} "
                    "bytes; the object was changed or damaged.",
                    block=number,
                    expected=f"{expected:016x}",
                    found=f"{xxh3_64_intdigest(block):016x}",
                )


def place_lists(lists: Sequence[bytes], file: str, block_bytes: int = BLOCK_BYTES) -> list[BlockList]:
    """Return the places of block lists that lie back to back in `file`."""
    found, offset = [], 0
    for each in lists:
        found.append(BlockList(file, offset, block_bytes, xxh3_64_intdigest(each)))
        offset += len(each)
    return found
