"""Encodings of several images in one value: `list[pil]`, `list[jpeg]`, `list[png]`, and the older `jpeg_array`.

list[...]     [uint32 0] [uint32 n] [n x uint32 sizes] [images]
jpeg_array               [uint32 n] [n x uint32 sizes] [JPEG files], n at least 1
"""

from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from smalti.errors import BadImageError, SchemaError
from smalti.format.encoding import Encoding, kind_of
from smalti.format.pictures import Jpeg

_SIZE = np.dtype("<u4")


class PictureList(Encoding):
    """Any number of images, each stored as the encoding `element` stores one; decodes to a list of PIL images."""

    reserved = bytes(4)
    """What stands before the count: room that MosaicML keeps for later."""
    fewest = 0

    def __init__(self, name: str, element: Encoding) -> None:
        self._element = element
        super().__init__(name)

    def encode(self, value: Any) -> bytes:
        """The images of a list or tuple, each a PIL image or such stored bytes; bytes that are a whole value already.

        An image file may also be a uint8 array of shape (bytes,).
        """
        if isinstance(value, bytes):
            return self._checked(value)
        if not isinstance(value, list | tuple):
            raise SchemaError(f"expected a list of images, found {kind_of(value)}.")
        if len(value) < self.fewest:
            raise SchemaError("expected at least one image, found an empty list, which no reader takes.")
        images = [self._image(item, place) for place, item in enumerate(value)]
        sizes = [len(image) for image in images]
        if max([len(images), *sizes]) >= 1 << 32:
            raise SchemaError("an image of 4 GiB and more does not fit a shard.")
        head = len(images).to_bytes(4, "little") + np.array(sizes, _SIZE).tobytes()
        return b"".join([self.reserved, head, *images])

    def _image(self, item: Any, place: int) -> bytes:
        if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 1:
            item = item.tobytes()
        try:
            return self._element.encode(bytes(item) if isinstance(item, bytearray | memoryview) else item)
        except SchemaError as error:
            raise SchemaError(f"image {place} of a list: {error.message}") from error

    def _checked(self, data: bytes) -> bytes:
        try:
            images = self._split(data)
        except BadImageError as error:
            raise SchemaError(f"expected a list of images, found bytes that hold none: {error}") from error
        for place, image in enumerate(images):
            self._image(image, place)
        return data

    def decode(self, data: bytes) -> list[Image.Image]:
        """A list of PIL images, whose pixels are read when first used, except raw ones."""
        return [self._element.decode(image) for image in self._split(data)]

    def _split(self, data: bytes) -> list[bytes]:
        at = len(self.reserved)
        if len(data) < at + 4 or data[:at] != self.reserved:
            raise BadImageError("no header of a list of images.")
        count = int.from_bytes(data[at : at + 4], "little")
        begin = at + 4 + 4 * count
        # Python's integers do not wrap: a count of 2^30 asks for 4 GiB of sizes, and is seen to.
        if count < self.fewest or begin > len(data):
            raise BadImageError(f"a list of {count} images, at least {self.fewest}, does not fit {len(data)} bytes.")
        sizes = np.frombuffer(data, _SIZE, count, at + 4)
        ends = [begin, *(begin + np.cumsum(sizes, dtype=np.int64)).tolist()]
        if ends[-1] != len(data):
            raise BadImageError(f"a list of {count} images takes {ends[-1]} bytes, found {len(data)}.")
        return [data[first:last] for first, last in pairwise(ends)]


class JpegArray(PictureList):
    """JPEG files, at least one; decodes to a list of PIL images."""

    reserved = b""
    fewest = 1

    def __init__(self, name: str) -> None:
        super().__init__(name, Jpeg("jpeg"))
