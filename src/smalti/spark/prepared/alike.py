"""Prepared images that are alike: equal, or with perceptual hashes that differ in a few bits. Reads no image."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smalti.images.duplicates import find_near
from smalti.sources.image_folder import TRAIN
from smalti.spark.prepared.table import PreparedTable

_MAX_EXAMPLES = 30


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
    is_trained = rows.split == TRAIN
    leaked = ~is_trained & rows.is_near(is_trained)
    is_shared = rows.count > 1
    is_shared[rows.pairs.ravel()] = True
    is_alike = is_shared[rows.content]
    _, image, copies = np.unique(rows.digest, return_inverse=True, return_counts=True)
    is_mixed = rows.is_of_other_class()
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

    def is_near(self, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is like one of those that are wanted, or one of them."""
        has = np.zeros(len(self.count), bool)
        has[self.content[wanted]] = True
        near, (one, other) = has.copy(), self.pairs.T
        near[one[has[other]]] = True
        near[other[has[one]]] = True
        return near[self.content]

    def is_of_other_class(self) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is like one of another class."""
        low = np.full(len(self.count), np.iinfo(np.int64).max)
        high = np.full(len(self.count), -1)
        np.minimum.at(low, self.content, self.label)
        np.maximum.at(high, self.content, self.label)
        mixed, (one, other) = low != high, self.pairs.T
        differs = (low[one] != low[other]) | (high[one] != high[other])
        mixed[self.pairs[differs].ravel()] = True
        found: npt.NDArray[np.bool_] = mixed[self.content]
        return found

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
