"""Draws docs/images/chart-*.svg, and makes the tables beside them, from the files in benchmarks/results.

    .venv/bin/python tools/site/charts.py

A figure is the median of the runs of one measurement. Nothing is typed by hand but what a row is called.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from drawings import GREY, IMAGES, LINE, TEAL, Drawing

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
NAMES = {
    "smalti": "Smalti",
    "smalti rows": "Smalti, rows",
    "smalti Arrow": "Smalti, Arrow tables",
    "smalti index.json": "Smalti, MosaicML's set",
    "smalti, MosaicML's set": "Smalti, MosaicML's set",
    "mosaicml": "MosaicML Streaming",
    "litdata": "LitData",
    "wds": "WebDataset",
    "hfds": "Hugging Face datasets",
    "grain": "Grain (ArrayRecord)",
    "parquet": "Spark's Parquet writer",
}
"""Names of the participants of the benchmarks on pages."""
_SAME = {"smalti manifest": "smalti"}
"""Labels of files that mean another participant."""
PACKAGES = {
    "mosaicml": "mosaicml-streaming",
    "litdata": "litdata",
    "wds": "webdataset",
    "hfds": "datasets",
    "grain": "grain",
    "parquet": "pyspark",
}
_WIDTH, _LEFT, _BAR = 960, 210, 560  # pixels: the image, the names, the longest bar
_STEP = 24  # pixels from one bar to the next


@dataclass(frozen=True)
class Row:
    """A measurement of all participants: its name in the file, its caption and the participant that is the floor."""

    name: str
    caption: str
    floor: str = ""


@dataclass(frozen=True)
class Chart:
    """Measurements of one file with a common unit."""

    title: str
    file: str
    figure: str
    unit: str
    rows: tuple[Row, ...]
    floor: str
    """The floor in words."""
    peers: tuple[str, ...]

    @property
    def more_is_better(self) -> bool:
        """Return whether the figure is a rate; otherwise it is a time."""
        return self.unit.endswith("/s")


_READERS = ("smalti", "mosaicml", "litdata", "hfds", "grain", "wds")
_WRITERS = ("smalti rows", "smalti Arrow", "mosaicml", "litdata", "hfds", "grain", "wds")
_TINY, _TOKENS, _JPEG = "Rows of 108 bytes", "2,048 tokens a row", "JPEG files of 14 KB"
CHARTS: Mapping[str, Chart] = {
    "reading": Chart(
        "A shuffled epoch from a local disk, without workers",
        "2026-11-21-all-rows.json",
        "samples_per_s",
        "samples/s",
        (Row("read-tiny", _TINY, "solb"), Row("read-tokens", _TOKENS, "solb"), Row("read-jpeg", _JPEG, "solb")),
        "torch's DataLoader over a memory map, one fetch for each batch, nothing checked",
        _READERS,
    ),
    "reading-workers": Chart(
        "A shuffled epoch from a local disk, two workers",
        "2026-11-21-all-rows.json",
        "samples_per_s",
        "samples/s",
        (
            Row("read-tokens-2w", _TOKENS, "solb"),
            Row("read-jpeg-2w", _JPEG, "solb"),
            Row("read-jpeg-decoded-2w", "JPEG files of 14 KB, decoded", "decode"),
        ),
        "torch's DataLoader over a memory map; of decoded images, the decoder alone on both cores",
        _READERS,
    ),
    "writing": Chart(
        "Writing a set to a local disk",
        "2026-11-21-all-rows.json",
        "mb_per_s",
        "MB/s",
        (Row("write-tiny", _TINY, "solb"), Row("write-jpeg", _JPEG, "solb"), Row("write-tokens", _TOKENS, "solb")),
        "a writer that joins values and writes them, without hashes and without waiting for the disk",
        _WRITERS,
    ),
    "opening": Chart(
        "From opening a set of 10^8 samples to the first batch, shuffled",
        "2026-11-22-order-and-resume.json",
        "seconds",
        "s",
        (Row("open-1e8", "At the start of an epoch"), Row("resume-1e8", "Resumed at 90 % of an epoch")),
        "",
        ("smalti", "smalti index.json", "mosaicml", "litdata", "wds", "hfds", "grain"),
    ),
    "link": Chart(
        "The first epoch of photos from an S3 store, over a link of 200 MB/s and 30 ms",
        "2026-11-24-blocks.json",
        "mb_per_s",
        "MB/s",
        (Row("link-cold-shuffled", "2 GB of photos, shuffled, two workers", "link"),),
        "sixteen plain connections that keep nothing",
        ("smalti", "smalti, MosaicML's set", "mosaicml", "litdata"),
    ),
    "first-batch": Chart(
        "From opening a set in an S3 store to the first shuffled batch, over a link of 200 MB/s and 30 ms",
        "2026-11-24-blocks.json",
        "seconds",
        "s",
        (
            Row("link-first-batch-shuffled", "64 photos of 41 KB, no workers"),
            Row("link-first-batch-shuffled-2w", "64 photos of 41 KB, two workers"),
        ),
        "",
        ("smalti", "smalti, MosaicML's set", "mosaicml", "litdata"),
    ),
    "spark": Chart(
        "From a Spark DataFrame to a set",
        "2026-11-22-spark.json",
        "mb_per_s",
        "MB/s",
        (Row("spark-rows", "Rows of numbers and text", "frame-arrow"), Row("spark-jpeg", _JPEG, "frame-arrow")),
        "a task that takes the rows from Spark and counts them",
        ("smalti", "mosaicml", "parquet"),
    ),
}


@lru_cache
def _results(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / file).read_text())
    return found


def figures(chart: Chart, row: str) -> dict[str, float]:
    """Return the median of the runs of each participant in a row of a chart."""
    runs: dict[str, list[float]] = {}
    for each in _results(chart.file)["measurements"]:
        if each["row"] == row and each["status"] == "ok":
            runs.setdefault(_SAME.get(each["label"], each["label"]), []).append(each["figures"][chart.figure])
    return {label: statistics.median(found) for label, found in runs.items()}


def measured(chart: Chart, row: Row) -> list[tuple[str, float]]:
    """Return the participants of a row that were measured, the best first."""
    found = figures(chart, row.name)
    pairs = [(peer, found[peer]) for peer in chart.peers if peer in found]
    return sorted(pairs, key=lambda pair: pair[1], reverse=chart.more_is_better)


def shown(value: float) -> str:
    """Return a figure with three digits that count."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def draw(chart: Chart) -> Drawing:
    """Return the chart: for each row a bar of each participant, and the floor as a line."""
    heights = [len(measured(chart, row)) * _STEP + 58 for row in chart.rows]
    d = Drawing(_WIDTH, 60 + sum(heights), f"{chart.title}, {chart.unit}")
    better = "more is better" if chart.more_is_better else "less is better"
    d.note(8, 24, chart.title, weight="600", size=16)
    d.note(8, 44, f"{chart.unit}, {better}" + (f"; dashed: {chart.floor}" if chart.floor else ""), size=12)
    top = 60.0
    for row, height in zip(chart.rows, heights, strict=True):
        _draw_row(d, chart, row, top)
        top += height
    return d


