"""Encodings of variable length: `bytes`, `str`, numbers written as digits, `json`, and `pkl` for data of other writers.

JSON is written strictly and read as MosaicML reads it, within limits of size and depth. Reading a pickle runs code that
it contains; nothing else in Smalti unpickles data.
"""

import json
import pickle
import pickletools
from decimal import Decimal
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encodings.encoding import Bytes1d, Encoding, Int64s, kind_of, split
from smalti.format.json_fields import finite_float, is_deeper_than, refuse_constant, unique_keys

_MAX_BYTES = 1 << 26
"""A parsed value takes up to thirty times the memory of its text: 64 MiB of text are 2 GB."""
_MAX_DEPTH = 512
"""Levels of nesting; Python's own parser fails somewhere near 1000, depending on the stack of its caller."""


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


class Json(Encoding):
    """Anything that JSON can hold, without NaN or infinities, and with texts that UTF-8 can hold."""

    def encode(self, value: Any) -> bytes:
        """Return JSON text; an array becomes nested lists; bytes are accepted if they are strict JSON already."""
        try:
            if isinstance(value, bytes):
                parsed = _parse(
                    value, parse_constant=refuse_constant, parse_float=finite_float, object_pairs_hook=unique_keys
                )
                _refuse_surrogates(value, parsed)
                return value
            if isinstance(value, np.ndarray):
                value = value.tolist()
            data = json.dumps(value, allow_nan=False).encode("ascii")
            if _parse(data) != value:
                _explain_difference(value, "$")
            _refuse_surrogates(data, value)
        except SchemaError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)  # without the content
            raise SchemaError(f"a value that strict JSON cannot hold: {reason}") from error
        return data

    def decode(self, data: bytes) -> Any:
        """Return what `json.loads` returns, so NaN is accepted where other writers stored it."""
        return _parse(data)


def _parse(data: bytes, **hooks: Any) -> Any:
    if len(data) > _MAX_BYTES:
        raise FormatError(f"{len(data)} bytes of JSON are more than the {_MAX_BYTES} allowed.")
    try:
        value = json.loads(data.decode("utf-8"), **hooks)
    except RecursionError as error:
        raise _too_deep() from error
    # Cheap pre-check: only values with many brackets are walked.
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH and is_deeper_than(value, _MAX_DEPTH):
        raise _too_deep()
    return value


def _refuse_surrogates(data: bytes, value: Any) -> None:
    """Raise SchemaError if a text of a JSON value, which has this JSON text, has an unpaired surrogate."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise SchemaError(
            "a value that strict JSON cannot hold: a text has an unpaired surrogate, which UTF-8 cannot hold"
        ) from error


def _too_deep() -> FormatError:
    return FormatError(f"JSON that is nested more than {_MAX_DEPTH} levels deep.")


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
    elif json.loads(json.dumps(value)) != value:
        raise SchemaError(f"{kind_of(value)} at {path} would be changed by JSON.")


class Pickle(Encoding):
    """Anything that Python can pickle; only available with `allow_unsafe_types=True`."""

    def encode(self, value: Any) -> bytes:
        """Return a pickle of Python's default protocol; bytes are accepted if they are a pickle, as MosaicML does."""
        if isinstance(value, bytes):
            last = 0
            try:
                for _, _, place in pickletools.genops(value):  # stops at the opcode that ends a pickle
                    last = place or 0
            except Exception as error:  # for damaged data it raises more than it documents
                raise SchemaError(
                    "expected an object, or the bytes of a pickle; these bytes are not a pickle."
                ) from error
            if last + 1 != len(value):
                raise SchemaError("expected an object, or the bytes of a pickle; something follows its end.")
            return value
        try:
            return pickle.dumps(value)
        except Exception as error:  # what a class's own methods raise is open
            raise SchemaError(f"{kind_of(value)} cannot be pickled: {type(error).__name__}.") from error

    def decode(self, data: bytes) -> Any:
        """Return the unpickled value; code in `data` runs."""
        try:
            return pickle.loads(data)  # noqa: S301 - the caller passed `allow_unsafe_types=True`
        except Exception as error:  # damaged or foreign pickles raise anything
            raise FormatError(f"unpickling it raised {type(error).__name__}.") from error
