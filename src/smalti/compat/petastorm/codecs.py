"""Petastorm's codecs: the bytes of arrays and images in columns of Parquet files, decoded and encoded as there.

Readers return stored bytes; a TransformSpec decodes them with these classes. Images are read and written by Pillow.
"""

import io
import zipfile
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from PIL import Image

from smalti.compat.petastorm.unischema import UnischemaField, fits_shape
from smalti.format.npy import read_npy

_PNG = b"\x89PNG\r\n\x1a\n"
_PLAIN_MODES = {"1": "L", "P": "RGB", "I": "I;16"}
"""Modes of Pillow whose numbers are not those of the pixels: truth values, places in a palette, 16 bits in 32."""
_OPENCV = "OpenCV: cv2.imencode, and cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)[..., ::-1]"


class DataframeColumnCodec(ABC):
    """Base class of codecs."""

    @abstractmethod
    def encode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return the value as it is stored."""

    @abstractmethod
    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return a value from what is stored."""

    @abstractmethod
    def spark_dtype(self) -> Any:
        """Return the Spark type of the stored column."""

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


class _BinaryCodec(DataframeColumnCodec):
    """A codec whose column holds bytes."""

    def spark_dtype(self) -> Any:
        """Return the Spark type of the stored column."""
        from pyspark.sql.types import BinaryType

        return BinaryType()


class NdarrayCodec(_BinaryCodec):
    """An array as the bytes of a .npy file."""

    def encode(self, unischema_field: UnischemaField, value: Any) -> bytearray:
        """Return the bytes of an array, which must have the type and shape of the field."""
        file = io.BytesIO()
        np.save(file, _checked(unischema_field, value), allow_pickle=False)
        return bytearray(file.getvalue())

    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:  # noqa: ARG002 -- Petastorm's signature
        """Return the array; a pickled one is refused with a ValueError."""
        return read_npy(value).copy()


class CompressedNdarrayCodec(_BinaryCodec):
    """An array as the bytes of a compressed .npz file."""

    def encode(self, unischema_field: UnischemaField, value: Any) -> bytearray:
        """Return the bytes of an array, which must have the type and shape of the field."""
        file = io.BytesIO()
        np.savez_compressed(file, arr=_checked(unischema_field, value))
        return bytearray(file.getvalue())

    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return the array; a pickled one is refused with a ValueError."""
        try:
            with zipfile.ZipFile(io.BytesIO(value)) as file:
                return read_npy(file.read("arr.npy")).copy()
        except (zipfile.BadZipFile, KeyError) as error:
            raise ValueError(f"{unischema_field.name}: no .npz file with an array: {error}") from error


class CompressedImageCodec(_BinaryCodec):
    """An image of shape (height, width) or (height, width, 3) as the bytes of a PNG or JPEG file.

    Pixels are those of the file: one or two bytes each if the image is grey, one byte per channel if it has colours.
    """

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        self.image_codec, self._quality = image_codec, quality

    def encode(self, unischema_field: UnischemaField, value: Any) -> bytearray:
        """Return the bytes of an image, which must have the type and shape of the field.

        Raises:
            ValueError: It has not, or the format cannot hold such pixels.
        """
        image = _checked(unischema_field, value)
        _check_image_shape(unischema_field, image)
        is_jpeg = self.image_codec.lower() in {"jpg", "jpeg"}
        name = "jpeg" if self.image_codec.lower() == "jpg" else self.image_codec
        if image.dtype != np.uint8 and (image.dtype != np.uint16 or image.ndim == 3 or is_jpeg):
            kind = "grey" if image.ndim == 2 else "colour"
            raise ValueError(
                f"{unischema_field.name}: {kind} images of {image.dtype} cannot be written as {name}: expected uint8, "
                f"or uint16 of grey PNG images. Use NdarrayCodec, which keeps every type, or {_OPENCV}."
            )
        file = io.BytesIO()
        Image.fromarray(image).save(file, name, **({"quality": self._quality} if is_jpeg else {}))
        return bytearray(file.getvalue())

    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return the pixels: RGB, or one plane of a grey image.

        Raises:
            ValueError: The file has pixels of another type than the field, or of more bytes than Pillow reads.
        """
        data = bytes(value)
        if data.startswith(_PNG) and data[24:25] == b"\x10" and data[25:26] != b"\x00":
            raise ValueError(
                f"{unischema_field.name}: a PNG file with 16 bits for each of several channels, of which Pillow reads "
                f"8: decode it with {_OPENCV}."
            )
        with Image.open(io.BytesIO(data)) as image:
            mode = "RGBA" if "transparency" in image.info else _PLAIN_MODES.get(image.mode, image.mode)
            pixels = np.array(image if mode == image.mode else image.convert(mode))
        pixels = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
        _check_image_shape(unischema_field, pixels)
        if pixels.dtype != np.dtype(unischema_field.numpy_dtype):
            raise ValueError(
                f"{unischema_field.name}: the image has pixels of {pixels.dtype}, and the field declares "
                f"{np.dtype(unischema_field.numpy_dtype)}: declare the type that the files have."
            )
        return pixels

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.image_codec!r}, {self._quality})"


class ScalarCodec(DataframeColumnCodec):
    """A scalar as a plain column of a Spark type."""

    def __init__(self, spark_type: Any) -> None:
        self._spark_type = spark_type

    def encode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return the Python scalar that Spark stores."""
        if unischema_field.shape:
            raise ValueError(
                f"{unischema_field.name}: expected the shape () of a scalar, found {unischema_field.shape}."
            )
        if np.ndim(value) or isinstance(value, dict | set):
            raise TypeError(f"{unischema_field.name}: expected a scalar, found {type(value).__name__}.")
        return value.item() if isinstance(value, np.generic | np.ndarray) else value

    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return the value as the field's numpy type."""
        return unischema_field.numpy_dtype(value)

    def spark_dtype(self) -> Any:
        """Return the Spark type of the stored column."""
        return self._spark_type

    def __str__(self) -> str:
        return f"{type(self).__name__}({type(self._spark_type).__name__}())"


def _check_image_shape(field: UnischemaField, image: Any) -> None:
    if not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
        raise ValueError(f"{field.name}: unexpected image dimensions {image.shape}, expected (H, W) or (H, W, 3).")


def _checked(field: UnischemaField, value: Any) -> Any:
    """Return the array.

    Raises:
        ValueError: it is not an array, or has not the type and shape of the field.
    """
    if not isinstance(value, np.ndarray):
        found = type(value).__name__
        raise ValueError(f"{field.name}: unexpected type {found}, expected an ndarray.")  # noqa: TRY004 -- Petastorm's
    if value.dtype != np.dtype(field.numpy_dtype):
        raise ValueError(f"{field.name}: unexpected type {value.dtype}, expected {np.dtype(field.numpy_dtype)}.")
    if not fits_shape(value.shape, field.shape):
        raise ValueError(f"{field.name}: unexpected dimensions {value.shape}, expected {field.shape}.")
    return value
