"""Draws docs/images/fleet.svg from the results of a sweep, in colours that are readable on light and on dark paper."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "fleet.svg"
Run = dict[str, Any]
Point = tuple[float, float]
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP_X, _GAP_Y = 330, 190, 62, 44, 92, 92
_INK, _GRID = "#7d8590", "#7d859040"
_COLOURS = ("#2f81f7", "#2da44e", "#d97706", "#a371f7", "#e5534b", "#8c959f")


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    label: str
    colour: str
    points: Sequence[Point]
    dashed: bool = False
    label_at: float | None = None
    """Where on the x axis the line itself is labelled; None for the panel's legend."""


@dataclass(frozen=True)
class Panel:
    """One diagram."""

    title: str
    x_title: str
    lines: Sequence[Line]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    is_log_x: bool = True
    is_log_y: bool = True
    unit: str = ""
    legend: Point = (8, 12)
    """Place of the legend, from the upper left corner."""


def draw_page(results: Path) -> None:
    """Draw the picture of a sweep's results."""
    PICTURE.write_text(drawn(panels_of(json.loads(results.read_text()))))


def panels_of(runs: list[Run]) -> list[Panel]:
    """Return the diagrams of a sweep."""
    all_hosts, hosts = (1, 4, 16, 64, 256, 1024), (8, 16, 32, 64, 128, 256, 512, 1024)
    photos = [run for run in runs if run["part"] == "hosts" and run["data"]["name"] == "photos, 10^9"]
    in_photos = "hosts; 10^9 photos, 41 TB"
    return [
        Panel("Fetched by all hosts in the first epoch, to the set", in_photos,
              _by_label(photos, lambda run: run["epochs"][0]["amplification"]), hosts, (1, 2, 4, 8, 16), unit=" x"),
        Panel("Fetched per host in a later epoch, cache of 2 TB", in_photos,
              _by_label(photos, lambda run: run["epochs"][-1]["bytes_per_host"] / 1e12), hosts,
              (0, 2.5, 5, 7.5, 10), is_log_y=False, unit=" TB", legend=(110, 12)),
        Panel("First batch of a run, planning included", "hosts",
              _first_batches([run for run in runs if run["part"] == "hosts"]), all_hosts,
              (1, 10, 100, 1000, 10_000), unit=" s"),
        Panel("Share of the first epoch in which training waits", in_photos,
              _by_label(photos, lambda run: 100 * run["epochs"][0]["stall_share"]), hosts, (0, 25, 50, 75, 100),
              is_log_y=False, unit=" %"),
        Panel("Fetched in a later epoch, to the host's share", "cache of each of 16 hosts, GB; 10^8 photos",
              _caches([run for run in runs if run["part"] == "caches"]), (0, 50, 100, 150, 200, 250),
              (0, 25, 50, 75, 100), is_log_x=False, is_log_y=False, unit=" %", legend=(8, 104)),
        Panel("Price of requests and bytes, ten epochs", "hosts; 10^9 photos, 0.02 $ a GB, caches of 2 TB",
              _by_label(photos, lambda run: run["epochs"][0]["price"] + 9 * run["epochs"][-1]["price"]), hosts,
              (500, 5_000, 50_000, 500_000), unit=" $"),
    ]  # fmt: skip


