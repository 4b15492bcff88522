"""Checksums in a shard table: JSON texts that are alike but for their digits, compared by column."""

import json
import re

import numpy as np
from numpy.typing import NDArray

from smalti.catalog.columns import Bools, Texts, Words, gathered
from smalti.format.hashing import HASH_NAMES, hex_length

_PAIR = r'"(\w+)": "([0-9a-f]+)"'
_SHAPE = re.compile(rf"\{{(?:{_PAIR}(?:, {_PAIR})*)?\}}", re.ASCII)
_EACH = re.compile(_PAIR, re.ASCII)
_MOST_SHAPES = 4
"""Shapes that are learned from a table; an honest one has one."""
_MOST_CHARS = 1000
_IS_DIGIT = np.array([chr(code) in "0123456789abcdef" for code in range(256)])


class HashTexts:
    """The checksums of one file of each row, and which of them the rows declare."""

    def __init__(self, texts: Texts, declared: Words) -> None:
        self._texts = texts
        self._declared = declared
        self._shapes: list[_Shape] = []

    def in_order(self, begin: int, end: int, wanted: Bools) -> Bools:
        """Which of the wanted rows [begin, end) surely have digests of the right length, and all that they declare."""
        found = np.zeros(end - begin, bool)
        places = self._texts.offsets[begin : end + 1].astype(np.int64)
        data = self._texts.data[places[0] : places[-1]]
        starts, lengths = places[:-1] - places[0], np.diff(places)
        left = np.flatnonzero(wanted & ~self._texts.absent[begin:end])
        number = 0
        while left.size and (number < len(self._shapes) or self._learn(begin + int(left[0]))):
            shape = self._shapes[number]
            number += 1
            rows = left[lengths[left] == shape.length]
            rows = rows[shape.fits(data, starts[rows])]
            found[rows] = shape.covers[self._declared.places[begin:end][rows]]
            rest = np.ones(end - begin, bool)
            rest[rows] = False
            left = left[rest[left]]
        return found

    def _learn(self, row: int) -> bool:
        """Whether the text of this row shows a shape that its kind may have; then it is the newest of the shapes."""
        if len(self._shapes) == _MOST_SHAPES:
            return False
        if int(self._texts.offsets[row + 1]) - int(self._texts.offsets[row]) > _MOST_CHARS:
            return False
        text = self._texts.rows(row, row + 1)[0] or ""
        pairs = list(_EACH.finditer(text))
        names = [pair[1] for pair in pairs]
        if not _SHAPE.fullmatch(text) or len(set(names)) != len(names):
            return False
        if any(name not in HASH_NAMES or len(digest) != hex_length(name) for name, digest in json.loads(text).items()):
            return False
        self._shapes.append(_Shape(text, [pair.span(2) for pair in pairs], frozenset(names), self._declared))
        return True


class _Shape:
    """Texts that are equal but for the digits of their digests."""

    def __init__(self, text: str, digests: list[tuple[int, int]], names: frozenset[str], declared: Words) -> None:
        letters = np.frombuffer(text.encode("ascii"), np.uint8)
        self.length = letters.size
        is_digit = np.zeros(letters.size, bool)
        for begin, end in digests:
            is_digit[begin:end] = True
        self._digits, self._fixed = np.flatnonzero(is_digit), np.flatnonzero(~is_digit)
        self._letters = letters[self._fixed]
        # By place of the word; the last one is for rows that declare nothing.
        self.covers = np.array([not word or names.issuperset(word.split(",")) for word in declared.words] + [True])

    def fits(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> Bools:
        """Which of the texts that begin at `starts`, of this length, have the shape."""
        if not starts.size:
            return np.zeros(0, bool)
        found = gathered(data, starts, self.length)
        same: Bools = (found[:, self._fixed] == self._letters).all(axis=1)
        return same & _IS_DIGIT[found[:, self._digits]].all(axis=1)
