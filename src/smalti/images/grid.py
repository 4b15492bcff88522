"""A contact sheet of images for a person to look at; not used for training."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from smalti.errors import BadImageError
from smalti.images.header import exif_orientation
from smalti.images.pixels import decode_rgb, encode_jpeg, resize_square, turn_upright

_GAP = 4  # pixels between two images
_BACKGROUND = 245  # grey level
_MISSING = 200  # grey level of an image that does not decode


def thumbnail_grid(images: Sequence[bytes], *, columns: int = 8, size: int = 96) -> bytes:
    """Return a JPEG that shows the images, upright, row by row; one that does not decode is a grey square.

    Args:
        images: encoded images, at least one; nothing limits their number.
        columns: images in a row, at least 1.
        size: side of each image in pixels, at least 1.
    """
    if not images or columns < 1 or size < 1:
        raise ValueError(
            f"a grid needs at least one image, `columns` >= 1 and `size` >= 1, "
            f"found {len(images)}, {columns} and {size}"
        )
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    step = size + _GAP
    sheet: npt.NDArray[np.uint8] = np.full((rows * step + _GAP, columns * step + _GAP, 3), _BACKGROUND, np.uint8)
    for place, data in enumerate(images):
        top, left = _GAP + place // columns * step, _GAP + place % columns * step
        try:
            picture = resize_square(turn_upright(decode_rgb(data, min_size=size), exif_orientation(data)), size)
        except BadImageError:  # one bad file must not prevent the overview
            picture = np.full((size, size, 3), _MISSING, np.uint8)
        sheet[top : top + size, left : left + size] = picture
    return encode_jpeg(sheet, 88)
