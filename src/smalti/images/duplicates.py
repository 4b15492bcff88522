"""Images that look alike: a perceptual hash of each, and the pairs whose hashes differ in a few bits.

The hash survives another size, another JPEG quality and small changes of brightness; it does not survive crops,
rotations and mirroring. Hashes are taken where an image is prepared, so that comparing them reads no image.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from smalti.errors import ArgumentError

HASH_BYTES = 16
"""Bytes of a hash."""
HASH_BITS = 8 * HASH_BYTES
MAX_NEIGHBOURS = 32
"""Hashes that one is compared with, of all that are equal to it in two bands."""
MAX_PAIRS = 200_000
"""Pairs that are returned at most."""

_GRID = 9  # cells on each side: 8 x 8 steps of brightness to the right, and as many downwards
_LEAST_CONTRAST = 12  # grey levels between the darkest and the brightest cell of an image that has a hash
_ONES = np.array([number.bit_count() for number in range(1 << 16)], np.uint8)
_SEED = 5489  # of the order in which bits are put into bands: neighbours in the grid depend on each other


def perceptual_hash(jpeg: Any) -> bytes | None:
    """Return the hash of a JPEG, any buffer of it; None if it is a plain one, of too little contrast.

    Raises:
        ValueError: it does not decode.
    """
    height, width, _, _ = simplejpeg.decode_jpeg_header(jpeg, strict=False)
    least = min(4 * _GRID, height, width)  # decoded at a fraction of its size, but not smaller than this
    grey = simplejpeg.decode_jpeg(jpeg, "GRAY", fastdct=True, min_height=least, min_width=least)[..., 0]
    cells = np.asarray(Image.fromarray(grey).resize((_GRID, _GRID), Image.Resampling.BOX))
    if int(cells.max()) - int(cells.min()) < _LEAST_CONTRAST:
        return None
    here, right, below = cells[:-1, :-1], cells[:-1, 1:], cells[1:, :-1]
    return np.packbits(right > here).tobytes() + np.packbits(below > here).tobytes()


Places = npt.NDArray[np.int64]


def find_near(hashes: Sequence[bytes], max_bits: int) -> tuple[Places, Places, bool]:
    """Return the pairs of hashes that differ in at most `max_bits` bits, and whether these are all.

    The bits are divided into `max_bits + 2` bands. Two hashes that differ in at most `max_bits` bits are equal in two
    bands at least. So hashes are sorted by each two bands, and only those that are equal there are compared, each with
    at most `MAX_NEIGHBOURS` others: time grows as n log n, whatever the images are. Equal hashes are better given once.

    Returns:
        The places in the sequence of each pair, the smaller one first, int64, shape (pairs, 2); the number of bits in
        which each differs, shape (pairs,); False if there may be more pairs: so many hashes are alike that not all of
        them were compared.
    """
    if not 0 <= max_bits <= HASH_BITS // 4:
        raise ArgumentError(
            f"similar hashes differ in 0 to {HASH_BITS // 4} bits, found {max_bits}; choose one of these"
        )
    numbers = np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 2)
    # Masks of shape (2,) that divide all bits into bands, each from all over the grid.
    bands = [np.zeros(HASH_BITS, np.uint8) for _ in range(max_bits + 2)]
    for number, bit in enumerate(np.random.default_rng(_SEED).permutation(HASH_BITS)):
        bands[number % len(bands)][bit] = 1
    masks = [np.packbits(band).view(np.uint64) for band in bands]
    codes, is_complete = np.empty(0, np.int64), True
    for one, other in combinations(masks, 2):
        near, is_all = _near_in_bands(numbers, one | other, max_bits)
        codes = np.unique(np.concatenate([codes, near[:, 0] * len(hashes) + near[:, 1]]))
        is_complete &= is_all
        if len(codes) > MAX_PAIRS:
            codes, is_complete = codes[:MAX_PAIRS], False
            break
    places = np.stack(np.divmod(codes, max(len(hashes), 1)), axis=1)
    return places, _differing(numbers, places), is_complete


def _near_in_bands(
    hashes: npt.NDArray[np.uint64], mask: npt.NDArray[np.uint64], max_bits: int
) -> tuple[npt.NDArray[np.int64], bool]:
    """Return the pairs that are equal under a mask and differ in few bits, and whether all such were compared."""
    keys = hashes & mask
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    follows = np.zeros(len(hashes), bool)  # whether the next one in the order is equal to it under the mask
    follows[:-1] = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    first, found = np.flatnonzero(follows), [np.empty((0, 2), np.int64)]
    for step in range(1, MAX_NEIGHBOURS + 1):
        if not len(first):
            return np.concatenate(found), True
        pairs = np.sort(np.stack([order[first], order[first + step]], axis=1), axis=1)
        found.append(pairs[_differing(hashes, pairs) <= max_bits])
        first = first[follows[first + step]]
    return np.concatenate(found), not len(first)


def _differing(hashes: npt.NDArray[np.uint64], pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of bits in which each pair differs."""
    differing = (hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]).view(np.uint16)
    bits: npt.NDArray[np.int64] = _ONES[differing].sum(axis=1, dtype=np.int64)
    return bits
