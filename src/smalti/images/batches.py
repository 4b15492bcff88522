"""Batches of encoded images: decoded into one array, and `DecodeImages`, which does so for columns of a batch.

Also here: the part of an image that a sample shows, which is its centre square, the middle of it, or a random part.

Single images are decoded by `smalti.images.pixels`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import whole_number
from smalti.errors import ArgumentError, ArgumentTypeError, BadImageError, SchemaError
from smalti.images.header import ImageHeader, may_be_image, probe_image
from smalti.images.pixels import (
    Interpolation,
    Pixels,
    Resizer,
    decode_fast,
    decode_probed,
    is_fast,
    scaled_side,
    scaled_size,
    unaligned,
)
from smalti.splitmix import GOLDEN, stepped

_TRIES = 10
"""Shapes that are drawn for a crop until one fits into the image, as torchvision draws them."""
_MAX_SEED = (1 << 63) - 1


class Box(NamedTuple):
    """A part of an image, in pixels as stored."""

    top: float
    left: float
    """A multiple of one half: an odd margin has the same part on both sides."""
    height: int
    width: int
    is_mirrored: bool = False
    """Left and right are exchanged."""

    def of(self, pixels: Pixels, height: int, width: int) -> Pixels:
        """Return the part in the pixels of an image of height x width, which may be decoded at a reduced scale; a view.

        It begins at the nearest pixel.
        """
        eighths = 8 * max(pixels.shape) // max(height, width)  # decoders round sides up
        top, rows = _scaled(self.top, self.height, eighths, pixels.shape[0])
        left, columns = _scaled(self.left, self.width, eighths, pixels.shape[1])
        part = pixels[top : top + rows, left : left + columns]
        return part[:, ::-1] if self.is_mirrored else part

    def least_side(self, size: int, height: int, width: int) -> int:
        """Return the length of the image's shorter side at which no side of the part has less than `size` pixels."""
        return -(-size * min(height, width) // min(self.height, self.width))


def _scaled(begin: float, length: int, eighths: int, side: int) -> tuple[int, int]:
    """Return the begin and length of a part of a side that is decoded at a scale, to `side` pixels."""
    scaled = min(side, scaled_side(length, eighths))
    return min(side - scaled, math.ceil(begin * eighths / 8 - 0.5)), scaled


def centre_box(height: int, width: int, size: int | None = None) -> Box:
    """Return the middle `size` x `size` of an image; its centre square, without `size` or if the image is smaller."""
    side = min(height, width)
    if size is not None and size < side:
        side = size
    return Box((height - side) / 2, (width - side) / 2, side, side)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of each image, mirrored or not, as torchvision's transform of this name draws it.

    It is drawn from (seed, epoch, sample id) and depends on nothing else: neither on the batch nor on the worker, the
    rank or the world. A run that continues from a saved state sees what it would have seen.

    Examples:
        >>> decode = DecodeImages(size=24, crop=RandomResizedCrop(seed=7))
        >>> dataset = StreamingDataset(remote="s3://bucket/photos", split="train", transform=decode, shuffle=True)
    """

    seed: int = 0
    """From 0 on."""
    scale: tuple[float, float] = (0.08, 1.0)
    """The least and largest part of the image's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """The least and largest ratio of width to height, before it is resized to a square."""
    flip: float = 0.5
    """The probability with which left and right are exchanged, from 0 to 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0, _MAX_SEED))
        if not _is_range(self.scale, 1.0):
            raise ArgumentError(f"`scale` must be two parts of an area, 0 < least <= largest <= 1, not {self.scale!r}.")
        if not _is_range(self.ratio, math.inf):
            raise ArgumentError(f"`ratio` must be two of width to height, 0 < least <= largest, not {self.ratio!r}.")
        if not _is_range((self.flip, 1.0), 1.0) and self.flip != 0:
            raise ArgumentError(f"`flip` must be a probability, from 0 to 1, not {self.flip!r}.")

    def draw(self, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return random numbers in [0, 1) for each sample, shape (samples, draws), of which `box` makes a part."""
        return uniform(self.seed, epoch, sample_ids, 2 * _TRIES + 3).T

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """Return the part of an image of height x width."""
        is_mirrored, at_top, at_left = draws[0] < self.flip, draws[1], draws[2]
        low, high = self.scale
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for number in range(3, len(draws), 2):
            area = height * width * (low + (high - low) * draws[number])
            ratio = math.exp(log_low + (log_high - log_low) * draws[number + 1])
            columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                top, left = int(at_top * (height - rows + 1)), int(at_left * (width - columns + 1))
                return Box(top, left, rows, columns, is_mirrored)
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        columns, rows = max(1, min(width, round(height * ratio))), max(1, min(height, round(width / ratio)))
        return Box((height - rows) // 2, (width - columns) // 2, rows, columns, is_mirrored)


def _is_range(value: Any, most: float) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, int | float) for end in value)
    return is_pair and 0 < value[0] <= value[1] <= most and value[1] < math.inf


