"""Encodings of MDS columns as classes with MosaicML's names, and the table `_encodings`, to which code adds its own.

Stored bytes are those of `smalti.format.encodings`, which decodes. Encoding follows MosaicML where it is less strict:
numbers are cast by numpy, so a Python float is rounded to the type of its column, and bytes are stored as they are.
A class that is put into `_encodings`, under a new name or one of MDS, encodes and decodes the columns of that name in
the whole process, also for the readers and writers of `smalti`.
"""

import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, MutableMapping, Sequence
from decimal import Decimal
from functools import partial
from io import BytesIO
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from typing_extensions import Self

from smalti.compat.streaming.errors import BadColumn, BadDecimal, BadParameters, check_type
from smalti.errors import FormatError, SchemaError
from smalti.format import register_encoding, unregister_encoding
from smalti.format.encodings import encoding as engine
from smalti.format.encodings.numbers import DTYPE_CODES, DTYPES
from smalti.format.encodings.registry import built_in_encoding

__all__ = [
    "get_mds_encoded_size",
    "get_mds_encodings",
    "is_mds_encoding",
    "is_mds_encoding_safe",
    "mds_decode",
    "mds_encode",
]


class Encoding(ABC):
    """The way in which values of one type become bytes and come back."""

    size: int | None = None
    """Bytes of every value, or None if values differ in length."""

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Return the bytes of the value.

        Raises:
            AttributeError: it is of another type.
        """

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Return the value of the bytes.

        Raises:
            ValueError: they are damaged.
        """

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        check_type(data, expected_type)


class _EngineDecoded(Encoding):
    """An encoding whose values MDS's own encoding decodes, also if `_encodings` has another class under its name."""

    _name: ClassVar[str]

    def decode(self, data: bytes) -> Any:
        """Return the value."""
        return built_in_encoding(self._name).decode(data)


class Bytes(Encoding):
    """Bytes as they are."""

    def encode(self, obj: bytes) -> bytes:
        """Return the bytes."""
        self._validate(obj, bytes)
        return obj

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data


class Str(Encoding):
    """Text as UTF-8."""

    def encode(self, obj: str) -> bytes:
        """Return the text as UTF-8."""
        self._validate(obj, str)
        return obj.encode("utf-8")

    def decode(self, data: bytes) -> str:
        """Return the text."""
        return data.decode("utf-8")


class Int(Encoding):
    """A Python int in 8 bytes."""

    size = 8

    def encode(self, obj: int) -> bytes:
        """Return the number as int64.

        Raises:
            OverflowError: it does not fit int64.
        """
        self._validate(obj, int)
        return np.int64(obj).tobytes()

    def decode(self, data: bytes) -> int:
        """Return a Python int."""
        return int(np.frombuffer(data, "<i8", 1)[0])


