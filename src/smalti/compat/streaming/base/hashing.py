"""Checksums by name; `smalti.format.hashing` computes them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from smalti.format import HASH_NAMES, digest_bytes
from smalti.format.hashing import new_hash

__all__ = ["get_hash", "get_hashes", "is_hash"]


def _start(name: str, data: bytes = b"") -> Any:
    """Return a running checksum of `data`."""
    hasher = new_hash(name)
    hasher.update(data)
    return hasher


def _collect() -> dict[str, Callable[..., Any]]:
    """Return a function for each name that returns a running checksum of the bytes given."""
    return {name: partial(_start, name) for name in HASH_NAMES}


_hashes: dict[str, Callable[..., Any]] = _collect()


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
