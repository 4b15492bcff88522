"""Values of samples as a person reads them in a table, and as JSON holds them.

In JSON, a number, a text, a boolean and a null are themselves. A float that is not finite, a date, a time and a decimal
are texts. Others are objects with a `type`:

    {"type": "image", "format": "JPEG", "width": 320, "height": 240, "num_bytes": 24163}
    {"type": "array", "dtype": "float32", "shape": [3], "values": [1.0, 0.5, -1.0]}     values: up to 64 elements
    {"type": "bytes", "num_bytes": 5, "base64": "aGVsbG8="}                             base64: up to 1,024 bytes
    {"type": "pickle", "num_bytes": 120}                                                never unpickled
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from PIL import Image

from smalti.errors import BadImageError
from smalti.format.encodings.registry import parse_encoding
from smalti.images import ImageHeader, probe_image
from smalti.images.header import may_be_image
from smalti.inspection.distributions import shortened
from smalti.texts import byte_count, printable

MAX_JSON_ELEMENTS = 64
"""Elements of an array that JSON holds."""
MAX_JSON_BYTES = 1024
"""Bytes of a binary value that JSON holds, as base64."""
IMAGE_LISTS = {
    "list[jpeg]": "jpeg", "list[png]": "png", "list[pil]": "pil", "jpeg_array": "jpeg", "jpegarray": "jpeg",
}  # fmt: skip
"""Encodings of lists of images, and that of their members."""


@dataclass(frozen=True)
class ImageSummary:
    """The facts of one encoded image that its header declares."""

    format: str
    """JPEG, PNG, GIF, BMP, WEBP, or `raw` and the mode of Pillow; empty if it is no image."""
    width: int
    height: int
    num_bytes: int
    fault: str = ""
    """Reason why it is no usable image; empty for one whose header is in order."""

    def text(self) -> str:
        """Return them as a short text."""
        if self.fault:
            return f"no image, {byte_count(self.num_bytes)}: {self.fault}"
        return f"{self.format.lower()} {self.width}x{self.height} {byte_count(self.num_bytes)}"

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON."""
        size = {"format": self.format, "width": self.width, "height": self.height}
        return {"type": "image", **({"fault": self.fault} if self.fault else size), "num_bytes": self.num_bytes}


def summarize_image(data: bytes, encoding: str = "") -> ImageSummary:
    """Return the facts of an encoded image, or of a raw one (`pil`); decodes no pixel."""
    if encoding == "pil":
        width, height, num_chars = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
        mode = data[12 : 12 + min(num_chars, 16)].decode("ascii", "replace")
        if len(data) < 12 or num_chars > 16 or not mode:
            return ImageSummary("", 0, 0, len(data), "no header of a raw image")
        return ImageSummary(f"raw {mode}", width, height, len(data))
    try:
        header: ImageHeader = probe_image(data)
    except BadImageError as error:
        return ImageSummary("", 0, 0, len(data), error.message)
    return ImageSummary(header.format, header.width, header.height, len(data))


def image_files(data: bytes, encoding: str) -> list[bytes]:
    """Return the stored bytes of each image of a list.

    Raises:
        BadImageError: it is no list of images.
    """
    codec: Any = parse_encoding(encoding)
    files: list[bytes] = codec.files(data)
    return files


def summarize_images(data: bytes, encoding: str) -> list[ImageSummary]:
    """Return the facts of each image of a list; of a damaged list, one with the fault."""
    try:
        files = image_files(data, encoding)
    except BadImageError as error:
        return [ImageSummary("", 0, 0, len(data), error.message)]
    return [summarize_image(file, IMAGE_LISTS[encoding]) for file in files]


def is_image(value: Any, encoding: str) -> bool:
    """Return whether a value is shown as an image: one of an image column, or bytes that begin like one."""
    if not isinstance(value, bytes):
        return False
    return encoding in ("jpeg", "png", "pil") or (
        encoding == "bytes" and may_be_image(value) and not summarize_image(value).fault
    )


def value_json(value: Any, encoding: str = "bytes") -> Any:
    """Return a value of a column of this encoding as JSON holds it; see the head of this module."""
    if isinstance(value, bytes):
        if encoding in IMAGE_LISTS:
            return [found.to_dict() for found in summarize_images(value, encoding)]
        if is_image(value, encoding):
            return summarize_image(value, encoding).to_dict()
        found: dict[str, Any] = {"type": "pickle" if encoding == "pkl" else "bytes", "num_bytes": len(value)}
        if encoding != "pkl" and len(value) <= MAX_JSON_BYTES:
            found["base64"] = base64.b64encode(value).decode()
        return found
    return _plain_json(value)


def _plain_json(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, np.floating):
        value = float(str(value))  # float32 0.1 is 0.1, not 0.10000000149011612
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): value_json(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [value_json(member) for member in value]
    if isinstance(value, np.ndarray):
        shown: dict[str, Any] = {"type": "array", "dtype": value.dtype.name, "shape": list(value.shape)}
        if value.size <= MAX_JSON_ELEMENTS:
            shown["values"] = value_json(_elements(value))
        return shown
    if isinstance(value, Image.Image):
        form = value.format or f"raw {value.mode}"
        return {"type": "image", "format": form, "width": value.width, "height": value.height}
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    return _text(value)


def _elements(value: np.ndarray[Any, Any]) -> Any:
    if value.dtype.kind == "f" and value.dtype.itemsize < 8:  # as few digits as its type needs
        value = value.astype(str).astype(np.float64)
    return value.astype(str).tolist() if value.dtype.kind in "mM" else value.tolist()


def _text(value: Any) -> str:
    if isinstance(value, np.timedelta64):
        return str(value.item() if value.dtype != "m8[ns]" else value)
    return format(value, "f") if isinstance(value, Decimal) and value.is_finite() else str(value)


def value_text(value: Any, encoding: str, limit: int | None = None) -> str:
    """Return a value as one line of text for a table; texts longer than `limit` characters are cut.

    Characters that a terminal would interpret are escaped.
    """
    line = printable(_line(value, encoding, limit))
    return line if limit is None else shortened(line, limit)


def _line(value: Any, encoding: str, limit: int | None) -> str:
    if isinstance(value, bytes):
        if encoding in IMAGE_LISTS:
            images = summarize_images(value, encoding)
            faults = [image for image in images if image.fault]
            if faults:
                return f"{len(faults)} of {len(images)} damaged: {faults[0].text()}"
            sizes = ", ".join(f"{image.width}x{image.height}" for image in images[:3])
            noun = "image" if len(images) == 1 else "images"
            return f"{len(images)} {noun} {sizes}{', …' if len(images) > 3 else ''}".rstrip()
        if is_image(value, encoding):
            return summarize_image(value, encoding).text()
        return f"{'pickle' if encoding == 'pkl' else 'bytes'} {byte_count(len(value))}"
    if value is None:
        return "null"
    if isinstance(value, str):
        return value if limit is None else value[: limit + 1]
    if isinstance(value, np.ndarray):
        shape = f"{value.dtype.name}[{','.join(map(str, value.shape))}]"
        return f"{shape} {_elements(value)}" if value.size <= 8 else shape
    if isinstance(value, float):
        return repr(float(value)) if limit is None else f"{value:.6g}"
    if isinstance(value, dict | list):
        return json.dumps(value_json(value), ensure_ascii=False)
    return _text(value)
