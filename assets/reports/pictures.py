"""SVG pictures in Markdown for Dagster's UI, made from plain values: histograms, bars and heat maps.

The UI shows Markdown in place only while it is shorter than 1000 characters, and behind a "Show Markdown" link
otherwise, and it removes HTML. So a picture that matters at a glance comes twice: small, and large for the dialog.
Materialisations are kept in the event log: every picture here is bounded, whatever the data set holds.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from smalti.spark.profile import Histogram

INLINE_LIMIT = 1000
"""Characters of Markdown from which the UI hides it behind a link."""

COLOURS = ("#1d4ed8", "#c2410c", "#15803d", "#7e22ce")
MAX_BARS = 60
"""Classes that have a bar with a name each; more are drawn as one curve."""

_PANEL, _PANEL_HEIGHT, _PANELS_IN_ROW = 250, 130, 3
_BAR_HEIGHT, _BAR_LEFT, _BAR_WIDTH = 16, 170, 420
_MAX_STEPS = 400  # of the curve over classes
_MAX_NAMED_CELLS = 20  # classes whose cells have numbers
_MAX_CELLS = 200  # squares of a side of a heat map
_URL_SAFE = "/:;,=+'!*@&~?"
_BLOCKS = "▁▂▃▄▅▆▇█"


def markdown_picture(svg: str, alt: str) -> str:
    """Return an SVG picture as Markdown, in the shorter of two encodings: pictures with pictures in them are long."""
    encodings = f";base64,{base64.b64encode(svg.encode()).decode()}", f",{quote(svg, safe=_URL_SAFE)}"
    return f"![{plain(alt)}](data:image/svg+xml{min(encodings, key=len)})"


def raster_picture(mime: str, data: bytes, alt: str) -> str:
    """Return an encoded picture as Markdown."""
    return f"![{plain(alt)}](data:{mime};base64,{base64.b64encode(data).decode()})"


def plain(text: str) -> str:
    """Return text without the characters that would end a Markdown label."""
    return "".join(character for character in text if character not in "[]()\n\\`*")


def escape(text: str) -> str:
    """Return text as an SVG picture holds it; characters that XML does not have are left out."""
    shown = "".join(character for character in text if character.isprintable())
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&apos;")


def shortened(text: str, length: int) -> str:
    """Return at most so many characters of a text."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def block_bars(counts: Sequence[int], *, width: int = 12) -> str:
    """Return a histogram as one line of block characters, for a cell of a table; empty bins are the lowest block."""
    joined = max(1, -(-len(counts) // width))
    sums = [sum(counts[at : at + joined]) for at in range(0, len(counts), joined)]
    top = max(sums, default=0) or 1
    return "".join(_BLOCKS[math.ceil((len(_BLOCKS) - 1) * each / top)] for each in sums)


def histograms(found: Mapping[str, Histogram]) -> str:
    """Return histograms side by side, each in its own range, with the smallest, middle and largest value."""
    rows = -(-len(found) // _PANELS_IN_ROW)
    panels = "".join(_histogram_panel(place, name, each) for place, (name, each) in enumerate(found.items()))
    columns = min(len(found), _PANELS_IN_ROW)
    return markdown_picture(_svg(columns * _PANEL, rows * _PANEL_HEIGHT, panels), "histograms")


def class_bars(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return the numbers of images by class, and by part of it such as a split, largest class first."""
    parts = sorted({part for each in counts.values() for part in each})
    ordered = sorted(counts, key=lambda name: -sum(counts[name].values()))
    legend = "".join(
        f"<rect x='{_BAR_LEFT + 110 * at}' y='6' width='10' height='10' fill='{COLOURS[at % len(COLOURS)]}'/>"
        f"<text x='{_BAR_LEFT + 110 * at + 15}' y='15'>{escape(shortened(part, 14))}</text>"
        for at, part in enumerate(parts[: len(COLOURS)])
    )
    if len(ordered) > MAX_BARS:
        return markdown_picture(_class_curve(ordered, counts), "images by class")
    top = max((sum(each.values()) for each in counts.values()), default=1) or 1
    bars = "".join(_class_bar(place, name, counts[name], parts, top) for place, name in enumerate(ordered))
    height = 26 + _BAR_HEIGHT * len(ordered) + 6
    return markdown_picture(_svg(_BAR_LEFT + _BAR_WIDTH + 60, height, legend + bars), "images by class")


def confusion_map(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """Return a confusion matrix as a heat map: a row for each true class, a column for each predicted one.

    The darker a square, the larger its share of the images of its true class. Squares of a map of very many classes
    stand for several neighbouring classes each, and show the largest share among them.
    """
    counts = np.asarray(confusion, np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    if len(classes) <= _MAX_NAMED_CELLS:
        return markdown_picture(_named_cells(counts, shares, classes), "confusion matrix")
    joined = -(-len(classes) // _MAX_CELLS)
    return markdown_picture(_raster_cells(shares, joined, classes), "confusion matrix")


def _svg(width: float, height: float, body: str, *, size: int = 11) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' font-family='sans-serif' "
        f"font-size='{size}'><rect width='100%' height='100%' fill='white'/>{body}</svg>"
    )


def _histogram_panel(place: int, name: str, found: Histogram) -> str:
    left, top = place % _PANELS_IN_ROW * _PANEL + 10, place // _PANELS_IN_ROW * _PANEL_HEIGHT
    width, base, tall = _PANEL - 20, top + _PANEL_HEIGHT - 26, _PANEL_HEIGHT - 52
    most, step = max(found.counts) or 1, width / len(found.counts)
    path = "".join(
        f"M{left + at * step:.1f} {base}v-{tall * count / most:.1f}h{max(step - 1, 1):.1f}V{base}z"
        for at, count in enumerate(found.counts)
        if count
    )
    return (
        f"<text x='{left}' y='{top + 16}' font-weight='bold'>{escape(shortened(name, 34))}</text>"
        f"<path d='{path}' fill='{COLOURS[0]}'/><path d='M{left} {base}h{width}' stroke='#999'/>"
        f"<text x='{left}' y='{base + 14}'>{found.low:.4g}</text>"
        f"<text x='{left + width / 2}' y='{base + 14}' text-anchor='middle' fill='#666'>"
        f"median {found.median:.4g}, most {most}</text>"
        f"<text x='{left + width}' y='{base + 14}' text-anchor='end'>{found.high:.4g}</text>"
    )


def _class_bar(place: int, name: str, counts: Mapping[str, int], parts: Sequence[str], top: int) -> str:
    y, x = 26 + place * _BAR_HEIGHT, float(_BAR_LEFT)
    bars = f"<text x='{x - 6:.0f}' y='{y + 11}' text-anchor='end'>{escape(shortened(name, 26))}</text>"
    for at, part in enumerate(parts):
        width = _BAR_WIDTH * counts.get(part, 0) / top
        bars += f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='12' fill='{COLOURS[at % len(COLOURS)]}'/>"
        x += width
    return f"{bars}<text x='{x + 4:.0f}' y='{y + 11}'>{sum(counts.values())}</text>"


def _class_curve(ordered: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> str:
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
    title = f"<text x='10' y='16' font-weight='bold'>{len(sums)} classes, by number of images</text>"
    return _svg(
        width + 20, base + 26, f"{title}<path d='M10 {base:.0f}{path}V{base:.0f}z' fill='{COLOURS[0]}'/>{names}"
    )


def _named_cells(counts: npt.NDArray[np.float64], shares: npt.NDArray[np.float64], classes: Sequence[str]) -> str:
    side, left, top = 36, 120, 110
    cells: list[str] = []
    for row, name in enumerate(classes):
        y, label = top + row * side, escape(shortened(name, 16))
        cells.append(f"<text x='{left - 6}' y='{y + 22}' text-anchor='end'>{label}</text>")
        x = left + row * side + 20
        cells.append(f"<text x='{x}' y='{top - 6}' transform='rotate(-45 {x} {top - 6})'>{label}</text>")
        for column, share in enumerate(shares[row]):
            x = left + column * side
            if counts[row, column]:
                ink = "white" if share > 0.5 else "black"
                cells.append(
                    f"<rect x='{x}' y='{y}' width='{side}' height='{side}' fill='{_shade(share)}'/>"
                    f"<text x='{x + side / 2:.0f}' y='{y + 22}' text-anchor='middle' fill='{ink}'>"
                    f"{counts[row, column]:.0f}</text>"
                )
    size = side * len(classes)
    frame = f"<rect x='{left}' y='{top}' width='{size}' height='{size}' fill='none' stroke='#999'/>"
    axes = "<text x='6' y='16' font-weight='bold'>rows: true class, columns: predicted</text>"
    return _svg(left + size + 60, top + size + 10, axes + "".join(cells) + frame)


def _raster_cells(shares: npt.NDArray[np.float64], joined: int, classes: Sequence[str]) -> str:
    from PIL import Image

    cells = -(-len(shares) // joined)
    padded = np.zeros((cells * joined, cells * joined))
    padded[: len(shares), : len(shares)] = shares
    blocks = padded.reshape(cells, joined, cells, joined).max(axis=(1, 3))
    levels = np.ceil(blocks * 15).astype(np.uint8)  # few levels, and so few bytes
    image = Image.frombytes("P", (cells, cells), levels.tobytes())
    image.putpalette([channel for level in range(16) for channel in _rgb(level / 15)])
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True, bits=4)
    data, side = base64.b64encode(out.getvalue()).decode(), 600
    each = f", a square stands for {joined} x {joined} classes" if joined > 1 else ""
    body = (
        f"<text x='10' y='16' font-weight='bold'>rows: true class, columns: predicted</text><text x='10' y='32'>"
        f"{len(classes)} classes, {escape(shortened(classes[0], 24))} to {escape(shortened(classes[-1], 24))}{each}"
        f"</text><image x='10' y='40' width='{side}' height='{side}' style='image-rendering:pixelated' "
        f"href='data:image/png;base64,{data}'/><rect x='10' y='40' width='{side}' height='{side}' fill='none' "
        "stroke='#999'/>"
    )
    return _svg(side + 20, side + 50, body)


def _rgb(share: float) -> tuple[int, int, int]:
    return (round(255 - 226 * share), round(255 - 177 * share), round(255 - 39 * share))


def _shade(share: float) -> str:
    return "#{:02x}{:02x}{:02x}".format(*_rgb(share))
