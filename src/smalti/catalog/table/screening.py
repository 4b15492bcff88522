"""Finding the rows of a shard table that are not plainly in order, by column; the others are believed unmade.

A row that is found is only suspected: it is then checked alone, by the code that makes it a shard, and refused by that.
So what is believed is decided in one place, and what stands here may suspect too many, but never too few.

Checksums in a shard table: JSON texts that are alike but for their digits, compared by column.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smalti.catalog.table.columns import Bools, Columns, Numbers, Texts, Words, gathered
from smalti.format.hashing import HASH_NAMES, hex_length
from smalti.format.info import MAX_STORED_BYTES
from smalti.format.names import MAX_NAME_CHARS
from smalti.format.sizes import MAX_FILE_BYTES

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


Ids = NDArray[np.int64]

_BLOCK = 1 << 14
"""Rows that are looked at together: some megabytes."""
_BLOCKS_KEPT = 8
_ZIPPED = {"raw": "zip", "meta": "zip_meta"}
_FILES = ("raw", "zip", "meta", "zip_meta")
_ALIKE = ("schema", "format", "newline", "separator", "partition", "compression", "hash_names", "size_limit")
_MANY = 1 << 20
"""Combinations for which a table with a place for each is kept."""
_STEPS = ((0x9E3779B97F4A7C15, 29), (0xBF58476D1CE4E5B9, 32))
"""Odd factors and shifts of splitmix64: they mix the bits of a word into all of it."""


@dataclass(frozen=True)
class Screened:
    """What was found."""

    suspects: Ids
    """Rows to be checked alone, ascending; among them all that have a file's name in common."""
    kinds: Ids
    """One row, the first, of each combination of what rows have in common; among the suspects."""


def screen(columns: Columns, size: int, done: Callable[[], None]) -> Screened:
    """The rows that are not plainly in order.

    Args:
        columns: Of the table, by the names that `emit_table` gives them.
        size: How many rows there are, from 1.
        done: Called now and then when memory of columns that was looked at can be given back.
    """
    odd = np.zeros(size, bool)
    kinds = _firsts(columns, size)
    odd[kinds] = True
    names = {part: columns.texts[f"{part}_name"] for part in _FILES if f"{part}_name" in columns.texts}
    hashes = {part: HashTexts(columns.texts[f"{part}_hashes"], columns.words["hash_names"]) for part in names}
    rising = {part: _Rising() for part in names}
    for begin in range(0, size, _BLOCK):
        end = min(begin + _BLOCK, size)
        odd[begin:end] |= _odd_numbers(columns, slice(begin, end))
        for part, block in _blocks(names, begin, end):
            odd[begin:end] |= block.odd_names() | block.outside(columns, begin, end)
            odd[begin:end] |= block.present & ~hashes[part].in_order(begin, end, block.present)
            rising[part].add(block)
        if end // _BLOCK % _BLOCKS_KEPT == 0:
            done()
    lengths = [each.length for each in rising.values() if each.length]
    if not all(each.holds for each in rising.values()) or len(set(lengths)) < len(lengths):
        _add_doubles(odd, names, done)
    return Screened(np.flatnonzero(odd), kinds)


def _blocks(names: dict[str, Texts], begin: int, end: int) -> Iterator[tuple[str, "_Block"]]:
    """The names in rows [begin, end), by the kind of file; of those kinds of which there is one."""
    for part, texts in names.items():
        present = ~texts.absent[begin:end]
        if present.any():
            yield part, _Block(texts, begin, end, present)


