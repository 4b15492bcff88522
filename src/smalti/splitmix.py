"""SplitMix64: words of which every bit depends on every bit of what they are made from, equal on every platform.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: its multiples are far apart."""


def mixed(words: Words) -> Words:
    """Return each word mixed by the finaliser of SplitMix64, which is a bijection."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def stepped(words: Words) -> Words:
    """Return each word's successor in a sequence of SplitMix64, mixed."""
    with np.errstate(over="ignore"):
        return mixed(words + GOLDEN)
