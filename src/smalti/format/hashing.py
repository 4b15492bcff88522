"""Checksums under the names that MDS index files use, and a hash of samples that ignores order and shards.

The row hash of a set is the sum modulo 2^128 of XXH3-128 of every sample as stored: adding samples adds their sum, and
moving samples between shards changes nothing. A changed sample leaves the sum equal with probability 2^-128. It
protects against mistakes and damage, not against deliberate collisions.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import xxhash
from xxhash import xxh3_128_digest

from smalti.errors import ChecksumMismatch, SchemaError

Buffer = bytes | bytearray | memoryview


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


def hash_each(samples: Iterable[bytes]) -> int:
    """Return the sum of the hashes of separate samples."""
    return _sum([xxh3_128_digest(sample) for sample in samples]) % MODULUS


def _sum(digests: list[bytes]) -> int:
    """Add up digests as big-endian numbers: four columns of 32 bits, whose sums fit 64 bits."""
    words = np.frombuffer(b"".join(digests), ">u4").reshape(-1, 4)
    first, second, third, last = words.sum(axis=0, dtype=np.uint64).tolist()
    return int((first << 96) + (second << 64) + (third << 32) + last)
