"""Batches of encoded images: decoded into one array, and `DecodeImages`, which does so for columns of a batch.

Single images are decoded by `smalti.images.pixels`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from smalti.errors import ArgumentError, ArgumentTypeError, BadImageError, SchemaError
from smalti.images.header import may_be_image, probe_image
from smalti.images.pixels import Pixels, centre_square, decode_fast, decode_probed, is_fast, resize_square, scaled_size

Crop = Literal["resize", "center"]
AxisOrder = Literal["hwc", "chw"]
Resize = Callable[[Pixels, int], Pixels]
"""A function of pixels (height, width, 3) and a size, which returns their centre square as (size, size, 3)."""
_DEADLINE_SECONDS = 600.0  # for the threads of one batch; decoding a large image takes about one second


@dataclass(frozen=True)
class DecodeOptions:
    """The size, crop and axes that each image of a batch is brought to."""

    size: int
    """Pixels on each side."""
    crop: Crop = "resize"
    """`resize`: the centre square, resized. `center`: the middle `size` x `size` of the stored pixels, not resized; if
    the image has a shorter side, its centre square, resized."""
    layout: AxisOrder = "hwc"
    """Axes of the array: `hwc` is (n, size, size, 3), `chw` is (n, 3, size, size)."""
    resize: Resize = resize_square
    """Called with pixels that are at least as many as are wanted, or all there are."""

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ArgumentError(f"`size` must be a number of pixels, at least 1, found {self.size!r}.")
        if self.crop not in {"resize", "center"}:
            raise ArgumentError(f'`crop` is "resize" or "center", found {self.crop!r}.')
        if self.layout not in {"hwc", "chw"}:
            raise ArgumentError(f'`layout` is "hwc" or "chw", found {self.layout!r}.')
        if not callable(self.resize):
            raise ArgumentTypeError(f"`resize` is a function of pixels and a size, found {self.resize!r}.")


def decode_batch(
    images: Sequence[bytes],
    *,
    size: int,
    crop: Crop = "resize",
    layout: AxisOrder = "hwc",
    resize: Resize = resize_square,
    num_threads: int = 1,
) -> Pixels:
    """Decode images into one array, uint8 (images, size, size, 3), or (images, 3, size, size) for `chw`.

    A JPEG that needs no resizing, as stored or after scaled decoding, is decoded straight into its place in the array.
    Decoding is tuned for training: colours that a JPEG stores at half the resolution are not interpolated. EXIF
    orientation is not applied.

    `size` is in pixels on each side; `crop`, `layout` and `resize` are as in `DecodeOptions`. `num_threads` decode at
    the same time: the decoders release the interpreter lock.

    Raises:
        BadImageError: with `index`, the place of the first bad image in the batch.
    """
    options = DecodeOptions(size, crop, layout, resize)
    batch = _unaligned((len(images), size, size, 3) if layout == "hwc" else (len(images), 3, size, size))
    places = batch if layout == "hwc" else batch.transpose(0, 2, 3, 1)
    cuts = [len(images) * part // num_threads for part in range(num_threads + 1)]
    parts = [(begin, end) for begin, end in pairwise(cuts) if begin < end]
    jobs = [(images[begin:end], places[begin:end], options, begin) for begin, end in parts]
    if len(jobs) > 1:
        threads = [_pool(os.getpid(), num_threads - 1).submit(_decode_part, *job) for job in jobs[1:]]
        _decode_part(*jobs[0])  # this thread decodes as well; the error of the lowest part is raised first
        for thread in threads:
            thread.result(timeout=_DEADLINE_SECONDS)
    elif jobs:
        _decode_part(*jobs[0])
    return batch


@lru_cache(maxsize=8)
def _pool(process: int, num_threads: int) -> ThreadPoolExecutor:  # noqa: ARG001 - the key: a fork inherits no threads
    return ThreadPoolExecutor(num_threads, thread_name_prefix="smalti-decode")


def _decode_part(images: Sequence[bytes], places: Pixels, options: DecodeOptions, first: int) -> None:
    scratch, place = _Scratch(), 0
    try:
        for place, data in enumerate(images):
            _decode_into(places[place], data, options, scratch)
    except BadImageError as error:
        index = first + place
        raise BadImageError(f"image {index} of the batch: {error}", **(error.facts | {"index": index})) from error


def _decode_into(place: Pixels, data: bytes, options: DecodeOptions, scratch: "_Scratch") -> None:
    header, size = probe_image(data), options.size
    crops = options.crop == "center" and min(header.width, header.height) >= size
    if is_fast(header):
        least = 0 if crops else size
        height, width = scaled_size(header, least)
        direct = height == width == size and place.flags.c_contiguous
        out = place if direct else scratch.pixels(height, width)
        pixels = decode_fast(data, header, min_size=least, out=out, smooth=False)
        if pixels is not None and direct:
            return
    else:
        pixels = None
    if pixels is None:
        pixels = decode_probed(data, header, None if crops else size)
    place[...] = centre_square(pixels, size) if crops else _resized(pixels, options)


def _resized(pixels: Pixels, options: DecodeOptions) -> Pixels:
    found, size = options.resize(pixels, options.size), options.size
    if found.dtype != np.uint8 or found.shape != (size, size, 3):  # others would be cast or repeated without a word
        raise ArgumentError(
            f"`resize` must return uint8 of shape {(size, size, 3)}, found {found.dtype} of shape {found.shape}"
        )
    return found


class _Scratch:
    """Buffer for an image that is larger than its place, reused for the next one while it is in the core's cache."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def pixels(self, height: int, width: int) -> Pixels:
        if self._buffer.size < height * width * 3:
            self._buffer = _unaligned((height * width * 3,))
        return self._buffer[: height * width * 3].reshape(height, width, 3)


