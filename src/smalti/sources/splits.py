"""Which files are held out for validation: an exact share of every class, chosen by hash. Pure."""

import hashlib
from collections.abc import Iterable

TRAIN = "train"
VALIDATION = "validation"


def held_out(paths: Iterable[str], *, fraction: float, seed: int) -> frozenset[str]:
    """The paths of one class that go to validation.

    Each path has a fixed place, given by a hash of the seed and the path itself; the first `fraction` of the places
    are held out. So the choice does not depend on the order of listing or on the machine, and when files are added
    only as many of the others change sides as the share itself moves.

    Args:
        paths: the files of one class.
        fraction: share to hold out, 0 to 1; rounded, but of two or more files at least one is held out and one stays.
        seed: another seed is another choice.
    """
    ranked = sorted(paths, key=lambda path: place_key(path, seed))
    if fraction <= 0 or len(ranked) < 2:
        return frozenset()
    count = min(max(1, round(fraction * len(ranked))), len(ranked) - 1)
    return frozenset(ranked[:count])


def place_key(path: str, seed: int) -> bytes:
    """A hash that puts paths in a fixed, well-mixed order."""
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16, key=str(seed).encode()).digest()
