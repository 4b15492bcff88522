"""The choice of files for validation: an exact share of every class, by hash. Pure."""

import hashlib
from collections.abc import Iterable

TRAIN = "train"
VALIDATION = "validation"


def held_out(paths: Iterable[str], *, fraction: float, seed: int) -> frozenset[str]:
    """Return the paths of one class that are held out for validation.

    Paths are sorted by a hash of seed and path, and the first `fraction` of them is held out. The choice is independent
    of the order of listing and of the machine. When files are added, only as many others change sides as needed to
    keep the share.

    Args:
        paths: the files of one class.
        fraction: share to hold out, 0 to 1; rounded, but of two or more files at least one is held out and one stays.
        seed: seed of the hash.
    """
    ranked = sorted(paths, key=lambda path: place_key(path, seed))
    if fraction <= 0 or len(ranked) < 2:
        return frozenset()
    count = min(max(1, round(fraction * len(ranked))), len(ranked) - 1)
    return frozenset(ranked[:count])


def place_key(path: str, seed: int) -> bytes:
    """Return a hash by which to sort paths in a fixed, well-mixed order."""
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16, key=str(seed).encode()).digest()
