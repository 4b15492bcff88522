"""Statistics of the values of one column, accumulated batch by batch in bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from smalti.errors import BadImageError
from smalti.format.reading.files import Ragged
from smalti.images import decode_rgb
from smalti.inspection.distributions import (
    ClassesOf,
    DistinctOf,
    Distribution,
    DistributionOf,
    Hashes,
    hash_numbers,
)
from smalti.inspection.values import IMAGE_LISTS, ImageSummary, is_image, summarize_image

MAX_EXAMPLES = 5
"""Rows that are named as examples."""
_MAX_SHAPES = 100
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or that of a pool of threads."""


@dataclass(frozen=True)
class ImageStats:
    """Sizes and formats of the images of a column."""

    widths: Distribution
    heights: Distribution
    formats: dict[str, int]
    """Number of images by format."""
    undecodable: int
    """Images that are damaged, or are no image."""
    undecodable_rows: tuple[int, ...]
    """Numbers of some of their rows."""
    is_decoded: bool
    """True if the pixels were decoded; False if the headers alone were read."""


@dataclass(frozen=True)
class ColumnStats:
    """Statistics of one column."""

    name: str
    encoding: str
    kind: str
    """number, boolean, time, text, bytes, image, images, array, json or pickle."""
    logical: str
    """Logical type; empty if the stored values are the values."""
    count: int
    """Rows that were looked at, with those that have no value."""
    nulls: int
    distinct: int
    """Number of distinct values as stored, without nulls."""
    is_distinct_exact: bool
    """False if `distinct` and `repeats` are estimates."""
    repeats: int
    """Values that are equal to one of an earlier row."""
    values: Distribution | None
    """That of numbers, dates and times, or of the elements of arrays of numbers."""
    lengths: Distribution | None
    """Characters of texts, bytes of other values of varying length; None for values of fixed size."""
    classes: dict[str, int] | None
    """Rows by value, the most frequent first, for texts, booleans and whole numbers: at most 1,000 values, each of
    which occurs twice on average; else None."""
    images: ImageStats | None
    shapes: dict[str, int]
    """Number of arrays by element type and shape."""

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON."""
        return asdict(self)


class ColumnStatsOf:
    """Accumulates the statistics of one column."""

    def __init__(self, name: str, encoding: str, logical: Any, *, decode: bool) -> None:
        self.name, self.encoding = name, encoding
        family = logical.get("type", "") if isinstance(logical, dict) else ""
        self.logical = "" if family == "plain" else str(family)
        self.kind = ""
        self.count = self.nulls = 0
        self._distinct, self._classes = DistinctOf(), ClassesOf()
        self._values, self._lengths = DistributionOf(), DistributionOf()
        self._images = _ImagesOf(decode=decode)
        self._shapes: Counter[str] = Counter()

    def add(self, stored: Any, values: Any, rows: npt.NDArray[np.int64], mapper: Mapper) -> None:
        """Add the values of some rows.

        Args:
            stored: The values as stored: an array of numbers or a `Ragged`, from `Shard.gather`; a list of texts for
                text shards.
            values: The same, decoded, with their logical types.
            rows: Number of each row.
            mapper: Runs the decoding of images.
        """
        is_known = ~null_mask(values)
        self.count += len(rows)
        self.nulls += int(np.count_nonzero(~is_known))
        hashes, lengths = _hashes_and_lengths(stored)
        rows = rows[is_known]
        self._distinct.add(hashes[is_known], rows)
        if isinstance(values, np.ndarray):
            values = np.asarray(values)[is_known]
        else:
            values = [value for value, known in zip(values, is_known.tolist(), strict=True) if known]
        self.kind = self.kind or _kind_of(values, self.encoding)
        if self.kind in ("number", "boolean", "time"):
            self._add_numbers(values)
            return
        if self.kind == "text":
            self._lengths.add(np.fromiter(map(len, values), np.int64, len(values)))
            self._classes.add(values)
            return
        if lengths is not None:
            self._lengths.add(lengths[is_known])
        if self.kind == "image":
            self._images.add(values, rows, self.encoding, mapper)
        elif self.kind == "array":
            self._add_arrays(values)

    def _add_numbers(self, values: Any) -> None:
        if isinstance(values, np.ndarray):
            self._values.add(values)
            if values.dtype.kind in "iub":
                unique, counts = np.unique(values, return_counts=True)
                few = dict(zip(unique[:2000].tolist(), counts[:2000].tolist(), strict=True))
                self._classes.add(few)  # a mapping is added by its counts
            else:
                self._classes.stop()
            return
        exact = [each for each in values if isinstance(each, int) and not isinstance(each, bool)]
        numbers = np.array([_as_float(each) for each in values], np.float64)
        fits = len(exact) == len(values) and all(-(1 << 63) <= each < 1 << 63 for each in exact)
        self._values.add(np.array(exact, np.int64) if fits else numbers)
        self._classes.add(exact if len(exact) == len(values) else map(str, values))

    def _add_arrays(self, values: Any) -> None:
        for array in values:
            shape = f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
            if shape in self._shapes or len(self._shapes) < _MAX_SHAPES:
                self._shapes[shape] += 1
            if array.dtype.kind in "iufb":
                self._values.add(array.reshape(-1))

    def result(self) -> ColumnStats:
        """Return the statistics of what was added."""
        classes = self._classes.result() if self.kind in ("number", "boolean", "text") else None
        if classes is not None and 2 * len(classes) > sum(classes.values()) and len(classes) > 1:
            classes = None  # values that hardly repeat, such as ids
        values, lengths = self._values.result(), self._lengths.result()
        return ColumnStats(
            name=self.name,
            encoding=self.encoding,
            kind=self.kind or _kind_of_encoding(self.encoding),
            logical=self.logical,
            count=self.count,
            nulls=self.nulls,
            distinct=self._distinct.distinct,
            is_distinct_exact=self._distinct.is_exact,
            repeats=self._distinct.repeats,
            values=values if values.count or values.not_finite else None,
            lengths=lengths if lengths.count else None,
            classes=None if classes is None else {_class_name(name): count for name, count in classes.items()},
            images=self._images.result() if self.kind == "image" else None,
            shapes=dict(self._shapes.most_common()),
        )


@dataclass
class _ImagesOf:
    """Accumulates `ImageStats`."""

    decode: bool
    widths: DistributionOf = field(default_factory=DistributionOf)
    heights: DistributionOf = field(default_factory=DistributionOf)
    formats: Counter[str] = field(default_factory=Counter)
    undecodable: int = 0
    examples: list[int] = field(default_factory=list)

    def add(self, values: list[bytes], rows: npt.NDArray[np.int64], encoding: str, mapper: Mapper) -> None:
        found = list(mapper(lambda data: check_image(data, encoding, decode=self.decode), values))
        good = [each for each in found if not each.fault]
        bad = [row for row, each in zip(rows.tolist(), found, strict=True) if each.fault]
        self.widths.add(np.array([each.width for each in good], np.int64))
        self.heights.add(np.array([each.height for each in good], np.int64))
        self.formats.update(each.format for each in good)
        self.undecodable += len(bad)
        self.examples += bad[: MAX_EXAMPLES - len(self.examples)]

    def result(self) -> ImageStats:
        return ImageStats(
            self.widths.result(),
            self.heights.result(),
            dict(self.formats.most_common()),
            self.undecodable,
            tuple(self.examples),
            self.decode,
        )


def check_image(data: bytes, encoding: str, *, decode: bool) -> ImageSummary:
    """Return the facts of an image, with a fault if it does not decode; JPEG files are decoded at an eighth."""
    found = summarize_image(data, encoding)
    if found.fault or not decode or encoding == "pil":
        return found
    try:
        decode_rgb(data, min_size=1)
    except BadImageError as error:
        return ImageSummary(found.format, found.width, found.height, len(data), error.message)
    return found


def null_mask(values: Any) -> npt.NDArray[np.bool_]:
    """Return which values of a column of a batch are null."""
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        return np.asarray(mask.reshape(len(mask), -1).all(axis=1) if mask.ndim > 1 and mask[0].size else mask)
    if isinstance(values, np.ndarray):
        return np.zeros(len(values), np.bool_)
    return np.fromiter((value is None for value in values), np.bool_, len(values))


def hash_pieces(data: memoryview, ends: npt.NDArray[np.int64]) -> Hashes:
    """Return a hash of each piece of a buffer; `ends` has the begin of the first, and the end of each."""
    found = (xxh3_64_intdigest(data[begin:end]) for begin, end in pairwise(ends.tolist()))
    return np.fromiter(found, np.uint64, len(ends) - 1)


def _hashes_and_lengths(stored: Any) -> tuple[Hashes, npt.NDArray[np.int64] | None]:
    """Return a hash of each stored value, and its bytes if they vary."""
    if isinstance(stored, Ragged):
        return hash_pieces(memoryview(stored.data), stored.offsets), np.diff(stored.offsets)
    if isinstance(stored, np.ndarray):
        if stored.ndim == 1 and stored.dtype.itemsize <= 8:
            return hash_numbers(stored), None
        flat = np.ascontiguousarray(stored).view(np.uint8).reshape(-1)
        ends = np.linspace(0, len(flat), len(stored) + 1).astype(np.int64)
        return hash_pieces(memoryview(flat), ends), None
    found = (xxh3_64_intdigest(str(each).encode("utf-8", "surrogatepass")) for each in stored)
    return np.fromiter(found, np.uint64, len(stored)), None


def _kind_of(values: Any, encoding: str) -> str:
    """Return the kind of a column by its first values that are not null; empty if there are none."""
    if not len(values):
        return ""
    if isinstance(values, np.ndarray):
        if values.ndim > 1:
            return "array"
        return {"b": "boolean", "m": "time", "M": "time"}.get(values.dtype.kind, "number")
    if encoding in ("pkl", "jpeg", "png", "pil", *IMAGE_LISTS):
        return _kind_of_encoding(encoding)
    first = values[0]
    if isinstance(first, bytes):
        return "image" if 2 * sum(is_image(each, encoding) for each in values) > len(values) else "bytes"
    if isinstance(first, np.ndarray):
        return "array"
    if isinstance(first, str):
        return "text"
    is_number = isinstance(first, int | float | Decimal) and encoding != "json"
    return "number" if is_number else _kind_of_encoding(encoding)


def _kind_of_encoding(encoding: str) -> str:
    if encoding == "pkl":
        return "pickle"
    if encoding in IMAGE_LISTS:
        return "images"
    if encoding in ("jpeg", "png", "pil"):
        return "image"
    families = {"str": "text", "bytes": "bytes", "json": "json", "int": "number", "float": "number"}
    return families.get(encoding, "array" if encoding.startswith("ndarray") else "number")


def _class_name(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (OverflowError, ValueError):
        return float("nan")


def range_texts(column: ColumnStats) -> tuple[str, str]:
    """Return the range of a column, and its mean (of images the median), as texts."""
    if column.images is not None:
        return _image_range(column.images)
    measured = column.values or column.lengths
    shapes = ", ".join(column.shapes) if len(column.shapes) <= 2 else f"{len(column.shapes)} shapes"
    if measured is None or not measured.count:
        return shapes, ""
    unit = "" if column.values is not None else " characters" if column.kind == "text" else " bytes"
    ends = f"{_number(measured.min)}{unit}"
    if measured.min != measured.max:
        ends = f"{_number(measured.min)} to {_number(measured.max)}{unit}"
    return f"{ends}; {shapes}" if shapes else ends, _number(measured.mean)


def _image_range(images: ImageStats) -> tuple[str, str]:
    wide, high = images.widths, images.heights
    if not wide.count:
        return f"{images.undecodable:,} undecodable", ""
    ends = [f"{wide.min}x{high.min}", f"{wide.max}x{high.max}"]
    formats = ", ".join(f"{name.lower()} {number:,}" for name, number in images.formats.items())
    bad = f"; {images.undecodable:,} undecodable" if images.undecodable else ""
    middle = f"median {wide.quantiles['0.5']}x{high.quantiles['0.5']}"
    return f"{' to '.join(dict.fromkeys(ends))} pixels: {formats}{bad}", middle


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
