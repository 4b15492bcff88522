"""SVG pictures of histograms and of classes, made from plain values; every picture is bounded, whatever the values are.

The same pictures stand in `preview` pages, where the page sets colours and background, and in the asset reports of
Dagster, on white.
"""

from collections.abc import Mapping, Sequence

from smalti.inspection.distributions import Histogram

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
    """Return at most so many characters of a text."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


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
    panels = "".join(_histogram_panel(place, name, each) for place, (name, each) in enumerate(found.items()))
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
    bars = "".join(
        _class_bar(begin + place * _BAR_HEIGHT, name, counts[name], parts, top) for place, name in enumerate(ordered)
    )
    height = begin + _BAR_HEIGHT * len(ordered) + 6
    return svg_picture(_BAR_LEFT + _BAR_WIDTH + 60, height, legend + bars, background=background)


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
        f"<text x='{left}' y='{base + 14}'>{short_number(found.low)}</text>"
        f"<text x='{left + width / 2}' y='{base + 14}' text-anchor='middle' fill='#666'>"
        f"median {short_number(found.median)}, most {short_number(most)}</text>"
        f"<text x='{left + width}' y='{base + 14}' text-anchor='end'>{short_number(found.high)}</text>"
    )


def _class_bar(y: int, name: str, counts: Mapping[str, int], parts: Sequence[str], top: int) -> str:
    x = float(_BAR_LEFT)
    bars = f"<text x='{x - 6:.0f}' y='{y + 11}' text-anchor='end'>{escape(shortened(name, 26))}</text>"
    for at, part in enumerate(parts):
        width = _BAR_WIDTH * counts.get(part, 0) / top
        bars += f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='12' fill='{COLOURS[at % len(COLOURS)]}'/>"
        x += width
    return f"{bars}<text x='{x + 4:.0f}' y='{y + 11}'>{sum(counts.values())}</text>"


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
