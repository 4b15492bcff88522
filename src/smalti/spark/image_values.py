"""Spark's image schema: structs of origin, height, width, channels, OpenCV type and bytes of pixels.

Pixels are one byte each, of one channel, or of three or four in the order blue, green, red and alpha, as OpenCV has
them. They are stored as an array in just that order, or as a PNG file.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from smalti.errors import SchemaError
from smalti.format import parse_encoding

IMAGE_FIELDS = ("origin", "height", "width", "nChannels", "mode", "data")
ORIGIN_SUFFIX = "__origin"
_MODES = {1: 0, 3: 16, 4: 24}
"""OpenCV's number of the type, by channels: CV_8UC1, CV_8UC3, CV_8UC4."""
_RED_FIRST = {3: [2, 1, 0], 4: [2, 1, 0, 3]}


@dataclass(frozen=True)
class ImageBytes:
    """Images to what an encoding stores for them: array bytes, or a PNG file."""

    encoding: str

    def __call__(self, array: pa.StructArray) -> pa.Array:
        """One binary value each; a null stays a null.

        Raises:
            SchemaError: an image that Spark could not read, or of another pixel type.
        """
        codec = parse_encoding(self.encoding)
        stored: list[bytes | None] = []
        try:
            for image in array.to_pylist():
                if image is None:
                    stored.append(None)
                else:
                    pixels = _pixels(image)
                    stored.append(_png(pixels) if self.encoding == "png" else codec.encode(pixels))
        except SchemaError as error:
            raise SchemaError(error.message, row=len(stored)) from error
        return pa.array(stored, pa.large_binary())


def image_origins(array: pa.StructArray) -> pa.Array:
    """Where each image came from; empty where Spark does not know."""
    import pyarrow.compute as pc

    return pc.fill_null(array.flatten()[0], "")


def _pixels(image: dict[str, Any]) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """uint8, shape (height, width, channels)."""
    shape = image["height"], image["width"], image["nChannels"]
    if None in shape or min(shape) < 1 or image["data"] is None:
        raise SchemaError("an image that Spark could not read; filter by height > 0, or read with dropInvalid.")
    if image["mode"] != _MODES.get(shape[2]) or len(image["data"]) != shape[0] * shape[1] * shape[2]:
        raise SchemaError(
            f"an image of OpenCV type {image['mode']} with {shape[2]} channels and {len(image['data'])} bytes for "
            f"{shape[0]} x {shape[1]} pixels; expected one byte a channel, and 1, 3 or 4 of them."
        )
    return np.frombuffer(image["data"], np.uint8).reshape(shape)


def _png(pixels: "np.ndarray[Any, np.dtype[np.uint8]]") -> bytes:
    from PIL import Image

    channels = pixels.shape[2]
    ordered = pixels[:, :, 0] if channels == 1 else np.ascontiguousarray(pixels[:, :, _RED_FIRST[channels]])
    file = io.BytesIO()
    Image.fromarray(ordered).save(file, "PNG")
    return file.getvalue()
