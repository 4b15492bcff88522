"""Encodings of variable length that are bytes or text: `bytes`, `str`, `json` and numbers written as digits."""

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.encoding import Encoding, kind_of


class Bytes(Encoding):
    """Bytes as they are."""

    def encode(self, value: Any) -> bytes:
        """The bytes themselves."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise SchemaError(f"expected bytes, found {kind_of(value)}.")
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        """The bytes themselves."""
        return data


class Str(Encoding):
    """Text as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """UTF-8; bytes are taken where they are valid UTF-8 already."""
        try:
            if isinstance(value, bytes):
                value.decode("utf-8")
                return value
            if isinstance(value, str):
                return value.encode("utf-8")
        except (UnicodeEncodeError, UnicodeDecodeError) as error:
            raise SchemaError(f"expected text that UTF-8 can hold: {error.reason} at {error.start}.") from error
        raise SchemaError(f"expected text, found {kind_of(value)}.")

    def decode(self, data: bytes) -> str:
        """Text."""
        return data.decode("utf-8")


class StrInt(Encoding):
    """An integer of any size, as decimal digits."""

    def encode(self, value: Any) -> bytes:
        """Decimal digits; no booleans, whose text no reader takes."""
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise SchemaError(f"expected an integer, found {kind_of(value)}.")
        try:
            return str(int(value)).encode("ascii")
        except ValueError as error:  # Python's limit on the digits of one number; a reader has it as well
            raise SchemaError(f"an integer with too many digits: {error}.") from error

    def decode(self, data: bytes) -> int:
        """A Python int."""
        return int(data.decode("utf-8"))


class StrFloat(Encoding):
    """A float, as the shortest digits that give it back."""

    def encode(self, value: Any) -> bytes:
        """Digits; 16 and 32 bit floats are widened first, which is exact."""
        if not isinstance(value, float | np.float16 | np.float32):
            raise SchemaError(f"expected a float, found {kind_of(value)}.")
        return str(float(value)).encode("ascii")

    def decode(self, data: bytes) -> float:
        """A Python float."""
        return float(data.decode("utf-8"))


class StrDecimal(Encoding):
    """A decimal number, with its scale."""

    def encode(self, value: Any) -> bytes:
        """Digits, as `str(Decimal)` writes them."""
        if not isinstance(value, Decimal):
            raise SchemaError(f"expected a Decimal, found {kind_of(value)}.")
        return str(value).encode("ascii")

    def decode(self, data: bytes) -> Decimal:
        """A Decimal."""
        return Decimal(data.decode("utf-8"))


class Json(Encoding):
    """Anything that JSON can hold, without NaN or infinities."""

    def encode(self, value: Any) -> bytes:
        """JSON text; an array becomes nested lists; bytes are taken where they are strict JSON already."""
        if value is None:
            raise SchemaError("expected a value for JSON, found a null.")
        try:
            if isinstance(value, bytes):
                json.loads(value.decode("utf-8"), parse_constant=_refuse_constant)
                return value
            if isinstance(value, np.ndarray):
                value = value.tolist()
            text = json.dumps(value, allow_nan=False)
            if json.loads(text) != value:
                _explain_difference(value, "$")
        except SchemaError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise SchemaError(f"a value that strict JSON cannot hold: {_without_content(error)}") from error
        return text.encode("ascii")

    def decode(self, data: bytes) -> Any:
        """What `json.loads` gives."""
        return json.loads(data.decode("utf-8"))


def _refuse_constant(name: str) -> None:
    raise SchemaError(f"{name} is not JSON.")


def _without_content(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _explain_difference(value: Any, path: str) -> None:
    """Raise if JSON changed more than tuples into lists: keys that are not text, or numbers that do not survive."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise SchemaError(f"the key of an object at {path} is {kind_of(key)}, and JSON would make it text.")
            _explain_difference(item, f"{path}.*")
    elif isinstance(value, list | tuple):
        for item in value:
            _explain_difference(item, f"{path}[*]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise SchemaError(f"a number at {path} is not finite.")
    elif json.loads(json.dumps(value)) != value:
        raise SchemaError(f"{kind_of(value)} at {path} does not come back from JSON as it was.")