def _unaligned(shape: tuple[int, ...]) -> Pixels:
    """Return an array that does not begin at a multiple of 32 bytes.

    At such an address libjpeg-turbo uses stores that bypass the core's caches, and the next reader of the pixels waits
    for memory: decoding alone was measured 15 % slower.
    """
    num_bytes = int(np.prod(shape))
    room = np.empty(num_bytes + 32, np.uint8)
    begin = (8 - room.__array_interface__["data"][0]) % 32
    pixels: Pixels = room[begin : begin + num_bytes].reshape(shape)
    return pixels


@dataclass(frozen=True)
class DecodeImages:
    """A transform that decodes columns of encoded images into uint8 arrays; other columns stay as they are.

        StreamingDataset(remote=..., transform=DecodeImages(size=224, crop="center"))

    Images are decoded by libjpeg-turbo, at its fastest settings, and by Pillow where that cannot read them; see
    `decode_batch`.
    """

    size: int
    """Pixels on each side."""
    columns: tuple[str, ...] | None = None
    """Names of the columns; None for every column of bytes most of whose values begin like an image."""
    crop: Crop = "resize"
    """`resize` or `center`; see `DecodeOptions.crop`."""
    layout: AxisOrder = "hwc"
    """`hwc` for arrays of shape (n, size, size, 3), `chw` for (n, 3, size, size)."""
    num_threads: int = 1
    """Threads that decode one batch."""
    resize: Resize = resize_square
    """Brings decoded pixels to their centre square of `size`: Pillow by default; `smalti.torch.resize_square` is faster
    where the processor has AVX2. A function of a module, if the transform goes to worker processes."""

    on_batches: ClassVar[bool] = True
    """It is called with the columns of a batch, not with single samples."""
    thread_safe: ClassVar[bool] = True
    """Loader threads may share one object."""

    def __post_init__(self) -> None:
        DecodeOptions(self.size, self.crop, self.layout, self.resize)
        if type(self.num_threads) is not int or self.num_threads < 1:
            raise ArgumentError(f"`num_threads` must be a number of threads, at least 1, found {self.num_threads!r}.")
        if isinstance(self.columns, str):
            raise ArgumentTypeError(
                f"`columns` is a tuple of names, found the text {self.columns!r}; write a comma after it."
            )

    @property
    def needed_columns(self) -> tuple[str, ...] | None:
        """The columns that it decodes; None if it finds them in each batch."""
        return self.columns

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with its image columns as arrays of pixels.

        Raises:
            BadImageError: an image does not decode; `column` and `index`, its place in the batch, are attributes, and
                `sample_id` when the batch has ids.
            SchemaError: a column that was named is not there, or holds no bytes.
        """
        found = dict(columns)
        for name in self._image_columns(columns):
            try:
                found[name] = decode_batch(
                    columns[name],
                    size=self.size,
                    crop=self.crop,
                    layout=self.layout,
                    resize=self.resize,
                    num_threads=self.num_threads,
                )
            except BadImageError as error:  # noqa: PERF203 - a batch has few columns
                raise _with_place(error, name, columns) from error
        return found

    def _image_columns(self, columns: Mapping[str, Any]) -> list[str]:
        if self.columns is None:
            return [name for name, values in columns.items() if _is_images(values)]
        for name in self.columns:
            if name not in columns:
                raise SchemaError(f"there is no column {name!r}; the columns are {', '.join(columns)}.", column=name)
            if not _is_bytes(columns[name]):
                raise SchemaError(
                    f"column {name!r} holds {type(columns[name]).__name__}, not a list of encoded images; name columns "
                    "of encoding jpeg, png or bytes.",
                    column=name,
                )
        return list(self.columns)


def _is_bytes(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, bytes) for value in values)


def _is_images(values: Any) -> bool:
    """Return whether most values begin like an image: a damaged one is an error of an image column."""
    return _is_bytes(values) and 2 * sum(map(may_be_image, values)) > len(values)


def _with_place(error: BadImageError, column: str, columns: Mapping[str, Any]) -> BadImageError:
    facts = error.facts | {"column": column}
    where = f"column {column!r}"
    if "_sample_id" in columns:
        facts["sample_id"] = int(columns["_sample_id"][error.index])
        where = f"sample {facts['sample_id']}, {where}"
    return BadImageError(f"{where}: {error.message}", **facts)