class NDArray(Encoding):
    """An array, whose element type and shape stand each in the name of the column or in front of the values.

    Args:
        dtype: element type of all arrays; None if it may differ.
        shape: shape of all arrays; None if it may differ.
    """

    def __init__(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        if dtype is not None and dtype not in DTYPE_CODES:
            raise BadColumn(f"arrays of {dtype!r:.80} cannot be stored; expected {', '.join(DTYPE_CODES)}.")
        if shape is not None and any(dim < 1 for dim in shape):
            raise BadColumn(f"arrays of shape {shape} cannot be stored; expected at least 1 along every axis.")
        self.dtype = dtype
        self.shape = shape
        dims = ",".join(map(str, shape)) if dtype and shape else None
        self._codec = built_in_encoding(":".join(filter(None, ["ndarray", dtype, dims])))
        self.size = self._codec.size

    @classmethod
    def from_str(cls, text: str) -> Self:
        """Return the encoding with the parameters `DTYPE` or `DTYPE:d0,d1,...`.

        Raises:
            ValueError: they are malformed; it is an AssertionError too.
        """
        dtype, _, dims = text.partition(":")
        try:
            shape = tuple(map(int, dims.split(","))) if dims else None
        except ValueError as error:
            raise BadColumn(
                f"the shape of an array is {dims!r:.80}; expected whole numbers such as 3,224,224."
            ) from error
        return cls(dtype or None, shape)

    def encode(self, obj: "np.ndarray[Any, Any]") -> bytes:
        """Return the bytes of the array; ValueError if it is empty, or of another type or shape."""
        self._validate(obj, np.ndarray | np.generic)
        if obj.dtype.name not in DTYPE_CODES:
            raise SchemaError(f"Unsupported dtype: {obj.dtype.name}. Expected one of {', '.join(DTYPE_CODES)}.")
        if self.dtype not in {None, obj.dtype.name}:
            raise SchemaError(f"Wrong dtype: expected {self.dtype}, got {obj.dtype.name}.")
        if not obj.size:
            raise ValueError("Attempting to encode a numpy array with 0 elements, which no reader takes.")
        if self.shape not in {None, obj.shape}:
            raise SchemaError(f"Wrong shape: expected {self.shape}, got {obj.shape}.")
        if not obj.ndim:
            raise ValueError("Attempting to encode a scalar with NDArray encoding. Please use a scalar encoding.")
        if self.shape is not None and self.dtype is None:
            return self._codec.encode(obj)[:1] + NDArray(obj.dtype.name, self.shape).encode(obj)
        return self._codec.encode(obj)

    def decode(self, data: bytes) -> "np.ndarray[Any, Any]":
        """Return a fresh array."""
        if self.shape is not None and self.dtype is None:
            if not data or data[0] not in DTYPES:
                raise FormatError(f"expected the code of an element type, found {data[:1].hex() or 'nothing'}.")
            return NDArray(DTYPES[data[0]].name, self.shape).decode(data[1:])
        array: np.ndarray[Any, Any] = self._codec.decode(data)
        return array


class Scalar(Encoding):
    """A number of one numpy type.

    Args:
        dtype: the type, such as `numpy.int16`.
    """

    def __init__(self, dtype: type) -> None:
        self.dtype = dtype
        self.size = dtype().nbytes

    def encode(self, obj: Any) -> bytes:
        """Return the bytes of the number after numpy's conversion, which rounds floats."""
        data: bytes = self.dtype(obj).tobytes()
        return data

    def decode(self, data: bytes) -> Any:
        """Return a numpy scalar."""
        return np.frombuffer(data, self.dtype)[0]


class _FixedScalar(Scalar):
    """A number of the type that the class names."""

    _type: ClassVar[type]

    def __init__(self) -> None:
        super().__init__(self._type)


class UInt8(_FixedScalar):
    """uint8."""

    _type = np.uint8


class UInt16(_FixedScalar):
    """uint16."""

    _type = np.uint16


class UInt32(_FixedScalar):
    """uint32."""

    _type = np.uint32


class UInt64(_FixedScalar):
    """uint64."""

    _type = np.uint64


class Int8(_FixedScalar):
    """int8."""

    _type = np.int8


class Int16(_FixedScalar):
    """int16."""

    _type = np.int16


class Int32(_FixedScalar):
    """int32."""

    _type = np.int32


class Int64(_FixedScalar):
    """int64."""

    _type = np.int64


class Float16(_FixedScalar):
    """float16."""

    _type = np.float16


class Float32(_FixedScalar):
    """float32."""

    _type = np.float32


class Float64(_FixedScalar):
    """float64."""

    _type = np.float64


class StrEncoding(Encoding):
    """Base of numbers of any precision, stored as text."""


class _Digits(_EngineDecoded):
    """A number as the text that Python's `str` writes."""

    _type: ClassVar[type]

    def encode(self, obj: Any) -> bytes:
        """Return the digits."""
        self._validate(obj, self._type)
        return str(obj).encode("utf-8")


class StrInt(_Digits, StrEncoding):
    """An int of any size, as digits."""

    _name = "str_int"
    _type = int


class StrFloat(_Digits):
    """A float, as the shortest digits that give it back."""

    _name = "str_float"
    _type = float


class StrDecimal(_Digits):
    """A decimal number, with its scale."""

    _name = "str_decimal"
    _type = Decimal

    def decode(self, data: bytes) -> Any:
        """Return a Decimal."""
        try:
            return super().decode(data)
        except FormatError as error:
            raise BadDecimal(error.message) from error


class PIL(_EngineDecoded):
    """Raw pixels of a PIL image; of mode P without the palette."""

    _name = "pil"

    def encode(self, obj: Image.Image) -> bytes:
        """Return width, height and length of the mode as uint32, the mode, and the pixels."""
        self._validate(obj, Image.Image)
        mode = obj.mode.encode("utf-8")
        return np.array([*obj.size, len(mode)], np.uint32).tobytes() + mode + obj.tobytes()


class _ImageFile(_EngineDecoded):
    """An image file; it decodes to a PIL image, whose pixels are read when first used."""

    def encode(self, obj: Image.Image) -> bytes:
        """Return the bytes of the file."""
        self._validate(obj, Image.Image)
        try:
            return built_in_encoding(self._name).encode(obj)
        except SchemaError:  # PIL raises its own error for a mode without such files, or the file is not checked
            out = BytesIO()
            obj.save(out, format=self._name)
            return out.getvalue()


class JPEG(_ImageFile):
    """A JPEG file; an image that was opened from one is stored as that file."""

    _name = "jpeg"


class PNG(_ImageFile):
    """A PNG file."""

    _name = "png"


class Pickle(_EngineDecoded):
    """Anything that Python can pickle; reading it runs code from the data."""

    _name = "pkl"

    def encode(self, obj: Any) -> bytes:
        """Return a pickle of Python's default protocol."""
        return pickle.dumps(obj)


class JSON(_EngineDecoded):
    """Anything that Python writes as JSON; an array becomes a list."""

    _name = "json"

    def encode(self, obj: Any) -> bytes:
        """Return JSON text as UTF-8, with NaN and infinities as Python writes them.

        Raises:
            TypeError: JSON cannot hold the value.
        """
        return json.dumps(obj.tolist() if isinstance(obj, np.ndarray) else obj).encode("utf-8")


class List(Encoding):
    """A list of values of one encoding."""

    @abstractmethod
    def underlying_encoder(self) -> Encoding:
        """Return the encoding of the elements."""

    def encode(self, obj: list[Any]) -> bytes:
        """Return 0, the number of elements and their sizes as uint32, and the elements."""
        self._validate(obj, list)
        return bytes(4) + _join(list(map(self.underlying_encoder().encode, obj)))

    def decode(self, data: bytes) -> list[Any]:
        """Return the elements."""
        return list(map(self.underlying_encoder().decode, _split(data, 4)))


def _join(elements: Sequence[Any]) -> bytes:
    """Return the number of elements and their sizes, and the elements."""
    return np.array([len(elements), *map(len, elements)], np.uint32).tobytes() + b"".join(elements)


def _split(data: bytes, begin: int) -> Iterable[bytes]:
    """Return the elements that `_join` put together, from byte `begin` on."""
    count = int.from_bytes(data[begin : begin + 4], "little")
    first = begin + 4 + 4 * count
    if len(data) < first:
        raise FormatError(f"a list of {count} elements does not fit {len(data)} bytes.")
    ends = np.cumsum([first, *np.frombuffer(data, np.uint32, count, begin + 4).tolist()]).tolist()
    if ends[-1] != len(data):
        raise FormatError(f"a list of {count} elements takes {ends[-1]} bytes, found {len(data)}.")
    return [data[low:high] for low, high in pairwise(ends)]


class PILList(List):
    """A list of images as raw pixels."""

    def underlying_encoder(self) -> Encoding:
        """Return the encoding of the images."""
        return PIL()


class JPEGList(List):
    """A list of JPEG files."""

    def underlying_encoder(self) -> Encoding:
        """Return the encoding of the images."""
        return JPEG()


class PNGList(List):
    """A list of PNG files."""

    def underlying_encoder(self) -> Encoding:
        """Return the encoding of the images."""
        return PNG()


class JPEGArray(_EngineDecoded):
    """JPEG files, given as bytes and decoded to PIL images."""

    _name = "jpeg_array"

    def encode(self, obj: Sequence[bytearray]) -> bytes:
        """Return the number of files and their sizes as uint32, and the files."""
        return _join(obj)

    def decode(self, data: bytes) -> Any:
        """Return PIL images; ValueError if there are none."""
        if len(data) < 4:
            raise FormatError(f"Input data is too short to contain valid jpeg arrays: {len(data)} bytes, expected 4.")
        count = int.from_bytes(data[:4], "little")
        if not count:
            raise FormatError("Negative number of images decoded: 0 images, expected at least 1.")
        if len(data) < 4 + 4 * count:
            raise FormatError(
                f"Data is too short w.r.t the number of images decoded: {count} images do not fit {len(data)} bytes."
            )
        return super().decode(data)


_BUILT_IN: dict[str, type[Encoding]] = {
    "bytes": Bytes, "str": Str, "int": Int, "ndarray": NDArray, "uint8": UInt8, "uint16": UInt16, "uint32": UInt32,
    "uint64": UInt64, "int8": Int8, "int16": Int16, "int32": Int32, "int64": Int64, "float16": Float16,
    "float32": Float32, "float64": Float64, "str_int": StrInt, "str_float": StrFloat, "str_decimal": StrDecimal,
    "pil": PIL, "jpeg": JPEG, "jpeg_array": JPEGArray, "jpegarray": JPEGArray, "png": PNG, "list[pil]": PILList,
    "list[jpeg]": JPEGList, "list[png]": PNGList, "pkl": Pickle, "json": JSON,
}  # fmt: skip
"""The classes of MDS's own encodings, by name."""


class EncodingTable(dict[str, type[Encoding]]):
    """Classes of encodings by name; a class that is put in encodes and decodes all columns of that name from then on.

    Taking it out again, or putting back MDS's own class, restores MDS's encoding of that name, if there is one.
    """

    def __setitem__(self, name: str, kind: type[Encoding]) -> None:
        if _BUILT_IN.get(name) is kind:
            unregister_encoding(name)
        else:
            register_encoding(name, partial(TableEncoding, kind), override=True)
        super().__setitem__(name, kind)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        unregister_encoding(name)

    # `dict` has its own, which would leave the engine's table as it is.
    clear = MutableMapping.clear
    pop = MutableMapping.pop
    popitem = MutableMapping.popitem
    setdefault = MutableMapping.setdefault
    update = MutableMapping.update

    def __ior__(self, others: Any) -> Self:  # type: ignore[override,misc]
        self.update(others)
        return self


class TableEncoding(engine.Encoding):
    """A class of `_encodings` as an encoding of the engine."""

    def __init__(self, kind: type[Encoding], name: str, parameters: str) -> None:
        self._coder = _make_coder(kind, name, parameters)
        super().__init__(name, self._coder.size)

    def encode(self, value: Any) -> bytes:
        """Return what the class returns; bytes are taken for stored ones, as MosaicML does."""
        return value if isinstance(value, bytes) else self._coder.encode(value)

    def decode(self, data: bytes) -> Any:
        """Return what the class returns."""
        return self._coder.decode(data)


_encodings: dict[str, type[Encoding]] = EncodingTable(_BUILT_IN)

_unsafe_encodings = {"pkl"}


def get_mds_encodings() -> set[str]:
    """Return the names of all encodings."""
    return set(_encodings)


def _make_coder(kind: type[Encoding], name: str, parameters: str) -> Encoding:
    if ":" not in name:
        return kind()
    from_str = getattr(kind, "from_str", None)
    if from_str is None:
        raise BadParameters(f"encoding {name!r:.80}: {kind.__name__} takes no parameters.")
    coder: Encoding = from_str(parameters)
    return coder


def _get_coder(encoding: str) -> Encoding | None:
    """Return the encoding called `encoding`; None if there is none, and BadParameters if it also has parameters."""
    family, colon, parameters = encoding.partition(":")
    kind = _encodings.get(family)
    if kind is None and colon:
        raise BadParameters(f"Unsupported encoding: {encoding}. There is none called {family!r:.80}.")
    return None if kind is None else _make_coder(kind, encoding, parameters)


def _known_coder(encoding: str) -> Encoding:
    coder = _get_coder(encoding)
    if coder is None:
        raise ValueError(f"Unsupported encoding: {encoding}. Expected one of {', '.join(sorted(_encodings))}.")
    return coder


def is_mds_encoding(encoding: str) -> bool:
    """Return whether there is an encoding of this name.

    Raises:
        AssertionError: its parameters are malformed; it is a ValueError too.
        KeyError: it has parameters, and there is no encoding of the name in front of them.
        AttributeError: it has parameters, and the encoding takes none.
    """
    return _get_coder(encoding) is not None


def is_mds_encoding_safe(encoding: str) -> bool:
    """Return whether values of the encoding can be read without running code from the data."""
    return encoding not in _unsafe_encodings


def mds_encode(encoding: str, obj: Any) -> bytes:
    """Return the stored bytes of a value; bytes are returned as they are.

    Raises:
        AttributeError: the value is of another type.
        ValueError: it does not fit, or there is no such encoding.
    """
    return obj if isinstance(obj, bytes) else _known_coder(encoding).encode(obj)


def mds_decode(encoding: str, data: bytes) -> Any:
    """Return the value whose stored bytes are `data`.

    Raises:
        ValueError: they are damaged, or there is no such encoding.
    """
    return _known_coder(encoding).decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """Return the bytes of every value of an encoding; None if values differ in length.

    Raises:
        ValueError: there is no such encoding.
    """
    return _known_coder(encoding).size
