"""The running sum of a ledger in mode `digest`: 128 bits that do not depend on the order in which samples are added.

Each sample adds mix(epoch, position, id), in two halves of 64 bits. Equal sums mean equal samples at equal positions,
except with a probability of 2^-128. The sum is not cryptographic: it does not protect against forgery.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_Words = NDArray[np.uint64]
_MASK = (1 << 64) - 1
# Constants of splitmix64.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
# Odd numbers from the digits of pi: factors of epoch, position and id in each half.
_HALVES = (
    tuple(map(np.uint64, (0x243F6A8885A308D3, 0x13198A2E03707345, 0xA4093822299F31D1))),
    tuple(map(np.uint64, (0x082EFA98EC4E6C89, 0x452821E638D01377, 0xBE5466CF34E90C6D))),
)


@dataclass(frozen=True)
class Sum:
    """The sum of the samples taken so far in a pass, and their number."""

    value: int = 0
    samples: int = 0
    repeats: int = 0

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(_add_halves(self.value, other.value), self.samples + other.samples, self.repeats + other.repeats)


def sum_of(epoch: int, positions: Ids, ids: Ids) -> Sum:
    """Return the sum of some samples; position -1 marks a repeat, which is counted but not summed."""
    real = positions >= 0
    repeats = real.size - int(np.count_nonzero(real))
    if repeats:
        positions, ids = positions[real], ids[real]
    first, second = (_half(epoch, positions, ids, constants) for constants in _HALVES)
    return Sum(first << 64 | second, positions.size, repeats)


def _half(epoch: int, positions: Ids, ids: Ids, constants: tuple[np.uint64, ...]) -> int:
    by_epoch, by_position, by_id = constants
    base = np.uint64((epoch + 1) * int(by_epoch) & _MASK)
    words: _Words = _mixed(positions.astype(np.uint64) * by_position + base) + ids.astype(np.uint64) * by_id
    return int(_mixed(words).sum(dtype=np.uint64))


def _mixed(words: _Words) -> _Words:
    """Apply splitmix64's finaliser, in which every input bit affects every output bit."""
    words = (words ^ words >> np.uint64(30)) * _MIX[0]
    words = (words ^ words >> np.uint64(27)) * _MIX[1]
    mixed: _Words = words ^ words >> np.uint64(31)
    return mixed


def _add_halves(one: int, other: int) -> int:
    high, low = (one >> 64) + (other >> 64), (one & _MASK) + (other & _MASK)
    return (high & _MASK) << 64 | low & _MASK
