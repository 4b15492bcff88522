"""Draws docs/images/drawing-*.svg: one drawing for each concept of the documentation.

    .venv/bin/python tools/site/drawings.py

Colours are readable on a light and on a dark page, because an SVG file in a page does not know the page's colours.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
TEAL, BLUE, AMBER, GREY, RED = "#00796b", "#1565c0", "#9a5b00", "#5f6b76", "#b3261e"
LINE, TEXT = "#808a94", "#7a848e"
"""Grey with a contrast of 3.6 and more to white and to Material's dark background."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


@dataclass
class Drawing:
    """Elements of an SVG image of a fixed size in pixels."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, *lines: str, fill: str = TEAL, size: int = 14) -> None:
        """Add a filled box with centred lines of white text; the first line is bold if there are several."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}"/>')
        step = size * 1.35
        top = y + h / 2 - (len(lines) - 1) * step / 2 + size * 0.35
        for number, line in enumerate(lines):
            weight = "600" if number == 0 and len(lines) > 1 else "400"
            self._text(x + w / 2, top + number * step, line, fill="#ffffff", size=size, weight=weight)

    def frame(self, x: float, y: float, w: float, h: float, label: str) -> None:
        """Add a dashed frame with a label at its upper left."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="none" '
            f'stroke="{LINE}" stroke-dasharray="5 4"/>'
        )
        self._text(x + 10, y + 18, label, anchor="start", size=13)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, label: str = "", *, dashed: bool = False) -> None:
        """Add an arrow, with a label above its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="2"{dash} '
            f'marker-end="url(#end)"/>'
        )
        if label:
            self._text((x1 + x2) / 2, (y1 + y2) / 2 - 7, label, size=12)

    def note(self, x: float, y: float, *lines: str, anchor: str = "start", size: int = 13, weight: str = "400") -> None:
        """Add lines of grey text; (x, y) is the baseline of the first."""
        for number, line in enumerate(lines):
            self._text(x, y + number * size * 1.4, line, anchor=anchor, size=size, weight=weight)

    def _text(
        self, x: float, y: float, text: str, *, fill: str = TEXT, anchor: str = "middle", size: int = 13,
        weight: str = "400",
    ) -> None:  # fmt: skip
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size}" font-weight="{weight}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def emit(self) -> str:
        """Return the SVG file."""
        marker = (
            f'<marker id="end" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L10 5L0 10z" fill="{LINE}"/></marker>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" font-family="{FONT}">'
        )
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", f"<defs>{marker}</defs>", *self.parts, "</svg>\n"]
        )


def overview() -> Drawing:
    """Draw the whole way from images to a trained model."""
    d = Drawing(
        960, 300, "Images or tables, Spark or convert, a versioned shard set, streaming, training, all in Dagster"
    )
    d.frame(8, 8, 944, 284, "Dagster: assets, schedules, sensors, checks (optional)")
    d.box(30, 70, 150, 64, "Your data", "images, tables, text", fill=GREY)
    d.box(230, 48, 160, 48, "Spark", "dataframe_to_mds", fill=BLUE)
    d.box(230, 108, 160, 48, "No Spark", "convert, MDSWriter", fill=BLUE)
    d.box(440, 60, 190, 84, "Shard set (MDS)", "versions, hashes, tags", "S3, GCS, Azure, disk, …", fill=TEAL)
    d.box(680, 48, 250, 48, "StreamingDataset", "shuffled, verified, cached", fill=TEAL)
    d.box(680, 108, 250, 48, "PyTorch training", "1 process to many machines", fill=AMBER)
    d.arrow(180, 96, 228, 74)
    d.arrow(180, 110, 228, 130)
    d.arrow(390, 72, 438, 90)
    d.arrow(390, 132, 438, 116)
    d.arrow(630, 92, 678, 74)
    d.arrow(805, 96, 805, 106)
    d.note(30, 190, "raw data", size=12)
    d.note(230, 190, "Only new and changed", "rows are converted again.", size=12)
    d.note(440, 190, "A version is visible as a whole or", "not at all. Every byte is hashed.", size=12)
    d.note(
        680,
        190,
        "Stop anywhere, resume on another",
        "number of machines: every sample",
        "is read exactly once per epoch.",
        size=12,
    )
    d.note(
        30,
        270,
        "The same files as MosaicML Streaming: its readers read Smalti's shard sets, and Smalti reads its.",
        size=12,
    )
    return d


