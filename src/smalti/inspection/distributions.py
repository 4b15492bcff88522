"""Distributions of values that are too many to keep: ranges and means, quantiles from a sample, distinct values.

Memory is bounded whatever is added: quantiles and histograms are exact up to `MAX_KEPT` values and from a uniform
sample of that size beyond; numbers of distinct values are exact up to `MAX_KEPT_HASHES` and estimates beyond.

Also here: SVG pictures of histograms and of classes, made from plain values; every picture is bounded, whatever the
values are.

The same pictures stand in `preview` pages, where the page sets colours and background, and in the asset reports of
Dagster, on white.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.splitmix import stepped

Numbers = npt.NDArray[Any]
Hashes = npt.NDArray[np.uint64]

MAX_KEPT = 50_000
"""Values from which quantiles are computed."""
MAX_KEPT_HASHES = 1 << 14
"""Hashes of distinct values that are kept; an estimate from as many is wrong by about 1 %."""
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_BINS = 24


@dataclass(frozen=True)
class Histogram:
    """Numbers of values in bins of equal width."""

    low: float
    """The smallest value."""
    high: float
    """The largest value."""
    median: float
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: npt.ArrayLike, *, bins: int = _BINS) -> "Histogram | None":
        """Return the histogram of the finite values; None if there are none."""
        numbers = np.asarray(values, dtype=np.float64)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return None
        low, high = float(numbers.min()), float(numbers.max())
        if not math.isfinite(high - low):
            return cls(low, high, float(np.median(numbers)), (len(numbers),))
        is_narrow = high - low <= abs(high) * 1e-12  # numpy cannot divide it
        counts = [len(numbers)] if is_narrow else np.histogram(numbers, bins, (low, high))[0].tolist()
        return cls(low, high, float(np.median(numbers)), tuple(counts))


@dataclass(frozen=True)
class Distribution:
    """Range, mean, quantiles and histogram of numbers; of dates and times, as texts."""

    count: int
    """Numbers that are finite."""
    not_finite: int
    """NaN and infinities, which nothing else here counts."""
    min: Any
    """None if there is no number."""
    max: Any
    mean: Any
    std: float | None
    """Standard deviation of the population; None for dates and times."""
    quantiles: dict[str, Any]
    """By share: "0.5" is the median. Values that occur."""
    sampled: int
    """Number of values that quantiles and histogram are computed from: all of them, or a random sample."""
    histogram: Histogram | None

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON."""
        return asdict(self)


class DistributionOf:
    """Accumulates a `Distribution` of numbers, or of numpy's dates and times."""

    def __init__(self, *, keep: int = MAX_KEPT, seed: int = 0) -> None:
        self._keep = keep
        self._random = np.random.default_rng(seed)
        self._kept: Numbers | None = None
        self._keys = np.empty(0, np.float64)
        self._count = self._not_finite = 0
        self._mean = self._squares = 0.0
        self._low: Any = None
        self._high: Any = None
        self._unit: np.dtype[Any] | None = None

    def add(self, values: Numbers) -> None:
        """Add numbers, one-dimensional; booleans count as 0 and 1."""
        if values.dtype.kind in "mM":
            self._unit = values.dtype
            values = values[~np.isnat(values)].view(np.int64)
        if values.dtype.kind == "f":
            is_finite = np.isfinite(values)
            self._not_finite += len(values) - int(np.count_nonzero(is_finite))
            values = values[is_finite]
            values = values.astype(np.float64) if values.dtype.itemsize < 8 else values
        elif values.dtype.kind == "b":
            values = values.astype(np.uint8)
        if not len(values):
            return
        low, high = values.min().item(), values.max().item()
        self._low = low if self._low is None else min(self._low, low)
        self._high = high if self._high is None else max(self._high, high)
        # Mean and squared deviations are merged by Chan's formula, which does not cancel.
        own, floats = len(values), values.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # of values near the largest float
            mean = float(floats.mean())
            squares = float(np.square(floats - mean).sum())
            delta, total = mean - self._mean, self._count + own
            self._mean += delta * own / total
            self._squares += squares + delta * delta * self._count * own / total
        self._count = total
        # The values with the smallest of random keys are kept: a uniform sample of all that were added.
        keys = self._random.random(len(values))
        if self._kept is not None:
            keys, values = np.concatenate([self._keys, keys]), np.concatenate([self._kept, values])
        if len(keys) > self._keep:
            chosen = np.argpartition(keys, self._keep - 1)[: self._keep]
            keys, values = keys[chosen], values[chosen]
        self._keys, self._kept = keys, values

    def result(self) -> Distribution:
        """Return the distribution of what was added."""
        kept = np.sort(self._kept) if self._kept is not None else np.empty(0)
        places = [round(share * (len(kept) - 1)) for share in QUANTILES] if len(kept) else []
        found = dict(zip(map(str, QUANTILES), (self._shown(kept[place].item()) for place in places), strict=False))
        is_number, count = self._unit is None, self._count
        mean = self._mean if is_number else round(self._mean)
        std = math.sqrt(self._squares / count) if count and is_number and math.isfinite(self._squares) else None
        return Distribution(
            count=count,
            not_finite=self._not_finite,
            min=self._shown(self._low),
            max=self._shown(self._high),
            mean=self._shown(mean) if count else None,
            std=std,
            quantiles=found,
            sampled=len(kept),
            histogram=Histogram.of(kept) if is_number else None,
        )

    def _shown(self, value: Any) -> Any:
        if value is None or self._unit is None:
            return value if not isinstance(value, float) or math.isfinite(value) else None
        return str(np.array(value, np.int64).view(self._unit)[()])