def drawn(panels: Sequence[Panel]) -> str:
    """Return the panels as SVG, two in a row."""
    rows = -(-len(panels) // 2)
    width = 2 * (_WIDTH + _GAP_X) + 8
    height = rows * (_HEIGHT + _GAP_Y) + 8
    body = []
    for number, panel in enumerate(panels):
        x, y = _LEFT + number % 2 * (_WIDTH + _GAP_X), _TOP + number // 2 * (_HEIGHT + _GAP_Y)
        body.append(f'<g transform="translate({x},{y})">{_panel(panel)}</g>')
    style = f"text{{fill:{_INK};font:11px system-ui,sans-serif}}.t{{font-weight:600;font-size:12px}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<style>{style}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _by_label(runs: list[Run], value: Callable[[Run], float]) -> list[Line]:
    """Return a line for each order; where the fitted one is the default, it follows that."""
    default = {run["fleet"]["hosts"]: value(run) for run in runs if run["label"] == "default"}
    fitted = default | {run["fleet"]["hosts"]: value(run) for run in runs if run["label"] == "fitted"}
    mosaic, affine = (
        {run["fleet"]["hosts"]: value(run) for run in runs if run["label"].startswith(label)}
        for label in ("MosaicML", "affinity")
    )
    return [
        Line("Smalti, nodes fitted, affinity 0.75", _COLOURS[3], sorted(affine.items())),
        Line("Smalti, default: 64 canonical nodes", _COLOURS[0], sorted(default.items())),
        Line("Smalti, nodes fitted to the hosts", _COLOURS[1], sorted(fitted.items()), dashed=True),
        Line("MosaicML's order", _COLOURS[2], sorted(mosaic.items()), dashed=True),
    ]


def _first_batches(runs: list[Run]) -> list[Line]:
    lines: list[Line] = []
    for name in dict.fromkeys(run["data"]["name"] for run in runs):
        here = [run for run in runs if run["data"]["name"] == name]
        _, _, fitted, mosaic = _by_label(here, lambda run: run["epochs"][0]["first_batch_s"])
        is_first = not lines
        lines.append(Line("Smalti, all three" if is_first else "", _COLOURS[1], fitted.points, label_at=64))
        lines.append(
            Line(f"MosaicML, {name}", _COLOURS[2], mosaic.points, dashed=True, label_at=180 if lines[1:] else 40)
        )
    return lines


def _caches(runs: list[Run]) -> list[Line]:
    lines = []
    for place, label in enumerate(dict.fromkeys(run["label"] for run in runs)):
        points = [
            (run["fleet"]["cache_bytes"] / 1e9, 100 * run["epochs"][-1]["bytes_per_host"] / run["share_bytes"])
            for run in runs
            if run["label"] == label and run["in_use_bytes"] < run["fleet"]["cache_bytes"]
        ]
        is_mosaic = label == "MosaicML"
        colours = (_COLOURS[0], _COLOURS[1], _COLOURS[3], _COLOURS[4], _COLOURS[5])
        lines.append(Line(label, _COLOURS[2] if is_mosaic else colours[place], sorted(points), dashed=is_mosaic))
    return lines


def _panel(panel: Panel) -> str:
    x, y = _scale(panel.x_ticks, _WIDTH, is_log=panel.is_log_x), _scale(panel.y_ticks, -_HEIGHT, is_log=panel.is_log_y)
    parts = [f'<text class="t" x="0" y="-14">{panel.title}</text>']
    for tick in panel.y_ticks:
        at = _HEIGHT + y(tick)
        parts.append(f'<path d="M0 {at:.1f}H{_WIDTH}" stroke="{_GRID}"/>')
        parts.append(f'<text x="-6" y="{at + 4:.1f}" text-anchor="end">{tick:,g}{panel.unit}</text>')
    parts += [
        f'<text x="{x(tick):.1f}" y="{_HEIGHT + 15}" text-anchor="middle">{tick:,g}</text>' for tick in panel.x_ticks
    ]
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT + 31}" text-anchor="middle">{panel.x_title}</text>')
    for number, line in enumerate(panel.lines):
        if not line.points:
            continue
        path = " ".join(f"{x(a):.1f},{_HEIGHT + y(b):.1f}" for a, b in line.points)
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>')
        if line.label_at is not None:
            value = min(line.points, key=lambda point: abs(point[0] - (line.label_at or 0.0)))[1]
            place = f'x="{x(line.label_at):.1f}" y="{_HEIGHT + y(value) - 7:.1f}"'
            parts.append(f'<text {place} text-anchor="middle">{line.label}</text>')
            continue
        left, at = panel.legend[0], panel.legend[1] + 14 * number
        parts.append(f'<path d="M{left} {at - 4}h18" stroke="{line.colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{left + 23}" y="{at}">{line.label}</text>')
    return "".join(parts)


def _scale(ticks: Sequence[float], length: float, *, is_log: bool) -> Callable[[float], float]:
    """Return the function from a value to its place; values outside of the ticks are drawn at the edge."""

    def at(value: float) -> float:
        low, high = min(ticks), max(ticks)
        value = min(max(value, low), high)
        if is_log:
            return length * math.log(value / low) / math.log(high / low)
        return length * (value - low) / (high - low)

    return at
