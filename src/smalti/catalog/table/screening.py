"""Columnar pre-check of a shard table: finds suspect rows; only these are parsed when the table is opened.

A suspect row is converted to a shard, which checks and possibly refuses it (`RowParser`). So the rules are stated in
one place: the pre-check may suspect too many rows, but never too few.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smalti.catalog.table.columns import Bools, Columns, Numbers, Texts, Words, gather
from smalti.format.hashing import HASH_NAMES, hex_length
from smalti.format.index import MAX_NAME_CHARS, MAX_STORED_BYTES
from smalti.format.sizes import MAX_FILE_BYTES

_PAIR = r'"(\w+)": "([0-9a-f]+)"'
_SHAPE = re.compile(rf"\{{(?:{_PAIR}(?:, {_PAIR})*)?\}}", re.ASCII)
_EACH = re.compile(_PAIR, re.ASCII)
_MAX_SHAPES = 4
"""Distinct forms of hash texts that are supported per column; a normal table has one."""
_MAX_SHAPE_CHARS = 1000
_IS_DIGIT = np.array([chr(code) in "0123456789abcdef" for code in range(256)])
_BLOCK = 1 << 14
"""Rows that are checked together: some megabytes."""
_BLOCKS_KEPT = 8
"""Blocks after which the memory of the columns is released."""
_ZIPPED = {"raw": "zip", "meta": "zip_meta"}
_FILES = ("raw", "zip", "meta", "zip_meta")
_COMMON = ("schema", "format", "newline", "separator", "partition", "compression", "hash_names", "size_limit")
"""Columns in which most rows of a table are equal."""
_MAX_COMBINATIONS = 1 << 20
"""Combinations up to which an array with an entry for each is used."""
_MIX_STEPS = ((0x9E3779B97F4A7C15, 29), (0xBF58476D1CE4E5B9, 32))
"""Odd factors and shifts of splitmix64, which mix the bits of a word."""

Ids = NDArray[np.int64]


class HashTexts:
    """The hash texts of one kind of file: JSON objects that differ from each other in their digits only."""

    def __init__(self, texts: Texts, declared: Words) -> None:
        self._texts = texts
        self._declared = declared
        self._shapes: list[_Shape] = []

    def are_valid(self, begin: int, end: int, selected: Bools) -> Bools:
        """Return which of the selected rows [begin, end) certainly have valid digests, and all that they declare."""
        found = np.zeros(end - begin, bool)
        places = self._texts.offsets[begin : end + 1].astype(np.int64)
        data = self._texts.data[places[0] : places[-1]]
        starts, lengths = places[:-1] - places[0], np.diff(places)
        left = np.flatnonzero(selected & ~self._texts.absent[begin:end])
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
        """Add the shape of this row's text, and return True, if it is valid and the limits allow it."""
        if len(self._shapes) == _MAX_SHAPES:
            return False
        if int(self._texts.offsets[row + 1]) - int(self._texts.offsets[row]) > _MAX_SHAPE_CHARS:
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
    """A form of hash texts that are equal except for the digits of their digests."""

    def __init__(self, text: str, digests: list[tuple[int, int]], names: frozenset[str], declared: Words) -> None:
        letters = np.frombuffer(text.encode("ascii"), np.uint8)
        self.length = letters.size
        is_digit = np.zeros(letters.size, bool)
        for begin, end in digests:
            is_digit[begin:end] = True
        self._digits, self._fixed = np.flatnonzero(is_digit), np.flatnonzero(~is_digit)
        self._letters = letters[self._fixed]
        # By index of the word; the last entry is for rows that declare no hashes.
        self.covers = np.array([not word or names.issuperset(word.split(",")) for word in declared.words] + [True])

    def fits(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> Bools:
        """Return which of the texts that begin at `starts`, of this length, have this shape."""
        if not starts.size:
            return np.zeros(0, bool)
        found = gather(data, starts, self.length)
        same: Bools = (found[:, self._fixed] == self._letters).all(axis=1)
        return same & _IS_DIGIT[found[:, self._digits]].all(axis=1)


@dataclass(frozen=True)
class Screened:
    """The result of the pre-check."""

    suspects: Ids
    """Rows to be parsed, ascending; they include all rows with a duplicate file name."""
    kinds: Ids
    """The first row of each combination of common properties; they are suspects too."""


def screen(columns: Columns, size: int, done: Callable[[], None], *, checks_names: bool = True) -> Screened:
    """Find the suspect rows of a table.

    The columns are named as by `emit_table`, and have at least one row. `done` is called from time to time, when the
    memory of columns that were checked can be released. Without `checks_names`, only the numbers are looked at.
    """
    odd = np.zeros(size, bool)
    kinds = _first_of_each_kind(columns, size)
    odd[kinds] = True
    parts = [part for part in _FILES if checks_names and f"{part}_name" in columns.texts]
    names = {part: columns.texts[f"{part}_name"] for part in parts}
    hashes = {part: HashTexts(columns.texts[f"{part}_hashes"], columns.words["hash_names"]) for part in names}
    rising = {part: _AscendingNames() for part in names}
    for begin in range(0, size, _BLOCK):
        end = min(begin + _BLOCK, size)
        odd[begin:end] |= _odd_numbers(columns, slice(begin, end))
        for part, block in _blocks(names, begin, end):
            odd[begin:end] |= block.odd_names() | block.outside(columns, begin, end)
            odd[begin:end] |= block.present & ~hashes[part].are_valid(begin, end, block.present)
            rising[part].add(block)
        if end // _BLOCK % _BLOCKS_KEPT == 0:
            done()
    lengths = [each.length for each in rising.values() if each.length]
    if not all(each.holds for each in rising.values()) or len(set(lengths)) < len(lengths):
        _add_duplicates(odd, names, done)
    return Screened(np.flatnonzero(odd), kinds)


def _blocks(names: dict[str, Texts], begin: int, end: int) -> Iterator[tuple[str, "_Block"]]:
    """Yield the names in rows [begin, end) for each kind of file that occurs there."""
    for part, texts in names.items():
        present = ~texts.absent[begin:end]
        if present.any():
            yield part, _Block(texts, begin, end, present)


def _odd_numbers(columns: Columns, at: slice) -> Bools:
    """Return the rows with a number out of range, or with a file too many or too few."""
    texts, numbers = columns.texts, columns.numbers
    samples, absent = numbers["samples"].values[at], numbers["samples"].absent[at]
    odd = texts["raw_name"].absent[at] | numbers["schema"].absent[at] | absent | (samples < 0)
    odd |= _outside(numbers["size_limit"], at, MAX_FILE_BYTES) & ~numbers["size_limit"].absent[at]
    is_plain = columns.words["compression"].places[at] < 0
    for part, zipped in _ZIPPED.items():
        if f"{part}_name" in texts:
            missing, unpacked = texts[f"{part}_name"].absent[at], texts[f"{zipped}_name"].absent[at]
            odd |= ~missing & (unpacked != is_plain)
            odd |= ~missing & _outside(numbers[f"{part}_bytes"], at, MAX_FILE_BYTES)
            odd |= ~unpacked & _outside(numbers[f"{zipped}_bytes"], at, MAX_STORED_BYTES)
    table_bytes = numbers["raw_bytes"].values[at]
    if "meta_name" in texts:  # in text shards the meta file contains the offsets
        odd |= _odd_texts(columns, at)
        table_bytes = np.where(texts["meta_name"].absent[at], table_bytes, numbers["meta_bytes"].values[at])
    # Four bytes in the table of offsets for every sample, as in ShardInfo.check; what would overflow is odd already.
    return odd | (samples > np.maximum(0, (np.clip(table_bytes, 0, MAX_STORED_BYTES) - 8) // 4))


def _outside(numbers: Numbers, at: slice, highest: int) -> Bools:
    values = numbers.values[at]
    return numbers.absent[at] | (values < 0) | (values > highest)


def _odd_texts(columns: Columns, at: slice) -> Bools:
    """Return the rows whose format contradicts their files or line ends."""
    kinds, newlines, separators = (columns.words[name] for name in ("format", "newline", "separator"))
    formats, ends = kinds.places[at], newlines.places[at]
    is_mds = np.array([word == "mds" for word in kinds.words] + [False])[formats]
    least = np.array([len((word or "").encode("utf-8")) for word in newlines.words] + [0])[ends]
    odd: Bools = (is_mds != columns.texts["meta_name"].absent[at]) | (formats < 0)
    odd |= is_mds & ((ends >= 0) | (separators.places[at] >= 0))
    odd |= columns.numbers["samples"].values[at] * least > columns.numbers["raw_bytes"].values[at]
    return odd


def _first_of_each_kind(columns: Columns, size: int) -> Ids:
    """Return the first row of each combination of common properties."""
    keys, count = np.zeros(size, np.int64), 1
    for name in _COMMON:
        if name in columns.words:
            values = columns.words[name].places.astype(np.int64)
        elif name in columns.numbers:
            values = np.where(columns.numbers[name].absent, -1, columns.numbers[name].values)
        else:
            continue
        low, high = int(values.min()), int(values.max())
        if low == high:
            continue
        if count * (high - low + 1) >= 1 << 62:  # not in normal tables: use ranks instead of the values
            _, keys = np.unique(keys, return_inverse=True)
            _, values = np.unique(values, return_inverse=True)
            low, high, count = 0, size, size
        keys = keys * (high - low + 1) + (values - low)
        count *= high - low + 1
    if count > _MAX_COMBINATIONS:
        return np.sort(np.unique(keys, return_index=True)[1])
    places = np.full(count, -1, np.int64)
    places[keys[::-1]] = np.arange(size - 1, -1, -1)  # of rows with the same key, the one assigned last stays
    return np.sort(places[places >= 0])


class _Block:
    """The names of one kind of file in consecutive rows."""

    def __init__(self, names: Texts, begin: int, end: int, present: Bools) -> None:
        places = names.offsets[begin : end + 1].astype(np.int64)
        self.present = present
        """True for rows that have such a file."""
        self._data = names.data[places[0] : places[-1]]
        self._starts = places[:-1] - places[0]
        self._lengths = np.diff(places)

    def odd_names(self) -> Bools:
        """Return which of them may be unsafe: see `check_basename`."""
        bad = np.flatnonzero(~_are_safe(self._data))
        # Also finds sequences across two names; such names begin or end with `/` or `.`, and are odd anyway.
        bad = np.concatenate([bad, _odd_slashes(self._data)])
        odd = self.present & ((self._lengths < 1) | (self._lengths > MAX_NAME_CHARS))
        if bad.size:
            odd[np.searchsorted(self._starts, bad, side="right") - 1] = True
        rows = np.flatnonzero(self.present & (self._lengths > 0))
        for ends in (self._starts[rows], self._starts[rows] + self._lengths[rows] - 1):
            letters = self._data[ends]
            odd[rows] |= (letters == ord("/")) | (letters == ord("."))
        return odd & self.present

    def outside(self, columns: Columns, begin: int, end: int) -> Bools:
        """Return which of them are not below the folder of their split."""
        partitions = columns.words["partition"]
        places = partitions.places[begin:end]
        odd = np.zeros(end - begin, bool)
        split = places[self.present & (places >= 0)]
        for place in np.unique(split).tolist() if split.size else ():  # the call alone imports masked arrays
            rows = np.flatnonzero(self.present & (places == place))
            folder = np.frombuffer(f"{partitions.words[place]}/".encode(), np.uint8)
            long_enough = self._lengths[rows] >= folder.size
            odd[rows[~long_enough]] = True
            rows = rows[long_enough]
            if rows.size:
                tops = self._data[self._starts[rows][:, None] + np.arange(folder.size)]
                odd[rows] |= (tops != folder).any(axis=1)
        return odd

    def equal_length_names(self) -> NDArray[np.bytes_]:
        """Return the names if all have the same length, else an empty array."""
        lengths = self._lengths[self.present]
        length = int(lengths[0])
        if not 1 <= length <= MAX_NAME_CHARS or (lengths != length).any():
            return np.zeros(0, "S1")
        return gather(self._data, self._starts[self.present], length).view(f"S{length}")[:, 0]

    def hashes(self) -> NDArray[np.uint64]:
        """Return a hash of each name."""
        found = np.zeros(self._lengths.size, np.uint64)
        for length in np.unique(self._lengths[self.present]).tolist():
            if length > MAX_NAME_CHARS:
                continue  # odd anyway
            rows = np.flatnonzero(self.present & (self._lengths == length))
            found[rows] = _hash_names(gather(self._data, self._starts[rows], length))
        return found


class _AscendingNames:
    """A test whether all names of a kind have one length and are strictly ascending, so that there is no duplicate.

    This holds for names of Smalti's writers, and takes a tenth of the time of a search for duplicates.
    """

    def __init__(self) -> None:
        self.holds, self.length = True, 0
        self._last = b""

    def add(self, block: _Block) -> None:
        """Test the next rows."""
        names = block.equal_length_names() if self.holds else np.zeros(0, "S1")
        self.length = self.length or names.itemsize
        self.holds = bool(names.size) and names.itemsize == self.length and bool(names[0] > self._last)
        if self.holds:
            self.holds = bool((names[1:] > names[:-1]).all())
            self._last = names[-1]


def _are_safe(letters: NDArray[np.uint8]) -> Bools:
    """Return which characters `check_basename` allows; by ranges, ten times as fast as a lookup table."""
    found: Bools = (letters | 32) - ord("a") < 26  # of either case; smaller codes wrap around
    found |= letters - ord("-") <= ord("9") - ord("-")
    found |= (letters == ord("_")) | (letters == ord("="))
    return found


def _odd_slashes(letters: NDArray[np.uint8]) -> Ids:
    """Return the positions of `//`, `/./` and `/../`."""
    slashes = np.flatnonzero(letters == ord("/"))
    found, left = [], slashes
    for after in (1, 2, 3):  # characters after a slash; all characters between are dots
        left = left[left < letters.size - after]
        following = letters[left + after]
        found.append(left[following == ord("/")])
        left = left[following == ord(".")]
    return np.concatenate(found)


def _hash_names(letters: NDArray[np.uint8]) -> NDArray[np.uint64]:
    count, length = letters.shape
    padded = np.zeros((count, -(-length // 8) * 8), np.uint8)
    padded[:, :length] = letters
    found = np.full(count, length, np.uint64)
    for word in padded.view(np.uint64).T:
        found ^= word
        for factor, shift in _MIX_STEPS:
            found *= np.uint64(factor)
            found ^= found >> np.uint64(shift)
    return found


def _add_duplicates(odd: Bools, names: dict[str, Texts], done: Callable[[], None]) -> None:
    """Mark as odd all rows with a name whose hash occurs twice, in any column."""
    hashes = {part: np.zeros(odd.size, np.uint64) for part in names}
    for number, begin in enumerate(range(0, odd.size, _BLOCK), start=1):
        end = min(begin + _BLOCK, odd.size)
        for part, block in _blocks(names, begin, end):
            hashes[part][begin:end] = block.hashes()
        if number % _BLOCKS_KEPT == 0:
            done()
    found = np.concatenate([hashes[part][~texts.absent] for part, texts in names.items()])
    found.sort()
    duplicates = found[1:][found[1:] == found[:-1]]
    if duplicates.size:
        for part, texts in names.items():
            odd |= np.isin(hashes[part], duplicates) & ~texts.absent