def _draw_row(d: Drawing, chart: Chart, row: Row, top: float) -> None:
    pairs = measured(chart, row)
    floor = figures(chart, row.name)[row.floor] if row.floor else 0.0
    scale = _BAR / max(floor, *(value for _, value in pairs))
    d.note(_LEFT, top + 22, row.caption, weight="600")
    for number, (peer, value) in enumerate(pairs):
        y = top + 32 + number * _STEP
        fill = TEAL if peer.startswith("smalti") else GREY
        length = max(value * scale, 1.0)
        d.note(_LEFT - 10, y + 14, NAMES[peer], anchor="end")
        d.parts.append(f'<rect x="{_LEFT}" y="{y:g}" width="{length:.1f}" height="18" rx="2" fill="{fill}"/>')
        d.note(_LEFT + length + 8, y + 14, shown(value), size=12)
    if row.floor:
        x, end = _LEFT + floor * scale, top + 32 + len(pairs) * _STEP
        d.parts.append(
            f'<line x1="{x:.1f}" y1="{top + 28:g}" x2="{x:.1f}" y2="{end:g}" stroke="{LINE}" stroke-width="2" '
            f'stroke-dasharray="5 4"/>'
        )
        d.note(x, top + 22, shown(floor), anchor="middle", size=12)


def table(chart: Chart) -> str:
    """Return a table of the same figures in Markdown, and how they were measured."""
    found = {row.name: figures(chart, row.name) for row in chart.rows}
    peers = [peer for peer in chart.peers if any(peer in each for each in found.values())]
    lines = [f"| {chart.unit} | " + " | ".join(row.caption for row in chart.rows) + " |"]
    lines.append("|---" * (len(chart.rows) + 1) + "|")
    lines += [_line(NAMES[peer], [found[row.name].get(peer) for row in chart.rows]) for peer in peers]
    if chart.floor:
        lines.append(_line("floor", [found[row.name].get(row.floor) for row in chart.rows]))
    return "\n".join([*lines, "", _origin(chart, peers)])


def _line(name: str, values: Iterable[float | None]) -> str:
    return f"| {name} | " + " | ".join("-" if value is None else shown(value) for value in values) + " |"


def _origin(chart: Chart, peers: Iterable[str]) -> str:
    results = _results(chart.file)
    machine, versions = results["machine"], results["machine"]["versions"]
    used = ", ".join(f"{name} {versions[name]}" for peer in peers if (name := PACKAGES.get(peer)))
    floor = f" Floor: {chart.floor}." if chart.floor else ""
    return (
        f"Median of the runs, all in one session: `{results['command']}` on {machine['cores']} cores "
        f"({machine['processor']}), {machine['memory_gib']:g} GiB, Python {machine['python']}; {used}.{floor} All "
        f"runs: [{chart.file}](../benchmarks/results/{chart.file})."
    )


def files() -> Iterable[tuple[Path, str]]:
    """Yield the path and content of every chart."""
    for name, chart in CHARTS.items():
        yield IMAGES / f"chart-{name}.svg", draw(chart).emit()


if __name__ == "__main__":
    for path, content in files():
        path.write_text(content)
        print(path)