class DistinctOf:
    """Accumulates the number of distinct values from 64-bit hashes of them, and how many are repeats.

    Kept are the hashes that begin with a number of zero bits, which grows as they become too many. Each stands for
    as many hashes as have other first bits.
    """

    def __init__(self, *, keep: int = MAX_KEPT_HASHES, examples: int = 0) -> None:
        self._keep, self._max_examples = keep, examples
        self._bits = 0
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._counts: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._firsts: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._pairs: dict[int, int] = {}

    def add(self, hashes: Hashes, rows: npt.NDArray[np.int64]) -> None:
        """Add the hashes of values, with the numbers of their rows, which rise from call to call."""
        own = self._chosen(hashes)
        merged = np.concatenate([self._hashes, hashes[own]])
        counts = np.concatenate([self._counts, np.ones(int(own.sum()), np.int64)])
        firsts = np.concatenate([self._firsts, rows[own]])
        unique, places, back = np.unique(merged, return_index=True, return_inverse=True)
        if len(self._pairs) < self._max_examples:  # note new rows whose hash an earlier row has
            first_of = places[back]
            repeats = np.flatnonzero(first_of != np.arange(len(firsts)))
            some = repeats[repeats >= len(self._hashes)][: self._max_examples - len(self._pairs)]
            self._pairs |= {int(firsts[place]): int(firsts[first_of[place]]) for place in some.tolist()}
        self._hashes, self._firsts = unique, firsts[places]
        self._counts = np.bincount(back, weights=counts, minlength=len(unique)).astype(np.int64)
        while len(self._hashes) > self._keep:
            self._bits += 1
            kept = self._chosen(self._hashes)
            self._hashes, self._counts, self._firsts = self._hashes[kept], self._counts[kept], self._firsts[kept]

    def _chosen(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        if not self._bits:
            return np.ones(len(hashes), np.bool_)
        return np.asarray((hashes >> np.uint64(64 - self._bits)) == 0)

    @property
    def is_exact(self) -> bool:
        """True if the numbers are counted and not estimated."""
        return self._bits == 0

    @property
    def distinct(self) -> int:
        """Number of distinct values."""
        return len(self._hashes) << self._bits

    @property
    def repeats(self) -> int:
        """Number of values that are equal to an earlier one."""
        return int(self._counts.sum() - len(self._hashes)) << self._bits

    @property
    def examples(self) -> tuple[tuple[int, int], ...]:
        """Some pairs of rows with equal values, the earlier row first."""
        return tuple((first, row) for row, first in self._pairs.items())


def hash_numbers(values: Numbers) -> Hashes:
    """Return a 64-bit hash of each number of a one-dimensional array; equal stored numbers have equal hashes."""
    width = values.dtype.itemsize
    return stepped(np.ascontiguousarray(values).view(f"u{width}").astype(np.uint64))


COLOURS = ("#1d4ed8", "#c2410c", "#15803d", "#7e22ce")
MAX_BARS = 60
"""Classes that have a bar with a name each; more are drawn as one curve."""
_PANEL, _PANEL_HEIGHT, _PANELS_IN_ROW = 250, 130, 3
_BAR_HEIGHT, _BAR_LEFT, _BAR_WIDTH = 16, 170, 420
_MAX_STEPS = 400  # of the curve over classes


def escape(text: str) -> str:
    """Return text as an SVG picture holds it; characters that XML does not have are left out."""
    shown = "".join(character for character in text if character.isprintable())
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&apos;")


def shortened(text: str, length: int) -> str:
    """Return at most so many characters of a text, the last of them an ellipsis if it was longer."""
    return text if len(text) <= length else f"{text[: max(1, length) - 1]}…"


def short_number(value: float) -> str:
    """Return a number with three or four digits, such as `0.125` or `36.2k`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(value) < 1e15:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.4g}"


def svg_picture(width: float, height: float, body: str, *, size: int = 11, background: str = "white") -> str:
    """Return a picture; without a background it takes the colours of the page, and shrinks with it."""
    fits = f" viewBox='0 0 {width:.0f} {height:.0f}'" if not background else ""
    behind = f"<rect width='100%' height='100%' fill='{background}'/>" if background else ""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}'{fits} "
        f"font-family='sans-serif' font-size='{size}'>{behind}{body}</svg>"
    )


def histogram_picture(found: Mapping[str, Histogram], *, background: str = "white") -> str:
    """Return histograms side by side, each in its own range, with the smallest, middle and largest value."""
    rows = -(-len(found) // _PANELS_IN_ROW)
    panels = ""
    for place, (name, histogram) in enumerate(found.items()):
        left, top = place % _PANELS_IN_ROW * _PANEL + 10, place // _PANELS_IN_ROW * _PANEL_HEIGHT
        width, base, tall = _PANEL - 20, top + _PANEL_HEIGHT - 26, _PANEL_HEIGHT - 52
        most, step = max(histogram.counts) or 1, width / len(histogram.counts)
        path = "".join(
            f"M{left + at * step:.1f} {base}v-{tall * count / most:.1f}h{max(step - 1, 1):.1f}V{base}z"
            for at, count in enumerate(histogram.counts)
            if count
        )
        panels += (
            f"<text x='{left}' y='{top + 16}' font-weight='bold'>{escape(shortened(name, 34))}</text>"
            f"<path d='{path}' fill='{COLOURS[0]}'/><path d='M{left} {base}h{width}' stroke='#999'/>"
            f"<text x='{left}' y='{base + 14}'>{short_number(histogram.low)}</text>"
            f"<text x='{left + width / 2}' y='{base + 14}' text-anchor='middle' fill='#666'>"
            f"median {short_number(histogram.median)}, most {short_number(most)}</text>"
            f"<text x='{left + width}' y='{base + 14}' text-anchor='end'>{short_number(histogram.high)}</text>"
        )
    columns = min(len(found), _PANELS_IN_ROW)
    return svg_picture(columns * _PANEL, rows * _PANEL_HEIGHT, panels, background=background)


def class_picture(counts: Mapping[str, Mapping[str, int]], *, of: str = "images", background: str = "white") -> str:
    """Return the numbers of rows by class, and by part of them such as a split, largest class first."""
    parts = sorted({part for each in counts.values() for part in each})
    ordered = sorted(counts, key=lambda name: -sum(counts[name].values()))
    legend = "".join(
        f"<rect x='{_BAR_LEFT + 110 * at}' y='6' width='10' height='10' fill='{COLOURS[at % len(COLOURS)]}'/>"
        f"<text x='{_BAR_LEFT + 110 * at + 15}' y='15'>{escape(shortened(part, 14))}</text>"
        for at, part in enumerate(parts[: len(COLOURS)] if len(parts) > 1 else [])
    )
    if len(ordered) > MAX_BARS:
        return _class_curve(ordered, counts, of, background)
    top = max((sum(each.values()) for each in counts.values()), default=1) or 1
    begin = 26 if legend else 6
    bars = ""
    for place, name in enumerate(ordered):
        x, y = float(_BAR_LEFT), begin + place * _BAR_HEIGHT
        bars += f"<text x='{x - 6:.0f}' y='{y + 11}' text-anchor='end'>{escape(shortened(name, 26))}</text>"
        for at, part in enumerate(parts):
            width = _BAR_WIDTH * counts[name].get(part, 0) / top
            bars += f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='12' fill='{COLOURS[at % len(COLOURS)]}'/>"
            x += width
        bars += f"<text x='{x + 4:.0f}' y='{y + 11}'>{sum(counts[name].values())}</text>"
    height = begin + _BAR_HEIGHT * len(ordered) + 6
    return svg_picture(_BAR_LEFT + _BAR_WIDTH + 60, height, legend + bars, background=background)


def _class_curve(ordered: Sequence[str], counts: Mapping[str, Mapping[str, int]], of: str, background: str) -> str:
    """Return one curve over all classes by size, with the names of the largest, the middle and the smallest."""
    sums = [sum(counts[name].values()) for name in ordered]
    width, base, tall, top = 640.0, 200.0, 160.0, max(sums) or 1
    steps = min(len(sums), _MAX_STEPS)
    heights = [tall * sums[at * len(sums) // steps] / top for at in range(steps)]
    path = "".join(f"V{base - height:.0f}h{width / steps:.2f}" for height in heights)
    marks = ((0, "start", 10.0), (len(sums) // 2, "middle", 10 + width / 2), (len(sums) - 1, "end", 10 + width))
    names = "".join(
        f"<text x='{x:.0f}' y='{base + 16:.0f}' text-anchor='{anchor}'>{escape(shortened(ordered[at], 26))}: "
        f"{sums[at]}</text>"
        for at, anchor, x in marks
    )
    title = f"<text x='10' y='16' font-weight='bold'>{len(sums)} classes, by number of {of}</text>"
    body = f"{title}<path d='M10 {base:.0f}{path}V{base:.0f}z' fill='{COLOURS[0]}'/>{names}"
    return svg_picture(width + 20, base + 26, body, background=background)
