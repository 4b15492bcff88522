"""Checksums by name; `smalti.format.hashing` computes them."""

from smalti.format.hashing import HASH_NAMES, digest_bytes

__all__ = ["get_hash", "get_hashes", "is_hash"]


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
