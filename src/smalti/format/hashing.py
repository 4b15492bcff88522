"""Checksums under the names that MDS index files use. Opens no files."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import xxhash

from smalti.errors import ChecksumMismatch, SchemaError

Buffer = bytes | bytearray | memoryview

FIRST_BYTES = 8 << 20
"""What of a shard can be read before all of it is here: some batches of pictures, and an eighth of a usual shard."""


class Hasher(Protocol):
    """A running checksum."""

    def update(self, data: Any, /) -> None:
        """Take `data` in."""

    def hexdigest(self) -> str:
        """The checksum so far, as lower-case hex digits."""


def _collect() -> dict[str, tuple[Callable[[], Any], int]]:
    found: dict[str, tuple[Callable[[], Any], int]] = {}
    for name in sorted(hashlib.algorithms_guaranteed):
        if not name.startswith("shake_"):  # no fixed length, and MDS does not know them
            # `usedforsecurity=False`: md5 and sha1 are integrity checks here, and must work under FIPS.
            make = partial(hashlib.new, name, usedforsecurity=False)
            found[name] = make, make().digest_size
    for name in ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"):
        kind = getattr(xxhash, name)
        found[name] = kind, kind().digest_size
    return found


_HASHES = _collect()

HASH_NAMES = frozenset(_HASHES)
"""Every hash name that can stand in an index file."""


def new_hash(name: str) -> Hasher:
    """A fresh running checksum called `name`.

    Raises:
        SchemaError: No such hash.
    """
    if name not in _HASHES:
        raise SchemaError(f"unknown hash {name!r}: expected one of {', '.join(sorted(HASH_NAMES))}.", hash=name)
    hasher: Hasher = _HASHES[name][0]()
    return hasher


def hex_length(name: str) -> int:
    """How many hex digits a checksum called `name` has."""
    new_hash(name)
    return 2 * _HASHES[name][1]


def check_hash_names(names: Iterable[str] | None) -> tuple[str, ...]:
    """The names, sorted as MDS wants them; none for None.

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
    """Checksum of `data` by name."""
    digests = {}
    for name in names:
        hasher = new_hash(name)
        hasher.update(data)
        digests[name] = hasher.hexdigest()
    return digests


def hash_first(data: Buffer, names: Iterable[str]) -> int | None:
    """xxh3_64 of the first `FIRST_BYTES` bytes of a file with checksums called `names`.

    None for a file that is no longer than that, and where somebody chose other checksums than Smalti's: who wants
    SHA-256 wants no byte believed by less.
    """
    if len(data) <= FIRST_BYTES or tuple(names) != ("xxh3_64",):
        return None
    return xxhash.xxh3_64_intdigest(memoryview(data)[:FIRST_BYTES])


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
