"""Images for Dagster's UI as Markdown, made from plain values; see `pictures` on the UI's limits.

Images come twice: a teaser that always fits in place, and a gallery with every class for the dialog.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from smalti.images import GAP, Pixels, contact_sheet, resize_square, thumbnail
from smalti.inspection.distributions import escape, shortened
from smalti_dagster.reports.pictures import INLINE_LIMIT, markdown_picture, plain, raster_picture

THUMBNAIL = 96
"""Side in pixels of the thumbnails that pictures are made of."""

_GALLERY_CHARACTERS = 120_000  # galleries are kept in the event log, which is no place for megabytes
# Sides of a gallery's pictures in pixels, and their quality, tried in this order.
_FORMS = ((96, 60), (72, 60), (56, 55), (48, 45), (40, 40), (34, 35), (30, 30), (26, 25), (22, 20), (18, 15), (14, 10))
_LEAST_CHARACTERS = 0.2  # per pixel, about; a form that would need more than there is room for is not tried
_SHOWN_SIZE = 56  # smaller pictures are shown enlarged, so that there is room for their names
_PICTURES = 160  # of a gallery, as long as each class has one
_SHEET_WIDTH = 1000  # pixels
_PAGE_CELLS = 100
_LINE = 11  # pixels of a line of a caption
_THREADS = 8


def samples_per_class(classes: int) -> int:
    """Return how many images of each class a gallery has room for: 8 of a few classes, 1 of many."""
    return max(1, min(8, _PICTURES // max(1, classes)))


def thumbnails(images: Sequence[bytes]) -> list[Pixels]:
    """Return encoded images as small squares; decoding leaves the interpreter lock, so that threads help."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="smalti-thumbnails") as pool:
        return list(pool.map(lambda data: thumbnail(data, THUMBNAIL), images))


def image_teaser(images: Sequence[Pixels]) -> str:
    """Return up to six thumbnails side by side, as Markdown so small that the UI shows it in place."""
    for size in range(48, 8, -4):
        text = raster_picture("image/webp", _webp(contact_sheet(_scaled(images[:6], size), columns=6), 25), "samples")
        if len(text) < INLINE_LIMIT:
            return text
    return f"{len(images)} images, too many details for a preview"


def gallery(groups: Mapping[str, Sequence[Pixels]]) -> str:
    """Return thumbnails with the names of their groups below them, page by page, as Markdown for the dialog.

    Pictures become smaller, and then coarser, before a group is left out; those that do not fit at all are counted.
    """
    groups = {name: images for name, images in groups.items() if images}
    count = sum(map(len, groups.values()))
    pages: list[str] = []
    for form in _FORMS:
        if count * (form[0] + GAP) ** 2 * _LEAST_CHARACTERS > _GALLERY_CHARACTERS and form != _FORMS[-1]:
            continue
        pages = _pages(groups, *form)
        if sum(map(len, pages)) <= _GALLERY_CHARACTERS:
            return "\n\n".join(pages)
    kept, room = 0, _GALLERY_CHARACTERS
    while kept < len(pages) and len(pages[kept]) <= room:
        room -= len(pages[kept])
        kept += 1
    left_out = len(groups) - kept * _PAGE_CELLS
    return "\n\n".join([*pages[:kept], f"… and {left_out} more"])


def captioned(images: Sequence[Pixels], captions: Sequence[str]) -> str:
    """Return thumbnails with a caption below each, which may have several lines, as Markdown for the dialog."""
    cells = list(zip(captions, ([each] for each in images), strict=True))
    return _page(cells, 88, 55, columns=6)


def _pages(groups: Mapping[str, Sequence[Pixels]], size: int, quality: int) -> list[str]:
    cells = list(groups.items())
    most = max((len(images) for images in groups.values()), default=1)
    columns = max(1, round(_SHEET_WIDTH / (most * (size + GAP) * _scale(size))))
    pages = [cells[at : at + _PAGE_CELLS] for at in range(0, len(cells), _PAGE_CELLS)]
    headed = len(pages) > 1
    return [
        (f"**{plain(page[0][0])} to {plain(page[-1][0])}**\n\n" if headed else "")
        + _page(page, size, quality, columns=columns)
        for page in pages
    ]


def _page(cells: Sequence[tuple[str, Sequence[Pixels]]], size: int, quality: int, *, columns: int) -> str:
    """Return one picture: rows of cells, each with the images of a group side by side and its name below."""
    most, scale = max(len(images) for _, images in cells), _scale(size)
    wide, high = most * (size + GAP) * scale, (size + 2 * GAP) * scale
    tall = high + 3 + _LINE * max(name.count("\n") + 1 for name, _ in cells)
    blank = np.full((size, size, 3), 255, np.uint8)
    body: list[str] = []
    for row, begin in enumerate(range(0, len(cells), columns)):
        y, own = row * tall, cells[begin : begin + columns]
        strip = [image for _, images in own for image in [*_scaled(images, size), *[blank] * (most - len(images))]]
        data = base64.b64encode(_webp(contact_sheet(strip, columns=len(strip)), quality)).decode()
        width = len(own) * wide + GAP * scale
        body.append(
            f"<image y='{y:.0f}' width='{width:.0f}' height='{high:.0f}' preserveAspectRatio='none' "
            f"href='data:image/webp;base64,{data}'/>"
        )
        for column, (name, _) in enumerate(own):
            for line, text in enumerate(name.split("\n")):
                shown = escape(shortened(text, max(4, int(wide / 5.5))))
                at = y + high + 8 + _LINE * line
                body.append(f"<text x='{column * wide + GAP:.0f}' y='{at:.0f}'>{shown}</text>")
    rows = -(-len(cells) // columns)
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{min(columns, len(cells)) * wide + GAP * scale:.0f}' "
        f"height='{rows * tall:.0f}' font-family='sans-serif' font-size='10'><rect width='100%' "
        f"height='100%' fill='white'/>{''.join(body)}</svg>"
    )
    return markdown_picture(svg, f"{cells[0][0]} to {cells[-1][0]}")


def _scale(size: int) -> float:
    """Return the factor by which pictures of a size are enlarged on the page."""
    return max(1.0, _SHOWN_SIZE / size)


def _scaled(images: Sequence[Pixels], size: int) -> list[Pixels]:
    return [resize_square(image, size) for image in images]


def _webp(pixels: Pixels, quality: int) -> bytes:
    """Encode pixels as WebP: the tables in a JPEG's or PNG's header alone would fill the space of a teaser."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "WEBP", quality=quality, method=4)
    return out.getvalue()
