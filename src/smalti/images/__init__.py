"""Encoded images and their pixels: header checks, decoding, preparation for training, a transform of batches.

Nothing here needs a store, Spark or torch. Read `pixels` first (one image), then `batches` (many, and the columns
of a batch). What the format needs of image headers too stands in `smalti.image_headers`.
"""

from smalti.image_headers import MAX_PIXELS
from smalti.images.batches import DecodeImages, RandomResizedCrop, decode_batch
from smalti.images.header import ImageHeader, probe_image
from smalti.images.pixels import (
    GAP,
    Pixels,
    PreparedImage,
    contact_sheet,
    decode_rgb,
    encode_jpeg,
    prepare_jpeg,
    resize_square,
    thumbnail,
    thumbnail_grid,
)

__all__ = [
    "GAP",
    "MAX_PIXELS",
    "DecodeImages",
    "ImageHeader",
    "Pixels",
    "PreparedImage",
    "RandomResizedCrop",
    "contact_sheet",
    "decode_batch",
    "decode_rgb",
    "encode_jpeg",
    "prepare_jpeg",
    "probe_image",
    "resize_square",
    "thumbnail",
    "thumbnail_grid",
]
