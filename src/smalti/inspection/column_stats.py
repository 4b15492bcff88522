"""Statistics of the values of one column, accumulated batch by batch in bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from smalti.errors import BadImageError
from smalti.format.reading.files import Ragged
from smalti.images import decode_rgb
from smalti.inspection.distributions import DistinctOf, Distribution, DistributionOf, Hashes, hash_numbers
from smalti.inspection.values import IMAGE_LISTS, ImageSummary, is_image, summarize_image

MAX_CLASSES = 1000
"""Distinct values up to which each is counted."""
MAX_CLASS_CHARS = 200
"""Characters of a text that may be a class."""
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
        self._distinct = DistinctOf()
        self._classes: Counter[Any] | None = Counter()
        """Number of each value; None once there are too many, or one that is no class."""
        self._values, self._lengths = DistributionOf(), DistributionOf()
        self._decode = decode
        self._widths, self._heights = DistributionOf(), DistributionOf()
        self._formats: Counter[str] = Counter()
        self._undecodable, self._undecodable_rows = 0, list[int]()
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
            self._count_classes(values)
            return
        if lengths is not None:
            self._lengths.add(lengths[is_known])
        if self.kind == "image":
            self._add_images(values, rows, mapper)
        elif self.kind == "array":
            self._add_arrays(values)

    def _add_numbers(self, values: Any) -> None:
        if isinstance(values, np.ndarray):
            self._values.add(values)
            if values.dtype.kind in "iub":
                unique, counts = np.unique(values, return_counts=True)
                few = dict(zip(unique[:2000].tolist(), counts[:2000].tolist(), strict=True))
                self._count_classes(few)  # a mapping is added by its counts
            else:
                self._classes = None
            return
        exact = [each for each in values if isinstance(each, int) and not isinstance(each, bool)]
        numbers = np.array([_as_float(each) for each in values], np.float64)
        fits = len(exact) == len(values) and all(-(1 << 63) <= each < 1 << 63 for each in exact)
        self._values.add(np.array(exact, np.int64) if fits else numbers)
        self._count_classes(exact if len(exact) == len(values) else map(str, values))

    def _count_classes(self, values: Iterable[Any]) -> None:
        if self._classes is not None:
            self._classes.update(values)
            is_long = any(isinstance(value, str) and len(value) > MAX_CLASS_CHARS for value in self._classes)
            self._classes = None if is_long or len(self._classes) > MAX_CLASSES else self._classes

    def _add_images(self, values: list[bytes], rows: npt.NDArray[np.int64], mapper: Mapper) -> None:
        images = list(mapper(lambda data: check_image(data, self.encoding, decode=self._decode), values))
        good = [image for image in images if not image.fault]
        bad = [row for row, image in zip(rows.tolist(), images, strict=True) if image.fault]
        self._widths.add(np.array([image.width for image in good], np.int64))
        self._heights.add(np.array([image.height for image in good], np.int64))
        self._formats.update(image.format for image in good)
        self._undecodable += len(bad)
        self._undecodable_rows += bad[: MAX_EXAMPLES - len(self._undecodable_rows)]

    def _add_arrays(self, values: Any) -> None:
        for array in values:
            shape = f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
            if shape in self._shapes or len(self._shapes) < _MAX_SHAPES:
                self._shapes[shape] += 1
            if array.dtype.kind in "iufb":
                self._values.add(array.reshape(-1))

    def result(self) -> ColumnStats:
        """Return the statistics of what was added."""
        classes = None
        counted = self._classes if self.kind in ("number", "boolean", "text") else None
        if counted and (2 * len(counted) <= counted.total() or len(counted) == 1):  # not of ids, which hardly repeat
            ordered = sorted(counted.items(), key=lambda pair: (-pair[1], str(pair[0])))
            classes = {str(name).lower() if isinstance(name, bool) else str(name): count for name, count in ordered}
        images = None
        if self.kind == "image":
            images = ImageStats(
                widths=self._widths.result(),
                heights=self._heights.result(),
                formats=dict(self._formats.most_common()),
                undecodable=self._undecodable,
                undecodable_rows=tuple(self._undecodable_rows),
                is_decoded=self._decode,
            )
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
            classes=classes,
            images=images,
            shapes=dict(self._shapes.most_common()),
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


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (OverflowError, ValueError):
        return float("nan")


def column_texts(column: ColumnStats) -> tuple[str, str, str, str]:
    """Return how a column is stored, its distinct values, its range, and its mean (of images the median), as texts."""
    kind = f"{column.encoding}, {column.logical}" if column.logical else column.encoding
    distinct = f"{'' if column.is_distinct_exact else '~'}{column.distinct:,}"
    if column.images is not None:
        wide, high, bad = column.images.widths, column.images.heights, column.images.undecodable
        if not wide.count:
            return kind, distinct, f"{bad:,} undecodable", ""
        pixels = " to ".join(dict.fromkeys([f"{wide.min}x{high.min}", f"{wide.max}x{high.max}"]))
        formats = ", ".join(f"{name.lower()} {number:,}" for name, number in column.images.formats.items())
        middle = f"median {wide.quantiles['0.5']}x{high.quantiles['0.5']}"
        return kind, distinct, f"{pixels} pixels: {formats}{f'; {bad:,} undecodable' if bad else ''}", middle
    measured = column.values or column.lengths
    shapes = ", ".join(column.shapes) if len(column.shapes) <= 2 else f"{len(column.shapes)} shapes"
    if measured is None or not measured.count:
        return kind, distinct, shapes, ""
    unit = "" if column.values is not None else " characters" if column.kind == "text" else " bytes"
    ends = f"{_number(measured.min)}{unit}"
    if measured.min != measured.max:
        ends = f"{_number(measured.min)} to {_number(measured.max)}{unit}"
    return kind, distinct, f"{ends}; {shapes}" if shapes else ends, _number(measured.mean)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
