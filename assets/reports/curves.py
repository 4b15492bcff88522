"""Curves of a training run as SVG pictures in Markdown for Dagster's UI; see `assets.reports.gallery` on its limits."""

import base64
import math
from collections.abc import Mapping, Sequence

from assets.reports.gallery import INLINE_LIMIT

_COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce")
_SMALL = 112  # pixels from one small panel to the next: three fit a narrow window
_MARGIN = 44  # pixels left of a panel, for the range written at its axis


def curve_teaser(series: Mapping[str, Sequence[float]]) -> str:
    """The curves side by side, each in its own range with its last value, so small that the UI shows them in place."""
    for points in range(40, 1, -2):
        panels = [_small_panel(i, name, _thin(values, points)) for i, (name, values) in enumerate(series.items())]
        text = _markdown(
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{len(panels) * _SMALL}' height='62' "
            f"font-family='sans-serif' font-size='10' fill='none'>{''.join(panels)}</svg>"
        )
        if len(text) < INLINE_LIMIT:
            return text
    return ", ".join(f"{name} {values[-1]:.3g}" for name, values in series.items())


def curve_picture(series: Mapping[str, Sequence[float]]) -> str:
    """The curves below each other, large, with axes and every point, for the dialog."""
    width, height = 640, 200
    panels = [_large_panel(i, name, values, width, height) for i, (name, values) in enumerate(series.items())]
    return _markdown(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{len(panels) * height}' "
        f"font-family='sans-serif' font-size='12'><rect width='100%' height='100%' fill='white'/>"
        f"{''.join(panels)}</svg>"
    )


def _small_panel(place: int, name: str, values: Sequence[float]) -> str:
    colour = _COLOURS[place % len(_COLOURS)]
    points = _points(values, (place * _SMALL + 2, 20), (_SMALL - 10, 38))
    label = f"<text x='{place * _SMALL + 2}' y='12' fill='{colour}'>{_escape(name)} {values[-1]:.3g}</text>"
    return f"{label}<polyline points='{points}' stroke='{colour}'/>"


def _large_panel(place: int, name: str, values: Sequence[float], width: int, height: int) -> str:
    colour, top = _COLOURS[place % len(_COLOURS)], place * height
    low, high = _range(values)
    left, right, upper, lower = _MARGIN, width - 12, top + 28, top + height - 30
    points = _points(values, (left, upper), (right - left, lower - upper))
    dots = "".join("<circle cx='{}' cy='{}' r='2.5' fill='{}'/>".format(*p.split(","), colour) for p in points.split())
    return (
        f"<text x='{left}' y='{top + 18}' font-weight='bold'>{_escape(name)}: {values[-1]:.4g}</text>"
        f"<path d='M{left} {upper}V{lower}H{right}' stroke='#999' fill='none'/>"
        f"<text x='{left - 4}' y='{upper + 5}' text-anchor='end' fill='#666'>{high:.3g}</text>"
        f"<text x='{left - 4}' y='{lower}' text-anchor='end' fill='#666'>{low:.3g}</text>"
        f"<text x='{left}' y='{lower + 16}' fill='#666'>1</text>"
        f"<text x='{right}' y='{lower + 16}' text-anchor='end' fill='#666'>epoch {len(values)}</text>"
        f"<polyline points='{points}' stroke='{colour}' stroke-width='2' fill='none'/>{dots}"
    )


def _points(values: Sequence[float], corner: tuple[int, int], size: tuple[int, int]) -> str:
    low, high = _range(values)
    steps = max(len(values) - 1, 1)
    return " ".join(
        f"{corner[0] + size[0] * i / steps:.0f},{corner[1] + size[1] * (high - value) / (high - low):.0f}"
        for i, value in enumerate(values)
        if math.isfinite(value)  # a diverged loss leaves a gap
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _thin(values: Sequence[float], count: int) -> list[float]:
    """At most `count` of the values, evenly spread, with the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&apos;")


def _markdown(svg: str) -> str:
    return f"![curves](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"
