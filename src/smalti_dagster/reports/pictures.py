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

from smalti.inspection.distributions import Histogram, class_picture, escape, histogram_picture, shortened, svg_picture

INLINE_LIMIT = 1000
"""Characters of Markdown from which the UI hides it behind a link."""

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


def block_bars(counts: Sequence[int], *, width: int = 12) -> str:
    """Return a histogram as one line of block characters, for a cell of a table; empty bins are the lowest block."""
    joined = max(1, -(-len(counts) // width))
    sums = [sum(counts[at : at + joined]) for at in range(0, len(counts), joined)]
    top = max(sums, default=0) or 1
    return "".join(_BLOCKS[math.ceil((len(_BLOCKS) - 1) * each / top)] for each in sums)


def histograms(found: Mapping[str, Histogram]) -> str:
    """Return histograms side by side, each in its own range, with the smallest, middle and largest value."""
    return markdown_picture(histogram_picture(found), "histograms")


def class_bars(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return the numbers of images by class, and by part of it such as a split, largest class first."""
    return markdown_picture(class_picture(counts), "images by class")


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
    return svg_picture(left + size + 60, top + size + 10, axes + "".join(cells) + frame)


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
    return svg_picture(side + 20, side + 50, body)


def _rgb(share: float) -> tuple[int, int, int]:
    return (round(255 - 226 * share), round(255 - 177 * share), round(255 - 39 * share))


def _shade(share: float) -> str:
    return "#{:02x}{:02x}{:02x}".format(*_rgb(share))