def uniform(seed: int, epoch: int, sample_ids: NDArray[np.int64], num_draws: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1), shape (draws, n): splitmix64 of (seed, epoch, id, draw), equal on every platform."""
    key = stepped(np.array([seed % (1 << 64)], dtype=np.uint64))
    key = stepped(key ^ np.array([epoch % (1 << 64)], dtype=np.uint64))
    per_sample = stepped(key ^ np.asarray(sample_ids, dtype=np.int64).view(np.uint64))
    bits = stepped(per_sample[None, :] ^ (np.arange(1, num_draws + 1, dtype=np.uint64)[:, None] * GOLDEN))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


Crop = Literal["resize", "center"] | RandomResizedCrop
AxisOrder = Literal["hwc", "chw"]
_DEADLINE_SECONDS = 600.0  # for the threads of one batch; decoding a large image takes about one second


def decode_batch(
    images: Sequence[bytes],
    *,
    size: int,
    crop: Crop = "resize",
    layout: AxisOrder = "hwc",
    interpolation: Interpolation = "bilinear",
    num_threads: int = 1,
    epoch: int | None = None,
    sample_ids: NDArray[np.int64] | None = None,
) -> Pixels:
    """Decode images into one array, uint8 (images, size, size, 3), or (images, 3, size, size) for `chw`.

    A JPEG that needs no resizing, as stored or after scaled decoding, is decoded straight into its place in the array.
    Decoding is tuned for training: colours that a JPEG stores at half the resolution are not interpolated. EXIF
    orientation is not applied.

    Args:
        images: The files.
        size: Pixels on each side.
        crop: See `DecodeImages.crop`.
        layout: See `DecodeImages.layout`.
        interpolation: See `DecodeImages.interpolation`. Torch resizes if this process has imported it, and Pillow
            otherwise.
        num_threads: Threads that decode at the same time: the decoders release the interpreter lock.
        epoch: The epoch for which a `RandomResizedCrop` draws the parts.
        sample_ids: The id of each image, for which it draws them.

    Raises:
        ArgumentError: A random crop without `epoch`, or without an id for each image.
        BadImageError: With `index`, the place of the first bad image in the batch.

    Examples:
        >>> photos = [Path(f"photos/cat/{number}.jpg").read_bytes() for number in range(3)]
        >>> decode_batch(photos, size=32, crop="center").shape
        (3, 32, 32, 3)
    """
    return DecodeImages(size, None, crop, layout, int(num_threads), interpolation)._decode(images, epoch, sample_ids)


@lru_cache(maxsize=8)
def _pool(process: int, num_threads: int) -> ThreadPoolExecutor:  # noqa: ARG001 - the key: a fork inherits no threads
    return ThreadPoolExecutor(num_threads, thread_name_prefix="smalti-decode")


@dataclass(frozen=True)
class DecodeImages:
    """A transform that decodes columns of encoded images into uint8 arrays; other columns stay as they are.

    Images are decoded by libjpeg-turbo, at its fastest settings, and by Pillow where that cannot read them; see
    `decode_batch`.

    Examples:
        >>> decode = DecodeImages(size=24, crop="center")
        >>> dataset = StreamingDataset(remote="s3://bucket/photos", split="train", transform=decode)
        >>> next(iter(StreamingDataLoader(dataset, batch_size=8)))["image"].shape
        torch.Size([8, 24, 24, 3])
    """

    size: int
    """Pixels on each side."""
    columns: tuple[str, ...] | None = None
    """Names of the columns; None for every column of bytes most of whose values begin like an image."""
    crop: Crop = "resize"
    """`resize`: the centre square, resized. `center`: the middle `size` x `size` of the stored pixels, not resized; if
    the image has a shorter side, its centre square, resized. A `RandomResizedCrop`: a random part, resized."""
    layout: AxisOrder = "hwc"
    """`hwc` for arrays of shape (n, size, size, 3), `chw` for (n, 3, size, size)."""
    num_threads: int = 1
    """Threads that decode one batch."""
    interpolation: Interpolation = "bilinear"
    """The filter that resizes, `bilinear` or `bicubic`, both anti-aliased."""

    on_batches: ClassVar[bool] = True
    """It is called with the columns of a batch, not with single samples."""
    thread_safe: ClassVar[bool] = True
    """Loader threads may share one object."""

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ArgumentError(f"`size` must be a number of pixels, at least 1, found {self.size!r}.")
        if not isinstance(self.crop, RandomResizedCrop) and self.crop not in ("resize", "center"):
            raise ArgumentError(f'`crop` is "resize", "center" or a RandomResizedCrop, found {self.crop!r}.')
        if self.layout not in {"hwc", "chw"}:
            raise ArgumentError(f'`layout` is "hwc" or "chw", found {self.layout!r}.')
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ArgumentError(f'`interpolation` is "bilinear" or "bicubic", found {self.interpolation!r}.')
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

    @property
    def takes_epoch(self) -> bool:
        """True if it is called with `epoch` and `sample_ids` too: its result depends on them."""
        return isinstance(self.crop, RandomResizedCrop)

    def __call__(
        self, columns: Mapping[str, Any], *, epoch: int | None = None, sample_ids: NDArray[np.int64] | None = None
    ) -> dict[str, Any]:
        """Return the batch with its image columns as arrays of pixels.

        Args:
            columns: The batch.
            epoch: The epoch for which random crops are drawn.
            sample_ids: The ids of the samples for which they are drawn; those of the column `_sample_id`, if there is
                one, by default.

        Raises:
            ArgumentError: random crops, and no epoch or ids.
            BadImageError: an image does not decode; `column` and `index`, its place in the batch, are attributes, and
                `sample_id` when the batch has ids.
            SchemaError: a column that was named is not there, or holds no bytes.
        """
        decoded = dict(columns)
        ids = columns.get("_sample_id")
        for name in self._image_columns(columns):
            try:
                decoded[name] = self._decode(columns[name], epoch, ids if sample_ids is None else sample_ids)
            except BadImageError as error:  # noqa: PERF203 - a batch has few columns
                facts, where = error.facts | {"column": name}, f"column {name!r}"
                if ids is not None:
                    facts["sample_id"] = int(ids[error.index])
                    where = f"sample {facts['sample_id']}, {where}"
                raise BadImageError(f"{where}: {error.message}", **facts) from error
        return decoded

    def _image_columns(self, columns: Mapping[str, Any]) -> list[str]:
        if self.columns is None:
            # Most values begin like an image: a damaged one is an error of an image column.
            return [
                name
                for name, values in columns.items()
                if _is_bytes(values) and 2 * sum(map(may_be_image, values)) > len(values)
            ]
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

    def _decode(self, images: Sequence[bytes], epoch: int | None, sample_ids: NDArray[np.int64] | None) -> Pixels:
        """Return the images as one array; see `decode_batch`."""
        count, size = len(images), self.size
        draws: Sequence[Sequence[float]] = [()] * count  # the numbers that random parts are made of
        if isinstance(self.crop, RandomResizedCrop):
            if epoch is None or sample_ids is None or len(sample_ids) != count:
                ids = "none" if sample_ids is None else f"{len(sample_ids)} of {count}"
                raise ArgumentError(
                    f"random crops are drawn for an epoch and the ids of samples, found epoch {epoch} and ids: {ids}. "
                    "Give the transform to the dataset, or call it with `epoch` and `sample_ids`."
                )
            draws = self.crop.draw(epoch, sample_ids).tolist()
        batch = unaligned((count, size, size, 3) if self.layout == "hwc" else (count, 3, size, size))
        places = batch if self.layout == "hwc" else batch.transpose(0, 2, 3, 1)
        cuts = [count * part // self.num_threads for part in range(self.num_threads + 1)]
        jobs = [
            (images[begin:end], places[begin:end], draws[begin:end], begin)
            for begin, end in pairwise(cuts)
            if begin < end
        ]
        threads = [_pool(os.getpid(), self.num_threads - 1).submit(self._decode_part, *job) for job in jobs[1:]]
        for job in jobs[:1]:
            self._decode_part(*job)  # this thread decodes as well; the error of the lowest part is raised first
        for thread in threads:
            thread.result(timeout=_DEADLINE_SECONDS)
        return batch

    def _decode_part(
        self, images: Sequence[bytes], places: Pixels, draws: Sequence[Sequence[float]], first: int
    ) -> None:
        resizer, place = Resizer(self.interpolation), 0
        try:
            for place, data in enumerate(images):
                header = probe_image(data)
                if isinstance(self.crop, RandomResizedCrop):
                    box = self.crop.box(header.height, header.width, draws[place])
                else:
                    box = centre_box(header.height, header.width, self.size if self.crop == "center" else None)
                _decode_into(places[place], data, header, box, resizer)
        except BadImageError as error:
            index = first + place
            raise BadImageError(f"image {index} of the batch: {error}", **(error.facts | {"index": index})) from error


def _decode_into(place: Pixels, data: bytes, header: ImageHeader, box: Box, resizer: Resizer) -> None:
    """Decode the part of an image that is shown into its place."""
    size = len(place)
    min_size, pixels = box.least_side(size, header.height, header.width), None
    if is_fast(header):
        height, width = scaled_size(header, min_size)
        is_direct = height == width == size and place.flags.c_contiguous and not box.is_mirrored
        out = place if is_direct else resizer.scratch(height, width)
        pixels = decode_fast(data, header, min_size=min_size, out=out, smooth=False, backwards=box.is_mirrored)
        if pixels is not None and is_direct:
            return
    if pixels is None:
        pixels = decode_probed(data, header, min_size)
    part = box.of(pixels, header.height, header.width)
    if part.shape == place.shape:
        place[...] = part
    else:
        resizer.into(place, part)


def _is_bytes(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, bytes) for value in values)
