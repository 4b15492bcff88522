"""`DecodeImages`, a transform of batches that turns columns of encoded images into arrays of pixels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from smalti.errors import BadImageError, SchemaError
from smalti.images.batches import AxisOrder, Crop, DecodeOptions, decode_batch
from smalti.images.header import may_be_image


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

    on_batches: ClassVar[bool] = True
    """It is called with the columns of a batch, not with single samples."""
    thread_safe: ClassVar[bool] = True
    """Loader threads may share one object."""

    def __post_init__(self) -> None:
        DecodeOptions(self.size, self.crop, self.layout)
        if type(self.num_threads) is not int or self.num_threads < 1:
            raise ValueError(f"`num_threads` must be a number of threads, at least 1, found {self.num_threads!r}.")
        if isinstance(self.columns, str):
            raise TypeError(f"`columns` is a tuple of names, found the text {self.columns!r}; write a comma after it.")

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
                    columns[name], size=self.size, crop=self.crop, layout=self.layout, num_threads=self.num_threads
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
