"""Curves of a training run as pictures; see `smalti_dagster.reports.pictures` on the UI's limits.

A run has pictures of its own, because Dagster's charts would draw the epochs of all runs as one line over time. The
large one shows the runs before it in grey.
"""

import math
from collections.abc import Mapping, Sequence

from smalti.inspection.distributions import COLOURS, escape
from smalti_dagster.reports.pictures import INLINE_LIMIT, markdown_picture
from smalti_dagster.reports.tables import DIVERGED

Curves = Mapping[str, Sequence[float]]
"""Values by epoch, by name."""

MAX_POINTS = 120
"""Points of a curve that are drawn and kept."""

_SMALL = 96  # pixels from one small panel to the next: three fit a window of 1280 pixels
_MARGIN = 44  # pixels left of a panel, for the range written at its axis
_MAX_DOTTED = 40  # points that have a dot each
_GREYS = ("#777", "#999", "#b4b4b4", "#c8c8c8", "#d8d8d8")


def figure(value: float, digits: int = 3) -> str:
    """Return a value as a text; of a training that has diverged, there is no number."""
    return f"{value:.{digits}g}" if math.isfinite(value) else DIVERGED


def thinned(values: Sequence[float], count: int = MAX_POINTS) -> list[float]:
    """Return at most `count` of the values, evenly spread, with the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def curve_teaser(series: Curves) -> str:
    """Return the curves side by side, each in its own range with its last value, so small that the UI shows them."""
    for points in range(40, 1, -2):
        panels = [_small_panel(i, name, thinned(values, points)) for i, (name, values) in enumerate(series.items())]
        text = markdown_picture(
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{len(panels) * _SMALL}' height='62' "
            f"font-family='sans-serif' font-size='10' fill='none'>{''.join(panels)}</svg>",
            "curves",
        )
        if len(text) < INLINE_LIMIT:
            return text
    return ", ".join(f"{name} {figure(values[-1])}" for name, values in series.items())


def curve_picture(series: Curves, earlier: Mapping[str, Curves] | None = None) -> str:
    """Return the curves below each other, large, with axes; for the dialog.

    Args:
        series: Of this run.
        earlier: Of a few runs before it, newest first, by the text that the legend has for each; drawn in grey.
    """
    width, height, others = 640, 200, dict(list((earlier or {}).items())[: len(_GREYS)])
    panels = [_large_panel(i, name, series, others, (width, height)) for i, name in enumerate(series)]
    legend = "".join(
        f"<path d='M{_MARGIN} {len(panels) * height + 16 * at + 8}h24' stroke='{_GREYS[at]}' stroke-width='2'/>"
        f"<text x='{_MARGIN + 32}' y='{len(panels) * height + 16 * at + 12}' fill='#444'>{escape(label)}</text>"
        for at, label in enumerate(others)
    )
    total = len(panels) * height + 16 * len(others) + 8
    return markdown_picture(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{total}' font-family='sans-serif' "
        f"font-size='12'><rect width='100%' height='100%' fill='white'/>{''.join(panels)}{legend}</svg>",
        "curves",
    )


def _small_panel(place: int, name: str, values: Sequence[float]) -> str:
    colour = COLOURS[place % len(COLOURS)]
    points = _points(values, (place * _SMALL + 2, 20), (_SMALL - 10, 38), _range([values]))
    label = f"<text x='{place * _SMALL + 2}' y='12' fill='{colour}'>{escape(name)} {figure(values[-1])}</text>"
    return f"{label}<polyline points='{points}' stroke='{colour}'/>"


def _large_panel(place: int, name: str, series: Curves, earlier: Mapping[str, Curves], size: tuple[int, int]) -> str:
    colour, top, (width, height) = COLOURS[place % len(COLOURS)], place * size[1], size
    values, others = thinned(series[name]), [thinned(each.get(name, ())) for each in earlier.values()]
    epochs = max(len(series[name]), *map(len, others)) if others else len(series[name])
    low, high = limits = _range([values, *others])
    left, right, upper, lower = _MARGIN, width - 12, top + 28, top + height - 30
    area = (right - left, lower - upper)
    behind = "".join(
        f"<polyline points='{_points(each, (left, upper), _part(area, each, epochs), limits)}' "
        f"stroke='{_GREYS[at]}' fill='none'/>"
        for at, each in enumerate(others)
        if each
    )
    points = _points(values, (left, upper), _part(area, series[name], epochs), limits)
    dots = "".join("<circle cx='{}' cy='{}' r='2.5' fill='{}'/>".format(*p.split(","), colour) for p in points.split())
    return (
        f"<text x='{left}' y='{top + 18}' font-weight='bold'>{escape(name)}: {figure(series[name][-1], 4)}</text>"
        f"<path d='M{left} {upper}V{lower}H{right}' stroke='#999' fill='none'/>"
        f"<text x='{left - 4}' y='{upper + 5}' text-anchor='end' fill='#666'>{high:.3g}</text>"
        f"<text x='{left - 4}' y='{lower}' text-anchor='end' fill='#666'>{low:.3g}</text>"
        f"<text x='{left}' y='{lower + 16}' fill='#666'>1</text>"
        f"<text x='{right}' y='{lower + 16}' text-anchor='end' fill='#666'>epoch {epochs}</text>{behind}"
        f"<polyline points='{points}' stroke='{colour}' stroke-width='2' fill='none'/>"
        f"{dots if len(values) <= _MAX_DOTTED else ''}"
    )


def _part(area: tuple[int, int], values: Sequence[float], epochs: int) -> tuple[int, int]:
    """Return the part of an area that a run of fewer epochs takes; how many a thinned one had is not known."""
    if len(values) == MAX_POINTS or epochs < 2:
        return area
    return round(area[0] * (len(values) - 1) / (epochs - 1)), area[1]


def _points(
    values: Sequence[float], corner: tuple[int, int], size: tuple[int, int], limits: tuple[float, float]
) -> str:
    low, high = limits
    steps = max(len(values) - 1, 1)
    return " ".join(
        f"{corner[0] + size[0] * i / steps:.0f},{corner[1] + size[1] * (high - value) / (high - low):.0f}"
        for i, value in enumerate(values)
        if math.isfinite(value)  # a diverged loss leaves a gap
    )


def _range(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    finite = [value for values in curves for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
