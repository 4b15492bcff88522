"""Encodings of variable length that are bytes or text: `bytes`, `str` and numbers written as digits."""

from decimal import Decimal
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encodings.encoding import Bytes1d, Encoding, Int64s, kind_of, split


class Bytes(Encoding):
    """Bytes as they are."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes themselves."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise SchemaError(f"expected bytes, found {kind_of(value)}.")
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        """Return the bytes themselves."""
        return data

    def decode_many(self, data: Bytes1d, offsets: Int64s) -> list[bytes]:
        """Return a list of bytes."""
        return split(data, offsets)


class Str(Encoding):
    """Text as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """Return UTF-8; bytes are accepted if they are valid UTF-8 already."""
        try:
            if isinstance(value, bytes):
                value.decode("utf-8")
                return value
            if isinstance(value, str):
                return str.encode(value)  # a subclass may override `encode` with another meaning
        except (UnicodeEncodeError, UnicodeDecodeError) as error:
            raise SchemaError(f"expected text that UTF-8 can hold: {error.reason} at {error.start}.") from error
        raise SchemaError(f"expected text, found {kind_of(value)}.")

    def decode(self, data: bytes) -> str:
        """Return the text."""
        return data.decode("utf-8")

    def decode_many(self, data: Bytes1d, offsets: Int64s) -> list[str]:
        """Return a list of texts."""
        whole = data.tobytes()
        if not whole.isascii():
            texts: list[str] = super().decode_many(data, offsets)
            return texts
        # In ASCII the bytes are the characters: decode once, slice afterwards.
        text = whole.decode("ascii")
        return [text[begin:end] for begin, end in pairwise(offsets.tolist())]


class _Digits(Encoding):
    """A number as text, as Python's `str` writes it."""

    number: ClassVar[type]
    """The type of the values."""
    accepted: ClassVar[tuple[type, ...]]
    """The types that are written, each of which `number` converts exactly."""
    expected: ClassVar[str]
    """Name of the values, for messages."""

    def encode(self, value: Any) -> bytes:
        """Return the digits; bytes are accepted if they are the digits of such a number already."""
        if not isinstance(value, bytes):
            return self._write(value)
        try:
            number = self.decode(value)
        except FormatError as error:
            raise SchemaError("expected a number, found bytes that are not its digits.") from error
        if self._write(number) != value:
            raise SchemaError("expected a number, found bytes that are other digits than Python writes for it.")
        return value

    def decode(self, data: bytes) -> Any:
        """Return a Python int, float or Decimal."""
        try:
            return self.number(data.decode("utf-8"))
        except (ValueError, ArithmeticError) as error:
            # Without Python's own message, which would show the data.
            raise FormatError(f"{len(data)} bytes that are not the digits of a number.") from error

    def _write(self, value: Any) -> bytes:
        # No booleans: no reader takes their text.
        if isinstance(value, bool | np.bool_) or not isinstance(value, self.accepted):
            raise SchemaError(f"expected {self.expected}, found {kind_of(value)}.")
        try:
            return str(self.number(value)).encode("ascii")
        except ValueError as error:  # Python's limit on the digits of one number; a reader has it as well
            raise SchemaError(f"an integer with too many digits: {error}.") from error


class StrInt(_Digits):
    """An integer of any size, as decimal digits."""

    number, accepted, expected = int, (int, np.integer), "an integer"


class StrFloat(_Digits):
    """A float, as the shortest digits that parse back to it."""

    # 16 and 32 bit floats are widened first, which is exact.
    number, accepted, expected = float, (float, np.float16, np.float32), "a float"


class StrDecimal(_Digits):
    """A decimal number, with its scale."""

    number, accepted, expected = Decimal, (Decimal,), "a Decimal"