def order() -> Drawing:
    """Draw how an epoch is ordered and divided."""
    d = Drawing(960, 390, "Shards are permuted, cut into runs, shuffled in windows and dealt to hosts and ranks")
    colours = (TEAL, BLUE, AMBER, GREY)
    d.note(8, 24, "1  Stored order: shards 0 to 7", weight="600")
    for shard in range(8):
        d.box(8 + shard * 78, 34, 74, 30, f"shard {shard}", fill=colours[shard // 2], size=12)
    d.note(8, 98, "2  Shards permuted by the seed and cut into runs, one for each canonical node", weight="600")
    permuted = (5, 2, 7, 0, 4, 1, 6, 3)
    for place, shard in enumerate(permuted):
        gap = 30 if place >= 4 else 0
        d.box(8 + place * 78 + gap, 108, 74, 30, f"shard {shard}", fill=colours[shard // 2], size=12)
    d.note(330, 160, "run 0 on the left, run 1 on the right", size=12)
    d.note(
        8,
        194,
        "3  In each epoch: the shards of a run are permuted again, then samples within windows of the run",
        weight="600",
    )
    for place in range(48):
        gap = 30 if place >= 24 else 0
        source = permuted[(place * 7) % 4 + (4 if place >= 24 else 0)]
        d.parts.append(
            f'<rect x="{8 + place * 13 + gap}" y="204" width="11" height="26" rx="2" fill="{colours[source // 2]}"/>'
        )
    d.note(
        8,
        262,
        "4  One sample of each run in turn: the global order. Its positions are dealt to hosts, ranks, workers",
        weight="600",
    )
    for host in range(2):
        for rank in range(2):
            y = 274 + (host * 2 + rank) * 27
            d.box(8, y, 130, 23, f"host {host}, rank {rank}", fill=GREY, size=12)
            for step in range(6):
                first = step * 8 + host + rank * 2
                d.box(146 + step * 118, y, 112, 23, f"{first}, {first + 4}", fill=(TEAL, BLUE)[host], size=12)
    d.note(870, 292, "positions", size=12)
    return d


def cursor() -> Drawing:
    """Draw a run that stops and is resumed on another number of ranks."""
    d = Drawing(960, 230, "A cursor is a position in the order; another number of ranks goes on from there")
    d.note(8, 24, "The order of the epoch: positions 0 to 31", weight="600")
    for place in range(32):
        fill = TEAL if place < 16 else BLUE
        d.box(8 + place * 29, 36, 26, 26, str(place), fill=fill, size=11)
    d.arrow(471, 110, 471, 68)
    d.box(320, 112, 302, 44, "Cursor", "epoch 0, sample_in_epoch 16, seed, digest", fill=AMBER, size=13)
    d.note(8, 100, "read by 2 ranks", "steps of 8 samples", size=13)
    d.note(952, 100, "read by 3 ranks", "steps of 12 samples", anchor="end", size=13)
    d.note(
        8,
        196,
        "The cursor is a position, not a list of what was read: it is small, and the same on every rank.",
        "Resuming replays nothing. Before and after it, every sample of the epoch is read exactly once.",
        size=13,
    )
    return d


def cache() -> Drawing:
    """Draw the way of a shard from the store to a batch."""
    d = Drawing(
        960,
        290,
        "A shard is fetched once per host, verified, mapped into memory, and evicted when it is not needed soon",
    )
    d.box(8, 90, 150, 70, "Store", "shards, hashes", fill=GREY)
    d.frame(220, 20, 500, 230, "Cache folder of a host, at most cache_limit bytes")
    d.box(240, 60, 140, 56, "being fetched", "hashed on arrival", fill=BLUE)
    d.box(430, 60, 140, 56, "verified", "named by rename", fill=TEAL)
    d.box(430, 160, 140, 56, "evicted", "used last", fill=GREY)
    d.box(600, 60, 100, 56, "mapped", "no copy", fill=TEAL)
    d.box(780, 30, 170, 36, "rank 0, workers", fill=AMBER)
    d.box(780, 78, 170, 36, "rank 1, workers", fill=AMBER)
    d.box(780, 126, 170, 36, "another job", fill=AMBER)
    d.arrow(158, 118, 238, 92)
    d.note(8, 180, "fetched once", "for all processes of a host", size=12)
    d.arrow(380, 88, 428, 88)
    d.arrow(570, 88, 598, 88)
    d.arrow(500, 116, 500, 158)
    d.arrow(700, 82, 778, 52)
    d.arrow(700, 90, 778, 96)
    d.arrow(700, 98, 778, 140)
    d.note(240, 200, "One process fetches,", "the others wait for it,", "each with a deadline.", size=12)
    d.note(585, 180, "The order says", "which shard is needed", "next: the one needed", "last goes first.", size=12)
    d.note(8, 280, "A process that is killed at any moment leaves nothing that has to be cleaned up.", size=13)
    return d


def versions() -> Drawing:
    """Draw versions as lists of shards that they share."""
    d = Drawing(960, 300, "Versions are lists of shards; shards are never changed; tags name versions")
    for number, (title, text) in enumerate((("Version 1", "create"), ("Version 2", "append"), ("Version 3", "delete"))):
        d.box(120 + number * 290, 60, 170, 52, title, text, fill=TEAL)
        if number:
            d.arrow(120 + (number - 1) * 290 + 172, 86, 118 + number * 290, 86, "parent")
    d.box(120, 8, 80, 28, "best", fill=AMBER, size=13)
    d.arrow(160, 36, 178, 58)
    d.box(700, 8, 90, 28, "checked", fill=AMBER, size=13)
    d.arrow(745, 36, 765, 58)
    shards = ("a", "b", "c", "d", "b'")
    places = {name: 150 + number * 150 for number, name in enumerate(shards)}
    for name, x in places.items():
        d.box(x, 200, 90, 40, f"shard {name}", fill=BLUE, size=13)
    for number, names in enumerate((("a", "b", "c"), ("a", "b", "c", "d"), ("a", "b'", "c", "d"))):
        for name in names:
            x = 205 + number * 290
            d.parts.append(
                f'<line x1="{x}" y1="112" x2="{places[name] + 45}" y2="200" stroke="{LINE}" stroke-width="1.2"/>'
            )
    d.note(
        8,
        278,
        "A shard that no kept version needs, such as b after version 2 has expired, is removed by a vacuum.",
        size=13,
    )
    return d


def commit() -> Drawing:
    """Draw the steps of a publish and what a reader sees at each."""
    d = Drawing(960, 270, "Shards first, then one conditional put that makes the version visible")
    steps = (
        ("1 shards", "uploaded, hashed", BLUE), ("2 check", "all there, sizes", BLUE),
        ("3 table", "list of shards", BLUE),
        ("4 commit", "put if absent", TEAL), ("5 index.json", "for MosaicML", GREY),
    )  # fmt: skip
    for number, (title, text, fill) in enumerate(steps):
        d.box(8 + number * 192, 70, 160, 60, title, text, fill=fill)
        if number:
            d.arrow(8 + number * 192 - 32, 100, 8 + number * 192 - 2, 100)
    d.note(8, 40, "Readers see the old version", weight="600")
    d.note(952, 40, "Readers see the new version", anchor="end", weight="600")
    d.parts.append(f'<line x1="760" y1="20" x2="760" y2="190" stroke="{RED}" stroke-width="2" stroke-dasharray="6 4"/>')
    d.note(8, 170, "Killed here: nothing is visible.", "A vacuum removes the leftovers.", size=13)
    d.note(690, 170, "Killed here: the version is complete.", "Running the job again finishes index.json.", size=13)
    d.note(8, 240, "Of several writers that commit the same version number, the store accepts exactly one.", size=13)
    return d


DRAWINGS: tuple[Callable[[], Drawing], ...] = (overview, order, cursor, cache, versions, commit)


def files() -> Iterable[tuple[Path, str]]:
    """Yield the path and content of every drawing."""
    for draw in DRAWINGS:
        yield IMAGES / f"drawing-{draw.__name__}.svg", draw().emit()


if __name__ == "__main__":
    for path, content in files():
        path.write_text(content)
        print(path)
