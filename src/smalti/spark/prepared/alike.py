"""Prepared images that are alike: equal, or with perceptual hashes that differ in a few bits. Reads no image.

Also here: the search for pairs of hashes that are close, `find_near`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smalti.errors import ArgumentError
from smalti.images.pixels import HASH_BYTES
from smalti.sources.image_folder import TRAIN
from smalti.spark.prepared.table import PreparedTable

HASH_BITS = 8 * HASH_BYTES
MAX_NEIGHBOURS = 32
"""Hashes that one is compared with, of all that are equal to it in two bands."""
MAX_PAIRS = 200_000
"""Pairs that are returned at most."""
_ONES = np.array([number.bit_count() for number in range(1 << 16)], np.uint8)
_SEED = 5489  # of the order in which bits are put into bands: neighbours in the grid depend on each other
_MAX_EXAMPLES = 30
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AlikePair:
    """Two rows that are alike."""

    paths: tuple[str, str]
    splits: tuple[str, str]
    classes: tuple[str, str]
    bits: int
    """Bits in which their hashes differ."""


@dataclass(frozen=True)
class Alike:
    """The rows of a table that are alike."""

    rows: int
    """All rows."""
    unknown: int
    """Rows without a hash: plain ones, and those that were prepared before hashes were kept."""
    alike: int
    """Rows that are like another one."""
    equal: int
    """Rows whose image is equal to that of another one."""
    of_other_class: int
    """Rows that are like a row of another class."""
    held_out: int
    """Rows that are not trained on."""
    leaked: int
    """Rows that are not trained on and are like one that is."""
    pairs: tuple[AlikePair, ...]
    """Some pairs; first those of two classes."""
    leaks: tuple[AlikePair, ...]
    """Some pairs of a row that is not trained on and one that is."""
    is_complete: bool
    """False if not all hashes were compared, because too many of them are alike."""


def find_alike(table: PreparedTable, *, max_bits: int) -> Alike:
    """Return which rows of a table are alike, and some of them as examples.

    Args:
        table: Table from `update_prepared`.
        max_bits: Bits of 128 in which the hashes of two rows may differ.
    """
    rows = _AlikeRows(table.good, max_bits)
    is_trained, (one, other) = rows.split == TRAIN, rows.pairs.T
    # Contents of rows that are trained on, and of those that are like one.
    has_trained = np.zeros(len(rows.count), bool)
    has_trained[rows.content[is_trained]] = True
    is_near = has_trained.copy()
    is_near[one[has_trained[other]]] = True
    is_near[other[has_trained[one]]] = True
    leaked = ~is_trained & is_near[rows.content]
    is_shared = rows.count > 1
    is_shared[rows.pairs.ravel()] = True
    is_alike = is_shared[rows.content]
    _, image, copies = np.unique(rows.digest, return_inverse=True, return_counts=True)
    # Contents of rows of several classes, and of those that are like one of another class.
    low, high = np.full(len(rows.count), np.iinfo(np.int64).max), np.full(len(rows.count), -1)
    np.minimum.at(low, rows.content, rows.label)
    np.maximum.at(high, rows.content, rows.label)
    mixed, differs = low != high, (low[one] != low[other]) | (high[one] != high[other])
    mixed[rows.pairs[differs].ravel()] = True
    is_mixed = mixed[rows.content]
    mixed_first = np.argsort(~is_mixed[is_alike], kind="stable")
    return Alike(
        rows=len(rows.content),
        unknown=rows.num_unknown,
        alike=int(is_alike.sum()),
        equal=int((copies[image] > 1).sum()),
        of_other_class=int(is_mixed.sum()),
        held_out=int((~is_trained).sum()),
        leaked=int(leaked.sum()),
        pairs=rows.examples(np.flatnonzero(is_alike)[mixed_first], np.ones_like(is_trained)),
        leaks=rows.examples(np.flatnonzero(leaked), is_trained),
        is_complete=rows.is_complete,
    )


class _AlikeRows:
    """Rows as arrays; `content` numbers what they look like, so that equal hashes are compared once."""

    def __init__(self, good: pa.Table, max_bits: int) -> None:
        """Find the pairs of contents that are alike."""
        self.path, self.split, self.class_name = (
            np.asarray(good.column(name).to_pylist(), object) for name in ("path", "split", "class_name")
        )
        self.label = np.asarray(good.column("label"), np.int64)
        self.digest = np.asarray(good.column("digest").to_pylist(), str)
        hashes = good.column("perceptual_hash").to_pylist()
        # Images without a hash are alike if they are equal.
        looks = [each.hex() if each is not None else digest for each, digest in zip(hashes, self.digest, strict=True)]
        _, first, self.content, self.count = np.unique(
            np.asarray(looks, str), return_index=True, return_inverse=True, return_counts=True
        )
        is_hashed = np.array([hashes[row] is not None for row in first], bool)
        self.num_unknown = int((~is_hashed[self.content]).sum())
        places, self.bits, self.is_complete = find_near([hashes[row] for row in first[is_hashed]], max_bits)
        self.pairs = np.flatnonzero(is_hashed)[places]

    def examples(self, rows: npt.NDArray[np.int64], wanted: npt.NDArray[np.bool_]) -> tuple[AlikePair, ...]:
        """Return each of the first rows with one that is like it and wanted, of another class if there is one.

        No pair is returned twice.
        """
        found: dict[frozenset[int], AlikePair] = {}
        for row in rows.tolist():
            own = self.content[row]
            is_own = (self.pairs == own).any(axis=1)
            others = np.flatnonzero(np.isin(self.content, np.append(self.pairs[is_own], own)) & wanted)
            others = others[others != row]
            other = int(others[np.argmax(self.label[others] != self.label[row])])
            if frozenset((row, other)) in found:
                continue
            between = is_own & (self.pairs == self.content[other]).any(axis=1)
            path, split, class_name = (
                (str(each[row]), str(each[other])) for each in (self.path, self.split, self.class_name)
            )
            bits = 0 if own == self.content[other] else int(self.bits[between][0])
            found[frozenset((row, other))] = AlikePair(path, split, class_name, bits)
            if len(found) == _MAX_EXAMPLES:
                break
        return tuple(found.values())


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