def _odd_numbers(columns: Columns, at: slice) -> Bools:
    """Rows with a number out of its range, or with one file too many or too few."""
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
    if "meta_name" in texts:  # of text shards the meta file says where samples begin
        odd |= _odd_texts(columns, at)
        table_bytes = np.where(texts["meta_name"].absent[at], table_bytes, numbers["meta_bytes"].values[at])
    # Four bytes in the table of offsets for every sample, as in ShardInfo.check; what would overflow is odd already.
    return odd | (samples > np.maximum(0, (np.clip(table_bytes, 0, MAX_STORED_BYTES) - 8) // 4))


def _outside(numbers: Numbers, at: slice, most: int) -> Bools:
    values = numbers.values[at]
    return numbers.absent[at] | (values < 0) | (values > most)


def _odd_texts(columns: Columns, at: slice) -> Bools:
    """Rows whose format and files or line ends do not fit."""
    kinds, newlines, separators = (columns.words[name] for name in ("format", "newline", "separator"))
    formats, ends = kinds.places[at], newlines.places[at]
    is_mds = np.array([word == "mds" for word in kinds.words] + [False])[formats]
    least = np.array([len((word or "").encode("utf-8")) for word in newlines.words] + [0])[ends]
    odd: Bools = (is_mds != columns.texts["meta_name"].absent[at]) | (formats < 0)
    odd |= is_mds & ((ends >= 0) | (separators.places[at] >= 0))
    odd |= columns.numbers["samples"].values[at] * least > columns.numbers["raw_bytes"].values[at]
    return odd


def _firsts(columns: Columns, size: int) -> Ids:
    """The first row of each combination of what rows have in common."""
    keys, count = np.zeros(size, np.int64), 1
    for name in _ALIKE:
        if name in columns.words:
            values = columns.words[name].places.astype(np.int64)
        elif name in columns.numbers:
            values = np.where(columns.numbers[name].absent, -1, columns.numbers[name].values)
        else:
            continue
        low, high = int(values.min()), int(values.max())
        if low == high:
            continue
        if count * (high - low + 1) >= 1 << 62:  # no honest table: numbers instead of the values
            _, keys = np.unique(keys, return_inverse=True)
            _, values = np.unique(values, return_inverse=True)
            low, high, count = 0, size, size
        keys = keys * (high - low + 1) + (values - low)
        count *= high - low + 1
    if count > _MANY:
        return np.sort(np.unique(keys, return_index=True)[1])
    places = np.full(count, -1, np.int64)
    places[keys[::-1]] = np.arange(size - 1, -1, -1)  # of rows with the same key the last that is put there stays
    return np.sort(places[places >= 0])


class _Block:
    """Names of files in some rows that follow one another."""

    def __init__(self, names: Texts, begin: int, end: int, present: Bools) -> None:
        places = names.offsets[begin : end + 1].astype(np.int64)
        self.present = present
        """Which rows have one."""
        self._data = names.data[places[0] : places[-1]]
        self._starts = places[:-1] - places[0]
        self._lengths = np.diff(places)

    def odd_names(self) -> Bools:
        """Which of them may be unsafe: see `check_basename`."""
        bad = np.flatnonzero(~_are_safe(self._data))
        # Across two rows as well: a name that ends or begins with `/` or `.` is odd by itself.
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
        """Which of them do not lie below the folder of their split."""
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

    def of_one_length(self) -> NDArray[np.bytes_]:
        """The names, if all have the same length; else nothing."""
        lengths = self._lengths[self.present]
        length = int(lengths[0])
        if not 1 <= length <= MAX_NAME_CHARS or (lengths != length).any():
            return np.zeros(0, "S1")
        return gathered(self._data, self._starts[self.present], length).view(f"S{length}")[:, 0]

    def marks(self) -> NDArray[np.uint64]:
        """A number for each name; the same one for the same names."""
        marks = np.zeros(self._lengths.size, np.uint64)
        for length in np.unique(self._lengths[self.present]).tolist():
            if length > MAX_NAME_CHARS:
                continue  # odd by itself
            rows = np.flatnonzero(self.present & (self._lengths == length))
            marks[rows] = _mixed(gathered(self._data, self._starts[rows], length))
        return marks


class _Rising:
    """Whether all names of a kind have one length, and each comes after the one before it: then none is there twice.

    A writer's own names are so, and finding it out takes a tenth of the time that a search for doubles takes.
    """

    def __init__(self) -> None:
        self.holds, self.length = True, 0
        self._last = b""

    def add(self, block: _Block) -> None:
        """The next rows."""
        names = block.of_one_length() if self.holds else np.zeros(0, "S1")
        self.length = self.length or names.itemsize
        self.holds = bool(names.size) and names.itemsize == self.length and bool(names[0] > self._last)
        if self.holds:
            self.holds = bool((names[1:] > names[:-1]).all())
            self._last = names[-1]


def _are_safe(letters: NDArray[np.uint8]) -> Bools:
    """Which are such as `check_basename` allows; by ranges: a look into a table takes ten times as long."""
    found: Bools = (letters | 32) - ord("a") < 26  # of either case; what is below wraps around
    found |= letters - ord("-") <= ord("9") - ord("-")
    found |= (letters == ord("_")) | (letters == ord("="))
    return found


def _odd_slashes(letters: NDArray[np.uint8]) -> Ids:
    """Where `//`, `/./` and `/../` begin."""
    slashes = np.flatnonzero(letters == ord("/"))
    found, left = [], slashes
    for after in (1, 2, 3):  # so many letters behind a slash; all between are dots
        left = left[left < letters.size - after]
        following = letters[left + after]
        found.append(left[following == ord("/")])
        left = left[following == ord(".")]
    return np.concatenate(found)


def _mixed(letters: NDArray[np.uint8]) -> NDArray[np.uint64]:
    count, length = letters.shape
    padded = np.zeros((count, -(-length // 8) * 8), np.uint8)
    padded[:, :length] = letters
    found = np.full(count, length, np.uint64)
    for word in padded.view(np.uint64).T:
        found ^= word
        for factor, shift in _STEPS:
            found *= np.uint64(factor)
            found ^= found >> np.uint64(shift)
    return found


def _add_doubles(odd: Bools, names: dict[str, Texts], done: Callable[[], None]) -> None:
    """Suspect all rows with a name whose number another name has as well, in whichever column."""
    marks = {part: np.zeros(odd.size, np.uint64) for part in names}
    for number, begin in enumerate(range(0, odd.size, _BLOCK), start=1):
        end = min(begin + _BLOCK, odd.size)
        for part, block in _blocks(names, begin, end):
            marks[part][begin:end] = block.marks()
        if number % _BLOCKS_KEPT == 0:
            done()
    found = np.concatenate([marks[part][~texts.absent] for part, texts in names.items()])
    found.sort()
    double = found[1:][found[1:] == found[:-1]]
    if double.size:
        for part, texts in names.items():
            odd |= np.isin(marks[part], double) & ~texts.absent
