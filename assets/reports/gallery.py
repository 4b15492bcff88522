"""Images for Dagster's UI as Markdown, made from plain values; nothing here knows an asset.

The UI shows Markdown in place only while it is shorter than 1000 characters, and behind a "Show Markdown" link
otherwise, and it removes HTML. So images come twice: a teaser that always fits, and a gallery for the dialog.
"""

import base64
import io
from collections.abc import Mapping, Sequence

from smalti.images import decode_rgb, thumbnail_grid

INLINE_LIMIT = 1000
"""Characters of Markdown from which the UI hides it behind a link."""

_GALLERY_BYTES = 150_000  # galleries are kept in the event log, which is no place for megabytes
_GALLERY_SIZES = (72, 56, 44, 32, 24)  # sides of its pictures in pixels, tried in this order


def image_teaser(images: Sequence[bytes]) -> str:
    """Up to six of the images side by side, as Markdown so small that the UI shows it in place."""
    from PIL import Image

    for size in range(48, 8, -4):
        sheet = decode_rgb(thumbnail_grid(images[:6], columns=6, size=size))
        out = io.BytesIO()
        # The tables in a JPEG's or PNG's header alone would fill the space; WebP has none.
        Image.fromarray(sheet).save(out, "WEBP", quality=25, method=6)
        text = _picture("samples", "image/webp", out.getvalue())
        if len(text) < INLINE_LIMIT:
            return text
    return f"{len(images)} images, too many details for a preview"


def gallery(groups: Mapping[str, Sequence[bytes]]) -> str:
    """Return images under their groups' names, as Markdown for the dialog.

    Pictures become smaller before a group is left out; groups that do not fit at the smallest size are counted.
    """
    sections: list[str] = []
    for size in _GALLERY_SIZES:
        sections = _fitting_sections(groups, size)
        if len(sections) == len(groups):
            break
    left_out = len(groups) - len(sections)
    return "\n\n".join([*sections, *([f"… and {left_out} more"] if left_out else [])])


def _fitting_sections(groups: Mapping[str, Sequence[bytes]], size: int) -> list[str]:
    """Return the sections of the first groups, as many as fit with pictures of this size."""
    sections: list[str] = []
    room = _GALLERY_BYTES
    for name, images in groups.items():
        section = f"**{name}**\n\n" + _picture(name, "image/jpeg", thumbnail_grid(images, columns=8, size=size))
        room -= len(section) + len("\n\n")
        if room < 0:
            break
        sections.append(section)
    return sections


def _picture(alt: str, mime: str, data: bytes) -> str:
    return f"![{_plain(alt)}](data:{mime};base64,{base64.b64encode(data).decode()})"


def _plain(text: str) -> str:
    """Text without the characters that would end a Markdown label."""
    return "".join(character for character in text if character not in "[]()\n\\`*")
