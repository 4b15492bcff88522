"""Encodings of single numbers in a fixed number of bytes: `int` and the sized scalars such as `float32`."""

import struct
from typing import Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.encodings.casting import cast_exact, little_endian
from smalti.format.encodings.encoding import Array, Bytes1d, Encoding, Int64s, damaged, kind_of

SCALAR_NAMES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
_STRUCT_CODES = dict(zip(SCALAR_NAMES, "bhiqBHIQ", strict=False))


class Scalar(Encoding):
    """A number of one numpy type, little-endian; decodes to a numpy scalar."""

    def __init__(self, name: str, dtype: str) -> None:
        self.dtype = little_endian(dtype)
        super().__init__(name, self.dtype.itemsize)
        code = _STRUCT_CODES.get(dtype)
        self._pack = struct.Struct(f"<{code}").pack if code else None

    def encode(self, value: Any) -> bytes:
        """Return the number in `size` bytes; integers, booleans and floats are accepted if nothing is lost."""
        if self._pack is not None and not isinstance(value, np.bool_):  # numpy 2.2 warns where struct takes it
            try:
                return self._pack(value)
            except (struct.error, TypeError):
                pass  # not an integer, or out of range: the slow path accepts exact floats and explains the rest
        if isinstance(value, int | float | np.generic | np.ndarray):
            number = np.asarray(value)
            if number.ndim == 0 and number.dtype.kind in "biuf":
                return cast_exact(number, self.dtype).tobytes()
        raise SchemaError(f"expected one number that fits {self.dtype.name}, found {kind_of(value)}.")

    def decode(self, data: bytes) -> Any:
        """Return a numpy scalar."""
        return np.frombuffer(data, self.dtype)[0]

    def decode_many(self, data: Bytes1d, offsets: Int64s) -> Array:
        """Return an array of n numbers, for `int` too; a view of `data`."""
        size = self.dtype.itemsize
        wrong = np.diff(offsets) != size
        if wrong.any():
            raise damaged(int(wrong.argmax()), f"{self.dtype.name} takes {size} bytes.")
        return data.view(self.dtype)


class Int(Scalar):
    """int64, decoding to a Python int."""

    def __init__(self) -> None:
        super().__init__("int", "int64")

    def decode(self, data: bytes) -> int:
        """Return a Python int."""
        return int.from_bytes(data, "little", signed=True)
