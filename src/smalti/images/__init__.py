"""Images as bytes and as pixels: header checks, decoding, preparation. No stores, no Spark."""

from smalti.image_headers import MAX_PIXELS
from smalti.images.batches import decode_batch
from smalti.images.grid import thumbnail_grid
from smalti.images.header import ImageHeader, probe_image
from smalti.images.pixels import (
    PreparedImage,
    decode_rgb,
    encode_jpeg,
    prepare_jpeg,
    resize_square,
)
from smalti.images.transform import DecodeImages

__all__ = [
    "MAX_PIXELS",
    "DecodeImages",
    "ImageHeader",
    "PreparedImage",
    "decode_batch",
    "decode_rgb",
    "encode_jpeg",
    "prepare_jpeg",
    "probe_image",
    "resize_square",
    "thumbnail_grid",
]
